//! Workloads of SENDs over unacknowledged queue pairs (UC and UD), with counts of received and of lost messages.
//!
//! A sender does not learn that a message was lost, or that the receiver had no posted receive. Each message therefore
//! carries its number modulo 2^32 as immediate data. A receiver uses the number to detect new messages, and a requester
//! uses the number to reject old answers. A message without an answer counts as lost after a deadline.

use std::collections::VecDeque;

use doorbell_exchange::asynchronous::{Waiter, yield_now};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::{
    Access, AddressVector, Attachment, Completion, Cq, Device, MemoryKind, PathMtu, Payload, Pd, PostError, Psn, QKey,
    Qp, QpAttributes, QpCapacities, QpKind, QpOptions, QpState, RecvRequest, Region, SendFlags, SendOperation,
    SendRequest, Sge, Status, UdDestination,
};
use doorbell_wire::{fill_scrambled, is_scrambled};
use hdrhistogram::Histogram;
use smallvec::SmallVec;

use crate::workload::{Pace, Plan, Progress, Rounds, Tally};
use doorbell_record::{Fitted, Parameters, Transport, stride};

/// Maximum number of completions per poll.
const POLL_LIST: usize = 32;
/// Q_Key of both ends. Its highest bit is clear, so no privilege is needed (IBTA Vol 1, 10.2.5).
const QKEY: u32 = 0x1111_1111;
/// Time after which an unanswered message counts as lost.
const LOST_AFTER_NS: u64 = 50_000_000;
/// Number of consecutive lost messages after which the peer counts as unreachable.
const MOST_LOST_IN_A_ROW: u32 = 200;
/// Time without a message after which a receiver stops waiting for messages in flight, in nanoseconds. It applies once
/// the sender has reported that it has sent all messages.
const QUIET_NS: u64 = 50_000_000;
/// Maximum time that a receiver waits for messages in flight, in nanoseconds.
const MOST_AWAITED_NS: u64 = 2_000_000_000;
/// Number of empty polls of an end between two reads of the clock.
const LOOKS_BETWEEN: u32 = 16;

/// One end of a connection over UC, or of a pair of UD queue pairs.
#[derive(Debug)]
pub struct End {
    qp: Qp,
    sends: Cq,
    receives: Cq,
    psn: Psn,
    /// Buffers of messages to send.
    slots: Region,
    places: Region,
    depth: usize,
    /// Distance between two buffers in `places`, in bytes.
    place_stride: usize,
    header: usize,
    transport: Transport,
    path_mtu: PathMtu,
    destination: Option<UdDestination>,
    bytes: usize,
    inline: bool,
    /// Delay of the first message, as [`SendMemory::phase`](crate::workload::SendMemory::phase).
    pub phase: f64,
}

impl End {
    /// Makes an unconnected end without a delay, and posts its receives.
    ///
    /// # Errors
    ///
    /// A datagram of this size exceeds the path MTU, or a queue, the queue pair or the memory cannot be made.
    pub fn new(pd: &Pd, parameters: &Parameters, bytes: usize, fitted: &Fitted) -> Result<Self, ConnectError> {
        let (device, transport) = (pd.device(), parameters.transport);
        let attributes = device.attributes();
        let path_mtu = parameters.path_mtu().unwrap_or(attributes.active_mtu);
        check_fits(transport, bytes, path_mtu)?;
        let inline = parameters.inline.min(attributes.limits.max_inline);
        let (sends, receives) = (device.create_cq(fitted.window)?, device.create_cq(fitted.depth)?);
        let kind = if transport == Transport::Ud { QpKind::Ud } else { QpKind::Uc };
        let qp = pd.create_qp(QpOptions {
            kind,
            send_cq: &sends,
            recv_cq: &receives,
            srq: None,
            capacities: QpCapacities {
                max_send_wr: fitted.window,
                max_recv_wr: fitted.depth,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: inline,
            },
            signal_all: false,
        })?;
        let header = transport.bytes_before();
        let place_stride = stride(bytes + header);
        let slots = pd.allocate(fitted.send_buffers * stride(bytes), Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let places = pd.allocate(fitted.depth * place_stride, Access::LOCAL_WRITE, MemoryKind::Plain)?;
        let is_datagram = kind == QpKind::Ud;
        qp.modify(&QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            qkey: is_datagram.then_some(QKey::new(QKEY)),
            access: (!is_datagram).then_some(Access::empty()),
            ..QpAttributes::default()
        })?;
        let end = Self {
            psn: device.first_psn(),
            depth: fitted.depth,
            destination: None,
            inline: bytes <= inline,
            qp,
            sends,
            receives,
            slots,
            places,
            place_stride,
            header,
            transport,
            path_mtu,
            bytes,
            phase: 0.0,
        };
        let all: Vec<u64> = (0..fitted.depth as u64).collect();
        all.chunks(POLL_LIST).try_for_each(|list| end.post_receives(list))?;
        Ok(end)
    }

    /// Returns the description of the queue pair for the peer.
    pub fn description(&self) -> EndpointDescription {
        EndpointDescription {
            path_mtu: self.path_mtu,
            depth: self.depth as u32,
            max_message: self.bytes as u64,
            ..EndpointDescription::bare(&self.qp, self.psn)
        }
    }

    /// Connects with the peer. Over UD, the function only stores the peer's address.
    ///
    /// # Errors
    ///
    /// The ends use different UDP ports, the peer's path MTU is too small for these datagrams, or the peer's
    /// description is invalid.
    pub fn connect(&mut self, peer: &EndpointDescription) -> Result<(), ConnectError> {
        let own = self.description();
        if own.udp_port != peer.udp_port {
            let (own, peer) = (own.udp_port.into(), peer.udp_port.into());
            return Err(ConnectError::Mismatch { what: "the UDP port", own, peer });
        }
        let path_mtu = self.path_mtu.min(peer.path_mtu);
        check_fits(self.transport, self.bytes, path_mtu)?;
        let address = AddressVector::to(peer.gid.to_canonical());
        let ready = QpAttributes { state: Some(QpState::ReadyToReceive), ..QpAttributes::default() };
        if self.transport == Transport::Ud {
            self.destination = Some(UdDestination { address, qpn: peer.qpn, qkey: QKey::new(QKEY) });
            self.qp.modify(&ready)?;
        } else {
            self.qp.modify(&QpAttributes {
                address: Some(address),
                path_mtu: Some(path_mtu),
                dest_qpn: Some(peer.qpn),
                receive_psn: Some(peer.psn),
                ..ready
            })?;
        }
        self.qp.modify(&QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(self.psn),
            ..QpAttributes::default()
        })?;
        Ok(())
    }

    fn device(&self) -> &Device {
        self.qp.pd().device()
    }

    fn post_receives(&self, places: &[u64]) -> Result<(), PostError> {
        let length = self.header + self.bytes;
        let sges: SmallVec<[Sge; POLL_LIST]> =
            places.iter().map(|&place| self.places.sge(place as usize * self.place_stride, length)).collect();
        let request = |(&wr_id, sge)| RecvRequest { wr_id, sges: std::slice::from_ref(sge) };
        let list: SmallVec<[RecvRequest<'_>; POLL_LIST]> = places.iter().zip(&sges).map(request).collect();
        self.qp.post_recv(&list)
    }
}

/// Rejects UD messages that exceed the path MTU, since a UD message is one packet.
fn check_fits(transport: Transport, bytes: usize, path_mtu: PathMtu) -> Result<(), ConnectError> {
    if transport != Transport::Ud || bytes <= path_mtu.bytes() {
        return Ok(());
    }
    let allowed = match path_mtu {
        PathMtu::Mtu256 => "0 to 256 B, the path MTU",
        PathMtu::Mtu512 => "0 to 512 B, the path MTU",
        PathMtu::Mtu1024 => "0 to 1024 B, the path MTU",
        PathMtu::Mtu2048 => "0 to 2048 B, the path MTU",
        PathMtu::Mtu4096 => "0 to 4096 B, the path MTU",
    };
    Err(ConnectError::Setting { what: "the message size over UD, in bytes,", given: bytes as u64, allowed })
}

/// State of the messages that an end sends.
struct Outbox<'a> {
    end: &'a End,
    plan: Plan,
    posted: u64,
    completed: u64,
    scratch: Vec<u8>,
    inline_store: Vec<u8>,
}

impl<'a> Outbox<'a> {
    fn new(end: &'a End, plan: Plan, batch: usize) -> Self {
        let inline_store = vec![0; if end.inline { batch * plan.bytes } else { 0 }];
        Self { end, plan, posted: 0, completed: 0, scratch: vec![0; plan.bytes], inline_store }
    }

    fn room(&self) -> u64 {
        self.plan.window as u64 - (self.posted - self.completed)
    }

    fn slot(&self, message: u64) -> usize {
        (message % self.plan.buffers as u64) as usize * stride(self.plan.bytes)
    }

    /// Writes the payloads of the messages with these numbers if payloads are verified.
    fn prepare(&mut self, numbers: &[u32]) {
        if !self.plan.verify {
            return;
        }
        for (index, &number) in numbers.iter().enumerate() {
            fill_scrambled(number.into(), &mut self.scratch);
            if self.end.inline {
                self.inline_store[index * self.plan.bytes..][..self.plan.bytes].copy_from_slice(&self.scratch);
            } else {
                self.end.slots.copy_in(self.slot(self.posted + index as u64), &self.scratch);
            }
        }
    }

    /// Posts messages with these numbers as one list. The last message is signalled.
    fn post(&mut self, numbers: &[u32]) -> Result<(), ConnectionError> {
        let sges: SmallVec<[Sge; 8]> = (0..numbers.len() as u64)
            .map(|index| self.end.slots.sge(self.slot(self.posted + index), self.plan.bytes))
            .collect();
        let request = |(index, &number): (usize, &u32)| SendRequest {
            wr_id: self.posted + index as u64 + 1,
            operation: SendOperation::SendImmediate(number),
            flags: if index + 1 == numbers.len() { SendFlags::SIGNALED } else { SendFlags::empty() },
            payload: if self.end.inline {
                Payload::Inline(&self.inline_store[index * self.plan.bytes..][..self.plan.bytes])
            } else {
                Payload::Sges(std::slice::from_ref(&sges[index]))
            },
            destination: self.end.destination,
        };
        let list: SmallVec<[SendRequest<'_>; 8]> = numbers.iter().enumerate().map(request).collect();
        let result = self.end.qp.post_send(&list);
        drop(list);
        match result {
            Ok(()) => {
                self.posted += numbers.len() as u64;
                Ok(())
            }
            // If the queue pair has failed in the meantime, return the reason from its completions instead.
            Err(error) => self.reap().and(Err(ConnectionError::Post(error))),
        }
    }

    /// Takes one list of completions. Returns the number of messages that were sent since the last call.
    fn reap(&mut self) -> Result<u64, ConnectionError> {
        let mut list = [Completion::default(); POLL_LIST];
        let count = self.end.sends.poll(&mut list)?;
        if let Some(failed) = list[..count].iter().find(|completion| completion.status != Status::Success) {
            return Err(ConnectionError::from_send(failed.status));
        }
        let Some(last) = list[..count].last() else { return Ok(0) };
        let before = std::mem::replace(&mut self.completed, last.wr_id);
        Ok(self.completed - before)
    }
}

/// Most recent numbers of received messages. A message may arrive twice, or after a later message.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    /// Highest received number plus one.
    next: u32,
    /// Bit N is set if the number that is N below the highest number was received.
    heard: u128,
}

impl Recent {
    /// Records a number, and returns whether it is new. A number more than 127 below the highest number does not count
    /// as new.
    fn is_new(&mut self, number: u32) -> bool {
        let ahead = number.wrapping_sub(self.next);
        if ahead < 1 << 31 {
            self.heard = self.heard.checked_shl(ahead.saturating_add(1)).unwrap_or(0) | 1;
            self.next = number.wrapping_add(1);
            return true;
        }
        let behind = self.next.wrapping_sub(number) - 1;
        let Some(bit) = 1_u128.checked_shl(behind) else { return false };
        let is_new = self.heard & bit == 0;
        self.heard |= bit;
        is_new
    }
}

/// State of the messages that an end receives.
struct Inbox<'a> {
    end: &'a End,
    verify: bool,
    recent: Recent,
    scratch: Vec<u8>,
    received: u64,
    damaged: u64,
}

impl<'a> Inbox<'a> {
    fn new(end: &'a End, plan: &Plan) -> Self {
        let scratch = vec![0; end.bytes];
        Self { end, verify: plan.verify, recent: Recent::default(), scratch, received: 0, damaged: 0 }
    }

    /// Takes one list of received messages, and posts their receives again. Calls `new` with the number of each new
    /// message. Returns the number of taken messages.
    fn take(&mut self, mut new: impl FnMut(u32)) -> Result<usize, ConnectionError> {
        let mut list = [Completion::default(); POLL_LIST];
        let count = self.end.receives.poll(&mut list)?;
        let mut places: SmallVec<[u64; POLL_LIST]> = SmallVec::new();
        for completion in &list[..count] {
            if completion.status != Status::Success {
                return Err(ConnectionError::from_send(completion.status));
            }
            places.push(completion.wr_id);
            let Attachment::Immediate(number) = completion.attachment else {
                return Err(ConnectionError::Protocol("a message without its number"));
            };
            if self.recent.is_new(number) {
                self.received += 1;
                self.damaged += u64::from(!self.is_intact(completion, number));
                new(number);
            }
        }
        if count > 0 {
            self.end.post_receives(&places).map_err(ConnectionError::Post)?;
        }
        Ok(count)
    }

    fn is_intact(&mut self, completion: &Completion, number: u32) -> bool {
        let Self { end, scratch, .. } = self;
        if completion.byte_len as usize != end.header + end.bytes {
            return false;
        }
        if !self.verify {
            return true;
        }
        end.places.copy_out(completion.wr_id as usize * end.place_stride + end.header, scratch);
        is_scrambled(number.into(), scratch)
    }
}

/// Sends messages by a plan. The tally counts sent messages, even if they do not arrive.
///
/// # Errors
///
/// A work request is rejected or fails. The queue pair is then unusable.
pub async fn stream<W: Waiter>(
    end: &End,
    batch: usize,
    plan: Plan,
    waiter: W,
    progress: Progress<'_>,
) -> Result<Tally, ConnectionError> {
    let mut outbox = Outbox::new(end, plan, batch);
    let mut pace = Pace::start(end.device(), &plan).delayed(end.phase);
    loop {
        let count = pace.left(outbox.posted).min(batch as u64);
        if count == 0 {
            break;
        }
        let early_until_ns = pace.early_until_ns(outbox.posted);
        if early_until_ns.is_none() && outbox.room() >= count {
            let numbers: SmallVec<[u32; 8]> = (0..count).map(|index| (outbox.posted + index) as u32).collect();
            outbox.prepare(&numbers);
            outbox.post(&numbers)?;
            waiter.breathe().await;
        } else if outbox.reap()? > 0 {
            progress(outbox.completed);
            yield_now().await;
        } else {
            waiter.wait(None, early_until_ns).await;
        }
    }
    while outbox.completed < outbox.posted {
        if outbox.reap()? == 0 {
            waiter.wait(None, None).await;
        }
    }
    let (sent, began_ns, ended_ns) = (outbox.posted, pace.began_ns(), end.device().now_ns());
    Ok(Tally { sent, first_ns: began_ns, began_ns, ended_ns, ..Tally::default() })
}

/// Sends one message at a time, waits for its answer, and measures half of each round trip. In the tally, `received`
/// counts the answers.
///
/// # Errors
///
/// A work request is rejected or fails, or the peer stops answering ([`ConnectionError::PeerUnreachable`]).
pub async fn ping<W: Waiter>(
    end: &End,
    plan: Plan,
    waiter: W,
    progress: Progress<'_>,
) -> Result<(Tally, Histogram<u64>), ConnectionError> {
    let (device, mut outbox, mut inbox) = (end.device(), Outbox::new(end, plan, 1), Inbox::new(end, &plan));
    let mut rounds = Rounds::new(device, plan, 2, end.phase);
    let mut lost_in_a_row = 0;
    loop {
        while let Some(until_ns) = rounds.early_until_ns() {
            waiter.wait(None, Some(until_ns)).await;
        }
        let number = [outbox.posted as u32];
        outbox.prepare(&number);
        let since_ns = rounds.begin();
        let lost_at_ns = device.now_ns() + LOST_AFTER_NS;
        while outbox.room() == 0 && outbox.reap()? == 0 {
            waiter.wait(None, None).await;
        }
        outbox.post(&number)?;
        let (mut is_answered, mut countdown) = (false, LOOKS_BETWEEN);
        while !is_answered {
            outbox.reap()?;
            if inbox.take(|answered| is_answered |= answered == number[0])? > 0 {
                continue;
            }
            countdown -= 1;
            if countdown == 0 {
                countdown = LOOKS_BETWEEN;
                if device.now_ns() >= lost_at_ns {
                    break;
                }
            }
            waiter.wait(None, Some(lost_at_ns)).await;
        }
        lost_in_a_row = if is_answered { 0 } else { lost_in_a_row + 1 };
        if lost_in_a_row == MOST_LOST_IN_A_ROW {
            return Err(ConnectionError::PeerUnreachable(Status::RetryExceeded));
        }
        if if is_answered { rounds.end(since_ns, progress) } else { rounds.lost() } {
            break;
        }
        waiter.breathe().await;
    }
    let Rounds { tally, histogram, .. } = rounds;
    Ok((Tally { received: inbox.received, damaged: inbox.damaged, ..tally }, histogram))
}

/// End that receives messages, and optionally answers each message.
pub struct Listener<'a> {
    inbox: Inbox<'a>,
    outbox: Outbox<'a>,
    /// Numbers of received messages that are not answered yet. `None` if this end does not answer.
    unanswered: Option<VecDeque<u32>>,
}

impl<'a> Listener<'a> {
    /// Creates the listener of an end. `answers` states whether the listener answers messages.
    pub fn new(end: &'a End, plan: &Plan, answers: bool) -> Self {
        let unanswered = answers.then(|| VecDeque::with_capacity(end.depth));
        Self { inbox: Inbox::new(end, plan), outbox: Outbox::new(end, *plan, 1), unanswered }
    }

    /// Takes received messages, and sends answers as the window permits. Returns the number of taken messages.
    ///
    /// # Errors
    ///
    /// A work request is rejected or fails, or a message has no number. The queue pair is then unusable.
    pub fn turn(&mut self) -> Result<usize, ConnectionError> {
        let Self { inbox, outbox, unanswered } = self;
        let most = inbox.end.depth;
        let count = inbox.take(|number| {
            if let Some(unanswered) = unanswered.as_mut().filter(|waiting| waiting.len() < most) {
                unanswered.push_back(number);
            }
        })?;
        if let Some(unanswered) = unanswered {
            outbox.reap()?;
            while outbox.room() > 0
                && let Some(number) = unanswered.pop_front()
            {
                outbox.prepare(&[number]);
                outbox.post(&[number])?;
            }
        }
        Ok(count)
    }

    /// Returns the numbers of received and of answered messages.
    pub fn tally(&self) -> Tally {
        let Inbox { received, damaged, .. } = self.inbox;
        Tally { sent: self.outbox.posted, received, damaged, ..Tally::default() }
    }
}

/// Receives messages in flight. `sent` is the total number of messages that each listener's peer has sent. Returns when
/// all messages have arrived, after 50 ms without a message, or after 2 s.
///
/// # Errors
///
/// As [`Listener::turn`].
pub(crate) async fn hear_out(
    listeners: &mut [Listener<'_>],
    sent: &[u64],
    device: &Device,
) -> Result<(), ConnectionError> {
    let began_ns = device.now_ns();
    let mut heard_ns = began_ns;
    loop {
        let is_missing = |(listener, &sent): (&Listener<'_>, &u64)| listener.inbox.received < sent;
        let now_ns = device.now_ns();
        let is_over = now_ns >= heard_ns + QUIET_NS || now_ns >= began_ns + MOST_AWAITED_NS;
        if is_over || !listeners.iter().zip(sent).any(is_missing) {
            return Ok(());
        }
        let mut count = 0;
        for listener in &mut *listeners {
            count += listener.turn()?;
        }
        if count > 0 {
            heard_ns = now_ns;
        }
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_new_once() {
        let mut recent = Recent::default();
        let heard: Vec<bool> = [0, 1, 3, 2, 3, 2, 0, 200, 199, 199, 60, 201].map(|number| recent.is_new(number)).into();
        let expected = [true, true, true, true, false, false, false, true, true, false, false, true];
        assert_eq!(heard, expected);
        let mut recent = Recent { next: u32::MAX, heard: 1 };
        assert_eq!(
            [u32::MAX, 0, u32::MAX, u32::MAX - 1].map(|number| recent.is_new(number)),
            [true, true, false, false]
        );
    }
}
