//! Runs the command for a test. A command that does not end fails its test, and no process outlives its test.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use doorbell_sync::IgnorePoison;
use serde_json::Value;

/// Time after which a test that waits fails. Every test is faster, also on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Locks out other measurements. Both processes of a measurement poll, so two measurements at a time on a machine with
/// few CPUs would mostly measure the scheduler. Tests that mostly wait for deadlines do without the lock.
pub(crate) fn measuring() -> MutexGuard<'static, ()> {
    static MEASURING: Mutex<()> = Mutex::new(());
    MEASURING.lock().ignore_poison()
}

/// Returns the command with these arguments, which are separated by spaces.
pub(crate) fn doorbell(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    // The environment of the test must not influence the command.
    for variable in ["DOORBELL_BIND", "DOORBELL_DEVICES", "DOORBELL_PORT", "DOORBELL_LOG", "DOORBELL_TOKEN"] {
        command.env_remove(variable);
    }
    command
}

/// A running command. Dropping this handle ends the process.
pub(crate) struct Running {
    what: String,
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Receiver<String>,
    said: String,
}

/// Status and output of a finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let what = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        let stdout = child.stdout.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = String::new();
                pipe.read_to_string(&mut text).expect("the output is text");
                text
            })
        });
        let stderr = lines_of(&mut child);
        Self { what, child, stdout, stderr, said: String::new() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Starts a command whose stdout has no reader any more.
    pub(crate) fn without_stdout(mut command: Command) -> Self {
        let what = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(child.stdout.take());
        let stderr = lines_of(&mut child);
        Self { what, child, stdout: None, stderr, said: String::new() }
    }

    /// Waits until the command prints this text on stderr.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.said.contains(text) {
            match self.stderr.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.hear(&line),
                Err(RecvTimeoutError::Timeout) => panic!("{}: never said {text:?}, only:\n{}", self.what, self.said),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("{}: ended without saying {text:?}, only:\n{}", self.what, self.said)
                }
            }
        }
    }

    /// Waits until the command prints this text on stderr, and returns the following text up to a blank. Tests start
    /// servers with port 0 and read the port from the output, since another process could take a port that was chosen
    /// before.
    pub(crate) fn text_after(&mut self, before: &str) -> String {
        self.wait_for(before);
        let behind = self.said.split_once(before).map_or("", |(_, behind)| behind);
        behind.split_whitespace().next().unwrap_or_default().to_owned()
    }

    fn hear(&mut self, line: &str) {
        self.said.push_str(line);
        self.said.push('\n');
    }

    /// Kills the command, as if it had crashed.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process can be waited for");
    }

    /// Kills the command, and returns its output.
    pub(crate) fn interrupt(mut self) -> Finished {
        self.child.kill().expect("the process can be killed");
        self.finish()
    }

    /// Waits until the command has ended by itself.
    pub(crate) fn finish(mut self) -> Finished {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the process can be waited for") {
                break status;
            }
            assert!(Instant::now() < until, "{}: does not end; it said:\n{}", self.what, self.said);
            std::thread::sleep(Duration::from_millis(5));
        };
        let stdout = self.stdout.take().map_or_else(String::new, |text| text.join().expect("the output is text"));
        // The second process of a measurement shares the pipe, so the pipe is closed after both processes have ended.
        while let Ok(line) = self.stderr.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.hear(&line);
        }
        Finished { status, stdout, stderr: std::mem::take(&mut self.said) }
    }
}

/// Returns the lines that a process prints on stderr.
fn lines_of(child: &mut Child) -> Receiver<String> {
    let (lines, stderr) = channel();
    if let Some(pipe) = child.stderr.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
    }
    stderr
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command to its end.
pub(crate) fn run(arguments: &str) -> Finished {
    Running::start(doorbell(arguments)).finish()
}

impl Finished {
    #[track_caller]
    pub(crate) fn expect_status(self, status: i32) -> Self {
        assert_eq!(self.status.code(), Some(status), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Expects this status, nothing on stdout, and a sentence with all of these words.
    #[track_caller]
    pub(crate) fn expect_complaint(self, status: i32, words: &[&str]) {
        let finished = self.expect_status(status);
        assert_eq!(finished.stdout, "", "data of a command that failed");
        for word in words {
            assert!(finished.stderr.contains(word), "{word:?} is missing in:\n{}", finished.stderr);
        }
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
    }

    /// Returns stdout, which is one JSON object.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr));
        assert!(value.is_object());
        value
    }
}

/// Returns a TCP address at which no process listens. No process can listen there until the returned connection, which
/// uses the address, is closed.
pub(crate) fn address_without_a_listener() -> (SocketAddr, [TcpStream; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let connect = || TcpStream::connect(listener.local_addr()?);
    let client = connect().expect("the server listens");
    let address = client.local_addr().expect("a bound socket has an address");
    loop {
        // Another process may have connected to the listener before `client`.
        let (server, from) = listener.accept().expect("a client has connected");
        if from == address {
            return (address, [client, server]);
        }
    }
}

/// Returns the number at this place of a JSON value.
#[track_caller]
pub(crate) fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).unwrap_or_else(|| panic!("there is no {pointer} in {value:#}"));
    found.as_u64().unwrap_or_else(|| panic!("{pointer} is {found}"))
}

/// Returns the number at this place of a JSON value. The number must be positive.
#[track_caller]
pub(crate) fn positive(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).unwrap_or_else(|| panic!("there is no {pointer} in {value:#}"));
    let number = found.as_f64().unwrap_or_else(|| panic!("{pointer} is {found}"));
    assert!(number > 0.0, "{pointer} is {number}");
    number
}

/// Returns the list at this place of a JSON value.
#[track_caller]
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).unwrap_or_else(|| panic!("{pointer} is no list in {value:#}"))
}
