//! Compares the CPU time per message of each protocol with a hand-written loop over verbs that does the same
//! operations. Both ends run in one thread, over two software RNICs and a wire in memory.
//!
//! The connection of `exchange` and the loop use the same verbs and the same software RNIC, which computes the ICRC of
//! each packet. The difference of their CPU times is the cost of `exchange`. The program also prints the packets per
//! message, since the comparison is fair only if both send the same number of packets.

mod by_hand;
mod wire;

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use doorbell_exchange::buffered_write::Notification;
use doorbell_exchange::{
    BufferedRead, BufferedWrite, Config, Connector, DirectRead, DirectWrite, MessageConnection, SendReceive,
    SharedWrite, Submit, buffered_write,
};
use doorbell_verbs::Device;

/// Bytes of a message. The messages are small, so that handling a message costs more than copying its bytes.
const BYTES: usize = 16;
/// Number of messages between two reads of the clock.
const ROUND: u64 = 256;

/// Two ends of a connection, of which the first end sends messages to the second end.
trait Pair {
    /// Sends this number of messages, and waits until all messages are done.
    fn run(&mut self, messages: u64);

    /// Returns the devices of sender and receiver.
    fn devices(&self) -> [&Device; 2];
}

/// Two ends that are connections of `exchange`.
struct Exchanged<P: Connector> {
    sender: P::Connection,
    receiver: P::Connection,
    devices: [Device; 2],
    sent: u64,
    received: u64,
}

impl<P: Connector> Exchanged<P> {
    fn new(protocol: &P, config: &Config) -> Self {
        let devices = wire::devices();
        let [a, b] = [0, 1].map(|index: usize| {
            let pd = devices[index].create_pd().expect("room");
            protocol.endpoint(&pd, config, None).expect("an end")
        });
        let (of_a, of_b) = (protocol.describe(&a), protocol.describe(&b));
        Self {
            sender: protocol.connect(a, &of_b).expect("the ends fit"),
            receiver: protocol.connect(b, &of_a).expect("the ends fit"),
            devices,
            sent: 0,
            received: 0,
        }
    }
}

impl<P: Connector> Pair for Exchanged<P> {
    fn run(&mut self, messages: u64) {
        let target = self.sent + messages;
        while self.sender.last_done() < target || self.received < target {
            while self.sent < target
                && let Submit::Accepted(id) = self.sender.send(&[7; BYTES]).expect("a connection")
            {
                self.sent = id;
            }
            self.sender.flush().expect("a connection");
            self.sender.poll().expect("a connection");
            self.receiver.poll().expect("a connection");
            while let Some(message) = self.receiver.take() {
                drop(message);
                self.received += 1;
            }
        }
    }

    fn devices(&self) -> [&Device; 2] {
        self.devices.each_ref()
    }
}

/// Clock that measures the CPU time of the process, so that other load on the machine has no effect.
struct CpuTime(WallTime);

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
            .expect("a process has a CPU clock")
            .into()
    }

    fn end(&self, start: Duration) -> Duration {
        self.start() - start
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        self.0.formatter()
    }
}

/// Number of rounds that a comparison measures of each side, `exchange` and the loop. The rounds of both sides
/// alternate.
const TURNS: usize = 101;

/// Measures rounds of both sides in alternation, so that both sides run under the same load. Prints the CPU times of
/// both sides, their ratio, and the packets per message of each side.
fn compare_in_turns(name: &str, pairs: &mut [Box<dyn Pair>; 2]) {
    let clock = CpuTime(WallTime);
    let packets = |pair: &dyn Pair| {
        pair.devices().map(|device| device.counters().expect("software RNICs count").tx_vport_rdma_unicast_packets)
    };
    let before = pairs.each_ref().map(|pair| packets(&**pair));
    let turns: Vec<[f64; 2]> = (0..TURNS)
        .map(|_| {
            pairs.each_mut().map(|pair| {
                let start = clock.start();
                pair.run(4 * ROUND);
                clock.end(start).as_nanos() as f64 / (4 * ROUND) as f64
            })
        })
        .collect();
    let quantile = |of: f64, value: fn(&[f64; 2]) -> f64| {
        let mut values: Vec<f64> = turns.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[(of * (TURNS - 1) as f64) as usize]
    };
    let ratio = |&[exchange, by_hand]: &[f64; 2]| exchange / by_hand;
    eprintln!(
        "{name}: exchange {:.0} ns per message, by hand {:.0}: {:.3} (quartiles {:.3} to {:.3})",
        quantile(0.5, |turn| turn[0]),
        quantile(0.5, |turn| turn[1]),
        quantile(0.5, ratio),
        quantile(0.25, ratio),
        quantile(0.75, ratio)
    );
    for ((pair, before), who) in pairs.iter().zip(before).zip(WHO) {
        let after = packets(&**pair);
        let per_message = |index: usize| (after[index] - before[index]) as f64 / (TURNS as f64 * 4.0 * ROUND as f64);
        let (sender, receiver) = (per_message(0), per_message(1));
        eprintln!("{name}: {who}: {sender:.3} packets per message of the sender, {receiver:.3} of the receiver");
    }
}

/// Constructors of the two sides of a comparison: a protocol of `exchange` and its hand-written loop.
struct Contest {
    name: &'static str,
    exchange: fn(&Config) -> Box<dyn Pair>,
    by_hand: fn(&Config) -> Box<dyn Pair>,
}

/// Returns a constructor of two ends of `exchange` with the protocol that `$protocol` names.
macro_rules! exchanged {
    ($protocol:expr) => {
        |config| Box::new(Exchanged::new(&$protocol, config))
    };
}

const fn written(notification: Notification) -> BufferedWrite {
    BufferedWrite { notification, acknowledge: buffered_write::Acknowledge::Send }
}

const CONTESTS: &[Contest] = &[
    Contest {
        name: "send-receive",
        exchange: exchanged!(SendReceive),
        by_hand: |config| Box::new(by_hand::SendReceive::new(config)),
    },
    Contest {
        name: "direct-read",
        exchange: exchanged!(DirectRead::default()),
        by_hand: |config| Box::new(by_hand::DirectRead::new(config)),
    },
    Contest {
        name: "direct-write",
        exchange: exchanged!(DirectWrite::default()),
        by_hand: |config| Box::new(by_hand::DirectWrite::new(config)),
    },
    Contest {
        name: "buffered-write-immediate",
        exchange: exchanged!(written(Notification::Immediate)),
        by_hand: |config| Box::new(by_hand::BufferedWrite::immediate(config)),
    },
    Contest {
        name: "buffered-write-tail",
        exchange: exchanged!(written(Notification::TailOffset)),
        by_hand: |config| Box::new(by_hand::BufferedWrite::tail_offset(config)),
    },
    Contest {
        name: "buffered-write-reverse",
        exchange: exchanged!(written(Notification::Reverse)),
        by_hand: |config| Box::new(by_hand::BufferedWrite::reverse(config)),
    },
    Contest {
        name: "shared-write",
        exchange: exchanged!(SharedWrite::default()),
        by_hand: |config| Box::new(by_hand::SharedWrite::new(config)),
    },
    Contest {
        name: "buffered-read",
        exchange: exchanged!(BufferedRead),
        by_hand: |config| Box::new(by_hand::BufferedRead::new(config)),
    },
];

fn config(batch: usize) -> Config {
    Config::default().batch(batch).max_message(BYTES)
}

fn protocols(c: &mut Criterion<CpuTime>) {
    for Contest { name, exchange, by_hand } in CONTESTS {
        for batch in [1, 8] {
            let name = format!("{name}/batch {batch}");
            let mut pairs = [exchange(&config(batch)), by_hand(&config(batch))];
            let mut group = c.benchmark_group(&name);
            group.throughput(Throughput::Elements(ROUND));
            for (pair, who) in pairs.iter_mut().zip(WHO) {
                group.bench_function(BenchmarkId::from_parameter(who), |bencher| bencher.iter(|| pair.run(ROUND)));
            }
            group.finish();
            compare_in_turns(&name, &mut pairs);
        }
    }
}

/// Names of the two sides of a comparison.
const WHO: [&str; 2] = ["exchange", "by hand"];

/// Runs the subcommand `count PROTOCOL exchange|by-hand BATCH MESSAGES`. It only sends messages, so that an external
/// tool can count instructions.
fn count(arguments: &[String]) -> Result<(), String> {
    let [name, who, batch, messages] = arguments else {
        return Err("usage: count PROTOCOL exchange|by-hand BATCH MESSAGES".to_owned());
    };
    let contest = CONTESTS.iter().find(|contest| contest.name == name).ok_or("unknown protocol")?;
    let batch = batch.parse().map_err(|error| format!("the batch: {error}"))?;
    let messages: u64 = messages.parse().map_err(|error| format!("the messages: {error}"))?;
    let mut pair =
        if who == "exchange" { (contest.exchange)(&config(batch)) } else { (contest.by_hand)(&config(batch)) };
    pair.run(messages);
    Ok(())
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime(WallTime));
    targets = protocols
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "count") {
        return count(&arguments[1..]).unwrap_or_else(|error| panic!("{error}"));
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
}
