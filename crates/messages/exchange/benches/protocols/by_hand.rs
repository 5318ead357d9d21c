//! One hand-written loop over verbs for each protocol. A loop posts only the operations of its protocol, sends messages
//! of one length in one direction, and does not check values from the peer.

mod ends;

use std::collections::VecDeque;

use doorbell_exchange::Config;
use doorbell_verbs::{Device, Payload, SendFlags, SendOperation, SendRequest};

use crate::{BYTES, Pair};
use ends::{End, LIST, PLACES, SPACE, Sender, WORD, immediate, request, with_word};

/// Offset of the memory into which words of the peer are read.
const LANDING: usize = 1024;
/// Offset of the data that this end sends.
const SCRATCH: usize = 1 << 19;
/// Flag in the id of a request that carries no message.
const OTHER: u64 = 1 << 62;

/// Send-Receive: the sender SENDs each message. The receiver SENDs credits after each quarter of the depth.
pub(crate) struct SendReceive {
    sender: Sender,
    receiver: End,
    depth: u64,
    received: u64,
    told: u64,
}

impl SendReceive {
    pub(crate) fn new(config: &Config) -> Self {
        let [a, b] = End::pair();
        let depth = config.depth as u64;
        a.receive_first(LIST as u64);
        b.receive_first(depth);
        Self { sender: Sender::new(a, config, depth), receiver: b, depth, received: 0, told: 0 }
    }
}

impl Pair for SendReceive {
    fn run(&mut self, messages: u64) {
        let Self { sender, receiver, depth, received, told } = self;
        let target = sender.sent + messages;
        while sender.done < target || *received < target {
            while let count @ 1.. = sender.next(target) {
                // Each message also carries credits, as in `exchange`.
                let operation = |_: &End, number: u64| SendOperation::SendImmediate(number as u32);
                sender.post(count, &[7; BYTES], operation, None);
            }
            sender.end.poll(|word| sender.granted = sender.granted.max(immediate(word)), |number| sender.done = number);
            *received += receiver.poll(|_| {}, |_| {});
            if *received - *told >= *depth / 4 {
                *told = *received;
                let word = SendOperation::SendImmediate((*told + *depth) as u32);
                receiver.post_signaled(OTHER, word, Payload::Inline(&[]));
            }
        }
    }

    fn devices(&self) -> [&Device; 2] {
        [&self.sender.end.device, &self.receiver.device]
    }
}

/// Direct-Read: a SEND with the address of the message, a READ, and a WRITE of the signal byte.
pub(crate) struct DirectRead {
    sender: Sender,
    receiver: End,
    /// Number of messages that the sender has announced.
    announced: u64,
    /// Number of messages for which the receiver has posted READs.
    asked: u64,
    /// Number of messages that the receiver has read.
    read: u64,
}

/// Maximum number of READs in flight.
const READS: u64 = 32;
/// Bytes of an announcement.
const ANNOUNCEMENT: usize = 16;

impl DirectRead {
    pub(crate) fn new(config: &Config) -> Self {
        let [a, b] = End::pair();
        b.receive_first(config.depth as u64);
        Self { sender: Sender::new(a, config, u64::MAX), receiver: b, announced: 0, asked: 0, read: 0 }
    }

    fn place(number: u64) -> usize {
        PLACES + (number % 128) as usize * SPACE
    }
}

impl Pair for DirectRead {
    fn run(&mut self, messages: u64) {
        let Self { sender, receiver, announced, asked, read } = self;
        let target = sender.sent + messages;
        while sender.done < target || *read < target {
            while let count @ 1.. = sender.next(target) {
                let region = &sender.end.region;
                let mut words = [[0; ANNOUNCEMENT]; 8];
                for (word, number) in words.iter_mut().zip(sender.sent + 1..) {
                    let place = Self::place(number);
                    region.copy_in(place, &[7; BYTES]);
                    region.store_release_u8(place + BYTES, 0);
                    word[..8].copy_from_slice(&(region.address() + place as u64).to_be_bytes());
                    word[8..12].copy_from_slice(&region.rkey().get().to_be_bytes());
                    word[12..].copy_from_slice(&(BYTES as u32).to_be_bytes());
                }
                let mut list = [request(OTHER, SendOperation::Send, Payload::Inline(&[])); 8];
                for (request, word) in list.iter_mut().zip(&words).take(count as usize) {
                    request.payload = Payload::Inline(word);
                }
                list[count as usize - 1].flags = SendFlags::SIGNALED;
                sender.end.post(&list[..count as usize]);
                sender.sent += count;
            }
            sender.end.poll(|_| {}, |_| {});
            while sender.done < sender.sent
                && sender.end.region.load_acquire_u8(Self::place(sender.done + 1) + BYTES) == 1
            {
                sender.done += 1;
            }
            let before = *read;
            *announced += receiver.poll(|_| {}, |_| *read += 1);
            let write = |number| request(OTHER, receiver.write(Self::place(number) + BYTES), Payload::Inline(&[1]));
            let mut list = [write(0); LIST];
            for (request, number) in list.iter_mut().zip(before + 1..=*read) {
                *request = write(number);
            }
            if *read > before {
                receiver.post(&list[..(*read - before) as usize]);
            }
            let last = (*announced).min(*read + READS);
            let mut sges = [receiver.region.sge(0, 0); LIST];
            for (sge, number) in sges.iter_mut().zip(*asked + 1..=last) {
                *sge = receiver.region.sge(SCRATCH + Self::place(number), BYTES);
            }
            let mut list = [request(OTHER, SendOperation::Send, Payload::Inline(&[])); LIST];
            for ((request, sge), number) in list.iter_mut().zip(&sges).zip(*asked + 1..=last) {
                request.operation = receiver.read(Self::place(number));
                request.payload = Payload::Sges(std::slice::from_ref(sge));
                request.flags = SendFlags::SIGNALED;
            }
            if last > *asked {
                receiver.post(&list[..(last - *asked) as usize]);
                *asked = last;
            }
        }
    }

    fn devices(&self) -> [&Device; 2] {
        [&self.sender.end.device, &self.receiver.device]
    }
}

/// Direct-Write: a WRITE for each message. For each 16 buffers, the receiver posts a WRITE of their addresses and a
/// WRITE of the number of granted buffers.
pub(crate) struct DirectWrite {
    sender: Sender,
    receiver: End,
    depth: u64,
    received: u64,
    told: u64,
    is_telling: bool,
}

impl DirectWrite {
    pub(crate) fn new(config: &Config) -> Self {
        let [a, b] = End::pair();
        let depth = config.depth as u64;
        for number in 0..depth {
            let place = b.region.address() + Self::place(number, depth) as u64;
            a.region.store_release_u64(PLACES + number as usize * 16, place);
        }
        Self { sender: Sender::new(a, config, depth), receiver: b, depth, received: 0, told: 0, is_telling: false }
    }

    fn place(number: u64, depth: u64) -> usize {
        PLACES + (number % depth) as usize * SPACE
    }
}

impl Pair for DirectWrite {
    fn run(&mut self, messages: u64) {
        let Self { sender, receiver, depth, received, told, is_telling } = self;
        let target = sender.sent + messages;
        while sender.done < target || *received < target {
            while let count @ 1.. = sender.next(target) {
                let operation = |end: &End, number: u64| SendOperation::Write {
                    remote_address: end.region.load_acquire_u64(PLACES + ((number - 1) % *depth) as usize * 16),
                    rkey: end.peer.rkey,
                };
                sender.post(count, &with_word(false), operation, None);
            }
            sender.end.poll(|_| {}, |number| sender.done = number);
            sender.granted = (*depth).max(sender.end.region.load_acquire_u64(0));
            receiver.poll(|_| {}, |_| *is_telling = false);
            let signal = |number| Self::place(number, *depth) + BYTES;
            while receiver.region.load_acquire_u8(signal(*received) + WORD - 1) == 1 {
                receiver.region.store_release_u64(signal(*received), 0);
                *received += 1;
            }
            if *received - *told >= 16 && !*is_telling {
                // The numbers of grants in a batch and in the ring are powers of two, so a batch never wraps around the
                // end of the ring.
                let (from, count) = ((*told % *depth) as usize, (*received - *told).min(*depth - *told % *depth));
                for number in *told..*told + count {
                    let at = SCRATCH + (number % *depth) as usize * 16;
                    let place = receiver.region.address() + Self::place(number, *depth) as u64;
                    receiver.region.store_release_u64(at, place);
                    receiver.region.store_release_u64(at + 8, receiver.region.rkey().get().into());
                }
                *told += count;
                let grants = [receiver.region.sge(SCRATCH + from * 16, count as usize * 16)];
                let number = (*told + *depth).to_le_bytes();
                receiver.post(&[
                    request(OTHER, receiver.write(PLACES + from * 16), Payload::Sges(&grants)),
                    SendRequest {
                        flags: SendFlags::SIGNALED,
                        ..request(OTHER, receiver.write(0), Payload::Inline(&number))
                    },
                ]);
                *is_telling = true;
            }
        }
    }

    fn devices(&self) -> [&Device; 2] {
        [&self.sender.end.device, &self.receiver.device]
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    Immediate,
    TailOffset,
    Reverse,
}

/// Buffered-Write: the sender WRITEs each message into the next slot of a ring. The receiver SENDs the head after each
/// eighth of the ring.
pub(crate) struct BufferedWrite {
    notice: Notice,
    sender: Sender,
    receiver: End,
    places: u64,
    received: u64,
    told: u64,
}

impl BufferedWrite {
    pub(crate) fn immediate(config: &Config) -> Self {
        // The receiver posts the same number of receives as `exchange` does.
        Self::new(config, Notice::Immediate, (config.depth as u64 * 8).div_ceil(7))
    }

    pub(crate) fn tail_offset(config: &Config) -> Self {
        Self::new(config, Notice::TailOffset, Self::whole_pages(config))
    }

    pub(crate) fn reverse(config: &Config) -> Self {
        Self::new(config, Notice::Reverse, Self::whole_pages(config))
    }

    fn whole_pages(config: &Config) -> u64 {
        ((config.depth * SPACE * 8).div_ceil(7).next_multiple_of(4096) / SPACE) as u64
    }

    fn new(config: &Config, notice: Notice, places: u64) -> Self {
        let [a, b] = End::pair();
        a.receive_first(LIST as u64);
        if notice == Notice::Immediate {
            b.receive_first(places);
        }
        Self { notice, sender: Sender::new(a, config, places), receiver: b, places, received: 0, told: 0 }
    }
}

impl Pair for BufferedWrite {
    fn run(&mut self, messages: u64) {
        let Self { notice, sender, receiver, places, received, told } = self;
        let ring = *places;
        let place = move |number: u64| PLACES + (number % ring) as usize * SPACE;
        let target = sender.sent + messages;
        while sender.done < target || *received < target {
            while let count @ 1.. = sender.next(target) {
                match notice {
                    Notice::Immediate => {
                        let operation = |end: &End, number: u64| SendOperation::WriteImmediate {
                            remote_address: end.remote(place(number - 1)),
                            rkey: end.peer.rkey,
                            immediate: 0,
                        };
                        sender.post(count, &[7; BYTES], operation, None);
                    }
                    Notice::TailOffset => {
                        let tail = (sender.sent + count).to_le_bytes();
                        let behind = request(0, sender.end.write(0), Payload::Inline(&tail));
                        let operation = |end: &End, number: u64| end.write(place(number - 1));
                        sender.post(count, &with_word(true), operation, Some(behind));
                    }
                    Notice::Reverse => {
                        let operation = |end: &End, number: u64| end.write(place(number - 1));
                        sender.post(count, &with_word(false), operation, None);
                    }
                }
            }
            sender.end.poll(|word| sender.granted = immediate(word), |number| sender.done = number);
            *received += receiver.poll(|_| {}, |_| {});
            match notice {
                Notice::Immediate => {}
                Notice::TailOffset => *received = receiver.region.load_acquire_u64(0),
                Notice::Reverse => {
                    let signal = |number| place(number) + BYTES;
                    while receiver.region.load_acquire_u8(signal(*received) + WORD - 1) == 1 {
                        receiver.region.fill(place(*received), SPACE, 0);
                        *received += 1;
                    }
                }
            }
            if *received - *told >= ring / 8 {
                *told = *received;
                let word = SendOperation::SendImmediate((*told + ring) as u32);
                receiver.post_signaled(OTHER, word, Payload::Inline(&[]));
            }
        }
    }

    fn devices(&self) -> [&Device; 2] {
        [&self.sender.end.device, &self.receiver.device]
    }
}

/// Shared-Write: a FETCH_ADD for the waiting messages, a WRITE into the reserved space, and a READ of the head.
pub(crate) struct SharedWrite {
    sender: Sender,
    receiver: End,
    places: u64,
    /// Number of messages that the sender has accepted.
    accepted: u64,
    /// Number of messages for which FETCH_ADDs were posted.
    asked: u64,
    /// Number of messages whose FETCH_ADDs are complete.
    reserved: u64,
    /// For each FETCH_ADD in flight, the number of messages for which it reserves space. At most eight FETCH_ADDs are
    /// in flight.
    reserving: VecDeque<u64>,
    is_reading: bool,
    received: u64,
}

const RESERVATIONS: usize = 8;
const RESERVE: u64 = OTHER | 1;
const HEAD: u64 = OTHER | 2;
/// Offset of the head in the memory of the receiver. The tail has offset 0.
const HEAD_WORD: usize = 64;

impl SharedWrite {
    pub(crate) fn new(config: &Config) -> Self {
        let [a, b] = End::pair();
        // Shared-Write adds no word to a message, so a slot is half as large and a ring has twice as many slots.
        let places = BufferedWrite::whole_pages(config) * 2;
        b.receive_first((config.depth as u64 * 8).div_ceil(7));
        Self {
            sender: Sender::new(a, config, (config.depth as u64 * 8).div_ceil(7)),
            receiver: b,
            places,
            accepted: 0,
            asked: 0,
            reserved: 0,
            reserving: VecDeque::new(),
            is_reading: false,
            received: 0,
        }
    }
}

impl Pair for SharedWrite {
    fn run(&mut self, messages: u64) {
        let Self { sender, receiver, places, accepted, asked, reserved, reserving, is_reading, received } = self;
        let receives = sender.granted - sender.end.region.load_acquire_u64(LANDING + 8);
        let target = sender.sent + messages;
        while sender.done < target || *received < target {
            // Accept batches until the window is full or all messages are accepted. Each FETCH_ADD reserves space for
            // all accepted messages without a reservation.
            let mut is_last = false;
            while !is_last {
                let wanted = target.min(sender.done + sender.window).min(*accepted + sender.batch);
                is_last = wanted == *accepted;
                *accepted = wanted;
                if *accepted > *asked && reserving.len() < RESERVATIONS {
                    let landing = [sender.end.region.sge(LANDING, 8)];
                    let operation = SendOperation::FetchAdd {
                        remote_address: sender.end.remote(0),
                        rkey: sender.end.peer.rkey,
                        add: (*accepted - *asked) * 16,
                    };
                    sender.end.post_signaled(RESERVE, operation, Payload::Sges(&landing));
                    reserving.push_back(*accepted - *asked);
                    *asked = *accepted;
                }
            }
            let ready = (*reserved).min(sender.granted).saturating_sub(sender.sent);
            let mut left = ready;
            while left > 0 {
                let count = left.min(8);
                left -= count;
                let ring = *places;
                let operation = |end: &End, number: u64| SendOperation::WriteImmediate {
                    remote_address: end.remote(PLACES + ((number - 1) % ring) as usize * 16),
                    rkey: end.peer.rkey,
                    immediate: ((number - 1) % ring) as u32,
                };
                sender.post(count, &[7; BYTES], operation, None);
            }
            if !*is_reading && ready == 0 && *reserved > sender.sent {
                let landing = [sender.end.region.sge(LANDING + 8, 8)];
                sender.end.post_signaled(HEAD, sender.end.read(HEAD_WORD), Payload::Sges(&landing));
                *is_reading = true;
            }
            sender.end.poll(
                |_| {},
                |number| match number {
                    RESERVE => *reserved += reserving.pop_front().expect("a reservation is in flight"),
                    HEAD => {
                        *is_reading = false;
                        sender.granted = receives + sender.end.region.load_acquire_u64(LANDING + 8);
                    }
                    _ => sender.done = number,
                },
            );
            let newly = receiver.poll(|_| {}, |_| {});
            if newly > 0 {
                *received += newly;
                receiver.region.store_release_u64(HEAD_WORD, *received);
            }
        }
    }

    fn devices(&self) -> [&Device; 2] {
        [&self.sender.end.device, &self.receiver.device]
    }
}

/// Buffered-Read: a READ of the tail, one READ of all messages up to the tail, and a WRITE of the head. Connections of
/// `exchange` receive at both ends, so the sender of this loop also reads the tail of the receiver.
pub(crate) struct BufferedRead {
    sender: Sender,
    receiver: End,
    places: u64,
    tail: u64,
    asked: u64,
    read: u64,
    told: u64,
    is_asking: bool,
    is_sender_asking: bool,
    telling: u64,
}

const ASK: u64 = 1;
const PULL: u64 = 2;
const TELL: u64 = 3;

impl BufferedRead {
    pub(crate) fn new(config: &Config) -> Self {
        let [a, b] = End::pair();
        let places = BufferedWrite::whole_pages(config);
        Self {
            sender: Sender::new(a, config, u64::MAX),
            receiver: b,
            places,
            tail: 0,
            asked: 0,
            read: 0,
            told: 0,
            is_asking: false,
            is_sender_asking: false,
            telling: 0,
        }
    }
}

impl Pair for BufferedRead {
    fn run(&mut self, messages: u64) {
        let Self { sender, receiver, places, tail, asked, read, told, is_asking, is_sender_asking, telling } = self;
        let ring = *places;
        let place = move |number: u64| PLACES + (number % ring) as usize * SPACE;
        let target = sender.sent + messages;
        while sender.done < target || *read < target {
            let memory = &sender.end.region;
            while let count @ 1.. = sender.next(target) {
                for number in sender.sent..sender.sent + count {
                    memory.copy_in(place(number), &with_word(true));
                }
                sender.sent += count;
                memory.store_release_u64(0, sender.sent);
            }
            sender.end.poll(|_| {}, |_| *is_sender_asking = false);
            sender.done = memory.load_acquire_u64(HEAD_WORD);
            if !*is_sender_asking {
                *is_sender_asking = true;
                let landing = [memory.sge(LANDING, 8)];
                sender.end.post_signaled(ASK, sender.end.read(0), Payload::Sges(&landing));
            }
            let memory = &receiver.region;
            receiver.poll(
                |_| {},
                |number| match number {
                    ASK => {
                        *tail = memory.load_acquire_u64(LANDING);
                        *is_asking = false;
                    }
                    PULL => *read = *asked,
                    _ => *telling -= 1,
                },
            );
            let head = read.to_le_bytes();
            // The memory of the sender's ring is not mapped twice here, so one READ cannot cross the end of the ring.
            let count = (*tail - *asked).min(ring - *asked % ring);
            let pulled = [memory.sge(place(*asked), count as usize * SPACE)];
            let landing = [memory.sge(LANDING, 8)];
            let mut list = [request(TELL, receiver.write(HEAD_WORD), Payload::Inline(&head)); 3];
            let mut length = 0;
            if *told != *read && *telling < 2 {
                *told = *read;
                *telling += 1;
                length = 1;
            }
            if count > 0 && *asked == *read {
                list[length] = request(PULL, receiver.read(place(*asked)), Payload::Sges(&pulled));
                length += 1;
                *asked += count;
            }
            if !*is_asking && *tail == *asked {
                list[length] = request(ASK, receiver.read(0), Payload::Sges(&landing));
                length += 1;
                *is_asking = true;
            }
            for request in &mut list[..length] {
                request.flags = SendFlags::SIGNALED;
            }
            if length > 0 {
                receiver.post(&list[..length]);
            }
        }
    }

    fn devices(&self) -> [&Device; 2] {
        [&self.sender.end.device, &self.receiver.device]
    }
}
