//! Helpers that the tests of this crate share.

use std::net::IpAddr;

use doorbell_rnic::{EngineId, Path, TransmitBatch, TransmitInfo};
use doorbell_wire::{Opcode, Outer, Qpn};

use crate::link::{Link, ReceivedRun};

/// Returns the path to a device, with the default outer headers.
pub(crate) fn path(destination: IpAddr) -> Path {
    Path { engine: EngineId(0), destination, traffic_class: 0, hop_limit: 64 }
}

/// Returns arbitrary information about a packet, for tests that do not read the information.
pub(crate) fn info() -> TransmitInfo {
    TransmitInfo {
        qpn: Qpn::new(1),
        opcode: Opcode::RC_SEND_ONLY,
        work_request: None,
        first: true,
        last: true,
        inline: false,
        retransmission: false,
        payload_bytes: 0,
    }
}

/// Returns the outer headers of a packet as a UDP socket reports them.
pub(crate) fn outer(src: IpAddr, dst: IpAddr) -> Outer {
    Outer { src, dst, traffic_class: 0, hop_limit: 64, identification: None, dont_fragment: None }
}

/// Returns a batch of packets of the given lengths to one device, with trailers for the ICRC. [`packet`] determines the
/// bytes of each packet.
pub(crate) fn batch_of(destination: IpAddr, lengths: &[usize]) -> TransmitBatch {
    let mut batch = TransmitBatch::new(1 << 20, 4);
    for (number, &len) in lengths.iter().enumerate() {
        batch.push(&path(destination), len, info()).copy_from_slice(&packet(number, len));
    }
    batch
}

/// Returns the bytes of packet `number` of a batch. The opcode is RC SEND Only, the destination QPN names the first
/// engine, and all other bytes depend on `number`.
pub(crate) fn packet(number: usize, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at * 31 + number * 7 + number / 256) as u8).collect();
    if let Some(opcode) = bytes.first_mut() {
        *opcode = Opcode::RC_SEND_ONLY.0;
    }
    if let Some(engine) = bytes.get_mut(crate::udp::ENGINE_BYTE_AT) {
        *engine &= 0xf;
    }
    bytes
}

/// Sends a whole batch on a link that is never full.
pub(crate) fn transmit_all(link: &mut impl Link, now_ns: u64, batch: &TransmitBatch) {
    let mut next = 0;
    link.transmit(now_ns, batch, &mut next).unwrap();
    assert_eq!(next, batch.runs().len());
}

/// A copy of a received run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnedRun {
    pub(crate) outer: Outer,
    pub(crate) source_port: u16,
    pub(crate) packets: Vec<Vec<u8>>,
}

/// Returns the runs that one call of `receive` passes to the sink.
pub(crate) fn receive_once(link: &mut impl Link, now_ns: u64) -> Vec<OwnedRun> {
    let mut runs = Vec::new();
    let count = link
        .receive(now_ns, &mut |run: ReceivedRun<'_>| {
            runs.push(OwnedRun {
                outer: run.outer,
                source_port: run.source_port,
                packets: run.segments().map(<[u8]>::to_vec).collect(),
            });
        })
        .unwrap();
    assert_eq!(count, runs.iter().map(|run| run.packets.len()).sum::<usize>());
    runs
}

/// Returns all runs that have arrived: calls `receive` until a call passes no run.
pub(crate) fn receive_all(link: &mut impl Link, now_ns: u64) -> Vec<OwnedRun> {
    let mut runs = Vec::new();
    loop {
        let more = receive_once(link, now_ns);
        if more.is_empty() {
            return runs;
        }
        runs.extend(more);
    }
}

/// Returns the packets of runs without their trailers of `trailer_bytes` bytes.
pub(crate) fn packets_of(runs: &[OwnedRun], trailer_bytes: usize) -> Vec<Vec<u8>> {
    let packets = runs.iter().flat_map(|run| &run.packets);
    packets.map(|packet| packet[..packet.len() - trailer_bytes].to_vec()).collect()
}
