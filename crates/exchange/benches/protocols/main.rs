//! CPU time per message of every protocol, beside a hand-written loop over verbs that does the same
//! operations: both ends in one thread, over two software RNICs that a wire in memory joins.
//!
//! What the two share, the RNIC with the ICRC of every packet, is the verbs path; what is between
//! them is what `exchange` costs. Packets per message are printed beside, since a comparison is only fair
//! if both send as many.

mod by_hand;
mod wire;

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use doorbell_exchange::buffered_write::Notification;
use doorbell_exchange::{
    BufferedRead, BufferedWrite, Config, Connector, DirectRead, DirectWrite, MessageConnection, SendReceive,
    SharedWrite, Submit, buffered_write,
};
use doorbell_verbs::Device;

/// Bytes of a message: what it costs to handle it, not to copy it.
const BYTES: usize = 16;
/// Messages between two looks at the clock.
const ROUND: u64 = 256;

/// A pair of ends that moves messages from the first to the second.
trait Pair {
    /// Sends so many more messages, and waits until the sender knows that they have arrived and the
    /// receiver has freed them.
    fn run(&mut self, messages: u64);

    /// The devices of sender and receiver.
    fn devices(&self) -> [&Device; 2];
}

/// The protocol as `exchange` has it.
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

/// CPU time of the process, so that other load on the machine is not measured.
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

/// Rounds of either side, one after the other, of which the ratio is taken.
const TURNS: usize = 101;

/// CPU times and their ratio, taken in turns, so that both meet the same machine; and packets per
/// message of each.
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
    for ((pair, before), who) in pairs.iter().zip(before).zip(["exchange", "by hand"]) {
        let after = packets(&**pair);
        let per_message = |index: usize| (after[index] - before[index]) as f64 / (TURNS as f64 * 4.0 * ROUND as f64);
        let (sender, receiver) = (per_message(0), per_message(1));
        eprintln!("{name}: {who}: {sender:.3} packets per message of the sender, {receiver:.3} of the receiver");
    }
}

fn compare<P: Connector + Copy + 'static>(
    c: &mut Criterion<CpuTime>,
    name: &str,
    protocol: P,
    by_hand: fn(&Config) -> Box<dyn Pair>,
) {
    for batch in [1, 8] {
        let config = Config::default().batch(batch).max_message(BYTES);
        let name = format!("{name}/batch {batch}");
        let mut pairs: [Box<dyn Pair>; 2] = [Box::new(Exchanged::new(&protocol, &config)), by_hand(&config)];
        let mut group = c.benchmark_group(&name);
        group.throughput(Throughput::Elements(ROUND));
        for (pair, who) in pairs.iter_mut().zip(["exchange", "by hand"]) {
            group.bench_function(BenchmarkId::from_parameter(who), |bencher| bencher.iter(|| pair.run(ROUND)));
        }
        group.finish();
        compare_in_turns(&name, &mut pairs);
    }
}

fn protocols(c: &mut Criterion<CpuTime>) {
    compare(c, "send-receive", SendReceive, |config| Box::new(by_hand::SendReceive::new(config)));
    compare(c, "direct-read", DirectRead::default(), |config| Box::new(by_hand::DirectRead::new(config)));
    compare(c, "direct-write", DirectWrite, |config| Box::new(by_hand::DirectWrite::new(config)));
    let variant = |notification| BufferedWrite { notification, acknowledge: buffered_write::Acknowledge::Send };
    compare(c, "buffered-write-immediate", variant(Notification::Immediate), |config| {
        Box::new(by_hand::BufferedWrite::immediate(config))
    });
    compare(c, "buffered-write-tail", variant(Notification::TailOffset), |config| {
        Box::new(by_hand::BufferedWrite::tail_offset(config))
    });
    compare(c, "buffered-write-reverse", variant(Notification::Reverse), |config| {
        Box::new(by_hand::BufferedWrite::reverse(config))
    });
    compare(c, "shared-write", SharedWrite, |config| Box::new(by_hand::SharedWrite::new(config)));
    compare(c, "buffered-read", BufferedRead, |config| Box::new(by_hand::BufferedRead::new(config)));
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime(WallTime));
    targets = protocols
}
criterion_main!(benches);
