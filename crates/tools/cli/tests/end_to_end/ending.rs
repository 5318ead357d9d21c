//! Every long command ends when its terminal or the reader of its output goes, and after a signal. The command restores
//! the terminal before it ends.

use std::fs;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::command::{PATIENCE, Running};
use crate::counters::World;
use crate::steer::memory_node;
use crate::terminal::{OnTerminal, Session, Terminal};

/// Purpose of a command: its printed output, or another service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Prints,
    Serves,
    /// The command has become another program (`doorbell run`), which does not watch for its terminal or reader.
    Other,
}

/// A command that would run for hours.
struct LongCommand {
    name: &'static str,
    command: Command,
    kind: Kind,
    /// Number of processes that the command starts.
    helpers: usize,
    /// The other side, if the command needs another side.
    _peer: Option<Running>,
}

/// Returns all long commands.
fn long_commands(world: &World) -> Vec<LongCommand> {
    let long = |name, arguments: &str, kind, helpers| {
        let command =
            if arguments.starts_with("counters") { world.looking(arguments) } else { world.command(arguments) };
        LongCommand { name, command, kind, helpers, _peer: None }
    };
    let (prints, serves) = (Kind::Prints, Kind::Serves);
    let mut all = vec![
        long("live view", "counters -i 3600", prints, 0),
        long("live view, drawing", "counters -i 0.1", prints, 0),
        long("lines", "counters --lines -i 3600", prints, 0),
        long("JSON", "counters --json -i 3600", prints, 0),
        long("exporter", "counters --prometheus 0", serves, 0),
        long("bench lat", "bench lat -D 3600", prints, 1),
        long("bench bw", "bench bw -D 3600", prints, 1),
        long("bench limit", "bench limit --repetitions 1000 -D 60", prints, 1),
        long("bench lat, listening", "bench lat --listen 127.0.0.1:0", prints, 0),
        long("bench bw, listening", "bench bw --listen 127.0.0.1:0", prints, 0),
        long("wire decode", "wire decode -", prints, 0),
        long("model measure", "model measure -n 1000000", prints, 0),
    ];
    let folder = world.root().join("study");
    all.push(long("study", &format!("study --out {}", folder.display()), prints, 1));

    let mut listening = Running::start(world.command("bench bw --listen 127.0.0.1:0"));
    let address = listening.text_after("waiting for a client on ");
    let mut client = long("bench bw, client", &format!("bench bw {address} -D 3600"), prints, 0);
    client._peer = Some(listening);
    all.push(client);

    let node = memory_node();
    all.push(long("steer", &format!("steer {node} -p 0"), serves, 0));

    let library = world.root().join("library.so");
    fs::write(&library, "no library").expect("a file can be written");
    let mut other = long("run", "run -- sleep 3600", Kind::Other, 0);
    other.command.env("DOORBELL_PRELOAD_LIB", library).env_remove("LD_PRELOAD");
    all.push(other);
    all
}

/// Returns the child processes of a process.
fn children(id: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().filter_map(Result::ok);
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Returns whether this process still runs and is no zombie.
fn is_alive(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// A command that runs on a terminal, with the processes that it has started.
struct StartedCommand {
    name: &'static str,
    running: OnTerminal,
    helpers: Vec<u32>,
    _peer: Option<Running>,
}

impl LongCommand {
    /// Starts the command on a terminal, and waits until the command works. With `reader`, the output of the command
    /// goes to the reader instead.
    fn begin(self, terminal: &Terminal, session: Session, reader: Option<Stdio>) -> StartedCommand {
        let Self { name, command, kind, helpers, _peer } = self;
        let shows = reader.is_none();
        let running = match reader {
            None => terminal.start(command, session),
            Some(reader) => terminal.start_with(command, session, reader),
        };
        let helpers = wait_for_start(name, kind, helpers, &running);
        if shows && name.starts_with("live") {
            terminal.wait_for("q quits");
        }
        if shows && kind == Kind::Serves {
            terminal.wait_for("serving");
        }
        StartedCommand { name, running, helpers, _peer }
    }
}

impl StartedCommand {
    /// Waits until the command and all processes that it has started have ended.
    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let status = self.running.end();
        let ended = || !self.helpers.iter().any(|&id| is_alive(id));
        wait_until(&format!("what {} had started has ended", self.name), ended);
        status
    }
}

/// Waits until a command has started all its processes, and watches for the end of its terminal or reader.
fn wait_for_start(name: &str, kind: Kind, helpers: usize, running: &OnTerminal) -> Vec<u32> {
    let id = running.id();
    let is_watching = || {
        let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().filter_map(Result::ok);
        let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        match kind {
            Kind::Other => names.any(|name| name.trim() == "sleep"),
            // The exporter starts no watching thread if its output is no terminal.
            Kind::Serves => names.any(|name| name.trim() == "doorbell"),
            Kind::Prints => names.any(|name| name.trim() == "ending") || !is_alive(id),
        }
    };
    wait_until(&format!("{name} runs"), is_watching);
    let mut found = Vec::new();
    wait_until(&format!("{name} has {helpers} processes beside it"), || {
        found = children(id);
        assert!(is_alive(id), "{name} has ended");
        found.len() == helpers && found.iter().all(|&child| Path::new(&format!("/proc/{child}/exe")).exists())
    });
    found
}

fn on_signal(signal: Signal) {
    let world = World::new();
    for long in long_commands(&world) {
        let terminal = Terminal::new();
        let mut begun = long.begin(&terminal, Session::Own, None);
        kill(Pid::from_raw(begun.running.id() as i32), signal).expect("the process can be sent a signal");
        let (status, name) = (begun.end(), begun.name);
        assert_eq!(status.signal(), Some(signal as i32), "{name}: {status}, it said {:?}", terminal.said());
        terminal.expect_restored();
    }
}

#[test]
fn sighup_ends_every_command() {
    on_signal(Signal::SIGHUP);
}

#[test]
fn sigint_ends_every_command() {
    on_signal(Signal::SIGINT);
}

#[test]
fn sigterm_ends_every_command() {
    on_signal(Signal::SIGTERM);
}

fn on_a_terminal_that_goes(session: Session) {
    let world = World::new();
    for long in long_commands(&world) {
        if long.kind == Kind::Other && session != Session::Own {
            continue; // the behaviour of another program is not tested here
        }
        let terminal = Terminal::new();
        let mut begun = long.begin(&terminal, session, None);
        terminal.vanish();
        let (status, name) = (begun.end(), begun.name);
        assert!(!status.success(), "{name} in {session:?}: {status}");
        assert_ne!(status.signal(), Some(Signal::SIGABRT as i32), "{name} in {session:?}");
        assert_ne!(status.code(), Some(101), "{name} in {session:?} has panicked");
    }
}

#[test]
fn every_command_ends_with_its_terminal() {
    on_a_terminal_that_goes(Session::Own);
}

#[test]
fn every_command_ends_with_its_terminal_despite_ignoring_sighup() {
    on_a_terminal_that_goes(Session::OwnWithoutHangup);
}

#[test]
fn every_command_ends_with_a_terminal_that_is_not_its_own() {
    on_a_terminal_that_goes(Session::None);
}

/// The commands print nothing before the reader goes, and nothing for a long time after it.
#[test]
fn every_command_that_prints_ends_with_its_reader() {
    let world = World::new();
    for long in long_commands(&world) {
        if long.kind != Kind::Prints {
            continue;
        }
        let terminal = Terminal::new();
        let mut begun = long.begin(&terminal, Session::Own, Some(Stdio::piped()));
        drop(begun.running.stdout());
        let status = begun.end();
        assert!(status.success(), "{}: {status}", begun.name);
        terminal.expect_restored();
    }
}

/// An exporter prints nothing, so a missing reader does not end it.
#[test]
fn an_exporter_goes_on_without_a_reader() {
    let world = World::new();
    let mut exporter = Running::without_stdout(world.looking("counters --prometheus 0"));
    let address = exporter.text_after("serving http://").trim_end_matches("/metrics").to_owned();
    for _ in 0..2 {
        wait_until("the exporter answers", || TcpStream::connect(&address).is_ok());
        // The exporter would have noticed the missing reader by now.
        sleep(Duration::from_millis(100));
    }
    exporter.kill();
}

/// A missing reader of stderr is no error, and the measurement goes on.
#[test]
fn bench_succeeds_without_a_reader_of_stderr() {
    let world = World::new();
    let mut command = world.command("bench bw -n 50 -s 16 --udp-port 14792 --json");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command can be started");
    drop(child.stderr.take());
    let output = child.wait_with_output().expect("the process can be waited for");
    assert!(output.status.success(), "{}", output.status);
    assert!(serde_json::from_slice::<serde_json::Value>(&output.stdout).is_ok());
}

/// A terminal that accepts no output (after ^S, or because its window hangs) does not block the end of the live view.
#[test]
fn a_stopped_terminal_does_not_block_the_live_view() {
    let world = World::new();
    for number in 0..8 {
        world.write(&format!("rxe{number}/ports/1/hw_counters/sent_pkts"), "7");
    }
    let terminal = Terminal::new();
    // Each key redraws the view. Without a reader, the buffer of the terminal is soon full, and drawing blocks.
    let mut running = terminal.start_with(world.looking("counters -i 3600"), Session::Own, terminal.end());
    let id = running.id();
    wait_until("the view accepts keys", || !terminal.is_cooked());
    wait_until("drawing blocks", || {
        terminal.press("jk");
        let call = fs::read_to_string(format!("/proc/{id}/syscall")).unwrap_or_default();
        // The process is in the system call write(1, ...), on a descriptor of the terminal.
        call.starts_with("1 ") || call.starts_with("64 ")
    });
    kill(Pid::from_raw(id as i32), Signal::SIGTERM).expect("the process can be sent a signal");
    assert_eq!(running.end().signal(), Some(Signal::SIGTERM as i32));
    assert!(terminal.is_cooked());
}
