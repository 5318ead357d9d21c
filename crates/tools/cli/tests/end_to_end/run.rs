//! `doorbell run` and `doorbell env`. `cargo xtask test` tests the preloaded library with real programs. In most of
//! these tests, a text file replaces the library, and the dynamic linker ignores this file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::command::{PATIENCE, Running, doorbell, list, measuring, number, run};
use crate::counters::World;
use crate::terminal::{Session, Terminal};

/// A file in place of the library. Dropping this handle removes it.
struct Library(PathBuf);

impl Library {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("doorbell-{}-{name}.so", std::process::id()));
        fs::write(&path, "no library").expect("the temporary folder can be written");
        Self(path)
    }

    fn with(&self, mut command: Command) -> Command {
        command.env("DOORBELL_PRELOAD_LIB", &self.0).env_remove("LD_PRELOAD");
        command
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_program_gets_its_environment_and_gives_its_status() {
    let library = Library::new("run");
    let mut command =
        library.with(doorbell("run --bind 127.0.0.9 --stats --vendor-id 0x2c9:4119 --fault drop=0.5 --link auto --"));
    command.args([
        "sh",
        "-c",
        "echo $DOORBELL_BIND $DOORBELL_STATS $DOORBELL_VENDOR_ID $DOORBELL_FAULT $DOORBELL_LINK $LD_PRELOAD; exit 7",
    ]);
    let finished = Running::start(command).finish().expect_status(7);
    let expected = format!("127.0.0.9 1 0x2c9:4119 drop=0.5,seed=0 auto {}\n", library.0.display());
    assert_eq!(finished.stdout, expected);
}

/// `cargo install` puts the library beside the command, as a second program.
#[test]
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn the_second_program_can_be_preloaded() {
    let mut command = doorbell("run -- ls /sys/class/infiniband");
    command.env("DOORBELL_PRELOAD_LIB", env!("CARGO_BIN_EXE_libdoorbell_ibverbs")).env_remove("LD_PRELOAD");
    let finished = Running::start(command).finish().expect_status(0);
    assert!(finished.stdout.contains("doorbell0"), "{finished:?}");
}

#[test]
fn the_library_of_another_installation_is_refused() {
    let (library, home) = (Library::new("own"), tempfile::tempdir().expect("a temporary folder can be created"));
    let other = home.path().join("libdoorbell_ibverbs.so");
    // The dynamic linker ignores a file that is no library.
    fs::write(&other, "no library").expect("the temporary folder can be written");
    let mut command = library.with(doorbell("env"));
    command.env("LD_PRELOAD", &other);
    let finished = Running::start(command).finish();
    assert_eq!(finished.status.code(), Some(1));
    for words in ["two versions of doorbell meet", "unset LD_PRELOAD"] {
        assert!(finished.stderr.contains(words), "{}", finished.stderr);
    }
}

#[test]
fn a_program_gets_the_rules_of_a_fault_plan() {
    let library = Library::new("plan");
    let mut command = library.with(doorbell("run --fault-plan lost-ack --"));
    command.args(["sh", "-c", "echo $DOORBELL_FAULT"]);
    let finished = Running::start(command).finish().expect_status(1);
    assert_eq!(finished.stdout, "seed=0;drop name=lost-ack opcode=ack nth=1\n");
    assert!(finished.stderr.contains("fault rule 1 never fired: drop name=lost-ack"), "{}", finished.stderr);
}

/// The script stands for the processes of a program, which append to the journal.
#[test]
fn a_rule_that_no_process_fired_is_an_error_at_the_end() {
    let library = Library::new("unfired");
    let run = |options: &[&str], script: &str| {
        let mut command = library.with(doorbell("run"));
        command.args(options).args(["--", "sh", "-c", script]);
        Running::start(command).finish()
    };
    let fired = "sh -c 'echo \"{\\\"rule\\\":1,\" >> $DOORBELL_FAULT_JOURNAL'";
    let one = ["--fault", "drop nth=1"];
    let finished = run(&one, &format!("{fired}; echo $DOORBELL_FAULT_JOURNAL")).expect_status(0);
    assert!(!finished.stderr.contains("never fired"), "{}", finished.stderr);
    let journal = std::path::Path::new(finished.stdout.trim());
    assert!(journal.is_absolute() && !journal.exists(), "the journal {} is left", journal.display());
    let finished = run(&["--fault", "drop nth=1;drop nth=2"], fired).expect_status(1);
    assert!(finished.stderr.contains("fault rule 2 never fired"), "{}", finished.stderr);
    assert!(!finished.stderr.contains("fault rule 1 never fired"), "{}", finished.stderr);
    // The status of a program that fails, and the signal that ends a program, stay the same.
    let finished = run(&one, "exit 7").expect_status(7);
    assert!(finished.stderr.contains("fault rule 1 never fired"), "{}", finished.stderr);
    assert_eq!(run(&one, "kill -TERM $$").status.signal(), Some(15));
    run(&one, "trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.05; done").expect_status(5);
    // Nor does a journal that cannot be read change them.
    let spoil = "printf '\\377' > $DOORBELL_FAULT_JOURNAL";
    for (end, status) in [("exit 7", 7), ("exit 0", 1)] {
        let finished = run(&one, &format!("{spoil}; {end}")).expect_status(status);
        assert!(finished.stderr.contains("cannot be read"), "{}", finished.stderr);
    }
    assert_eq!(run(&one, &format!("{spoil}; kill -TERM $$")).status.signal(), Some(15));
    // Without a required rule, `doorbell` becomes the program.
    let finished = run(&["--fault", "drop nth=1 optional"], "echo $DOORBELL_FAULT_JOURNAL").expect_status(0);
    assert_eq!(finished.stdout, "\n");
    // A device with its own plan has its own journal.
    let of_device = ["--devices", "2", "--device", "doorbell1:fault=drop nth=1"];
    run(&of_device, fired).expect_status(1);
    run(&of_device, &fired.replace("_JOURNAL", "_JOURNAL.doorbell1")).expect_status(0);
}

#[test]
fn a_program_gets_the_list_of_devices() {
    let library = Library::new("devices");
    let options = "--devices 2 --bind 127.0.0.8,127.0.0.9 --device doorbell1:numa=1,fault=drop=0.5,seed=7";
    let mut command = library.with(doorbell(&format!("run {options} --")));
    command.args(["sh", "-c", "echo $DOORBELL_DEVICES $DOORBELL_BIND $DOORBELL_DEVICE1"]);
    let finished = Running::start(command).finish().expect_status(0);
    assert_eq!(finished.stdout, "2 127.0.0.8,127.0.0.9 numa=1,fault=drop=0.5,seed=7\n");
    // The number of devices may also come from the environment.
    let mut command = library.with(doorbell("env --device doorbell1:speed=200 --json"));
    command.env("DOORBELL_DEVICES", "2");
    assert_eq!(Running::start(command).finish().expect_status(0).json()["DOORBELL_DEVICE1"], "speed=200");
    // One device with a fault plan is enough for a journal.
    let journal = tempfile::tempdir().unwrap();
    let journal = journal.path().join("faults.json");
    let options = format!("env --json --device doorbell0:fault=drop=0.5 --fault-journal {}", journal.display());
    let variables = Running::start(library.with(doorbell(&options))).finish().expect_status(0).json();
    assert_eq!(variables["DOORBELL_FAULT_JOURNAL"], journal.to_str().unwrap());
}

#[test]
fn wrong_lists_of_devices_are_errors() {
    let library = Library::new("lists");
    for (options, words) in [
        ("--devices 0", "is \"0\", allowed is 1 to 64"),
        ("--devices 65", "is \"65\", allowed is 1 to 64"),
        ("--devices few", "is \"few\", allowed is 1 to 64"),
        ("--devices 2 --bind 127.0.0.9", "is 1, and the number of software RNICs"),
        ("--devices 2 --bind 127.0.0.9,127.0.0.9", "127.0.0.9 is the address of two devices"),
        ("--bind 127.0.0.9,here", "invalid value 'here'"),
        ("--device doorbell1:numa=1", "there is no software RNIC doorbell1, only doorbell0"),
        ("--devices 2 --device doorbell64:numa=1", "there is no software RNIC doorbell64, only doorbell0 to doorbell1"),
        ("--device mlx5_0:numa=1", "--device mlx5_0:numa=1: must be NAME:OPTIONS"),
        ("--device doorbell0", "--device doorbell0: must be NAME:OPTIONS"),
        ("--device doorbell0:numa=x", "options of doorbell0: numa is \"x\""),
        ("--device doorbell0:numa=1 --device doorbell0:speed=100", "--device doorbell0 is given twice"),
    ] {
        let command = library.with(doorbell(&format!("run {options} -- true")));
        Running::start(command).finish().expect_complaint(2, &[words]);
    }
}

#[test]
fn a_program_needs_no_dashes_before_it() {
    let library = Library::new("dashes");
    for options in ["run", "run --", "run --stats", "run --stats --"] {
        let mut command = library.with(doorbell(options));
        // Arguments after the program belong to the program, even if they look like options.
        command.args(["sh", "-c", "echo $DOORBELL_STATS $DOORBELL_PORT $0 $*", "--udp-port", "7", "--", "-h"]);
        let stats = if options.contains("--stats") { "1 " } else { "" };
        assert_eq!(
            Running::start(command).finish().expect_status(0).stdout,
            format!("{stats}--udp-port 7 -- -h\n"),
            "{options}"
        );
    }
    run("run --no-such-option ibv_devices").expect_complaint(2, &["--no-such-option"]);
}

#[test]
fn a_program_is_the_same_process() {
    let library = Library::new("process");
    let mut command = library.with(doorbell("run --"));
    command.args(["sh", "-c", "echo $$"]);
    let running = Running::start(command);
    let id = running.id();
    assert_eq!(running.finish().expect_status(0).stdout, format!("{id}\n"));
}

/// The parent process sees the exit status of the program, as if the parent had started the program directly.
#[test]
fn the_parent_sees_the_signal_that_ended_a_program() {
    let library = Library::new("signal");
    let mut command = library.with(doorbell("run --"));
    command.args(["sh", "-c", "kill -KILL $$"]);
    assert_eq!(Running::start(command).finish().status.signal(), Some(9));
    // The command ignores SIGPIPE, and a shell keeps signals ignored that its parent ignored. So the command must
    // restore the default action of SIGPIPE.
    let mut command = library.with(doorbell("run --"));
    command.args(["sh", "-c", "kill -PIPE $$"]);
    assert_eq!(Running::start(command).finish().status.signal(), Some(13));
    let mut shell = library.with(Command::new("sh"));
    shell.args(["-c", "\"$0\" run -- sh -c 'kill -TERM $$'; echo $?", env!("CARGO_BIN_EXE_doorbell")]);
    assert_eq!(Running::start(shell).finish().expect_status(0).stdout, "143\n");
}

#[test]
fn children_of_a_program_inherit_the_environment() {
    let library = Library::new("children");
    let mut command = library.with(doorbell("run --udp-port 5000 --"));
    command.args(["sh", "-c", "(env | grep -E '^(LD_PRELOAD|DOORBELL_PORT)=' | sort) & wait"]);
    let finished = Running::start(command).finish().expect_status(0);
    assert_eq!(finished.stdout, format!("DOORBELL_PORT=5000\nLD_PRELOAD={}\n", library.0.display()));
}

/// ^C sends SIGINT to all processes of the terminal's process group, and all of them end.
#[test]
fn an_interrupt_ends_all_processes_of_a_program() {
    let library = Library::new("interrupt");
    let terminal = Terminal::new();
    let mut command = library.with(doorbell("run --"));
    command.args(["sh", "-c", "sleep 1000 | (echo started; exec sleep 1000)"]);
    let mut running = terminal.start(command, Session::Own);
    terminal.wait_for("started");
    // The process leads its session, and therefore its process group.
    let group = Pid::from_raw(running.id() as i32);
    terminal.press("\u{3}");
    assert_eq!(running.end().signal(), Some(Signal::SIGINT as i32));
    let until = Instant::now() + PATIENCE;
    while killpg(group, None) != Err(Errno::ESRCH) {
        assert!(Instant::now() < until, "a process of the group is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A watched program gets each signal once: from the terminal, or from the command that `kill` names.
#[test]
fn a_watched_program_gets_interrupts_of_the_terminal_and_of_kill() {
    let library = Library::new("interrupts");
    let terminal = Terminal::new();
    let mut command = library.with(doorbell("run --fault"));
    let script = "trap 'n=$((n + 1)); echo interrupt $n' INT; trap 'exit 5' QUIT; echo started; \
                  while :; do sleep 0.05; done";
    command.args(["drop nth=1", "--", "sh", "-c", script]);
    let mut running = terminal.start(command, Session::Own);
    terminal.wait_for("started");
    terminal.press("\u{3}");
    terminal.wait_for("interrupt 1");
    // A second copy of the signal would arrive within this time.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!terminal.said().contains("interrupt 2"), "{}", terminal.said());
    let command = Pid::from_raw(running.id() as i32);
    kill(command, Signal::SIGINT).unwrap();
    terminal.wait_for("interrupt 2");
    kill(command, Signal::SIGQUIT).unwrap();
    assert_eq!(running.end().code(), Some(5));
}

/// The terminal sends nothing to a program that has left the process group of the command.
#[test]
fn a_watched_program_with_its_own_process_group_is_interrupted() {
    let library = Library::new("own-group");
    let terminal = Terminal::new();
    let mut command = library.with(doorbell("run --fault"));
    let script = "trap 'exit 5' INT; echo started; while :; do sleep 0.05; done";
    command.args(["drop nth=1", "--", "timeout", "600", "sh", "-c", script]);
    let mut running = terminal.start(command, Session::Own);
    terminal.wait_for("started");
    terminal.press("\u{3}");
    assert_eq!(running.end().code(), Some(5));
}

#[test]
fn a_watched_program_gets_all_of_several_signals() {
    let library = Library::new("several");
    let mut command = library.with(doorbell("run --fault"));
    let script = "for name in USR1 USR2 ALRM TERM CONT WINCH; do trap 'n=$((n + 1))' $name; done; \
                  for name in TERM USR1 WINCH USR2 CONT ALRM; do kill -$name $PPID; done; \
                  until [ \"$n\" = 6 ]; do sleep 0.05; done; exit 5";
    command.args(["drop nth=1", "--", "sh", "-c", script]);
    Running::start(command).finish().expect_status(5);
}

/// A signal stops the program like ^Z, and a shell continues the program.
#[test]
fn a_program_is_stopped_and_goes_on() {
    let library = Library::new("stop");
    let terminal = Terminal::new();
    let mut shell = library.with(Command::new("sh"));
    // The outer shell has job control, like a shell on a terminal.
    let script = "set -m; \"$0\" run -- sh -c 'kill -STOP $$; echo goes on'; echo stopped; fg >/dev/null; echo is $?";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_doorbell")]);
    let mut running = terminal.start(shell, Session::Own);
    terminal.wait_for("is 0");
    assert!(running.end().success());
    let said = terminal.said();
    let order = ["stopped", "goes on", "is 0"].map(|words| said.find(words).unwrap_or(usize::MAX));
    assert!(order.is_sorted(), "{said}");
}

#[test]
fn a_watched_program_that_does_not_start_has_no_unfired_rules() {
    let library = Library::new("unstarted");
    let mut command = library.with(doorbell("run --fault"));
    command.args(["drop nth=1", "--", "/no/such/program"]);
    let finished = Running::start(command).finish().expect_status(1);
    assert_eq!(finished.stderr.matches("/no/such/program could not be started").count(), 1, "{}", finished.stderr);
    assert!(!finished.stderr.contains("never fired"), "{}", finished.stderr);
}

/// `cargo install` installs no drop-in libraries, and the command has no folder for them here.
#[test]
#[cfg(target_env = "gnu")]
fn a_watched_program_causes_the_note_of_drop_ins_once() {
    let home = tempfile::tempdir().expect("a temporary folder can be created");
    let library = home.path().join("libdoorbell_ibverbs");
    fs::write(&library, "no library").expect("the temporary folder can be written");
    // Not even root can write to /proc.
    for home in [None, Some("/proc/none")] {
        let mut command = doorbell("run --fault");
        command.args(["drop nth=1", "--", "sh", "-c", "exit 7"]);
        command.env("DOORBELL_PRELOAD_LIB", &library).env_remove("LD_PRELOAD");
        command.env_remove("HOME").env_remove("XDG_CACHE_HOME").envs(home.map(|home| ("HOME", home)));
        let said = Running::start(command).finish().expect_status(7).stderr;
        assert_eq!(said.matches("no drop-in for programs").count(), 1, "{said}");
        assert!(said.contains("; set XDG_CACHE_HOME to a folder that can be written"), "{said}");
    }
}

/// The kernel discards the status of children of a process that ignores SIGCHLD.
#[test]
fn a_watched_program_ignores_sigchld_as_the_caller_does() {
    let library = Library::new("sigchld");
    let ignored = |options: [&str; 2]| {
        let mut command = library.with(Command::new("env"));
        command.args(options).args([env!("CARGO_BIN_EXE_doorbell"), "run", "--fault", "drop nth=1", "--"]);
        // Shells set the action of SIGCHLD. The missing file gives a status of its own.
        command.args(["grep", "SigIgn", "/proc/self/status", "/no/such/file"]);
        let text = Running::start(command).finish().expect_status(2).stdout;
        let mask = text.split_whitespace().last().map(|mask| u64::from_str_radix(mask, 16)).unwrap().unwrap();
        mask & (1 << (Signal::SIGCHLD as i32 - 1)) != 0
    };
    assert!(ignored(["--ignore-signal=CHLD", "--"]));
    assert!(!ignored(["--default-signal=CHLD", "--"]));
}

/// SIGTSTP reaches the program through the command, and stops both. A shell continues both.
#[test]
fn a_watched_program_is_stopped_and_goes_on() {
    let library = Library::new("stop-watched");
    let terminal = Terminal::new();
    let mut shell = library.with(Command::new("sh"));
    let script = "set -m; \"$0\" run --fault 'drop nth=1' -- sh -c 'kill -TSTP $PPID; sleep 1; echo goes on; exit 7'; \
                  echo stopped; fg >/dev/null; echo is $?";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_doorbell")]);
    let mut running = terminal.start(shell, Session::Own);
    terminal.wait_for("is 7");
    assert!(running.end().success());
    let said = terminal.said();
    let order = ["stopped", "goes on", "is 7"].map(|words| said.find(words).unwrap_or(usize::MAX));
    assert!(order.is_sorted(), "{said}");
}

#[test]
fn a_program_that_cannot_be_reached_is_named() {
    let library = Library::new("static");
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let program = folder.path().join("program");
    // Write an ELF file of 64 bits for this machine without program headers, which the kernel does not run.
    let own = fs::read(env!("CARGO_BIN_EXE_doorbell")).expect("the command can be read");
    let mut header = own[..64].to_vec();
    header[56..58].fill(0);
    fs::write(&program, header).expect("a file can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the file belongs to this user");
    let start = |options: &str| {
        let mut command = library.with(doorbell(&format!("run {options} --")));
        command.arg("program").env("PATH", folder.path());
        Running::start(command).finish()
    };
    let explained = format!("doorbell: {} cannot be reached: it is linked statically", program.display());
    assert!(start("--explain").stderr.contains(&explained));
    assert!(!start("").stderr.contains("cannot be reached"), "not asked for");
}

/// As `execvp`, the command goes on to the next folder of `PATH` only after certain errors.
#[test]
fn a_program_that_does_not_start_hides_none_in_a_later_folder() {
    let library = Library::new("later");
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("there is room for a folder"));
    let write = |folder: usize, content: &[u8], mode: u32| {
        let file = folders[folder].path().join("program");
        fs::write(&file, content).expect("a file can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("the file belongs to this user");
    };
    let start = || {
        let mut command = library.with(doorbell("run -- program"));
        let [first, second] = [0, 1].map(|index| folders[index].path().display());
        command.env("PATH", format!("{first}:{second}:/bin:/usr/bin"));
        Running::start(command).finish()
    };
    write(1, b"#!/bin/sh\nexit 7\n", 0o755);
    write(0, b"#!/no/such/interpreter\n", 0o755);
    start().expect_status(7);
    write(0, b"#!/bin/sh\nexit 3\n", 0o644);
    start().expect_status(7);
    // The kernel does not know this format, and `execvp` does not go on after such an error.
    write(0, b"\x7fELF\x02\x01\x01\0", 0o755);
    assert!(start().expect_status(1).stderr.contains("Exec format error"));
}

/// `execvp` passes a file whose format the kernel does not know to a shell. The shell must not execute the bytes of a
/// binary.
#[test]
fn foreign_binaries_are_rejected_and_scripts_run_in_a_shell() {
    let library = Library::new("foreign");
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let start = |content: &[u8]| {
        let file = folder.path().join("program");
        fs::write(&file, content).expect("a file can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file belongs to this user");
        let mut command = library.with(doorbell("run -- program one two"));
        command.env("PATH", format!("{}:/bin:/usr/bin", folder.path().display())).current_dir(folder.path());
        Running::start(command).finish()
    };
    // If a shell executes this header, its first line creates the file `redirected`.
    let mut foreign = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xff\xfe >redirected\n".to_vec();
    foreign.resize(64, 0);
    let refused = start(&foreign).expect_status(1);
    assert!(refused.stderr.contains("program could not be started: Exec format error"), "{}", refused.stderr);
    let files = fs::read_dir(folder.path()).expect("the file belongs to this user");
    assert_eq!(files.count(), 1, "only the program");
    let served = start(b"echo $0 $# $2\nexit 3\n").expect_status(3);
    assert_eq!(served.stdout, format!("{}/program 2 two\n", folder.path().display()));
}

#[test]
fn processes_with_open_devices_are_listed() {
    let _one_at_a_time = measuring();
    let world = World::new();
    let none = Running::start(world.command("run --processes")).finish().expect_status(0);
    assert_eq!(none.stdout, "");
    assert!(none.stderr.contains("no process"), "{}", none.stderr);
    let empty = Running::start(world.command("run --processes --json")).finish().expect_status(0).json();
    assert_eq!((&empty["schema"], list(&empty, "/devices").len()), (&"doorbell-processes/1".into(), 0));

    let bench = Running::start(world.command("bench bw -s 4096 -D 600"));
    let until = Instant::now() + PATIENCE;
    let looked = loop {
        let looked = Running::start(world.command("run --processes --json")).finish().expect_status(0).json();
        let devices = list(&looked, "/devices");
        // Wait until both processes of the measurement have sent and received packets.
        let has_counted = |device: &Value| {
            ["tx_packets", "rx_bytes"].iter().all(|counter| device["totals"][counter].as_u64() > Some(0))
        };
        if devices.len() == 2 && devices.iter().all(has_counted) {
            break looked;
        }
        assert!(Instant::now() < until, "{looked:#}");
    };
    let [first, second] = list(&looked, "/devices") else { panic!("there are two") };
    let pids = [first, second].map(|device| number(device, "/pid"));
    assert!(pids.contains(&u64::from(bench.id())) && pids[0] < pids[1], "{pids:?}");
    for device in [first, second] {
        assert_eq!((&device["name"], &device["program"]), (&"doorbell0".into(), &"doorbell".into()));
        let address = device["address"].as_str().expect("the device has an address");
        assert_eq!(device["gid"], format!("::ffff:{address}"));
    }
    assert_ne!(first["address"], second["address"]);
    let own = [first, second]
        .into_iter()
        .find(|device| device["pid"] == bench.id())
        .expect("the process of the bench is listed");
    assert_eq!(own["command"][0], env!("CARGO_BIN_EXE_doorbell"));
    let words: Vec<&str> = list(own, "/command").iter().filter_map(Value::as_str).collect();
    assert_eq!(words[1..], ["bench", "bw", "-s", "4096", "-D", "600"]);

    let text = Running::start(world.command("run --processes")).finish().expect_status(0).stdout;
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 3, "{text}");
    for heading in ["pid", "device", "address", "GID", "packets out", "bytes in", "command"] {
        assert!(rows[0].contains(heading), "{text}");
    }
    for (row, pid) in rows[1..].iter().zip(pids) {
        assert_eq!(row.split_whitespace().next(), Some(pid.to_string().as_str()), "{text}");
    }
    let row = rows[1..].iter().find(|row| row.contains("bench bw -s 4096 -D 600")).expect("commands are whole");
    assert!(row.contains("doorbell0") && row.contains("::ffff:127.0.0."), "{text}");

    // A killed process is not listed any more. Its peer ends by itself, and is not listed either.
    bench.kill();
    let until = Instant::now() + PATIENCE;
    loop {
        let left = Running::start(world.command("run --processes")).finish().expect_status(0).stdout;
        if left.is_empty() {
            break;
        }
        assert!(Instant::now() < until, "{left}");
    }
}

#[test]
fn the_environment_is_printed_for_a_shell_and_as_json() {
    let library = Library::new("env");
    let mut command = library.with(doorbell("env --udp-port 5000 --explain"));
    command.env("LD_PRELOAD", "/lib/other.so");
    let text = Running::start(command).finish().expect_status(0).stdout;
    let path = library.0.display();
    assert_eq!(
        text,
        format!("export LD_PRELOAD={path}:/lib/other.so\nexport DOORBELL_PORT=5000\nexport DOORBELL_LOG=debug\n")
    );
    let json = Running::start(library.with(doorbell("env --udp-port 5000 --json"))).finish().expect_status(0).json();
    assert_eq!(json["DOORBELL_PORT"], "5000");
    assert_eq!(json["LD_PRELOAD"], path.to_string());
}

/// Programs that open libibverbs themselves find the drop-in libraries before those of the system.
#[test]
fn a_program_finds_the_drop_in_libraries_beside_the_library() {
    let home = tempfile::tempdir().expect("a temporary folder can be created");
    let (library, folder) = (home.path().join("library.so"), home.path().join("lib/doorbell"));
    fs::write(&library, "no library").expect("the temporary folder can be written");
    fs::create_dir_all(&folder).expect("the temporary folder can be written");
    let path_of = |others: &str| {
        let mut command = doorbell("env --json");
        command.env("DOORBELL_PRELOAD_LIB", &library).env("LD_LIBRARY_PATH", others);
        Running::start(command).finish().expect_status(0).json()["LD_LIBRARY_PATH"].clone()
    };
    assert_eq!(path_of("/other"), Value::Null, "no drop-in exists");
    fs::write(folder.join("libibverbs.so.1"), "no library").expect("the temporary folder can be written");
    assert_eq!(path_of("/other"), format!("{}:/other", folder.display()));
    assert_eq!(path_of(""), folder.display().to_string());
    let nested = format!("/other:{}", folder.display());
    assert_eq!(path_of(&nested), nested, "one `doorbell run` starts another");
}

#[test]
fn invalid_run_arguments_and_programs_are_errors() {
    run("run").expect_complaint(2, &["PROGRAM"]);
    run("run --vendor-id mellanox -- true").expect_complaint(2, &["mellanox", "0x2c9:4119"]);
    run("run --udp-port 0 -- true").expect_complaint(2, &["0"]);
    for nonsense in ["--processes -- true", "--json -- true", "--json", "--processes --pcap x", "--processes --explain"]
    {
        run(&format!("run {nonsense}")).expect_complaint(2, &["Usage"]);
    }
    let library = Library::new("none");
    let missing = Running::start(library.with(doorbell("run -- /no/such/program"))).finish();
    assert_eq!(missing.status.code(), Some(1));
    assert!(missing.stderr.contains("/no/such/program could not be started"), "{}", missing.stderr);
    let missing = Running::start(library.with(doorbell("run -- no-such-program"))).finish();
    assert!(missing.stderr.contains("no-such-program could not be started"), "{}", missing.stderr);
    assert!(missing.stderr.contains("install the program, or give its path"), "{}", missing.stderr);
    let mut command = doorbell("env");
    command.env("DOORBELL_PRELOAD_LIB", "/no/such/library.so");
    let finished = Running::start(command).finish();
    assert_eq!(finished.status.code(), Some(1));
    assert!(finished.stderr.contains("/no/such/library.so, which is not a file"), "{}", finished.stderr);
}
