//! Table of protocols.

use doorbell_wire::MessageKind::{FetchAdd, Read, Send, SendImm, Write, WriteImm};

use crate::step::End::{Receiver, Sender};
use crate::step::Joined::{Chained, Fenced};
use crate::step::{Credits, Size, Step, When};

/// Number that identifies a protocol in connection set-up. Variants that differ at only one end share a number: for
/// example, fenced and unfenced Direct-Read with signal bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireId(u8);

impl WireId {
    /// Id of connections that carry one-sided operations and no messages.
    pub const ONE_SIDED: Self = Self(2);

    pub(crate) const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Returns the number in connection set-up.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Whether the protocol places received messages in the program's memory without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// The connection chooses the buffer. A program that needs the message in other memory copies the message.
    No,
    /// The program may provide the buffers, but cannot choose the buffer of a certain message.
    Partly,
    /// The program chooses the memory of each message.
    Yes,
}

/// Protocol of message exchange, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// The sender SENDs into buffers that the receiver has posted.
    #[default]
    SendReceive,
    /// The receiver READs each message, then WRITEs its signal byte.
    DirectRead,
    /// The receiver posts the READ and the WRITE of the signal byte together, the WRITE with a fence. The receiver has
    /// the message when the READ is complete.
    DirectReadFenced,
    /// Same as [`Self::DirectReadFenced`], but the receiver waits until the WRITE of the signal byte is complete.
    DirectReadFencedAwaited,
    /// The receiver READs each message, then reports the message by SEND.
    DirectReadSend,
    /// The receiver posts the READ and the SEND together, the SEND with a fence.
    DirectReadFencedSend,
    /// The sender WRITEs into buffers that the receiver grants, several buffers at a time.
    DirectWrite,
    /// Same as [`Self::DirectWrite`], but the receiver grants each buffer separately.
    DirectWriteEach,
    /// The sender WRITEs into a ring, with immediate data as notification. The receiver reports free space by SEND.
    BufferedWriteImmediateSend,
    /// The sender WRITEs into a ring, with immediate data as notification. The sender READs the free space.
    BufferedWriteImmediateRead,
    /// The sender WRITEs into a ring, and then WRITEs the tail's offset as notification. The receiver reports free
    /// space by SEND.
    BufferedWriteTailSend,
    /// The sender WRITEs into a ring, and then WRITEs the tail's offset as notification. The sender READs the free
    /// space.
    BufferedWriteTailRead,
    /// The sender WRITEs into a ring, from the end of the ring to its start. The receiver reports free space by SEND.
    BufferedWriteReverseSend,
    /// The sender WRITEs into a ring, from the end of the ring to its start. The sender READs the free space.
    BufferedWriteReverseRead,
    /// Many senders WRITE into one ring. Each sender reserves space by FETCH_ADD on the ring's tail. One FETCH_ADD
    /// reserves space for all waiting messages.
    SharedWrite,
    /// Same as [`Self::SharedWrite`], but each message has a FETCH_ADD of its own.
    SharedWriteEach,
    /// The receiver READs all new data from a ring at the sender.
    BufferedRead,
}

/// Kind of memory that stores messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Buffers of the maximum message length.
    Slots,
    /// Ring in which messages of any length follow each other.
    Ring,
    /// The program chooses the memory of each message. The connection itself stores only announcements.
    Announcements,
}

/// Static properties of a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Protocol of this row.
    pub protocol: Protocol,
    /// Name on the command line, in JSON and in experiments.
    pub name: &'static str,
    /// Name of the protocol in sentences.
    pub title: &'static str,
    /// Name of the family, which all variants of a protocol share.
    pub family: &'static str,
    /// Name of the variant within its family.
    pub variant: &'static str,
    /// Path of the family's page in the guide, from the root of the repository.
    pub page: &'static str,
    /// Id of the protocol in connection set-up.
    pub wire_id: WireId,
    /// Whether the protocol places received messages in the program's memory without a copy.
    pub zero_copy: ZeroCopy,
    /// Whether connections can share receive buffers.
    pub shared_buffers: bool,
    /// Memory that stores a message at the sender until the message is done.
    pub sent_from: Store,
    /// Memory that stores a message at the receiver until the program frees the message.
    pub received_into: Store,
    /// Number of times that the CPU of each end reads or writes all bytes of a message in registered memory, in the
    /// order of [`End`](crate::End): copies, and clearing of memory. Inline data and copies of the program do not
    /// count.
    pub passes: [u64; 2],
    /// Operations that the protocol posts for a message, in the order of their posts.
    pub steps: &'static [Step],
}

/// Payload of one message without additional bytes.
const MESSAGE: Size = Size::Message { beside: 0 };
/// Payload of one message and of its word. The word has the length of the message and a signal byte.
const MESSAGE_AND_WORD: Size = Size::Message { beside: 8 };
/// Empty payload of an operation whose immediate data has all information.
const EMPTY: Size = Size::Fixed(0);
/// Payload of an offset or a count.
const WORD: Size = Size::Fixed(8);
/// Payload of a read request: address, key and length of a message.
const READ_REQUEST: Size = Size::Fixed(16);
const SIGNAL_BYTE: Size = Size::Fixed(1);
/// Passes of a receiver that clears the memory of each message, so that it finds the signal byte of the next one.
const CLEARED: [u64; 2] = [0, 1];
/// Maximum number of FETCH_ADDs of a sender in flight, each for all messages that waited.
pub const RESERVATIONS_IN_FLIGHT: u32 = 8;
/// Bytes of a grant: address and key of a buffer.
const GRANT: u64 = 16;

/// All rows of the table, in the order of the variants of [`Protocol`].
pub(crate) const DESCRIPTIONS: [Description; 17] = [
    Description {
        protocol: Protocol::SendReceive,
        name: "send-receive",
        title: "Send-Receive",
        family: "send-receive",
        variant: "send-receive",
        page: "docs/protocols/send-receive.md",
        wire_id: WireId::new(1),
        zero_copy: ZeroCopy::No,
        shared_buffers: true, // with a shared receive queue
        sent_from: Store::Slots,
        received_into: Store::Slots,
        passes: [0, 0],
        steps: &[
            Step::new(Sender, SendImm, MESSAGE, When::Message).credits(Credits::With),
            Step::new(Sender, Send, MESSAGE, When::Message).credits(Credits::Without),
            Step::new(Receiver, SendImm, EMPTY, When::Freed { parts: 4, most: u32::MAX })
                .release()
                .credits(Credits::With),
        ],
    },
    Description {
        protocol: Protocol::DirectRead,
        name: "direct-read",
        title: "Direct-Read with signal bytes",
        variant: "unfenced",
        wire_id: WireId::new(3),
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            Step::new(Receiver, Write, SIGNAL_BYTE, When::Message).release().seen_in_memory(),
        ],
        ..DIRECT_READ
    },
    Description {
        protocol: Protocol::DirectReadFenced,
        name: "direct-read-fenced",
        title: "Direct-Read with fenced signal bytes",
        variant: "fenced",
        wire_id: WireId::new(3),
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            FENCED_SIGNAL.joined(Fenced { awaited: false }),
        ],
        ..DIRECT_READ
    },
    Description {
        protocol: Protocol::DirectReadFencedAwaited,
        name: "direct-read-fenced-awaited",
        title: "Direct-Read with awaited fenced signal bytes",
        variant: "fenced, awaited",
        wire_id: WireId::new(3),
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            FENCED_SIGNAL.joined(Fenced { awaited: true }),
        ],
        ..DIRECT_READ
    },
    Description {
        protocol: Protocol::DirectReadSend,
        name: "direct-read-send",
        title: "Direct-Read acknowledged by SEND",
        variant: "unfenced, SEND",
        wire_id: WireId::new(4),
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            // A poll may find several READs complete. One SEND acknowledges all their messages.
            Step::new(Receiver, SendImm, EMPTY, When::Reap).release(),
        ],
        ..DIRECT_READ
    },
    Description {
        protocol: Protocol::DirectReadFencedSend,
        name: "direct-read-fenced-send",
        title: "Direct-Read acknowledged by fenced SEND",
        variant: "fenced, SEND",
        wire_id: WireId::new(4),
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            Step::new(Receiver, SendImm, EMPTY, When::Message).joined(Fenced { awaited: false }).release(),
        ],
        ..DIRECT_READ
    },
    Description {
        protocol: Protocol::DirectWrite,
        name: "direct-write",
        title: "Direct-Write",
        variant: "direct-write",
        wire_id: WireId::new(5),
        steps: &[
            Step::new(Sender, Write, MESSAGE_AND_WORD, When::Message).seen_in_memory(),
            // The next two steps write the address and key of each free buffer, and the number of buffers granted so
            // far.
            Step::new(Receiver, Write, Size::Entries(GRANT), When::Freed { parts: 4, most: 16 }).release(),
            Step::new(Receiver, Write, WORD, When::Freed { parts: 4, most: 16 })
                .joined(Chained)
                .release()
                .seen_in_memory(),
        ],
        ..DIRECT_WRITE
    },
    Description {
        protocol: Protocol::DirectWriteEach,
        name: "direct-write-each",
        title: "Direct-Write with a grant for each buffer",
        variant: "a grant for each buffer",
        wire_id: WireId::new(14),
        steps: &[
            Step::new(Sender, Write, MESSAGE_AND_WORD, When::Message).seen_in_memory(),
            Step::new(Receiver, Write, Size::Fixed(GRANT), When::Freed { parts: 1, most: 1 })
                .release()
                .seen_in_memory(),
        ],
        ..DIRECT_WRITE
    },
    Description {
        protocol: Protocol::BufferedWriteImmediateSend,
        name: "buffered-write-immediate-send",
        title: "Buffered-Write with immediate data, acknowledged by SEND",
        variant: "immediate, SEND",
        wire_id: WireId::new(6),
        steps: &[WRITE_IMMEDIATE, REPORT_BY_SEND],
        ..BUFFERED_WRITE
    },
    Description {
        protocol: Protocol::BufferedWriteImmediateRead,
        name: "buffered-write-immediate-read",
        title: "Buffered-Write with immediate data, acknowledged by READ",
        variant: "immediate, READ",
        wire_id: WireId::new(7),
        steps: &[WRITE_IMMEDIATE, ASK_AHEAD],
        ..BUFFERED_WRITE
    },
    Description {
        protocol: Protocol::BufferedWriteTailSend,
        name: "buffered-write-tail-send",
        title: "Buffered-Write with tail offset, acknowledged by SEND",
        variant: "tail, SEND",
        wire_id: WireId::new(8),
        steps: &[WRITE, WRITE_TAIL, REPORT_BY_SEND],
        ..BUFFERED_WRITE
    },
    Description {
        protocol: Protocol::BufferedWriteTailRead,
        name: "buffered-write-tail-read",
        title: "Buffered-Write with tail offset, acknowledged by READ",
        variant: "tail, READ",
        wire_id: WireId::new(9),
        steps: &[WRITE, WRITE_TAIL, ASK_AHEAD],
        ..BUFFERED_WRITE
    },
    Description {
        protocol: Protocol::BufferedWriteReverseSend,
        name: "buffered-write-reverse-send",
        title: "Buffered-Write in reverse, acknowledged by SEND",
        variant: "reverse, SEND",
        wire_id: WireId::new(10),
        passes: CLEARED,
        steps: &[WRITE.seen_in_memory(), REPORT_BY_SEND],
        ..BUFFERED_WRITE
    },
    Description {
        protocol: Protocol::BufferedWriteReverseRead,
        name: "buffered-write-reverse-read",
        title: "Buffered-Write in reverse, acknowledged by READ",
        variant: "reverse, READ",
        wire_id: WireId::new(11),
        passes: CLEARED,
        steps: &[WRITE.seen_in_memory(), ASK_AHEAD],
        ..BUFFERED_WRITE
    },
    // After the death of a sender, the receiver and the remaining senders also exchange SENDs of 0 B. These SENDs are
    // no steps of the protocol.
    Description {
        protocol: Protocol::SharedWrite,
        name: "shared-write",
        title: "Shared-Write",
        variant: "shared-write",
        steps: &[
            Step::new(Sender, FetchAdd, WORD, When::Waiting { in_flight: RESERVATIONS_IN_FLIGHT }),
            WRITE_IMMEDIATE,
            ASK_LATE,
        ],
        ..SHARED_WRITE
    },
    Description {
        protocol: Protocol::SharedWriteEach,
        name: "shared-write-each",
        title: "Shared-Write with a reservation for each message",
        variant: "a reservation for each message",
        steps: &[Step::new(Sender, FetchAdd, WORD, When::Message), WRITE_IMMEDIATE, ASK_LATE],
        ..SHARED_WRITE
    },
    Description {
        protocol: Protocol::BufferedRead,
        name: "buffered-read",
        title: "Buffered-Read",
        family: "buffered-read",
        variant: "buffered-read",
        page: "docs/protocols/buffered-read.md",
        wire_id: WireId::new(13),
        zero_copy: ZeroCopy::No,
        shared_buffers: false,
        sent_from: Store::Ring,
        received_into: Store::Ring,
        // The sender copies the message into a small buffer, and from there into its ring.
        passes: [2, 0],
        steps: &[
            // The receiver reads the tail, reads all messages up to the tail, and writes the head.
            Step::new(Receiver, Read, WORD, When::Polled),
            Step::new(Receiver, Read, Size::AllNew { beside: 8, unit: 16 }, When::Pulled),
            Step::new(Receiver, Write, WORD, When::Pulled).release().seen_in_memory(),
        ],
    },
];

/// WRITE of the signal byte, which the receiver posts together with the READ.
const FENCED_SIGNAL: Step = Step::new(Receiver, Write, SIGNAL_BYTE, When::Message).release().seen_in_memory();
/// WRITE of a message with immediate data, which consumes a receive of the peer.
const WRITE_IMMEDIATE: Step = Step::new(Sender, WriteImm, MESSAGE, When::Message);
const WRITE: Step = Step::new(Sender, Write, MESSAGE_AND_WORD, When::Message);
/// WRITE of the tail's offset, after all messages of a post.
const WRITE_TAIL: Step = Step::new(Sender, Write, WORD, When::Post).joined(Chained).seen_in_memory();
/// SEND of the receiver that reports the head in the immediate data.
const REPORT_BY_SEND: Step = Step::new(Receiver, SendImm, EMPTY, When::Freed { parts: 8, most: u32::MAX }).release();
/// READ of the head by the sender, before the sender needs the space.
const ASK_AHEAD: Step = Step::new(Sender, Read, WORD, When::Short { parts: 2 }).release();
/// READ of the head by the sender, when a message does not fit.
const ASK_LATE: Step = Step::new(Sender, Read, WORD, When::Short { parts: 1 }).release();

/// Base of the families with several variants. Families and rows replace the empty fields.
const BASE: Description = Description {
    protocol: Protocol::SendReceive,
    name: "",
    title: "",
    family: "",
    variant: "",
    page: "",
    wire_id: WireId::new(0),
    zero_copy: ZeroCopy::No,
    shared_buffers: false,
    sent_from: Store::Slots,
    received_into: Store::Ring,
    passes: [0, 0],
    steps: &[],
};

const DIRECT_READ: Description = Description {
    family: "direct-read",
    page: "docs/protocols/direct-read.md",
    zero_copy: ZeroCopy::Yes,
    shared_buffers: true,
    received_into: Store::Announcements,
    ..BASE
};

const DIRECT_WRITE: Description = Description {
    family: "direct-write",
    page: "docs/protocols/direct-write.md",
    zero_copy: ZeroCopy::Partly,
    received_into: Store::Slots,
    ..BASE
};

/// The variants look equal to the peer.
const SHARED_WRITE: Description = Description {
    family: "shared-write",
    page: "docs/protocols/shared-write.md",
    wire_id: WireId::new(12),
    shared_buffers: true,
    ..BASE
};

const BUFFERED_WRITE: Description =
    Description { family: "buffered-write", page: "docs/protocols/buffered-write.md", ..BASE };
