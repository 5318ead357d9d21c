//! Workloads of one-sided operations over verbs: WRITE, READ and atomics on the other end's memory.
//!
//! The *initiator* keeps a window of operations outstanding and posts the operations in lists. The last operation of a
//! list is signalled. RC completes operations in order, so that completion covers the whole list. The *target* has a
//! region that the initiator may access. The target's thread only lets a software RNIC process packets.
//!
//! Message `n` uses slot `n % slots` of the region at either end. Atomics access the first word of the target's region,
//! and their results go to the initiator's slot.

use std::collections::VecDeque;

use doorbell_exchange::asynchronous::{Waiter, yield_now};
use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::{
    Access, Channel, Completion, Cq, Device, MemoryKind, Notify, PathMtu, Payload, Pd, Psn, Qp, QpCapacities, QpKind,
    QpOptions, RKey, Region, SendFlags, SendOperation, SendRequest, Status,
};
use doorbell_wire::{fill_scrambled, is_scrambled};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::workload::{Pace, Plan, Progress, Rounds, Tally};
use doorbell_record::{Buckets, Fitted, Operation, Parameters, stride};

/// Maximum number of completions per poll.
const POLL_LIST: usize = 32;

/// Code of the minimum time to wait after an RNR NAK. The value has no effect, since one-sided operations consume no
/// receive.
const MIN_RNR_TIMER: u8 = 12;

/// Address and key of the target's memory, for the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// Address of the first byte.
    pub address: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Length in bytes.
    pub bytes: u64,
}

impl From<&Region> for RemoteMemory {
    fn from(region: &Region) -> Self {
        Self { address: region.address(), rkey: region.rkey().get(), bytes: region.len() as u64 }
    }
}

/// One end of a connection for one-sided operations.
#[derive(Debug)]
pub struct End {
    qp: Qp,
    cq: Cq,
    psn: Psn,
    region: Region,
    path_mtu: Option<PathMtu>,
    settings: RcSettings,
    /// Delay of the first operation, as [`SendMemory::phase`](crate::workload::SendMemory::phase).
    pub(crate) phase: f64,
}

/// Role of an end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role<'a> {
    /// End that posts operations. If there is a channel, the end can sleep on the channel.
    Initiator(Option<&'a Channel>),
    /// End whose memory the operations access.
    Target,
}

impl End {
    /// Makes an unconnected end without a delay.
    ///
    /// # Errors
    ///
    /// A queue, the queue pair or the memory cannot be made, since the device lacks resources.
    pub(crate) fn new(
        pd: &Pd,
        parameters: &Parameters,
        bytes: usize,
        fitted: &Fitted,
        role: Role<'_>,
    ) -> Result<Self, ConnectError> {
        let device = pd.device();
        let (max_send_wr, max_inline, access, channel) = match role {
            Role::Initiator(channel) => (fitted.window, max_inline(pd, parameters), Access::LOCAL_WRITE, channel),
            Role::Target => (1, 0, target_access(parameters.operation), None),
        };
        let cq = match channel {
            Some(channel) => device.create_cq_on(max_send_wr, channel)?,
            None => device.create_cq(max_send_wr)?,
        };
        let qp = pd.create_qp(QpOptions {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            capacities: QpCapacities { max_send_wr, max_recv_wr: 0, max_send_sge: 1, max_recv_sge: 1, max_inline },
            signal_all: false,
        })?;
        let region = pd.allocate(fitted.send_buffers * stride(bytes), access, MemoryKind::Plain)?;
        if matches!(role, Role::Target) && parameters.operation == Operation::Read && parameters.verify {
            let mut scratch = vec![0; bytes];
            for slot in 0..fitted.send_buffers {
                fill_scrambled(slot as u64, &mut scratch);
                region.copy_in(slot * stride(bytes), &scratch);
            }
        }
        rc::initialise(&qp, access.difference(Access::LOCAL_WRITE))?;
        let settings = RcSettings {
            timeout: parameters.timeout,
            retry_count: parameters.retry_count,
            rnr_retry: parameters.rnr_retry,
            min_rnr_timer: MIN_RNR_TIMER,
        };
        Ok(Self { qp, cq, psn: device.first_psn(), region, path_mtu: parameters.path_mtu(), settings, phase: 0.0 })
    }

    /// Returns the description of the queue pair for the peer.
    pub(crate) fn description(&self) -> EndpointDescription {
        let own = EndpointDescription::bare(&self.qp, self.psn);
        EndpointDescription { path_mtu: self.path_mtu.unwrap_or(own.path_mtu), ..own }
    }

    /// Connects with the peer.
    ///
    /// # Errors
    ///
    /// As [`rc::connect`].
    pub(crate) fn connect(&self, peer: &EndpointDescription) -> Result<(), ConnectError> {
        rc::connect(&self.qp, &self.description(), peer, &self.settings)
    }

    fn device(&self) -> &Device {
        self.qp.pd().device()
    }

    /// Returns the description of the memory for the peer.
    pub(crate) fn memory(&self) -> RemoteMemory {
        RemoteMemory::from(&self.region)
    }

    /// Polls once, so that a software RNIC can process packets. A target has no completions.
    pub(crate) fn lend_processor(&self) {
        let _ = self.cq.poll(&mut [Completion::default()]);
    }

    /// Returns the number of damaged messages among `messages` messages that the peer reports as completed. For WRITEs,
    /// the function checks the last message of each slot in this memory. For atomics, it checks the word. If the word
    /// is wrong, all messages count as damaged.
    pub(crate) fn damaged(&self, operation: Operation, bytes: usize, slots: usize, messages: u64) -> u64 {
        match operation {
            Operation::Write => {
                let mut scratch = vec![0; bytes];
                let last_of_each = messages.saturating_sub(slots as u64)..messages;
                let is_damaged = |&message: &u64| {
                    self.region.copy_out(slot_of(message, slots) * stride(bytes), &mut scratch);
                    !is_scrambled(message, &scratch)
                };
                last_of_each.filter(is_damaged).count() as u64
            }
            _ if operation.is_atomic() && self.region.load_acquire_u64(0) != messages => messages.max(1),
            _ => 0,
        }
    }
}

/// Returns the maximum bytes of an inline message.
fn max_inline(pd: &Pd, parameters: &Parameters) -> usize {
    match parameters.operation {
        Operation::Write => parameters.inline.min(pd.device().attributes().limits.max_inline),
        _ => 0, // other operations return data instead of sending data
    }
}

/// Returns the minimum access rights that the peer's operation needs.
fn target_access(operation: Operation) -> Access {
    match operation {
        Operation::Write => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        Operation::Read => Access::REMOTE_READ,
        _ => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
    }
}

fn slot_of(message: u64, slots: usize) -> usize {
    (message % slots as u64) as usize
}

/// Initiator with the state of its operations.
struct Initiator<'a, W> {
    end: &'a End,
    remote: RemoteMemory,
    operation: Operation,
    plan: Plan,
    waiter: W,
    inline: bool,
    inline_store: Vec<u8>,
    scratch: Vec<u8>,
    posted: u64,
    completed: u64,
    checked: u64,
    damaged: u64,
}

impl<'a, W: Waiter> Initiator<'a, W> {
    fn new(end: &'a End, remote: RemoteMemory, parameters: &Parameters, batch: usize, plan: Plan, waiter: W) -> Self {
        let inline = parameters.operation == Operation::Write && plan.bytes <= max_inline(end.qp.pd(), parameters);
        Self {
            end,
            remote,
            operation: parameters.operation,
            plan,
            waiter,
            inline,
            inline_store: vec![0; if inline { batch * plan.bytes } else { 0 }],
            scratch: vec![0; if plan.verify { plan.bytes } else { 0 }],
            posted: 0,
            completed: 0,
            checked: 0,
            damaged: 0,
        }
    }

    fn outstanding(&self) -> u64 {
        self.posted - self.completed
    }

    /// Returns the offset of a message in both regions.
    fn offset(&self, message: u64) -> usize {
        slot_of(message, self.plan.buffers) * stride(self.plan.bytes)
    }

    /// Posts the next `count` messages as one list. The last message is signalled.
    fn post(&mut self, count: usize) -> Result<(), ConnectionError> {
        let messages = self.posted..self.posted + count as u64;
        let sges: SmallVec<[_; 8]> =
            messages.clone().map(|message| self.end.region.sge(self.offset(message), self.plan.bytes)).collect();
        let request = |(index, message): (usize, u64)| SendRequest {
            wr_id: message + 1,
            operation: self.request(message),
            flags: if index + 1 == count { SendFlags::SIGNALED } else { SendFlags::empty() },
            payload: if self.inline {
                Payload::Inline(&self.inline_store[index * self.plan.bytes..][..self.plan.bytes])
            } else {
                Payload::Sges(std::slice::from_ref(&sges[index]))
            },
            destination: None,
        };
        let list: SmallVec<[SendRequest<'_>; 8]> = messages.enumerate().map(request).collect();
        let result = self.end.qp.post_send(&list);
        drop(list);
        match result {
            Ok(()) => {
                self.posted += count as u64;
                Ok(())
            }
            // If the queue pair has failed in the meantime, return the reason from its completions instead.
            Err(error) => self.reap().and(Err(ConnectionError::Post(error))),
        }
    }

    fn request(&self, message: u64) -> SendOperation {
        let rkey = RKey::new(self.remote.rkey);
        let remote_address = self.remote.address.wrapping_add(self.offset(message) as u64);
        let word = self.remote.address;
        match self.operation {
            Operation::Read => SendOperation::Read { remote_address, rkey },
            // The word counts messages. The previous message has set the word to this message's number, so the swap
            // succeeds.
            Operation::CompareSwap => {
                SendOperation::CompareSwap { remote_address: word, rkey, compare: message, swap: message + 1 }
            }
            Operation::FetchAdd => SendOperation::FetchAdd { remote_address: word, rkey, add: 1 },
            _ => SendOperation::Write { remote_address, rkey },
        }
    }

    /// Checks completed messages, and prepares the buffers of the next `count` messages. A WRITE's buffer gets the
    /// payload. A READ's buffer gets the complement of the expected bytes, so that a missing byte is noticed.
    fn prepare(&mut self, count: usize) {
        if !self.plan.verify {
            return;
        }
        self.check();
        for index in 0..count {
            let message = self.posted + index as u64;
            let offset = self.offset(message);
            match self.operation {
                Operation::Write => fill_scrambled(message, &mut self.scratch),
                Operation::Read => {
                    fill_scrambled(slot_of(message, self.plan.buffers) as u64, &mut self.scratch);
                    self.scratch.iter_mut().for_each(|byte| *byte = !*byte);
                }
                _ => fill_scrambled(u64::MAX - message, &mut self.scratch),
            }
            if self.inline {
                self.inline_store[index * self.plan.bytes..][..self.plan.bytes].copy_from_slice(&self.scratch);
            } else {
                self.end.region.copy_in(offset, &self.scratch);
            }
        }
    }

    /// Checks the bytes that completed operations have returned.
    fn check(&mut self) {
        if self.plan.verify {
            self.damaged += (self.checked..self.completed).filter(|&message| self.is_damaged(message)).count() as u64;
            self.checked = self.completed;
        }
    }

    /// Takes one list of completions. Returns the number of messages that have completed since the last call.
    fn reap(&mut self) -> Result<u64, ConnectionError> {
        let mut list = [Completion::default(); POLL_LIST];
        let count = self.end.cq.poll(&mut list)?;
        // The first failed completion has the reason. Later requests were only flushed.
        if let Some(failed) = list[..count].iter().find(|completion| completion.status != Status::Success) {
            return Err(ConnectionError::from_send(failed.status));
        }
        let Some(last) = list[..count].last() else { return Ok(0) };
        let before = std::mem::replace(&mut self.completed, last.wr_id);
        Ok(self.completed - before)
    }

    fn is_damaged(&mut self, message: u64) -> bool {
        let offset = self.offset(message);
        match self.operation {
            Operation::Read => {
                self.end.region.copy_out(offset, &mut self.scratch);
                !is_scrambled(slot_of(message, self.plan.buffers) as u64, &self.scratch)
            }
            operation if operation.is_atomic() => self.end.region.load_acquire_u64(offset) != message,
            _ => false, // the target checks the bytes that WRITEs have written
        }
    }

    /// Waits until a message has completed.
    async fn progress(&mut self) -> Result<(), ConnectionError> {
        while self.reap()? == 0 {
            if self.waiter.wants_notification() {
                self.end.cq.arm(Notify::Next);
                // A completion that arrived before the notification was armed may cause no notification.
                if self.reap()? > 0 {
                    break;
                }
                self.waiter.wait(self.end.cq.channel(), None).await;
                while self.end.cq.channel().is_some_and(|channel| channel.next().is_some()) {}
            } else {
                self.waiter.wait(None, None).await;
            }
        }
        Ok(())
    }
}

/// Latencies of operations with a window.
struct Latencies {
    /// Number of operations up to a posted one, and the time from which its latency counts. The oldest entry is first.
    /// Operations of one list may share an entry.
    outstanding: VecDeque<(u64, u64)>,
    /// Number of operations whose latencies are recorded.
    recorded: u64,
    histogram: Histogram<u64>,
}

impl Latencies {
    fn new() -> Self {
        Self { outstanding: VecDeque::new(), recorded: 0, histogram: Buckets::empty_histogram() }
    }

    /// Adds operations `first..end`, posted at `now_ns`. With a rate, the latency of an operation begins when it was
    /// due, if it was posted later.
    fn posted(&mut self, first: u64, end: u64, now_ns: u64, pace: &Pace) {
        match pace.due_ns(first) {
            None => self.outstanding.push_back((end, now_ns)),
            Some(_) => self.outstanding.extend((first..end).map(|operation| {
                let due_ns = pace.due_ns(operation).unwrap_or(now_ns);
                (operation + 1, due_ns.min(now_ns))
            })),
        }
    }

    /// Records the latencies of the first `completed` operations that are not recorded yet.
    fn completed(&mut self, completed: u64, device: &Device) {
        let now_ns = device.now_ns();
        let are_complete = self.outstanding.iter().take_while(|(end, _)| *end <= completed).count();
        for (end, since_ns) in self.outstanding.drain(..are_complete) {
            // The histogram grows automatically, so recording a value cannot fail.
            let _ = self.histogram.record_n(now_ns.saturating_sub(since_ns), end - self.recorded);
            self.recorded = end;
        }
    }
}

/// Runs operations by a plan, with a window of outstanding operations. The histogram records the time of each operation
/// from its post until its completion was taken. With a rate, the time begins when the operation was due (open loop).
///
/// # Errors
///
/// A work request is rejected or fails, for example since the peer is gone. The connection is then unusable.
pub(crate) async fn stream<W: Waiter>(
    end: &End,
    remote: RemoteMemory,
    parameters: &Parameters,
    fitted: &Fitted,
    plan: Plan,
    waiter: W,
    progress: Progress<'_>,
) -> Result<(Tally, Histogram<u64>), ConnectionError> {
    let device = end.device();
    let mut initiator = Initiator::new(end, remote, parameters, fitted.batch, plan, waiter);
    let mut pace = Pace::start(device, &plan).delayed(end.phase);
    let mut latencies = Latencies::new();
    let (window, batch) = (fitted.window as u64, fitted.batch as u64);
    loop {
        let count = pace.left(initiator.posted).min(batch);
        if count == 0 {
            break;
        }
        let early_until_ns = pace.early_until_ns(initiator.posted);
        if early_until_ns.is_none() && initiator.outstanding() + count <= window {
            initiator.prepare(count as usize);
            let (first, now_ns) = (initiator.posted, device.now_ns());
            initiator.post(count as usize)?;
            latencies.posted(first, initiator.posted, now_ns, &pace);
            initiator.waiter.breathe().await;
        } else if initiator.reap()? > 0 {
            latencies.completed(initiator.completed, device);
            progress(initiator.completed);
            yield_now().await;
        } else if early_until_ns.is_some() {
            initiator.waiter.wait(None, early_until_ns).await;
        } else {
            initiator.progress().await?;
            latencies.completed(initiator.completed, device);
        }
    }
    while initiator.outstanding() > 0 {
        initiator.progress().await?;
        latencies.completed(initiator.completed, device);
    }
    let ended_ns = device.now_ns();
    initiator.check();
    let (sent, damaged, began_ns) = (initiator.posted, initiator.damaged, pace.began_ns());
    let tally = Tally { sent, damaged, first_ns: began_ns, began_ns, ended_ns, ..Tally::default() };
    Ok((tally, latencies.histogram))
}

/// Runs one operation at a time, and measures the time of each operation from post to completion, after a warm-up.
///
/// # Errors
///
/// As [`stream`].
pub(crate) async fn time<W: Waiter>(
    end: &End,
    remote: RemoteMemory,
    parameters: &Parameters,
    plan: Plan,
    waiter: W,
    progress: Progress<'_>,
) -> Result<(Tally, Histogram<u64>), ConnectionError> {
    let mut initiator = Initiator::new(end, remote, parameters, 1, plan, waiter);
    let mut rounds = Rounds::new(end.device(), plan, 1, end.phase);
    loop {
        while let Some(until_ns) = rounds.early_until_ns() {
            initiator.waiter.wait(None, Some(until_ns)).await;
        }
        initiator.prepare(1);
        let began_ns = rounds.begin();
        initiator.post(1)?;
        while initiator.outstanding() > 0 {
            initiator.progress().await?;
        }
        if rounds.end(began_ns, progress) {
            break;
        }
        initiator.waiter.breathe().await;
    }
    initiator.check();
    let Rounds { tally, histogram, .. } = rounds;
    Ok((Tally { damaged: initiator.damaged, ..tally }, histogram))
}

#[cfg(test)]
mod tests;
