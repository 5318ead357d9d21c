//! Operations of bare queue pairs: SENDs, requests with a SEND as response, WRITEs, READs and atomics. The CPU of the
//! target takes no part in WRITEs, READs and atomics.
//!
//! The forms are the same as for [protocols](crate::predict). An operation is a step whose requester polls for the
//! completion. The latency is the time from the post until the requester polls the completion. For request-response,
//! the latency ends when the requester polls the response.

mod rounds;
mod slow;

use doorbell_protocols::{End, Joined, Noticed, Role, Size, Step, When};
use doorbell_wire::cost::ATOMIC_BYTES;
use doorbell_wire::{MessageKind, OuterKind, PathMtu, Transport};

use crate::cost::{Cost, Term};
use crate::latency::gap;
use crate::parameters::{Parameters, RnicKind};
use crate::predict::{BoundKind, Form, Forms, Prediction, Tally};
use crate::setting::Setting;
use crate::steps::Charged;
use crate::workload::{MAX_COUNT, Peers, Workload, WorkloadError};

pub(crate) use rounds::acknowledgements;

/// Posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PostedOperation {
    /// SEND into a receive that the other end reposts.
    Send,
    /// SEND of an unreliable datagram.
    UdSend,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// SEND with a SEND of the same length as response.
    RequestResponse,
}

impl PostedOperation {
    /// All operations.
    pub const ALL: [Self; 7] =
        [Self::Send, Self::UdSend, Self::Write, Self::Read, Self::CompareSwap, Self::FetchAdd, Self::RequestResponse];

    /// Returns the name in command lines and records.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::UdSend => "ud-send",
            Self::Write => "write",
            Self::Read => "read",
            Self::CompareSwap => "compare-swap",
            Self::FetchAdd => "fetch-add",
            Self::RequestResponse => "request-response",
        }
    }

    /// Returns the operation of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// Returns whether the operation changes one word of eight bytes.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns the kind of message on the wire. If `immediate` is set and the operation can carry immediate data, the
    /// kind has immediate data.
    pub const fn kind(self, immediate: bool) -> MessageKind {
        match (self, immediate) {
            (Self::Send | Self::UdSend | Self::RequestResponse, false) => MessageKind::Send,
            (Self::Send | Self::UdSend | Self::RequestResponse, true) => MessageKind::SendImm,
            (Self::Write, false) => MessageKind::Write,
            (Self::Write, true) => MessageKind::WriteImm,
            (Self::Read, _) => MessageKind::Read,
            (Self::CompareSwap, _) => MessageKind::CompareSwap,
            (Self::FetchAdd, _) => MessageKind::FetchAdd,
        }
    }

    /// Returns the transport of the operation.
    pub const fn transport(self) -> Transport {
        match self {
            Self::UdSend => Transport::Ud,
            _ => Transport::Rc,
        }
    }
}

/// Load to predict: operations of one size from one host to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Posted {
    /// Posted operation.
    pub operation: PostedOperation,
    /// Bytes of payload per operation. The payload of an atomic has always eight bytes.
    pub bytes: u64,
    /// Maximum number of outstanding operations per queue pair.
    pub window: u32,
    /// Maximum number of outstanding operations of all queue pairs together; `None` means the windows of all. Some
    /// queue pairs then have one more than the others.
    pub outstanding: Option<u32>,
    /// Whether requests are posted in rounds: a window of requests once the window before is answered.
    pub in_rounds: bool,
    /// Operations per post.
    pub batch: u32,
    /// Whether only the last operation of each list is signalled. Its completion covers all operations of the list.
    pub signals_last: bool,
    /// Completions per poll.
    pub poll_list: u32,
    /// Queue pairs.
    pub connections: u32,
    /// Posting threads. All threads have the same number of queue pairs.
    pub threads: u32,
    /// Number of distinct addresses of atomics.
    pub addresses: u32,
    /// Whether messages carry immediate data.
    pub immediate: bool,
    /// Maximum number of bytes of a payload that is sent inline.
    pub inline_bytes: u64,
    /// Path MTU; `None` means the path MTU of the parameters.
    pub path_mtu: Option<PathMtu>,
    /// Encapsulation of the packets.
    pub outer: OuterKind,
}

impl Posted {
    /// Returns a load of one queue pair, with one operation per post and per poll.
    pub fn new(operation: PostedOperation, bytes: u64, window: u32) -> Self {
        Self {
            operation,
            bytes: if operation.is_atomic() { ATOMIC_BYTES } else { bytes },
            window,
            outstanding: None,
            in_rounds: false,
            batch: 1,
            signals_last: false,
            poll_list: 1,
            connections: 1,
            threads: 1,
            addresses: 1,
            immediate: false,
            inline_bytes: 64,
            path_mtu: None,
            outer: OuterKind::IPV4,
        }
    }

    /// Checks that all numbers are in their ranges.
    ///
    /// # Errors
    ///
    /// Returns an error if the number of addresses is out of its range, or the error of [`Workload::check`].
    pub fn check(&self) -> Result<(), WorkloadError> {
        let given = self.addresses.into();
        if !(1..=MAX_COUNT).contains(&given) {
            return Err(WorkloadError { what: "the number of addresses", given, least: 1, most: MAX_COUNT });
        }
        self.workload().check()
    }

    /// Returns the load as a workload for the forms of protocols. The target has a thread for each queue pair, so the
    /// NIC is the only shared resource at the target.
    pub(crate) fn workload(&self) -> Workload {
        let peers = Peers { senders: self.threads, receivers: self.connections, connections: self.connections };
        let bytes = if self.operation.is_atomic() { ATOMIC_BYTES } else { self.bytes };
        Workload {
            receive_batch: self.poll_list,
            repost_batch: self.poll_list,
            inline_bytes: self.inline_bytes,
            credits: false,
            path_mtu: self.path_mtu,
            outer: self.outer,
            peers,
            ..Workload::new(bytes, self.window, self.batch)
        }
    }

    /// Returns the load as a workload on RNICs of this kind.
    fn workload_on(&self, setting: &Setting) -> Workload {
        let mut workload = self.workload();
        if setting.rnic == RnicKind::Software {
            // The target of a software RNIC serves all queue pairs with one thread.
            workload.peers.receivers = 1;
        }
        workload
    }

    /// Returns the costs of an operation.
    fn tally(&self, setting: &Setting) -> Result<Tally, WorkloadError> {
        let workload = self.workload_on(setting);
        let mut tally = Tally::over(self.operation.transport());
        for step in self.steps() {
            tally.add(&step, setting, &workload)?;
        }
        Ok(tally)
    }

    /// Returns the operations that each end posts.
    fn steps(&self) -> Vec<Charged> {
        let kind = self.operation.kind(self.immediate);
        let takes_receive = matches!(kind, MessageKind::Send | MessageKind::SendImm | MessageKind::WriteImm);
        let step = |by| Step {
            by,
            operation: kind,
            size: Size::Message { beside: 0 },
            when: When::Message,
            joined: Joined::Alone,
            noticed: if takes_receive { Noticed::Completion } else { Noticed::Nothing },
            role: Role::Delivery,
            credits: doorbell_protocols::Credits::Any,
        };
        // The response shows that the request has arrived.
        let is_answered = self.operation == PostedOperation::RequestResponse;
        let completions = if self.signals_last { 1.0 / f64::from(self.batch.max(1)) } else { 1.0 };
        let request = Charged { completions, ..Charged::of_operation(step(End::Sender), !is_answered) };
        if is_answered { vec![request, Charged::of_operation(step(End::Receiver), false)] } else { vec![request] }
    }
}

/// Predicts the time from post to completion, and operations per second, of bare queue pairs.
///
/// # Errors
///
/// Returns the error of [`Posted::check`] if the operations are impossible.
pub fn predict_operation(parameters: &Parameters, posted: &Posted) -> Result<Prediction, WorkloadError> {
    posted.check()?;
    let acks_per_message = acknowledgements(parameters, posted)?;
    let forms = operation_forms(&Setting { acks_per_message, ..Setting::of(parameters) }, posted)?;
    Ok(Prediction::of(&forms, parameters, posted.workload().bytes as f64))
}

/// Returns the latency and the bounds of the operations as linear forms of the parameters.
pub(crate) fn operation_forms(setting: &Setting, posted: &Posted) -> Result<Forms, WorkloadError> {
    posted.check()?;
    let workload = posted.workload_on(setting);
    let tally = posted.tally(setting)?;
    let latency = match posted.operation {
        // A READ or an atomic ends with its response. The response of a request is a message of its own.
        PostedOperation::Read
        | PostedOperation::CompareSwap
        | PostedOperation::FetchAdd
        | PostedOperation::RequestResponse => tally.delivery,
        _ => {
            let posting = Cost::ZERO.with(Term::SendPost, 1.0).with(Term::SendEach, 1.0);
            let fetched = if workload.bytes > posted.inline_bytes { 1.0 } else { 0.0 };
            let completed = match posted.operation {
                // No acknowledgement returns: the NIC is done once it has sent the datagram.
                PostedOperation::UdSend => Cost::ZERO.with(Term::NicSend, 1.0),
                _ => gap(setting, workload.bytes, tally.beyond),
            };
            posting
                .with(Term::DmaRead, fetched)
                .plus(&completed)
                .with(Term::ReceivePoll, 1.0)
                .with(Term::ReceiveEach, 1.0)
        }
    };
    let connections = f64::from(posted.connections);
    let mut bounds = Vec::with_capacity(16);
    let mut push = |kind, cost| bounds.push(Form { kind, cost });
    let outstanding = connections * f64::from(posted.window);
    let outstanding = posted.outstanding.map_or(outstanding, |all| outstanding.min(f64::from(all)));
    push(BoundKind::RoundTrip, latency.scaled(1.0 / outstanding));
    if posted.in_rounds {
        rounds::bounds(posted, &tally, &latency, &mut push);
    }
    slow::bounds(setting, posted, &tally, (&latency, outstanding), &mut push);
    let in_flight = connections * f64::from(setting.limits.reads_in_flight);
    push(BoundKind::ReadsInFlight, tally.read.scaled(1.0 / in_flight));
    tally.resources(setting, &workload, &mut push);
    if posted.operation.is_atomic() {
        push(BoundKind::Atomics, Cost::ZERO.with(Term::AtomicPair, 1.0 / connections));
        // If each queue pair has an address of its own, the bound of the queue pair already covers the address.
        if posted.addresses < posted.connections {
            let address = Cost::ZERO.with(Term::AtomicAddress, 1.0 / f64::from(posted.addresses));
            push(BoundKind::AtomicsOnAddress, address);
        }
    }
    Ok(Forms { latency, bounds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Part;
    use crate::predict::predict;

    fn on_t1(posted: Posted) -> Prediction {
        predict_operation(&Parameters::t1(), &posted).unwrap()
    }

    #[track_caller]
    fn assert_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} is not {expected}");
    }

    #[test]
    fn latency_parts_of_every_operation_add_up() {
        for parameters in [Parameters::t1(), Parameters::starting_point(RnicKind::Software)] {
            for operation in PostedOperation::ALL {
                for bytes in [0, 16, 65_536] {
                    let Ok(prediction) = predict_operation(&parameters, &Posted::new(operation, bytes, 8)) else {
                        // A datagram has only one packet.
                        assert_eq!((operation, bytes), (PostedOperation::UdSend, 65_536));
                        continue;
                    };
                    let sum: f64 = prediction.latency_parts.iter().map(|part| part.ns).sum();
                    assert_near(sum, prediction.latency_ns);
                    assert!(prediction.messages_per_s.is_finite() && prediction.messages_per_s > 0.0);
                }
                assert_eq!(PostedOperation::by_name(operation.name()), Some(operation));
            }
        }
    }

    #[test]
    fn a_read_crosses_twice_and_a_write_waits_for_its_acknowledgement() {
        let read = on_t1(Posted::new(PostedOperation::Read, 16, 1));
        let part = |name: &str| read.latency_parts.iter().find(|part: &&Part| part.name == name).unwrap().ns;
        assert_near(part("L"), 2.0 * 1900.0);
        assert_near(part("o_nsnd") + part("o_nrcv"), 4.0 * 20.0);
        let write = on_t1(Posted::new(PostedOperation::Write, 16, 1));
        assert_near(write.latency_ns, 120.0 + 3400.0 + 16.0 * 0.195_312_5 + 52.0);
        assert_eq!(write.bottleneck().binding.kind, BoundKind::RoundTrip);
        // The target's CPU does no work.
        for operation in [PostedOperation::Write, PostedOperation::Read, PostedOperation::CompareSwap] {
            assert_eq!(on_t1(Posted::new(operation, 16, 64)).bound(BoundKind::ReceivingCpu), None, "{operation:?}");
        }
        assert!(on_t1(Posted::new(PostedOperation::Send, 16, 64)).bound(BoundKind::ReceivingCpu).is_some());
        // A request with its response takes as long as two messages of Send-Receive.
        let there = predict(&Parameters::t1(), &Workload { credits: false, ..Workload::sequential(16) }).unwrap();
        assert_near(on_t1(Posted::new(PostedOperation::RequestResponse, 16, 1)).latency_ns, 2.0 * there.latency_ns);
    }

    #[test]
    fn reads_in_flight_and_atomics_have_bounds() {
        let pairs = |operation, connections, addresses| {
            on_t1(Posted { connections, threads: connections, addresses, ..Posted::new(operation, 8, 64) })
        };
        let read = pairs(PostedOperation::Read, 1, 1);
        assert_eq!(read.bottleneck().binding.kind, BoundKind::ReadsInFlight);
        // The 16 operations overlap, except for polling the completion and posting.
        let alone = on_t1(Posted::new(PostedOperation::Read, 8, 1)).latency_ns - 120.0 - 52.0;
        assert_near(read.messages_per_s, 16e9 / alone);
        assert_eq!(pairs(PostedOperation::CompareSwap, 1, 1).bottleneck().binding.kind, BoundKind::Atomics);
        assert_near(pairs(PostedOperation::CompareSwap, 1, 1).messages_per_s, 1e9 / 370.0);
        let hot = pairs(PostedOperation::FetchAdd, 20, 1);
        assert_eq!(hot.bottleneck().binding.kind, BoundKind::AtomicsOnAddress);
        assert_near(hot.messages_per_s, 1e9 / 345.0);
        assert_eq!(pairs(PostedOperation::CompareSwap, 20, 20).bottleneck().binding.kind, BoundKind::SendingCeiling);
    }

    #[test]
    fn invalid_loads_are_refused() {
        let refused =
            |posted| predict_operation(&Parameters::t1(), &posted).expect_err("the load is impossible").to_string();
        let write = Posted::new(PostedOperation::Write, 16, 1);
        assert_eq!(refused(Posted { addresses: 0, ..write }), "the number of addresses is 0, allowed is 1 to 1048576");
        assert_eq!(refused(Posted { window: 0, ..write }), "the window is 0, allowed is 1 to 1048576");
        assert!(
            refused(Posted::new(PostedOperation::UdSend, 8192, 1)).starts_with("an operation of the protocol is 8192")
        );
    }
}
