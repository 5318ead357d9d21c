//! Benchmark of the CPU time per message from the post to both completions. The time is the sum of both sides: two
//! RNICs run in one thread. The benchmark writes and checks the ICRC of each packet, but has no other part of a link.

mod pair;
mod words {
    pub(crate) use doorbell_verbs_core::*;
}

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pair::{BURST, Pair};

/// Clock of the CPU time of this thread. Other load on the machine does not advance this clock.
struct CpuTime(WallTime);

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists on Linux, and `time` is a local variable.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(result, 0, "threads have a CPU clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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

fn send(c: &mut Criterion<CpuTime>) {
    let mut group = c.benchmark_group("send");
    for (bytes, per_post) in [(16, 1), (16, 8), (4096, 1), (1 << 20, 1)] {
        let mut pair = Pair::new(bytes);
        group.throughput(Throughput::Elements(pair.window() as u64));
        let id = BenchmarkId::new(format!("{bytes} B"), format!("{per_post} per post"));
        group.bench_function(id, |bencher| bencher.iter(|| pair.round(per_post)));
        let packets_per_ack = pair.packets_per_ack();
        // `packets_per_ack` is 0 if the filter of the command line skipped this benchmark, because no packets were
        // sent.
        let is_enough = packets_per_ack == 0 || packets_per_ack >= BURST as u64;
        assert!(is_enough, "one acknowledgement for {packets_per_ack} packets");
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime(WallTime));
    targets = send
}
criterion_main!(benches);
