//! Every parameter of a testbed, once: its name, its type, its unit and its range.

use doorbell_wire::PathMtu;

use crate::time::{PerByte, Ps, Rate};

/// What a parameter measures.
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
    /// A number of things.
    Count,
    /// One of several words.
    Choice,
}

/// A parameter's name, meaning and range.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) group: &'static str,
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) dimension: Dimension,
    /// Of a choice, its words; of a size that may have a few values only, those.
    pub(crate) words: &'static [&'static str],
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Field {
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.group, self.name)
    }
}

/// What a number in base units (those that [`Dimension`] names) becomes.
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
    /// What an atomic operation keeps others from while it is under way.
    LockScope {
        /// Every other atomic operation on the device.
        Device = "device",
        /// Those of the same queue pair.
        QueuePair = "queue-pair",
        /// Those on the same address.
        Address = "address",
    }
    /// When a switch begins to send a frame.
    Forwarding {
        /// Once it has the frame's header.
        CutThrough = "cut-through",
        /// Once it has all of the frame.
        StoreAndForward = "store-and-forward",
    }
    /// What a switch does when a queue is full.
    WhenFull {
        /// It drops the frame.
        Drop = "drop",
        /// Before that it has those who send to the queue pause (IEEE 802.1Qbb).
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

        /// All parameters, in the order in which files and tables have them.
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

        /// The parameters as what they are.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct Groups {
            $(pub(crate) $group: $Group,)*
        }

        impl Groups {
            /// `raw` has a number for each of [`FIELDS`]. `Err` names the field whose number is none of its type's.
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

/// Ten seconds: more than any part of a testbed needs for anything.
const LONG: u64 = 10_000_000_000_000;
/// A microsecond per byte.
const SLOW: u64 = 1_000_000_000;
/// 100 Tb/s.
const FAST: u64 = 100_000_000_000_000;
const TIB: u64 = 1 << 40;
const MANY: u64 = 1 << 30;
/// The longest work request in the sum of its segments, and more than any TLP.
const SMALL: u64 = 1 << 16;

groups! {
    /// What a thread spends on verbs and memory.
    Cpu cpu {
        /// a list of work requests posted, however long: lock, fence, doorbell
        post_list: Ps [Time 0, LONG],
        /// each work request of such a list: writing it down
        post_wr: Ps [Time 0, LONG],
        /// each payload byte that is copied into a work request (inline)
        inline_per_byte: PerByte [TimePerByte 0, SLOW],
        /// a look at a completion queue, whether it has something or not
        poll_call: Ps [Time 0, LONG],
        /// each completion that a look takes
        poll_completion: Ps [Time 0, LONG],
        /// copying a payload that the NIC has put into the completion
        inline_receive: Ps [Time 0, LONG],
        /// a list of receives posted, however long
        repost_list: Ps [Time 0, LONG],
        /// each receive of such a list
        repost_wr: Ps [Time 0, LONG],
        /// a word of registered memory read or written
        memory_access: Ps [Time 0, LONG],
        /// each byte copied from or to registered memory
        copy_per_byte: PerByte [TimePerByte 0, SLOW],
        /// a lock between threads, while it is held
        lock: Ps [Time 0, LONG],
        /// from an event to the thread that slept running
        wake: Ps [Time 0, LONG],
        /// the cache that a core has for itself
        cache: u64 [Size 1, TIB],
        /// what a core touches in turn for each receive queue that a thread takes messages from
        queue_pair: u64 [Size 0, TIB],
        /// cache lines that a message touches and that may have been pushed out
        lines_per_message: u64 [Count 0, SMALL],
        /// a line that is not in the core's own cache
        cache_miss: Ps [Time 0, LONG],
    }
    /// What lies between a host's memory and its NIC.
    Pcie pcie {
        /// bits per second of the link in each direction, after line coding
        rate: Rate [Rate 1_000_000, FAST],
        /// most payload of a write, and of a completion of a read
        max_payload: u64 [Size 1, SMALL],
        /// most bytes that one read asks for
        max_read_request: u64 [Size 1, SMALL],
        /// bytes around the payload of a write
        write_header: u64 [Size 0, SMALL],
        /// bytes around the payload of a completion of a read
        completion_header: u64 [Size 0, SMALL],
        /// bytes of the request of a read
        request_header: u64 [Size 0, SMALL],
        /// from the CPU's store to the NIC having it
        doorbell: Ps [Time 0, LONG],
        /// from the NIC's write to a polling CPU seeing it
        write: Ps [Time 0, LONG],
        /// from the NIC's read request to its first byte
        read: Ps [Time 0, LONG],
        /// read requests that may wait for completions at once
        reads_in_flight: u64 [Count 1, SMALL],
    }
    /// What the NIC needs for requests, packets and answers.
    Nic nic {
        /// processing units; a queue pair belongs to one of them, in turn as they are made
        units: u64 [Count 1, SMALL],
        /// a work request at its queue pair's unit
        unit_request: Ps [Time 0, LONG],
        /// each further packet of a work request at its unit
        unit_packet: Ps [Time 0, LONG],
        /// each packet sent, at what all units share
        send_packet: Ps [Time 0, LONG],
        /// each packet received, at what all units share
        receive_packet: Ps [Time 0, LONG],
        /// from a work request in the NIC to its first bit on the line
        transmit: Ps [Time 0, LONG],
        /// from a packet's last bit off the line to its memory access, or to its answer
        receive: Ps [Time 0, LONG],
        /// the same for an acknowledgement, to its completion being written
        receive_ack: Ps [Time 0, LONG],
        /// packets after which a requester asks for an acknowledgement in the midst of a message
        ack_every: u64 [Count 1, MANY],
        /// the longest payload that the NIC puts into the completion instead of the receive's buffer
        inline_receive: u64 [Size 0, SMALL],
        /// payloads of one queue pair's work requests that are fetched at once; the next waits for the first of them
        payload_fetches: u64 [Count 1, SMALL],
        /// the longest work request that the CPU stores to the NIC with its doorbell; 0 if the NIC fetches all
        stored_request: u64 [Size 0, SMALL],
        /// a work request without inline data
        request: u64 [Size 1, SMALL],
        /// a completion
        completion: u64 [Size 1, SMALL],
        /// what a message that takes a receive is later than one that takes none
        take_receive: Ps [Time 0, LONG],
        /// a message too long for the completion that takes a receive of a shared queue which another queue pair took from last
        shared_receive: Ps [Time 0, LONG],
        /// units for READs at the responder
        read_units: u64 [Count 1, SMALL],
        /// a READ at such a unit, without its data
        read: Ps [Time 0, LONG],
        /// an atomic operation, while it holds its lock
        atomic: Ps [Time 0, LONG],
        /// what the lock of an atomic operation covers
        atomic_lock: LockScope [Choice 0, 0],
        /// READs and atomic operations that a queue pair has in flight at most
        max_rd_atomic: u64 [Count 1, 255],
        /// queue pairs whose context the NIC keeps
        cached_queue_pairs: u64 [Count 1, MANY],
        /// fetching the context of a queue pair that it does not keep
        context_miss: Ps [Time 0, LONG],
        /// what a peer's access to memory is late by on average, each by another time: those of one queue pair stay in order
        access_jitter: Ps [Time 0, LONG],
    }
    /// Each cable.
    Link link {
        /// bits per second in each direction
        rate: Rate [Rate 1_000_000, FAST],
        /// from end to end, with what the ports add
        propagation: Ps [Time 0, LONG],
        /// the path MTU of connections that do not choose one
        path_mtu: PathMtu [Size 256, 4096],
    }
    /// Each switch.
    Switch switch {
        /// from a frame's header in to its first bit out, if nothing waits
        latency: Ps [Time 0, LONG],
        /// when a frame is sent on
        forwarding: Forwarding [Choice 0, 0],
        /// bytes that wait for one port at most
        queue: u64 [Size 1, TIB],
        /// what happens when they do
        when_full: WhenFull [Choice 0, 0],
        /// bytes that wait for a port when it has its senders pause
        pause_at: u64 [Size 1, TIB],
        /// bytes that wait for a port when it has them go on
        resume_at: u64 [Size 0, TIB],
        /// bytes that wait for a port when frames begin to be marked (RFC 3168)
        mark_at: u64 [Size 0, TIB],
        /// a packet through the middlebox at the switch, if there is one, beside the switch's own latency
        middlebox: Ps [Time 0, LONG],
        /// from one packet of the middlebox to the next, for each that comes in and each that leaves
        middlebox_packet: Ps [Time 0, LONG],
    }
}
