//! Measures the cost of publishing counters. The program compares the CPU time of processes that exchange SENDs of 16
//! bytes, with and without publishing. The two kinds of process take turns of some milliseconds.
//!
//! `cargo run --release -p doorbell-study --example publishing > turns.csv`

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use doorbell_counters::{PublishedSource, Reading, Source};
use doorbell_exchange::MessageConnection;
use doorbell_exchange::send_receive::{Config, Connection, Endpoint, Submit};
use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{Access, MemoryKind, Region};
use nix::time::{ClockId, clock_gettime};

const BYTES: usize = 16;
const MESSAGES_PER_TURN: u64 = 10_000;
const TURNS: usize = 60;
/// Number of pairs of processes. The placement of a process's memory makes the process some percent faster or slower
/// for its lifetime, so one pair is not enough.
const PROCESSES: usize = 24;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("worker") => work(),
        _ => compare(),
    }
}

/// Both ends of a connection, polled by one thread.
struct Ends {
    region: Region,
    sender: Connection,
    receiver: Connection,
}

fn connected() -> Ends {
    let config = Config::default().window(64).depth(128).max_message(BYTES).send_buffers(0);
    let end = || {
        let device = soft::open(&SoftOptions::default()).expect("a software RNIC opens");
        let pd = device.create_pd().expect("a protection domain");
        let region = pd.allocate(BYTES, Access::empty(), MemoryKind::Plain).expect("memory");
        (Endpoint::new(&pd, config.clone(), None).expect("an endpoint"), region)
    };
    let ((one, region), (other, _)) = (end(), end());
    let (of_one, of_other) = (one.description(), other.description());
    let sender = one.connect(&of_other).expect("connects");
    Ends { region, sender, receiver: other.connect(&of_one).expect("connects") }
}

fn turn(ends: &mut Ends) {
    let (mut sent, mut received) = (0, 0);
    while received < MESSAGES_PER_TURN {
        while sent < MESSAGES_PER_TURN
            && let Submit::Accepted(_) = ends.sender.send_from(&ends.region, 0, BYTES).expect("sends")
        {
            sent += 1;
        }
        ends.sender.poll().expect("lives");
        ends.receiver.poll().expect("lives");
        while ends.receiver.take().is_some() {
            received += 1;
        }
    }
}

/// Runs one turn for each line of input. After each turn, prints the CPU time that the process has used so far.
fn work() {
    let mut ends = connected();
    for _ in std::io::stdin().lines() {
        turn(&mut ends);
        let used = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("the CPU clock of the process is readable");
        println!("{}", used.tv_sec() * 1_000_000_000 + used.tv_nsec());
    }
}

struct Worker {
    child: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
    used_ns: i64,
}

impl Worker {
    fn start(publish: &str) -> Self {
        let program = std::env::current_exe().expect("the program has a path");
        let mut command = Command::new(program);
        command.arg("worker").env("DOORBELL_PUBLISH", publish).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the worker starts");
        let ask = child.stdin.take().expect("standard input is piped");
        let answer = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut worker = Self { child, ask, answer, used_ns: 0 };
        worker.turn();
        let mut found = Reading::default();
        PublishedSource::new().read(&mut found);
        let pid = Some(worker.child.id());
        let is_published = found.samples.iter().any(|sample| sample.identity.pid == pid);
        assert_eq!(is_published, publish == "1", "{:?}", found.notes);
        for _ in 0..5 {
            worker.turn(); // warm-up
        }
        worker
    }

    /// Runs a turn, and returns the CPU time of all threads since the last turn, per message.
    fn turn(&mut self) -> f64 {
        self.ask.write_all(b"go\n").expect("the worker reads commands");
        let mut line = String::new();
        self.answer.read_line(&mut line).expect("the worker answers");
        let used_ns = line.trim().parse().expect("the answer is a number");
        let before_ns = std::mem::replace(&mut self.used_ns, used_ns);
        (used_ns - before_ns) as f64 / MESSAGES_PER_TURN as f64
    }

    fn end(self) {
        let Self { mut child, ask, .. } = self;
        drop(ask);
        child.wait().expect("the worker ends");
    }
}

/// Returns the tenth percentile. Other programs on the machine disturb few of the turns below this value.
fn undisturbed(turns: impl Iterator<Item = f64>) -> f64 {
    let mut turns: Vec<_> = turns.collect();
    turns.sort_by(f64::total_cmp);
    turns[turns.len() / 10]
}

fn compare() {
    println!("processes,turn,unpublished_ns_per_message,published_ns_per_message");
    let mut ratios = Vec::new();
    for index in 0..PROCESSES {
        let (mut without, mut with) = (Worker::start("0"), Worker::start("1"));
        let mut pairs = Vec::new();
        for turn in 0..TURNS {
            // Alternate the order of the two processes.
            let pair = if (index + turn) % 2 == 0 {
                (without.turn(), with.turn())
            } else {
                let with = with.turn();
                (without.turn(), with)
            };
            println!("{index},{turn},{:.2},{:.2}", pair.0, pair.1);
            pairs.push(pair);
        }
        let of = |which: fn(&(f64, f64)) -> f64| undisturbed(pairs.iter().map(which));
        ratios.push(of(|pair| pair.1) / of(|pair| pair.0));
        without.end();
        with.end();
    }
    ratios.sort_by(f64::total_cmp);
    eprintln!(
        "CPU per message, published to unpublished, undisturbed turns of {PROCESSES} pairs of processes: \
         median {:.4}, quartiles {:.4} and {:.4}",
        ratios[PROCESSES / 2],
        ratios[PROCESSES / 4],
        ratios[PROCESSES * 3 / 4],
    );
}
