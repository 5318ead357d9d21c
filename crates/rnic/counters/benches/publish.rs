//! Cost of a publication. A device with other work publishes a change within 20 ms. A device without other work
//! publishes a change at once, but at most once per millisecond.

use std::hint::black_box;
use std::net::Ipv4Addr;

use criterion::{Criterion, criterion_group, criterion_main};
use doorbell_counters::{DIRECTORY_VARIABLE, Published, Publisher};

/// Names of the counters, slightly more than a software RNIC has.
const NAMES: [&str; 48] = ["counter"; 48];

fn publish(criterion: &mut Criterion) {
    if std::env::var_os(DIRECTORY_VARIABLE).is_none() {
        eprintln!("{DIRECTORY_VARIABLE} is not set: what is published appears among the user's devices meanwhile");
    }
    let device = Published { name: "bench0", address: Ipv4Addr::LOCALHOST.into(), udp_port: 4791, counters: &NAMES };
    let mut publisher = Publisher::new(&device).expect("there is a directory to publish in");
    let mut values = [0; NAMES.len()];
    criterion.bench_function("publish 48 counters", |bencher| {
        bencher.iter(|| {
            values[0] += 1;
            publisher.publish(black_box(&values));
        });
    });
}

criterion_group!(benches, publish);
criterion_main!(benches);
