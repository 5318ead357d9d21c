//! Linux's `rdma_rxe` in a virtual machine, for hosts that have no RDMA and cannot load modules. qemu without hardware
//! virtualization boots Debian's kernel with the initramfs of [`image`].
//!
//! The guest has only an internal network, and sees one folder of the host as `/host`. This folder holds the command to
//! run, the programs that the command needs, its exit status, and the files that the command writes there.

/// Returns a script for the guest. It consists of the common part `shared.sh`, followed by the named scripts.
macro_rules! script {
    ($($name:literal),+) => {
        concat!(
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/guest/shared.sh")),
            $(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/guest/", $name, ".sh"))),+
        )
    };
}

mod image;
mod ratios;
mod steps;
mod sysfs;

pub(crate) use ratios::measure as ratios;
pub(crate) use steps::{capture, commands, exchange, loss, middlebox, on_the_wire, qualify, two_hosts, verbs};

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::shell::{command, target};
use crate::{peers, place, programs};

/// Maximum number of console lines to show if the guest ends without an exit status.
const CONSOLE_LINES: usize = 30;

/// A guest that has not booted yet.
pub(crate) struct Guest {
    /// Programs and libraries of the host, each with the name by which the guest finds it in its `PATH`.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// Time after which the guest prints the state of its processes and shuts down.
    pub(crate) limit: Duration,
    /// Name of the guest if another guest runs at the same time. The output of a guest with a name goes to a file of
    /// this run.
    pub(crate) name: Option<&'static str>,
    /// Emulated processor, as an option of qemu.
    processor: &'static str,
}

/// Processor with everything that qemu emulates. Figures of different dates come from this one.
const WHOLE_PROCESSOR: &str = "max";

/// Processor without instructions that take longer than their replacements. qemu copies single bytes for `rep movsb`,
/// and multiplies single bits for `pclmulqdq`. Kernel and libraries then copy words, and look CRCs up in tables.
const FASTER_PROCESSOR: &str = "max,erms=off,pclmulqdq=off";

/// Maximum number of a guest's lines about failures that the summary of all steps repeats.
const COMPLAINTS_MAX: usize = 10;

/// Maximum number of lines from the end of the output to show if a guest fails.
const LINES_OF_FAILED: usize = 60;

/// Time after which a guest that has not reached its command is started again. Booting takes about ten seconds, even if
/// another guest runs. Without this limit, one guest once hung for 45 minutes.
const BOOT: Duration = Duration::from_secs(120);

/// Maximum number of starts of a guest.
const BOOTS_MAX: u32 = 3;

/// Time that a guest gets for its shutdown after [`Guest::limit`]. After this time, the guest is killed.
const GRACE: Duration = Duration::from_secs(60);

/// Outcome of a guest.
pub(crate) struct Ended {
    /// Exit status of the guest's command.
    pub(crate) status: i32,
    /// Lines of the output that contain "FAILED".
    complaints: Vec<String>,
    /// Files that the command left in `/host`.
    shared: Folder,
}

/// Folder of a guest on the host. Dropping this value removes the folder.
struct Folder(PathBuf);

/// Installs the packages for guests. Returns a message if packages are still missing.
pub(crate) fn missing() -> Option<String> {
    peers::install_for_guests();
    let missing = peers::missing_for_guests();
    (!missing.is_empty()).then(|| format!("the virtual machine needs Debian's {}", missing.join(", ")))
}

impl Guest {
    /// Returns a guest with the command `doorbell` and its library. Both files must be built before.
    pub(crate) fn new(limit: Duration) -> Self {
        let files = programs::BUILT.map(|name| (name.to_owned(), programs::built().join(name)));
        Self { files: files.into(), limit, name: None, processor: WHOLE_PROCESSOR }
    }

    /// Returns the guest of a step of the test run. A guest with a name runs beside another guest, so its output goes
    /// to a file.
    pub(crate) fn of_step(name: Option<&'static str>) -> Self {
        Self { name, processor: FASTER_PROCESSOR, ..Self::new(steps::LIMIT) }
    }

    /// Boots the guest, runs a script in the guest's shell, prints its output, and waits until the guest has shut down.
    pub(crate) fn run(&self, script: &str) -> Result<Ended, String> {
        let image = image::build(&target().join("xtask").join("vm"))?;
        let shared = Folder(place::own_file("host"));
        let folder = &shared.0;
        self.share(folder, script).map_err(|error| format!("{}: {error}", folder.display()))?;
        let console = folder.with_extension("console.txt");
        let start = Instant::now();
        let log = self.name.map(|name| place::own_file(&format!("{}.txt", name.replace([' ', ','], "-"))));
        let (mut child, printed) = self.boot(&image, folder, &console, log.as_deref())?;
        let ended = wait(&mut child, self.limit + GRACE, || false);
        // The pipe ends when qemu ends, and then the thread ends too. If the thread panicked, its message is already
        // printed.
        let complaints = printed.join().unwrap_or_default();
        let status = fs::read_to_string(folder.join("status")).ok().and_then(|text| text.trim().parse::<i32>().ok());
        if let (Some(log), false) = (&log, ended && status == Some(0)) {
            println!("the end of the guest's output, {}:\n{}", log.display(), tail(log, LINES_OF_FAILED));
        }
        let console = || format!("; its console:\n{}", tail(&console, CONSOLE_LINES));
        if !ended {
            let patience = (self.limit + GRACE).as_secs();
            return Err(format!("the guest did not end within {patience} s{}", console()));
        }
        let status = status.ok_or_else(|| format!("the guest ended without an exit status{}", console()))?;
        let name = self.name.map(|name| format!("{name}: ")).unwrap_or_default();
        eprintln!("{name}guest: exit status {status} after {:.1} s", start.elapsed().as_secs_f64());
        Ok(Ended { status, complaints, shared })
    }

    /// Boots the guest, and boots it again if it does not reach its command within [`BOOT`]. Returns once the guest has
    /// reached its command or has ended.
    fn boot(
        &self,
        image: &image::Image,
        folder: &Path,
        console: &Path,
        log: Option<&Path>,
    ) -> Result<(Child, JoinHandle<Vec<String>>), String> {
        for _ in 0..BOOTS_MAX {
            let mut child = qemu(image, folder, console, self.processor)
                .spawn()
                .map_err(|error| format!("qemu-system-x86_64 could not be started: {error}"))?;
            let pipe = child.stdout.take().ok_or("qemu-system-x86_64 has no standard output")?;
            let printed = print(pipe, log.map(Path::to_owned));
            let booted = folder.join("booted");
            if wait(&mut child, BOOT, || booted.exists()) {
                return Ok((child, printed));
            }
            // The thread ends, because the pipe ends when qemu ends.
            let _ = printed.join();
            let patience = BOOT.as_secs();
            eprintln!(
                "the guest has not reached its command within {patience} s; console:\n{}",
                tail(console, CONSOLE_LINES)
            );
        }
        Err(format!("the guest did not reach its command in {BOOTS_MAX} attempts"))
    }

    /// Fills the folder that the guest sees.
    fn share(&self, folder: &Path, script: &str) -> std::io::Result<()> {
        let opt = folder.join("opt");
        fs::create_dir_all(&opt)?;
        for (name, file) in &self.files {
            fs::copy(file, opt.join(name))
                .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
        }
        fs::write(folder.join("limit"), self.limit.as_secs().to_string())?;
        fs::write(folder.join("command"), script)
    }
}

impl Ended {
    /// Returns an error if the command failed. The error contains the lines with "FAILED".
    pub(crate) fn passed(&self) -> Result<(), String> {
        if self.status == 0 {
            return Ok(());
        }
        let said = self.complaints.iter().map(|line| format!("; {line}")).collect::<String>();
        Err(format!("the command in the guest ended with status {}{said}", self.status))
    }

    /// Returns the content of a file that the command left.
    fn text(&self, name: &str) -> Result<String, String> {
        let path = self.shared.0.join(name);
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Moves the files that the command left to a folder.
    pub(crate) fn keep(&self, to: &Path) -> Result<(), String> {
        let mut files = Vec::new();
        let mut list = || -> std::io::Result<()> {
            fs::create_dir_all(to)?;
            for entry in fs::read_dir(&self.shared.0)? {
                let path = entry?.path();
                let own = ["opt", "booted", "command", "limit", "status"].iter().any(|name| path.ends_with(name));
                if !own && path.is_file() {
                    files.push(path);
                }
            }
            Ok(())
        };
        list().map_err(|error| format!("{}: {error}", to.display()))?;
        files.iter().try_for_each(|file| place::publish(file, &to.join(file.file_name().unwrap_or_default())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // `keep` has moved the files that the caller needs. If the removal fails, the folder disappears later with the
        // folder of this run.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn qemu(image: &image::Image, folder: &Path, console: &Path, processor: &str) -> Command {
    let mut qemu = command("qemu-system-x86_64", &[]);
    let path = |option: &str, path: &Path, rest: &str| {
        let mut text = OsString::from(option);
        text.push(path);
        text.push(rest);
        text
    };
    // The guest reads the clock from the processor (TSC), as real machines do. Otherwise each read is a system call
    // and an access to an emulated HPET under qemu's global lock. The software RNIC reads the clock at every poll.
    // The kernel does not test its cryptography at each boot, which would take seconds.
    let kernel = "console=ttyS0 quiet panic=-1 mitigations=off clocksource=tsc tsc=reliable cryptomgr.notests";
    // One processor would hide races, and more than two would be too slow. Do not use KVM, because with the nested KVM
    // of some hosts, this kernel does not boot.
    qemu.args(["-accel", "tcg,thread=multi", "-cpu", processor, "-smp", "2", "-m", "2048"])
        .args(["-display", "none", "-monitor", "none", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.initramfs)
        .args(["-append", kernel])
        .arg("-serial")
        .arg(path("file:", console, ""))
        .args(["-serial", "stdio"])
        .arg("-virtfs")
        .arg(path("local,mount_tag=host,security_model=none,path=", folder, ""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    qemu
}

/// Waits until qemu has ended or `done` returns true. Kills qemu at the time limit and returns false in this case.
fn wait(child: &mut Child, limit: Duration, done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && !done() {
        if start.elapsed() >= limit {
            // Ignore an error, because qemu may just have ended.
            let _ = child.kill();
            let _ = child.wait();
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    true
}

/// Starts a thread that prints the output of a guest, or writes the output to a file. The thread returns the lines with
/// "FAILED".
fn print(pipe: ChildStdout, log: Option<PathBuf>) -> JoinHandle<Vec<String>> {
    thread::spawn(move || {
        let log = log.map(fs::File::create);
        let mut complaints = Vec::new();
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            // A line that cannot be written to the log is printed, so that no line is lost.
            let is_written = matches!(&log, Some(Ok(file)) if writeln!(&mut &*file, "{line}").is_ok());
            if !is_written {
                println!("{line}");
            }
            if line.contains("FAILED") && complaints.len() < COMPLAINTS_MAX {
                complaints.push(line.to_owned());
            }
        }
        complaints
    })
}

/// Returns the last lines of a file.
fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
