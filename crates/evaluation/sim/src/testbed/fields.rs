//! All parameters of a testbed: names, types, units and ranges.

use doorbell_wire::PathMtu;

use crate::time::{PerByte, Ps, Rate};

/// Dimension of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dimension {
    /// Picoseconds.
    Time,
    /// Femtoseconds per byte.
    TimePerByte,
    /// Bits per second.
    Rate,
    /// Bytes.
    Size,
    /// A count.
    Count,
    /// A choice of words.
    Choice,
}

/// Name, description and range of a parameter.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) dimension: Dimension,
    /// Allowed words of a choice, or allowed values of a size that has only a few.
    pub(crate) words: &'static [&'static str],
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Field {
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.group, self.name)
    }
}

/// A type that can be created from a number in the base unit of its [`Dimension`].
trait Raw: Sized {
    const WORDS: &'static [&'static str] = &[];
    fn from_raw(raw: u64) -> Option<Self>;
}

impl Raw for u64 {
    fn from_raw(raw: u64) -> Option<Self> {
        Some(raw)
    }
}

impl Raw for Ps {
    fn from_raw(raw: u64) -> Option<Self> {
        Some(Self(raw))
    }
}

impl Raw for PerByte {
    fn from_raw(raw: u64) -> Option<Self> {
        Some(Self(raw))
    }
}

impl Raw for Rate {
    fn from_raw(raw: u64) -> Option<Self> {
        Self::from_bits_per_s(raw)
    }
}

impl Raw for PathMtu {
    const WORDS: &'static [&'static str] = &["256", "512", "1024", "2048", "4096"];

    fn from_raw(raw: u64) -> Option<Self> {
        Self::from_bytes(usize::try_from(raw).ok()?)
    }
}

macro_rules! choices {
    ($($(#[doc = $doc:literal])* $choice:ident { $($(#[doc = $word_doc:literal])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $choice {
            $($(#[doc = $word_doc])* $variant,)*
        }

        impl Raw for $choice {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn from_raw(raw: u64) -> Option<Self> {
                [$(Self::$variant),*].get(usize::try_from(raw).ok()?).copied()
            }
        }
    )*};
}

choices! {
    /// Time at which a responder sends a due acknowledgement.
    Acks {
        /// At once, or after the NIC's `ack_delay`.
        AtOnce = "at-once",
        /// After the next request of the same queue pair, if the queue pair has one to send.
        BehindRequests = "behind-requests",
    }
    /// Scope of the lock of an atomic operation.
    LockScope {
        /// All atomic operations on the device.
        Device = "device",
        /// Atomic operations of the same queue pair.
        QueuePair = "queue-pair",
        /// Atomic operations on the same address.
        Address = "address",
    }
    /// Time at which a switch begins to send a frame.
    Forwarding {
        /// After the header of the frame has arrived.
        CutThrough = "cut-through",
        /// After the whole frame has arrived.
        StoreAndForward = "store-and-forward",
    }
    /// Behaviour of a switch when a queue is full.
    WhenFull {
        /// The switch drops the frame.
        Drop = "drop",
        /// The switch pauses the senders before the queue is full (IEEE 802.1Qbb).
        Pause = "pause",
    }
}

macro_rules! groups {
    ($($(#[doc = $group_doc:literal])* $Group:ident $group:ident {
        $($(#[doc = $doc:literal])* $name:ident: $type:ty [$dimension:ident $least:expr, $most:expr]),* $(,)?
    })*) => {
        $(
            $(#[doc = $group_doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Group {
                $($(#[doc = $doc])* pub $name: $type,)*
            }
        )*

        /// All parameters, in the order of files and tables.
        pub(crate) const FIELDS: &[Field] = &[$($(
            Field {
                group: stringify!($group),
                name: stringify!($name),
                doc: concat!($($doc),*),
                dimension: Dimension::$dimension,
                words: <$type as Raw>::WORDS,
                least: $least,
                most: $most,
            },
        )*)*];

        /// The parameters with their types.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct Groups {
            $(pub(crate) $group: $Group,)*
        }

        impl Groups {
            /// Converts `raw`, which has a number for each of [`FIELDS`]. The error is the index of a field whose
            /// number is invalid.
            pub(crate) fn from_raw(raw: &[u64]) -> Result<Self, usize> {
                let mut at = 0..;
                let mut next = || at.next().unwrap_or(raw.len());
                $($(
                    let index = next();
                    let $name = raw.get(index).and_then(|raw| <$type as Raw>::from_raw(*raw)).ok_or(index)?;
                )*
                let $group = $Group { $($name),* };)*
                Ok(Self { $($group),* })
            }
        }
    };
}

/// Maximum time of a parameter: ten seconds in picoseconds.
const LONG: u64 = 10_000_000_000_000;
/// Maximum time per byte: one microsecond in femtoseconds.
const SLOW: u64 = 1_000_000_000;
/// Maximum rate: 100 Tb/s in bits per second.
const FAST: u64 = 100_000_000_000_000;
const TIB: u64 = 1 << 40;
/// Maximum of large counts.
const MANY: u64 = 1 << 30;
/// Maximum of small counts, and of small sizes in bytes. No work request and no TLP is longer.
const SMALL: u64 = 1 << 16;

groups! {
    /// CPU time of a thread for verbs and memory.
    Cpu cpu {
        /// time to post a list of work requests, of any length: lock, fence, doorbell
        post_list: Ps [Time 0, LONG],
        /// time to write each work request of such a list
        post_wr: Ps [Time 0, LONG],
        /// time to copy each payload byte into a work request (inline)
        inline_per_byte: PerByte [TimePerByte 0, SLOW],
        /// time to poll a completion queue, with or without completions
        poll_call: Ps [Time 0, LONG],
        /// time to take each completion
        poll_completion: Ps [Time 0, LONG],
        /// time to copy a payload that the NIC has put into the completion
        inline_receive: Ps [Time 0, LONG],
        /// time to post a list of receives, of any length
        repost_list: Ps [Time 0, LONG],
        /// time to write each receive of such a list
        repost_wr: Ps [Time 0, LONG],
        /// time to read or write a word of registered memory
        memory_access: Ps [Time 0, LONG],
        /// time to copy each byte from or to registered memory
        copy_per_byte: PerByte [TimePerByte 0, SLOW],
        /// time for which a lock between threads is held
        lock: Ps [Time 0, LONG],
        /// time from an event until a sleeping thread runs
        wake: Ps [Time 0, LONG],
        /// size of the private cache of a core
        cache: u64 [Size 1, TIB],
        /// bytes that a core touches for each receive queue from which its thread takes messages
        queue_pair: u64 [Size 0, TIB],
        /// further bytes for each receive queue whose buffers the core fills from completions
        inline_buffers: u64 [Size 0, TIB],
        /// cache lines per message that may have been evicted, without the buffer
        lines_per_message: u64 [Count 0, SMALL],
        /// time to load a line that is not in the core's private cache
        cache_miss: Ps [Time 0, LONG],
    }
    /// PCIe between the memory of a host and its NIC.
    Pcie pcie {
        /// bits per second of the link in each direction, after line coding
        rate: Rate [Rate 1_000_000, FAST],
        /// maximum payload of a write, and of a completion of a read
        max_payload: u64 [Size 1, SMALL],
        /// maximum bytes that one read requests
        max_read_request: u64 [Size 1, SMALL],
        /// bytes around the payload of a write
        write_header: u64 [Size 0, SMALL],
        /// bytes around the payload of a completion of a read
        completion_header: u64 [Size 0, SMALL],
        /// bytes of the request of a read
        request_header: u64 [Size 0, SMALL],
        /// time from the CPU's store until the NIC has it
        doorbell: Ps [Time 0, LONG],
        /// time from the NIC's write until a polling CPU sees it
        write: Ps [Time 0, LONG],
        /// time from the NIC's read request to its first byte
        read: Ps [Time 0, LONG],
        /// maximum read requests in flight
        reads_in_flight: u64 [Count 1, SMALL],
        /// number of accesses of peers to memory among which one is slow, at random; 0 if none is
        slow_every: u64 [Count 0, MANY],
        /// maximum delay of a slow access; accesses of one queue pair stay in order
        slow_access: Ps [Time 0, LONG],
    }
    /// Costs of the NIC for requests, packets and responses.
    Nic nic {
        /// number of processing units; queue pairs are assigned to them in turn
        units: u64 [Count 1, SMALL],
        /// time of a work request at its queue pair's unit, if the NIC fetches a payload for it
        unit_request: Ps [Time 0, LONG],
        /// time of a work request at its queue pair's unit, if it has no payload or an inline one
        unit_inline: Ps [Time 0, LONG],
        /// time of each further packet of a work request at its unit
        unit_packet: Ps [Time 0, LONG],
        /// time of each sent packet at the stage that all units share
        send_packet: Ps [Time 0, LONG],
        /// time of a work request whose payload the NIC fetches, at the stage of fetches that all units share
        gather: Ps [Time 0, LONG],
        /// time of each received packet at the stage that all units share
        receive_packet: Ps [Time 0, LONG],
        /// time from a work request in the NIC to its first bit on the line
        transmit: Ps [Time 0, LONG],
        /// time from a packet's last bit off the line to its memory access, or to its response
        receive: Ps [Time 0, LONG],
        /// time from an acknowledgement's last bit off the line until its completion is written
        receive_ack: Ps [Time 0, LONG],
        /// packets after which a requester asks for an acknowledgement within a message
        ack_every: u64 [Count 1, MANY],
        /// time at which a responder sends a due acknowledgement
        acks: Acks [Choice 0, 0],
        /// time for which a responder holds a due acknowledgement, which then covers all messages that came meanwhile
        ack_delay: Ps [Time 0, LONG],
        /// maximum payload that the NIC puts into the completion instead of the receive's buffer
        inline_receive: u64 [Size 0, SMALL],
        /// maximum payloads of one queue pair's work requests that are fetched at once
        payload_fetches: u64 [Count 1, SMALL],
        /// maximum size of a work request that the CPU stores to the NIC with its doorbell; 0 if the NIC fetches all
        stored_request: u64 [Size 0, SMALL],
        /// size of a work request without inline data
        request: u64 [Size 1, SMALL],
        /// size of a completion
        completion: u64 [Size 1, SMALL],
        /// further time of a message that takes a receive, at the stage that all units share
        consume_receive: Ps [Time 0, LONG],
        /// extra time of a message that takes a receive, during which the NIC handles other packets
        take_receive: Ps [Time 0, LONG],
        /// extra time of a message that is not in the completion, if another queue pair took the shared queue's last
        /// receive
        shared_receive: Ps [Time 0, LONG],
        /// number of units for READs at the responder
        read_units: u64 [Count 1, SMALL],
        /// time of a READ at such a unit, without its data
        read: Ps [Time 0, LONG],
        /// time for which an atomic operation holds its lock
        atomic: Ps [Time 0, LONG],
        /// scope of the lock of an atomic operation
        atomic_lock: LockScope [Choice 0, 0],
        /// maximum READs and atomic operations in flight per queue pair
        max_rd_atomic: u64 [Count 1, 255],
        /// maximum queue pairs whose context the NIC caches
        cached_queue_pairs: u64 [Count 1, MANY],
        /// time to fetch the context of a queue pair that is not cached
        context_miss: Ps [Time 0, LONG],
    }
    /// Properties of each cable.
    Link link {
        /// bits per second in each direction
        rate: Rate [Rate 1_000_000, FAST],
        /// time from end to end, including the ports
        propagation: Ps [Time 0, LONG],
        /// the path MTU of connections that do not choose one
        path_mtu: PathMtu [Size 256, 4096],
    }
    /// Properties of each switch.
    Switch switch {
        /// time from a frame's header in to its first bit out, if the queue is empty
        latency: Ps [Time 0, LONG],
        /// time at which the switch begins to send a frame
        forwarding: Forwarding [Choice 0, 0],
        /// maximum bytes that wait for one port
        queue: u64 [Size 1, TIB],
        /// behaviour when a queue is full
        when_full: WhenFull [Choice 0, 0],
        /// bytes waiting for a port at which the switch pauses the senders
        pause_at: u64 [Size 1, TIB],
        /// bytes waiting for a port at which the senders resume
        resume_at: u64 [Size 0, TIB],
        /// bytes waiting for a port at which the switch marks frames (RFC 3168); 0 means never
        mark_at: u64 [Size 0, TIB],
        /// time of a packet in the middlebox at the switch, in addition to the switch's latency
        middlebox: Ps [Time 0, LONG],
        /// time from one packet of the middlebox to the next, for each that arrives or leaves
        middlebox_packet: Ps [Time 0, LONG],
    }
}
