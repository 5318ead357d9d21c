//! Timers of requesters while answers wait in the link, or while the process has no processor.

use std::collections::VecDeque;

use doorbell_wire::{AETH_LEN, AethRepr, BthRepr, Msn, Opcode, PartitionKey, Psn, Syndrome};

use super::*;
use crate::testing::outer;

/// Early timeout of a requester that knows no round trip.
const EARLY_NS: u64 = 500_000;
const STALL_NS: u64 = 300_000_000;
const PEER: [u8; 4] = [10, 0, 0, 2];

/// A link that accepts all packets, and passes one arrived packet per call.
#[derive(Debug, Default)]
struct Slow {
    /// Number of accepted packets.
    sent: usize,
    arrived: VecDeque<Vec<u8>>,
}

impl Link for Slow {
    fn properties(&self) -> LinkProperties {
        LinkProperties { sealed: false }
    }

    fn transmit(&mut self, _now_ns: u64, batch: &TransmitBatch, next: &mut usize) -> io::Result<()> {
        self.sent += batch.runs()[*next..].iter().map(|run| run.packets).sum::<usize>();
        *next = batch.runs().len();
        Ok(())
    }

    fn receive(&mut self, _now_ns: u64, sink: &mut dyn Sink) -> io::Result<usize> {
        let Some(packet) = self.arrived.pop_front() else { return Ok(0) };
        let outer = outer(PEER.into(), [10, 0, 0, 1].into());
        sink.receive(ReceivedRun { outer, source_port: 0, segment_bytes: packet.len(), bytes: &packet });
        Ok(1)
    }

    fn link_counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

/// Returns the ACK of the first request, sent to `to`.
fn ack(to: Qpn) -> Vec<u8> {
    let mut packet = vec![0; BTH_LEN + AETH_LEN];
    let (bth, aeth) = packet.split_first_chunk_mut::<BTH_LEN>().unwrap();
    let opcode = Opcode::RC_ACKNOWLEDGE;
    let partition_key = PartitionKey::DEFAULT;
    BthRepr { opcode, dest_qpn: to, partition_key, psn: Psn::new(0), ..BthRepr::default() }.write(bth);
    AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(1) }.write(aeth.first_chunk_mut().unwrap());
    packet
}

/// Posts one message at time 0, and takes its completion.
struct Requester {
    driver: Driver<Slow>,
    qpn: Qpn,
    queue: std::sync::Arc<CompletionQueue>,
}

impl Requester {
    fn new() -> Self {
        let (mut driver, qpn, queue) = connected(Slow::default());
        driver.rnic_mut().post_send(0, qpn, &[message(b"one")]).unwrap();
        driver.transmit(0).unwrap();
        Self { driver, qpn, queue }
    }

    /// Pumps, and returns the number of packets that have left so far.
    fn pump(&mut self, now_ns: u64) -> usize {
        self.driver.pump(now_ns, Acks::Now).unwrap();
        self.driver.link().sent
    }

    /// Returns the statuses of new completions, and how often early and configured timeouts have expired.
    fn ends(&self) -> (Vec<Status>, u64, u64) {
        let mut found = [Completion::default(); 4];
        let count = self.queue.poll(&mut found).unwrap();
        let counters = self.driver.rnic().counters();
        let statuses = found[..count].iter().map(|completion| completion.status).collect();
        (statuses, counters.early_retransmit, counters.local_ack_timeout_err)
    }
}

#[test]
fn an_ack_that_has_arrived_prevents_a_retransmission() {
    let mut requester = Requester::new();
    let stranger = Qpn::new(requester.qpn.get() ^ 1);
    let others = std::iter::repeat_n(ack(stranger), 20);
    let own = ack(requester.qpn);
    requester.driver.link_mut().arrived.extend(others.chain([own]));
    assert_eq!(requester.pump(EARLY_NS), 1, "the request has left again");
    assert_eq!(requester.ends(), (vec![Status::Success], 0, 0));
}

#[test]
fn a_time_without_a_processor_counts_as_no_timeout() {
    let mut requester = Requester::new();
    assert_eq!(requester.pump(STALL_NS), 1, "the request has left again");
    assert_eq!(requester.driver.poll_timeout(), Some(STALL_NS + EARLY_NS));
    let own = ack(requester.qpn);
    requester.driver.link_mut().arrived.push_back(own);
    assert_eq!(requester.pump(STALL_NS + EARLY_NS), 1);
    assert_eq!(requester.ends(), (vec![Status::Success], 0, 0));
}

#[test]
fn only_one_time_without_a_processor_prolongs_a_timeout() {
    let mut requester = Requester::new();
    let sent: Vec<_> = (1..=4).map(|stall| requester.pump(stall * STALL_NS)).collect();
    // Each second time counts, and is longer than the configured timeout.
    assert_eq!(sent, [1, 2, 2, 3]);
    assert_eq!(requester.ends(), (vec![], 0, 2));
}

#[test]
fn requests_fail_although_each_deadline_is_late() {
    const LOOK_NS: u64 = 20_000_000;
    let mut requester = Requester::new();
    let died = (1..100_u64).find(|look| {
        requester.pump(look * LOOK_NS);
        requester.ends().0 == [Status::RetryExceeded]
    });
    // Timeouts of 67, 134 and 268 ms, before each of them at most one early timeout, and the delays of the looks.
    assert!((24..=33).contains(&died.expect("the request fails")), "{died:?}");
}
