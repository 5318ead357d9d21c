//! The programs of `docs/programs.md`, as a table of rows. The page prints each row, `cargo xtask programs` runs each
//! row, and `cargo xtask compare --programs` measures each row beside TCP. A part of the page is generated from the
//! table and from a dated record of figures. A test checks that this part is up to date.

pub(super) mod read;
mod record;
mod rows;
mod text;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::ports::{PORT_PATIENCE, is_taken, wait_until_listening};
use super::transfers::{Source, python};
use super::{NO_CLOCK, OTHER_TRIES, Started, built, start};
use crate::shell::root;
use crate::{peers, place};

pub(crate) use read::Read;
pub(crate) use record::measure;
pub(crate) use text::write;

/// Time after which a program counts as hanging. No program takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Quotient of the repetitions of a measurement and those of a check, whose figures are thrown away.
const LESS: u64 = 10;

/// Minimum number of repetitions that a check reduces. Smaller numbers are those of processes.
const MANY: u64 = 1000;

/// Row of the page: a run, its checks, and its measurements.
pub(crate) struct Row {
    /// Name of the program. All rows of a program are adjacent.
    pub(crate) program: &'static str,
    /// Title of the row.
    pub(crate) what: &'static str,
    pub(crate) ours: Commands,
    /// Commands of the same or a similar run over TCP.
    pub(crate) tcp: Option<Commands>,
    /// Text for the page that names what the run checks, in addition to the success of both programs.
    pub(crate) checked: &'static str,
    /// Words that the client or the server must print.
    pub(crate) words: &'static [&'static str],
    /// Function that controls the run, if the programs do not end by themselves.
    pub(crate) drive: Option<Drive>,
    pub(crate) needs: Needs,
    /// Whether [`check`] runs the row only if its program is named, because the row takes long or needs PyPI.
    pub(crate) apart: bool,
    pub(crate) figures: &'static [Figure],
}

/// Files that a row needs beside the programs of Debian.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Needs {
    Nothing,
    /// A program of this repository, in the folder of the run. Its name is that of the source without extension.
    Program(Source),
    /// The folder `xtask/programs/transfers`, under the name `transfers`, and a `python` with the packages of PyPI.
    Scripts,
}

/// Commands of a server and a client, as a user types them in two terminals. A program without a server has only the
/// client's command.
#[derive(Clone, Copy)]
pub(crate) struct Commands {
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    /// Port on which the server must listen before the client starts.
    pub(crate) port: u16,
}

impl Commands {
    pub(crate) const fn pair(server: &'static str, client: &'static str, port: u16) -> Self {
        Self { server, client, port }
    }

    /// Creates a row's commands from a single command, which starts all processes itself.
    pub(crate) const fn alone(client: &'static str) -> Self {
        Self { server: "", client, port: 0 }
    }

    /// Returns the commands in the order of their start.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &'static str> {
        [self.server, self.client].into_iter().filter(|line| !line.is_empty())
    }
}

/// Function that controls the programs of a row while they run, and checks them. It returns the text that contains the
/// figures.
pub(crate) type Drive = fn(&Run<'_>) -> Result<String, String>;

/// A figure of a run.
pub(crate) struct Figure {
    /// Name of the figure: `one way, 64 B`.
    pub(crate) of: &'static str,
    pub(crate) unit: Unit,
    pub(crate) read: Read,
    /// Format of the same figure over TCP, if the programs over TCP print this figure.
    pub(crate) tcp: Option<Read>,
    /// Bytes of all buffers that messages use in turn, of both ends together: on Doorbell, and over TCP. `None` for
    /// short messages, and if the bytes are unknown.
    pub(crate) buffer_bytes: Option<[u64; 2]>,
    /// Whether the ends over TCP sleep until bytes arrive, while those on Doorbell poll.
    pub(crate) tcp_sleeps: bool,
    /// Whether the time over TCP is of one way, while that on Doorbell includes an acknowledgement.
    pub(crate) tcp_is_one_way: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Microseconds,
    Milliseconds,
    GigabytesPerSecond,
    /// Millions of messages per second.
    MillionsPerSecond,
}

impl Unit {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::GigabytesPerSecond => "GB/s",
            Self::MillionsPerSecond => "M/s",
        }
    }
}

/// Returns all rows, in the order of the page.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    rows::ROWS.iter()
}

/// Returns the names of the programs.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = rows().map(|row| row.program).collect();
    names.dedup();
    names
}

/// Runs the rows of the programs in `only`, or all rows but those apart. Each row must succeed, pass its checks, and
/// print its figures.
pub(crate) fn check(only: &[&str]) -> Result<(), String> {
    peers::install_for_page()?;
    peers::install_for_transfers()?;
    let mut failures = Vec::new();
    let mut count = 0;
    for row in rows().filter(|row| row.is_selected(only)) {
        count += 1;
        let begun = Instant::now();
        let outcome = row
            .run(&row.ours, true)
            .and_then(|said| row.figures.iter().try_for_each(|figure| figure.read(figure.read, &said).map(drop)));
        eprintln!("{:>5.1} s  {}, {}", begun.elapsed().as_secs_f64(), row.program, row.what);
        if let Err(why) = outcome {
            let why = format!("{}, {}: {why}", row.program, row.what);
            eprintln!("FAILED: {why}");
            failures.push(why);
        }
    }
    eprintln!("{count} rows of docs/programs.md, {} failures", failures.len());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

impl Row {
    /// Returns whether [`check`] runs the row, with these names of programs.
    fn is_selected(&self, only: &[&str]) -> bool {
        if only.is_empty() { !self.apart } else { only.contains(&self.program) }
    }

    /// Runs the row, and returns the output of its programs. A check has fewer repetitions than a measurement, and the
    /// debug messages of Doorbell.
    fn run(&self, commands: &Commands, is_check: bool) -> Result<String, String> {
        let mut result = self.run_once(commands, is_check);
        // The ports in the page are fixed. In a shared network, wait until another run releases the ports.
        let until = Instant::now() + PORT_PATIENCE;
        while result.as_ref().is_err_and(|why| is_taken(why)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(200));
            result = self.run_once(commands, is_check);
        }
        for _ in 0..OTHER_TRIES {
            if !result.as_ref().is_err_and(|why| why.contains(NO_CLOCK)) {
                break;
            }
            result = self.run_once(commands, is_check);
        }
        result
    }

    fn run_once(&self, commands: &Commands, is_check: bool) -> Result<String, String> {
        let folder = fresh_folder()?;
        let run = Run { commands, path: self.needs.provide(&folder)?, folder, is_check };
        let said = match self.drive {
            Some(drive) => drive(&run)?,
            None => run.to_its_end()?,
        };
        // The words are printed only by the run on Doorbell, so do not search them in the output of the run over TCP.
        let words = if std::ptr::eq(commands, &raw const self.ours) { self.words } else { &[] };
        match words.iter().find(|word| !said.contains(**word)) {
            Some(missing) => Err(format!("{missing:?} is missing in:\n{said}")),
            None => {
                // Only the folder of a good run is removed, because the folder of a failed run may contain a core file.
                fs::remove_dir_all(&run.folder).map_err(|error| format!("{}: {error}", run.folder.display()))?;
                Ok(said)
            }
        }
    }
}

impl Figure {
    fn read(&self, read: Read, said: &str) -> Result<f64, String> {
        let si = read.find(said).filter(|figure| figure.is_finite() && *figure > 0.0);
        let si = si.ok_or_else(|| format!("there is no figure for {:?} in:\n{said}", self.of))?;
        Ok(match self.unit {
            Unit::Microseconds => si * 1e6,
            Unit::Milliseconds => si * 1e3,
            Unit::GigabytesPerSecond => si / 1e9,
            Unit::MillionsPerSecond => si / 1e6,
        })
    }
}

/// A run of a row's commands, in a new folder.
pub(crate) struct Run<'a> {
    commands: &'a Commands,
    /// The variable `PATH` of the commands.
    path: String,
    pub(crate) folder: PathBuf,
    is_check: bool,
}

impl Run<'_> {
    pub(in crate::programs) fn server(&self) -> Result<Started, String> {
        self.start(self.commands.server)
    }

    pub(in crate::programs) fn client(&self) -> Result<Started, String> {
        self.start(self.commands.client)
    }

    /// Returns the argument that follows `word` in the server's command.
    pub(crate) fn word_after(&self, word: &str) -> Option<&'static str> {
        self.commands.server.split(' ').skip_while(|other| *other != word).nth(1)
    }

    /// Starts a command line of the page with a shell, in the folder of this run.
    fn start(&self, line: &str) -> Result<Started, String> {
        let line = if self.is_check { shortened(line) } else { line.to_owned() };
        let mut shell = Command::new("sh");
        // `exec` replaces the shell by the program, so dropping the handle kills the program itself.
        shell.args(["-c", &format!("exec {line}")]).current_dir(&self.folder);
        // Without the variable of Python, scripts would write compiled files beside their sources.
        shell.envs([("PATH", self.path.as_str()), ("PYTHONDONTWRITEBYTECODE", "1")]);
        if self.is_check {
            shell.env("DOORBELL_LOG", "debug");
        }
        start(shell)
    }

    /// Runs both programs until they end. Returns the output of the client, followed by the output of the server.
    pub(crate) fn to_its_end(&self) -> Result<String, String> {
        if self.commands.server.is_empty() {
            return self.client()?.finish(PATIENCE);
        }
        let mut server = self.server()?;
        if self.commands.port != 0 {
            wait_until_listening(&self.commands.port.to_string(), &mut server)?;
        }
        let client = self.client()?.finish(PATIENCE);
        match (client, server.finish(PATIENCE)) {
            (Ok(client), Ok(server)) => Ok(client + &server),
            (Err(client), Err(server)) => Err(format!("{client}\nthe server: {server}")),
            (Err(why), Ok(server)) => Err(format!("{why}\nthe server: {server}")),
            (Ok(client), Err(why)) => Err(format!("the server: {why}\n{client}")),
        }
    }
}

impl Needs {
    /// Puts the files into the folder of a run, and returns the variable `PATH` of its commands.
    fn provide(self, folder: &Path) -> Result<String, String> {
        let mut path = vec![built()];
        match self {
            Self::Nothing => {}
            Self::Program(source) => {
                let name = Path::new(source.file).file_stem().unwrap_or_default();
                // Each program is compiled only for its first run.
                let kept = place::own().join(format!("{}-{}", source.compiler, name.display()));
                if !kept.exists() {
                    place::publish(Path::new(&source.build()?), &kept)?;
                }
                place::link(&kept, &folder.join(name))?;
            }
            Self::Scripts => {
                path.extend(Path::new(&python()?).parent().map(Path::to_owned));
                let (from, to) = (root().join("xtask/programs/transfers"), folder.join("transfers"));
                symlink(from, &to).map_err(|error| format!("{} could not be made: {error}", to.display()))?;
            }
        }
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let path = std::env::join_paths(path).map_err(|error| format!("PATH: {error}"))?;
        Ok(path.to_string_lossy().into_owned())
    }
}

/// Returns a command line with a tenth of its repetitions (`-n`, `-I`) and of its bytes (`--size` of fio).
fn shortened(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let is_count = words.last().is_some_and(|option| option == "-n" || option == "-I");
        let count = word.parse::<u64>().ok().filter(|count| is_count && *count >= MANY);
        let gibibytes = word.strip_prefix("--size=").and_then(|size| size.strip_suffix('g')?.parse::<u64>().ok());
        words.push(match (count, gibibytes) {
            (Some(count), _) => (count / LESS).to_string(),
            (None, Some(gibibytes)) => format!("--size={}m", 1024 * gibibytes / LESS),
            (None, None) => word.to_owned(),
        });
    }
    words.join(" ")
}

/// Creates an empty folder.
fn fresh_folder() -> Result<PathBuf, String> {
    let folder = place::own_file("page");
    fs::create_dir_all(&folder).map_err(|error| format!("{} could not be made: {error}", folder.display()))?;
    Ok(folder)
}

/// Returns the path of the page.
fn page() -> PathBuf {
    root().join("docs/programs.md")
}

fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{} could not be read: {error}", path.display()))
}

fn write_text(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("{} could not be written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_have_a_tenth_of_the_repetitions() {
        for (line, shorter) in [
            ("ib_send_lat -F -s 16 -n 400000 127.0.0.1", "ib_send_lat -F -s 16 -n 40000 127.0.0.1"),
            ("fi_pingpong -p 'verbs' -e msg -S 64 -c -I 150000", "fi_pingpong -p 'verbs' -e msg -S 64 -c -I 15000"),
            ("fio --bs=64k --size=8g --rw=read", "fio --bs=64k --size=819m --rw=read"),
            ("mpirun -n 2 --mca pml ucx \\\n    ./mpi_speed", "mpirun -n 2 --mca pml ucx \\\n    ./mpi_speed"),
            ("rping -s -p 18620 -V -C 200 -S 50000", "rping -s -p 18620 -V -C 200 -S 50000"),
        ] {
            assert_eq!(shortened(line), shorter);
        }
    }
}
