//! Benchmark of the CPU time per packet for three steps: the computation of the ICRC, the slow path of the ICRC check,
//! and the reading of the BTH.

use core::hint::black_box;
use core::net::{IpAddr, Ipv4Addr};
use criterion::{Criterion, criterion_group, criterion_main};
use doorbell_wire::{BTH_LEN, BthRepr, Flow, Opcode, Psn, Qpn, ROCE_UDP_PORT};

fn icrc(c: &mut Criterion) {
    let src = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    let dst = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    let flow = Flow::new(src, dst, 49152, ROCE_UDP_PORT);
    for len in [16, 32, 92, 128, 268, 1040, 4112] {
        let mut packet = vec![0x5a_u8; len];
        c.bench_function(&format!("icrc {len}"), |b| {
            b.iter(|| flow.icrc(black_box(7), true, black_box(&packet)));
        });
        packet.extend(flow.icrc(40_000, true, &packet).to_le_bytes());
        c.bench_function(&format!("check {len}, identification guessed"), |b| {
            b.iter(|| flow.check(black_box(40_000), black_box(&packet)));
        });
        c.bench_function(&format!("check {len}, identification unknown"), |b| {
            b.iter(|| flow.check(black_box(7), black_box(&packet)));
        });
    }
}

fn bth(c: &mut Criterion) {
    let repr = BthRepr {
        opcode: Opcode::RC_WRITE_ONLY,
        dest_qpn: Qpn::new(17),
        psn: Psn::new(5),
        ack_request: true,
        ..BthRepr::default()
    };
    let mut bytes = [0; BTH_LEN];
    c.bench_function("bth write", |b| {
        b.iter(|| {
            black_box(&repr).write(&mut bytes);
            black_box(&bytes);
        });
    });
    c.bench_function("bth read", |b| b.iter(|| BthRepr::read(black_box(&bytes))));
}

criterion_group!(benches, icrc, bth);
criterion_main!(benches);
