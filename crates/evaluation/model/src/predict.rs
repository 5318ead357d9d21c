//! Prediction of latency, throughput and bottleneck from parameters and a workload.

mod bound;
mod requests;
mod waiting;

use doorbell_protocols::{End, Noticed, Protocol, Release, Role, Size, When};
use doorbell_wire::{MessageKind, Transport};

use crate::cost::{Cost, Part, Term};
use crate::latency::{LineBytes, crossing, gap, latency_of};
use crate::parameters::{Parameters, RnicKind};
use crate::setting::{Setting, out_of_completion, traffic};
use crate::steps::{Charged, charged, is_pulled};
use crate::workload::{Peers, Workload, WorkloadError};

pub(crate) use bound::Form;
pub use bound::{Bound, BoundKind};
pub use requests::{Requests, predict_offered, predict_requests};

/// Relative distance below which two bounds count as equal. The bound of a NIC includes the time of the bytes on the
/// link. If the NIC's own time adds less than this share, the link is reported as the bottleneck.
const SAME: f64 = 0.05;

/// Latency and bounds of a workload as linear forms of the parameters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Forms {
    /// Time until the receiver has a message, if no other message is in flight.
    pub(crate) latency: Cost,
    /// Bounds, each as the time per message over all connections and both directions.
    pub(crate) bounds: Vec<Form>,
}

/// Prediction of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Time from the start of a send until the receiver has the message, if no other message is in flight.
    pub latency_ns: f64,
    /// Parts of the latency, one per parameter. Their sum is the latency.
    pub latency_parts: Vec<Part>,
    /// Messages per second, over all connections and both directions.
    pub messages_per_s: f64,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
    /// All bounds. The first bound allows the lowest throughput.
    pub bounds: Vec<Bound>,
}

/// Bound that limits the throughput, and the next bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bottleneck {
    /// The smallest bound.
    pub binding: Bound,
    /// The next smallest bound.
    pub next: Option<Bound>,
    /// Throughput that the next bound allows, divided by the throughput that the binding bound allows.
    pub factor: f64,
}

impl Prediction {
    pub(crate) fn of(forms: &Forms, parameters: &Parameters, bytes: f64) -> Self {
        let values = parameters.values();
        let bounds = forms
            .bounds
            .iter()
            .map(|form| Bound { kind: form.kind, ns_per_message: form.cost.ns(&values) })
            .filter(|bound| bound.ns_per_message > 0.0)
            .collect();
        Self::of_bounds(forms.latency.ns(&values), forms.latency.parts(&values), bounds, bytes)
    }

    fn of_bounds(latency_ns: f64, latency_parts: Vec<Part>, mut bounds: Vec<Bound>, bytes: f64) -> Self {
        bounds.sort_by(|a, b| b.ns_per_message.total_cmp(&a.ns_per_message));
        // Requests and replies may have bounds of the same kind. The smaller one limits the throughput.
        let mut kinds = Vec::new();
        bounds.retain(|bound| {
            let is_new = !kinds.contains(&bound.kind);
            kinds.push(bound.kind);
            is_new
        });
        let messages_per_s = bounds.first().map_or(f64::INFINITY, Bound::messages_per_s);
        Self { latency_ns, latency_parts, messages_per_s, bytes_per_s: messages_per_s * bytes, bounds }
    }

    /// Returns the mean of predictions, each with its share. The latency and each bound are means over all messages.
    pub(crate) fn mean(all: Vec<(f64, Self)>) -> Self {
        let shares: f64 = all.iter().map(|(share, _)| share).sum();
        let mut bounds: Vec<Bound> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        let (mut latency_ns, mut bytes) = (0.0, 0.0);
        for (share, prediction) in all {
            let share = share / shares;
            latency_ns += share * prediction.latency_ns;
            bytes += share * prediction.bytes_per_s / prediction.messages_per_s;
            for part in prediction.latency_parts {
                let ns = share * part.ns;
                match parts.iter_mut().find(|other| other.name == part.name) {
                    Some(other) => other.ns += ns,
                    None => parts.push(Part { ns, ..part }),
                }
            }
            for Bound { kind, ns_per_message } in prediction.bounds {
                let ns_per_message = share * ns_per_message;
                match bounds.iter_mut().find(|bound| bound.kind == kind) {
                    Some(bound) => bound.ns_per_message += ns_per_message,
                    None => bounds.push(Bound { kind, ns_per_message }),
                }
            }
        }
        Self::of_bounds(latency_ns, parts, bounds, bytes)
    }

    /// Returns the bound that allows the lowest throughput. If this bound is a NIC and the bound of the link differs by
    /// less than 5 %, returns the link. The NIC's bound includes the time of the bytes on the link.
    pub fn bottleneck(&self) -> Bottleneck {
        // The index is valid, since every workload has the bound of a round trip.
        let smallest = self.bounds[0];
        let is_same = |bound: &&Bound| bound.ns_per_message > smallest.ns_per_message * (1.0 - SAME);
        let link = self.bounds.iter().filter(is_same).find(|bound| bound.kind.is_link());
        let binding = match link {
            Some(link) if smallest.kind.is_nic() => *link,
            _ => smallest,
        };
        let is_other = |bound: &&Bound| {
            // If the link binds, its NIC's bound is no separate bound: the NIC adds only its own small time.
            let is_its_nic = binding.kind.is_link() && bound.kind.is_nic() && is_same(bound);
            bound.kind != binding.kind && !is_its_nic
        };
        let next = self.bounds.iter().find(is_other).copied();
        let factor = next.map_or(f64::INFINITY, |next| binding.ns_per_message / next.ns_per_message);
        Bottleneck { binding, next, factor }
    }

    /// Returns the mean time, in nanoseconds, that a message takes under load: from the start of its send until its
    /// place in the window is free. Exactly `in_flight` messages of all connections are in flight.
    ///
    /// By Little's law, the time is the number of messages in flight, divided by the throughput. An acknowledgement may
    /// free the place before the receiver finds the message, so the time is at least the latency alone.
    pub fn loaded_ns(&self, in_flight: f64) -> f64 {
        (in_flight * 1e9 / self.messages_per_s).max(self.latency_ns)
    }

    /// Returns the bound of a kind, if the workload has it.
    pub fn bound(&self, kind: BoundKind) -> Option<Bound> {
        self.bounds.iter().find(|bound| bound.kind == kind).copied()
    }
}

/// Predicts latency and throughput of a workload.
///
/// # Errors
///
/// Returns the error of [`Workload::check`] if the workload is impossible.
pub fn predict(parameters: &Parameters, workload: &Workload) -> Result<Prediction, WorkloadError> {
    let forms = forms(&Setting::of(parameters), workload)?;
    Ok(Prediction::of(&forms, parameters, workload.bytes as f64))
}

/// Returns the latency and the bounds of a workload as linear forms of the parameters.
pub(crate) fn forms(setting: &Setting, workload: &Workload) -> Result<Forms, WorkloadError> {
    workload.check()?;
    let tally = Tally::of(setting, workload, &charged(workload))?;
    Ok(Forms { latency: tally.delivery, bounds: tally.bounds(setting, workload) })
}

/// Costs per message. Arrays hold the costs of the sender first, then those of the receiver.
#[derive(Default)]
pub(crate) struct Tally {
    /// Transport of the operations; `None` means RC.
    transport: Option<Transport>,
    /// Time until the receiver has a message.
    pub(crate) delivery: Cost,
    /// Time from the delivery of a message until the sender learns of the delivery.
    release: Cost,
    is_reported: bool,
    /// Largest share of the receiver's space that is free but not yet reported to the sender.
    unreported: f64,
    /// Time of one READ if no other operation is in flight.
    pub(crate) read: Cost,
    /// Time of the operations whose results the sender awaits before it sends the message.
    reservation: Cost,
    /// CPU time of each end per message.
    pub(crate) cpu: [Cost; 2],
    /// Number of payloads per message that the NIC of each end fetches from memory.
    fetches: [f64; 2],
    nic_out: [Cost; 2],
    nic_in: [Cost; 2],
    /// Line bytes that leave each end, per message.
    line_bytes: [f64; 2],
    /// Line bytes of the message itself beyond the sizes for which the slopes of latency hold.
    pub(crate) beyond: f64,
    /// Time per message of READs of free space that the sender posts when a message does not fit.
    late: Cost,
    /// Number of looks of each end for which a message waits until the receiver has it, with those of `late`.
    looks: [f64; 2],
    /// Number of times that a message waits for the link from each end, until the receiver has it.
    crossings: [f64; 2],
}

/// Maximum number of packets that a software RNIC sends with one system call.
const LONGEST_RUN: f64 = 64.0;

/// Returns the number of runs that carry the `packets` packets of a message, if a whole window of messages is in
/// flight. The packets of a run have one length, so an operation of another length after a batch ends the run.
///
/// `share` is the number of times that the operation is posted per message.
fn runs(charge: &Charged, packets: f64, share: f64, workload: &Workload) -> f64 {
    let (by, size) = (charge.step.by, charge.step.size);
    let ends_runs =
        |other: &Charged| other.step.by == by && other.step.size != size && (other.chained || charge.chained);
    let is_broken = charged(workload).iter().any(ends_runs);
    let messages = if is_broken { workload.batch } else { workload.window };
    // A receiver that fetches messages has one operation of each kind in flight.
    let in_flight = if is_pulled(workload) { 1.0 } else { f64::from(messages) * share };
    packets / (packets * in_flight).clamp(1.0, LONGEST_RUN)
}

impl Tally {
    pub(crate) fn over(transport: Transport) -> Self {
        Self { transport: Some(transport), ..Self::default() }
    }

    /// Returns the costs of a message of a protocol with these steps.
    fn of(setting: &Setting, workload: &Workload, steps: &[Charged]) -> Result<Self, WorkloadError> {
        let mut tally = Self::default();
        for step in steps {
            tally.add(step, setting, workload)?;
        }
        let passes = workload.protocol.description().passes;
        let [sending, receiving] =
            passes.map(|passes| Cost::ZERO.with(Term::CopyPerByte, (passes * workload.bytes) as f64));
        // The sender copies a message before it sends it, and the receiver clears a message after the program freed it.
        tally.delivery = tally.delivery.plus(&sending);
        tally.cpu = [tally.cpu[0].plus(&sending), tally.cpu[1].plus(&receiving)];
        Ok(tally)
    }

    pub(crate) fn add(
        &mut self,
        charge: &Charged,
        setting: &Setting,
        workload: &Workload,
    ) -> Result<(), WorkloadError> {
        let Charged { step, per_message: share, .. } = charge;
        if charge.role == Role::Release {
            self.is_reported = true;
            self.unreported = self.unreported.max(charge.unreported);
        }

        let alone = LineBytes::of(charge, self.transport, setting, workload)?;
        if step.size.carries_messages() {
            // The message travels in one direction. The other direction carries an acknowledgement or a request.
            self.beyond = alone.there.max(alone.back);
        }
        let latency = latency_of(charge, charge.payload(workload, 1), &alone, setting, workload).scaled(charge.waits);
        let (by, to) = (step.by as usize, step.by.other() as usize);
        let finder = if charge.awaited { by } else { to };
        match charge.role {
            Role::Delivery => {
                self.delivery = self.delivery.plus(&latency);
                self.looks[finder] += latency.times(Term::ReceivePoll);
                // A chained operation leaves right after the one before.
                self.crossings[by] += if charge.chained { 0.0 } else { 1.0 };
                self.crossings[to] += if step.is_two_way() { 1.0 } else { 0.0 };
            }
            Role::Release => self.release = self.release.plus(&latency),
        }
        if matches!(step.when, When::Short { parts: 1 }) {
            self.late = self.late.plus(&latency.scaled(*share));
            self.looks[finder] += share * latency.times(Term::ReceivePoll);
        }
        if step.by == End::Sender && step.is_two_way() && charge.role == Role::Delivery {
            self.reservation = self.reservation.plus(&latency);
        }
        if step.is_two_way() && matches!(step.size, Size::Message { .. }) {
            self.read = crossing(&alone).with(Term::SendPost, -1.0).with(Term::SendEach, -1.0);
        }

        let payload = charge.payload(workload, workload.batch);
        if !step.is_two_way() && payload > workload.inline_bytes {
            self.fetches[by] += share;
        }
        let traffic = traffic(step, self.transport, payload, setting, workload)?;
        let add = |to: &mut Cost, cost: Cost| *to = to.plus(&cost.scaled(*share));
        let posted = posting(charge, setting, workload).scaled(charge.per_message_busy);
        self.cpu[by] = self.cpu[by].plus(&posted);
        if charge.awaited {
            add(&mut self.cpu[by], polling(setting, workload).scaled(charge.completions));
        }
        add(&mut self.cpu[to], noticing(charge, payload, setting, workload));
        let crossed = |term: Term, line: f64, packets: f64| {
            let runs = if setting.rnic == RnicKind::Software { runs(charge, packets, *share, workload) } else { 0.0 };
            Cost::ZERO.with(term, 1.0).with(Term::Run, runs).with(Term::BandwidthPerByte, line - 1.0)
        };
        let (there, back) = ((traffic.there, traffic.packets_there), (traffic.back, traffic.packets_back));
        add(&mut self.nic_out[by], crossed(Term::NicSend, there.0, there.1));
        add(&mut self.nic_in[to], crossed(Term::NicReceive, there.0, there.1));
        if step.is_two_way() {
            add(&mut self.nic_out[to], crossed(Term::NicSend, back.0, back.1));
            add(&mut self.nic_in[by], crossed(Term::NicReceive, back.0, back.1));
        }
        self.line_bytes[by] += *share * traffic.there;
        self.line_bytes[to] += *share * traffic.back;
        Ok(())
    }

    fn bounds(&self, setting: &Setting, workload: &Workload) -> Vec<Form> {
        let mut bounds = Vec::with_capacity(10);
        let mut push = |kind, cost: Cost| bounds.push(Form { kind, cost });
        self.flow(setting, workload, &mut push);
        self.resources(setting, workload, &mut push);
        shared(setting, workload, &mut push);
        bounds
    }

    /// Pushes the bounds of windows, of the receiver's space, and of READs that wait for others.
    fn flow(&self, setting: &Setting, workload: &Workload, push: &mut impl FnMut(BoundKind, Cost)) {
        let connections = f64::from(workload.peers.connections);
        // Windows and fences limit each direction separately.
        let directions = if workload.bidirectional { 2.0 } else { 1.0 };
        let cycles = connections * directions;

        let cycle = match workload.protocol.release() {
            Release::Receiver => self.delivery.plus(&self.release),
            Release::Acknowledgement => self.reservation.plus(&self.acknowledged(setting, workload)),
        };
        let cycle = cycle.with(Term::ListFetch, lists(workload));
        push(BoundKind::RoundTrip, cycle.scaled(1.0 / (cycles * f64::from(workload.window))));
        if self.is_reported && workload.protocol.release() == Release::Acknowledgement {
            let space = (f64::from(workload.spaces()) * (1.0 - self.unreported)).floor().max(1.0);
            push(BoundKind::ReceiverSpace, self.delivery.plus(&self.release).scaled(1.0 / (cycles * space)));
        }
        if workload.protocol.is_fenced() {
            push(BoundKind::Fence, self.read.scaled(1.0 / cycles));
        }
        push(BoundKind::ReadsInFlight, self.read.scaled(1.0 / (cycles * f64::from(setting.limits.reads_in_flight))));
        self.atomics(setting, workload, push);
    }

    /// Returns the time from the post of a message until its acknowledgement, which frees its place in the window.
    fn acknowledged(&self, setting: &Setting, workload: &Workload) -> Cost {
        posting_of(false, workload.batch, setting).plus(&gap(setting, workload.bytes, self.beyond))
    }

    /// Pushes the bounds of atomics.
    ///
    /// An operation for all waiting messages is posted while fewer than `f` of them are in flight. If the window `W`
    /// has at least two full posts for each of the `f`, each of `n` senders keeps `f` in flight. They wait for each
    /// other on the address. A place of the window is then taken for `(f + 1/2) n` atomics: `f` in flight, and half the
    /// time until one of them completes. To this comes the time of the message itself, which includes the post of an
    /// atomic and the poll of its completion. With a smaller window, each atomic has the messages of one post.
    fn atomics(&self, setting: &Setting, workload: &Workload, push: &mut impl FnMut(BoundKind, Cost)) {
        let Peers { receivers, connections, .. } = workload.peers;
        let (connections, receivers, window) =
            (f64::from(connections), f64::from(receivers), f64::from(workload.window));
        for charge in charged(workload).iter().filter(|charge| charge.step.is_atomic()) {
            let (per_message, places, rest) = match charge.step.when {
                When::Waiting { in_flight } if workload.window >= 2 * in_flight.saturating_mul(workload.batch) => {
                    let reserving = posting_of(false, 1, setting).plus(&polling_of(1, setting));
                    let rest = self.acknowledged(setting, workload).plus(&reserving);
                    let in_flight = f64::from(in_flight);
                    (in_flight / window, (in_flight + 0.5) / window, rest.scaled(1.0 / (window * connections)))
                }
                _ => (charge.per_message, charge.per_message, Cost::ZERO),
            };
            push(BoundKind::Atomics, Cost::ZERO.with(Term::AtomicPair, per_message / connections));
            push(BoundKind::AtomicsOnAddress, rest.with(Term::AtomicAddress, places / receivers));
        }
    }

    /// Pushes the bounds of CPUs, NICs and the link.
    pub(crate) fn resources(&self, setting: &Setting, workload: &Workload, push: &mut impl FnMut(BoundKind, Cost)) {
        let threads = [f64::from(workload.peers.senders), f64::from(workload.peers.receivers)];
        // If both ends send, each end has half of each role per message.
        let at = |costs: &[Cost; 2], end: End| {
            let (own, other) = (&costs[end as usize], &costs[end.other() as usize]);
            if workload.bidirectional { own.plus(other).scaled(0.5) } else { *own }
        };
        let pairs = many_pairs(workload);
        let cpu = |end: End| at(&self.cpu, end).plus(&at(&pairs, end)).scaled(1.0 / threads[end as usize]);
        let nic = |costs: &[Cost; 2], end: End| at(costs, end);
        let (sender, receiver) = (End::Sender, End::Receiver);
        match setting.rnic {
            RnicKind::Software => {
                // The RNIC's work runs on the CPU, and there is no separate link.
                for (kind, end) in [(BoundKind::SendingCpu, sender), (BoundKind::ReceivingCpu, receiver)] {
                    let rnic = nic(&self.nic_out, end).plus(&nic(&self.nic_in, end));
                    push(kind, cpu(end).plus(&rnic.scaled(1.0 / threads[end as usize])));
                }
            }
            RnicKind::Hardware => {
                push(BoundKind::SendingCpu, cpu(sender));
                push(BoundKind::ReceivingCpu, cpu(receiver));
                // The units of a NIC serve the connections in parallel, one unit per connection, and share the link.
                let units = f64::from(workload.peers.connections.min(setting.limits.nic_units));
                for (kind, costs, end) in [
                    (BoundKind::SendingNic, &self.nic_out, sender),
                    (BoundKind::SendingNicInbound, &self.nic_in, sender),
                    (BoundKind::ReceivingNic, &self.nic_in, receiver),
                    (BoundKind::ReceivingNicOutbound, &self.nic_out, receiver),
                ] {
                    push(kind, nic(costs, end).scaled(1.0 / units));
                }
                for (own, whole, end) in [
                    (BoundKind::SendingUnits, BoundKind::SendingCeiling, sender),
                    (BoundKind::ReceivingUnits, BoundKind::ReceivingCeiling, receiver),
                ] {
                    // A unit sends and receives at the same time, so the larger number counts. ACKs do not count.
                    let sends = nic(&self.nic_out, end).times(Term::NicSend);
                    let works = sends.max(nic(&self.nic_in, end).times(Term::NicReceive));
                    push(own, Cost::ZERO.with(Term::NicUnit, works / units));
                    push(whole, Cost::ZERO.with(Term::NicWhole, works));
                }
                if setting.limits.payload_fetches > 0 {
                    // Each direction of a queue pair has its own payloads.
                    let at_once = f64::from(workload.peers.connections) * f64::from(setting.limits.payload_fetches);
                    let directions = if workload.bidirectional { 2.0 } else { 1.0 };
                    for fetches in self.fetches {
                        push(
                            BoundKind::PayloadFetches,
                            Cost::ZERO.with(Term::DmaRead, fetches / (directions * at_once)),
                        );
                    }
                }
                for (kind, end) in [(BoundKind::Link, sender), (BoundKind::LinkBackward, receiver)] {
                    let (own, other) = (self.line_bytes[end as usize], self.line_bytes[end.other() as usize]);
                    let line_bytes = if workload.bidirectional { (own + other) / 2.0 } else { own };
                    push(kind, Cost::ZERO.with(Term::BandwidthPerByte, line_bytes));
                }
            }
        }
    }
}

/// Returns the CPU time of a sending and of a receiving thread for changing between its receive queues. Each doubling
/// of the queue pairs adds the same time. A shared receive queue adds no time, since all queue pairs use its receives.
/// A WRITE adds no time either: it takes no receive with a buffer.
fn many_pairs(workload: &Workload) -> [Cost; 2] {
    let takes_buffer = |charge: &Charged| {
        charge.role == Role::Delivery
            && charge.step.noticed == Noticed::Completion
            && charge.step.operation != MessageKind::WriteImm
    };
    if !charged(workload).iter().any(takes_buffer) {
        return [Cost::ZERO; 2];
    }
    let Peers { senders, receivers, connections } = workload.peers;
    let of = |receivers: u32| match workload.srq {
        true => Cost::ZERO,
        false => Cost::ZERO.with(Term::ManyPairs, (f64::from(connections) / f64::from(receivers)).log2()),
    };
    [if workload.bidirectional { of(senders) } else { Cost::ZERO }, of(receivers)]
}

/// Returns the number of lists of work requests that the NICs fetch one after the other for a message. A list has a
/// batch of messages, a message with a WRITE after it, or the posts of a receiver for a whole batch.
fn lists(workload: &Workload) -> f64 {
    let all = charged(workload);
    match workload.protocol.release() {
        Release::Acknowledgement => {
            let is_chained = |charge: &Charged| charge.step.by == End::Sender && charge.chained;
            f64::from(u8::from(workload.batch > 1 || all.iter().any(is_chained)))
        }
        // The latencies of the steps have the fetches of chained operations.
        Release::Receiver if workload.batch > 1 => {
            all.iter().filter(|charge| charge.step.when == When::Message && !charge.chained).count() as f64
        }
        Release::Receiver => 0.0,
    }
}

/// Pushes the bounds of shared receive queues.
fn shared(setting: &Setting, workload: &Workload, push: &mut impl FnMut(BoundKind, Cost)) {
    let peers = workload.peers;
    let shares = workload.srq && workload.protocol == Protocol::SendReceive && peers.connections > 1;
    if shares && workload.bytes > setting.limits.srq_unlimited_up_to_bytes {
        // A message holds the queue only if the previous message came from another queue pair. Connections send in
        // random order.
        let behind_others = 1.0 - 1.0 / f64::from(peers.connections);
        push(BoundKind::Srq, Cost::ZERO.with(Term::SharedQueue, behind_others));
    }
    if shares && workload.repost_thread {
        push(BoundKind::RepostThread, Cost::ZERO.with(Term::RepostThread, 1.0));
    }
}

/// Returns the number of batches per message, by which a cost per batch is multiplied.
fn once_in(batch: u32, setting: &Setting) -> f64 {
    1.0 / f64::from(batch.min(setting.batch))
}

/// Returns the CPU time of posting one message of a batch. A chained message needs no post of its own.
fn posting_of(chained: bool, batch: u32, setting: &Setting) -> Cost {
    let once = if chained { 0.0 } else { once_in(batch, setting) };
    Cost::ZERO.with(Term::SendPost, once).with(Term::SendEach, 1.0)
}

fn posting(charge: &Charged, setting: &Setting, workload: &Workload) -> Cost {
    posting_of(charge.chained, if charge.step.when == When::Message { workload.batch } else { 1 }, setting)
}

/// Returns the CPU time of polling one of `together` completions.
fn polling_of(together: u32, setting: &Setting) -> Cost {
    Cost::ZERO.with(Term::ReceivePoll, once_in(together, setting)).with(Term::ReceiveEach, 1.0)
}

/// Returns the CPU time of polling one completion.
fn polling(setting: &Setting, workload: &Workload) -> Cost {
    polling_of(workload.receive_batch, setting)
}

/// Returns the CPU time of the end that is the target of an operation.
fn noticing(charge: &Charged, payload: u64, setting: &Setting, workload: &Workload) -> Cost {
    match charge.step.noticed {
        Noticed::Nothing => Cost::ZERO,
        Noticed::Memory => polling(setting, workload),
        Noticed::Completion => polling(setting, workload)
            .with(Term::RepostList, once_in(workload.repost_batch, setting))
            .with(Term::RepostEach, 1.0)
            .plus(&out_of_completion(charge.step, payload, setting)),
    }
}
