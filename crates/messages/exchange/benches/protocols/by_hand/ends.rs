//! Ends of connections, and the state of a sender.

use doorbell_exchange::Config;
use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_verbs::{
    Access, Attachment, Completion, CompletionOpcode, Cq, Device, MemoryKind, Payload, Psn, Qp, QpCapacities, QpKind,
    QpOptions, RecvRequest, Region, SendFlags, SendOperation, SendRequest, Status,
};

use crate::{BYTES, wire};

/// Maximum number of work requests or completions in a list.
pub(super) const LIST: usize = 32;
/// Bytes of a slot in a ring. A slot has a message, the word with its length, and padding.
pub(super) const SPACE: usize = 32;
/// Bytes of the word with the length of a message.
pub(super) const WORD: usize = 8;
/// Offset of the slots for messages in the memory of each end. Words that the peer writes or reads lie before this
/// offset.
pub(super) const PLACES: usize = 4096;
/// Bytes of the memory of each end.
const MEMORY: usize = 1 << 20;

/// One end of a connection, with its memory and that of its peer.
pub(super) struct End {
    pub(super) device: Device,
    qp: Qp,
    cq: Cq,
    pub(super) region: Region,
    pub(super) peer: RemoteRegion,
}

impl End {
    pub(super) fn pair() -> [Self; 2] {
        let devices = wire::devices();
        let made = devices.each_ref().map(|device| {
            let pd = device.create_pd().expect("room");
            let cq = device.create_cq(2048).expect("room");
            let capacities =
                QpCapacities { max_send_wr: 512, max_recv_wr: 512, max_send_sge: 1, max_recv_sge: 1, max_inline: 72 };
            let (kind, srq, signal_all) = (QpKind::Rc, None, false);
            let qp = pd
                .create_qp(QpOptions { kind, send_cq: &cq, recv_cq: &cq, srq, capacities, signal_all })
                .expect("room");
            rc::initialise(&qp, Access::all()).expect("a new queue pair");
            let region = pd.allocate(MEMORY, Access::all(), MemoryKind::Plain).expect("room");
            (qp, cq, region)
        });
        let describe = |index: usize| {
            let (qp, _, region) = &made[index];
            let memory = RemoteRegion { address: region.address(), length: MEMORY as u64, rkey: region.rkey() };
            let regions = [memory, RemoteRegion::NONE];
            EndpointDescription { regions, ..EndpointDescription::bare(qp, Psn::new(0)) }
        };
        let described = [describe(0), describe(1)];
        let settings = RcSettings { timeout: 14, retry_count: 7, rnr_retry: 7, min_rnr_timer: 12 };
        let mut index = 0;
        made.map(|(qp, cq, region)| {
            let (own, peer) = (&described[index], &described[1 - index]);
            rc::connect(&qp, own, peer, &settings).expect("both ends have matching settings");
            let end = Self { device: devices[index].clone(), qp, cq, region, peer: peer.regions[0] };
            index += 1;
            end
        })
    }

    pub(super) fn remote(&self, offset: usize) -> u64 {
        self.peer.address + offset as u64
    }

    pub(super) fn write(&self, offset: usize) -> SendOperation {
        SendOperation::Write { remote_address: self.remote(offset), rkey: self.peer.rkey }
    }

    pub(super) fn read(&self, offset: usize) -> SendOperation {
        SendOperation::Read { remote_address: self.remote(offset), rkey: self.peer.rkey }
    }

    pub(super) fn post(&self, list: &[SendRequest<'_>]) {
        self.qp.post_send(list).expect("there is room");
    }

    /// Posts one signaled request.
    pub(super) fn post_signaled(&self, wr_id: u64, operation: SendOperation, payload: Payload<'_>) {
        self.post(&[SendRequest { flags: SendFlags::SIGNALED, ..request(wr_id, operation, payload) }]);
    }

    /// Posts receives with the buffers of these numbers.
    pub(super) fn receive(&self, places: &[u64]) {
        let mut sges = [self.region.sge(0, 0); LIST];
        for (sge, place) in sges.iter_mut().zip(places) {
            *sge = self.region.sge(PLACES + *place as usize * SPACE, SPACE);
        }
        let mut list = [RecvRequest { wr_id: 0, sges: &[] }; LIST];
        for ((request, sge), place) in list.iter_mut().zip(&sges).zip(places) {
            *request = RecvRequest { wr_id: *place, sges: std::slice::from_ref(sge) };
        }
        self.qp.post_recv(&list[..places.len()]).expect("there is room");
    }

    pub(super) fn receive_first(&self, count: u64) {
        for place in 0..count {
            self.receive(&[place]);
        }
    }

    /// Takes one list of completions. Calls `received` for each receive and `sent` for each send. Reposts the receives
    /// and returns their number.
    pub(super) fn poll(&self, mut received: impl FnMut(Attachment), mut sent: impl FnMut(u64)) -> u64 {
        let (mut places, mut taken) = ([0; LIST], 0);
        let mut list = [Completion::default(); LIST];
        let count = self.cq.poll(&mut list).expect("the completion queue is deep enough");
        for completion in &list[..count] {
            assert!(completion.status == Status::Success, "{completion:?}");
            match completion.opcode {
                CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImmediate => {
                    received(completion.attachment);
                    places[taken] = completion.wr_id;
                    taken += 1;
                }
                _ => sent(completion.wr_id),
            }
        }
        if taken > 0 {
            self.receive(&places[..taken]);
        }
        taken as u64
    }
}

pub(super) fn request(wr_id: u64, operation: SendOperation, payload: Payload<'_>) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SendFlags::empty(), payload, destination: None }
}

pub(super) fn immediate(attachment: Attachment) -> u64 {
    match attachment {
        Attachment::Immediate(word) => word.into(),
        _ => unreachable!("every word of these loops is immediate data"),
    }
}

/// Returns a message and the word with its length. If `before` is true, the word comes before the message, otherwise
/// after it.
pub(super) fn with_word(before: bool) -> [u8; BYTES + WORD] {
    let mut word = (BYTES as u64).to_le_bytes();
    word[WORD - 1] = 1;
    let mut out = [7; BYTES + WORD];
    let at = if before { 0 } else { BYTES };
    out[at..at + WORD].copy_from_slice(&word);
    out
}

/// State of a sender.
pub(super) struct Sender {
    pub(super) end: End,
    pub(super) window: u64,
    pub(super) batch: u64,
    pub(super) sent: u64,
    pub(super) done: u64,
    /// Cumulative number of messages for which the receiver has reported room.
    pub(super) granted: u64,
}

impl Sender {
    pub(super) fn new(end: End, config: &Config, granted: u64) -> Self {
        Self { end, window: config.window as u64, batch: config.batch as u64, sent: 0, done: 0, granted }
    }

    /// Returns the number of messages in the next post.
    pub(super) fn next(&self, target: u64) -> u64 {
        let last = target.min(self.done + self.window).min(self.granted);
        last.saturating_sub(self.sent).min(self.batch)
    }

    /// Posts `count` messages with one post. `operation` returns the operation for the number of a message. The request
    /// `behind`, if any, follows the messages.
    pub(super) fn post(
        &mut self,
        count: u64,
        bytes: &[u8],
        operation: impl Fn(&End, u64) -> SendOperation,
        behind: Option<SendRequest<'_>>,
    ) {
        let mut list = [request(0, SendOperation::Send, Payload::Inline(bytes)); 9];
        let first = self.sent + 1;
        for (request, number) in list.iter_mut().zip(first..first + count) {
            (request.wr_id, request.operation) = (number, operation(&self.end, number));
        }
        let mut length = count as usize;
        self.sent += count;
        if let Some(behind) = behind {
            list[length] = SendRequest { wr_id: self.sent, ..behind };
            length += 1;
        }
        list[length - 1].flags = SendFlags::SIGNALED;
        self.end.post(&list[..length]);
    }
}
