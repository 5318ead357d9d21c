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
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            Step::new(Receiver, Write, SIGNAL_BYTE, When::Message).release().seen_in_memory(),
        ],
        ..direct_read(Protocol::DirectRead, "direct-read", "Direct-Read with signal bytes", "unfenced", WireId::new(3))
    },
    Description {
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            FENCED_SIGNAL.joined(Fenced { awaited: false }),
        ],
        ..direct_read(
            Protocol::DirectReadFenced,
            "direct-read-fenced",
            "Direct-Read with fenced signal bytes",
            "fenced",
            WireId::new(3),
        )
    },
    Description {
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            FENCED_SIGNAL.joined(Fenced { awaited: true }),
        ],
        ..direct_read(
            Protocol::DirectReadFencedAwaited,
            "direct-read-fenced-awaited",
            "Direct-Read with awaited fenced signal bytes",
            "fenced, awaited",
            WireId::new(3),
        )
    },
    Description {
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            // A poll may find several READs complete. One SEND acknowledges all their messages.
            Step::new(Receiver, SendImm, EMPTY, When::Reap).release(),
        ],
        ..direct_read(
            Protocol::DirectReadSend,
            "direct-read-send",
            "Direct-Read acknowledged by SEND",
            "unfenced, SEND",
            WireId::new(4),
        )
    },
    Description {
        steps: &[
            Step::new(Sender, Send, READ_REQUEST, When::Message),
            Step::new(Receiver, Read, MESSAGE, When::Message),
            Step::new(Receiver, SendImm, EMPTY, When::Message).joined(Fenced { awaited: false }).release(),
        ],
        ..direct_read(
            Protocol::DirectReadFencedSend,
            "direct-read-fenced-send",
            "Direct-Read acknowledged by fenced SEND",
            "fenced, SEND",
            WireId::new(4),
        )
    },
    Description {
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
        ..direct_write(Protocol::DirectWrite, "direct-write", "Direct-Write", "direct-write", WireId::new(5))
    },
    Description {
        steps: &[
            Step::new(Sender, Write, MESSAGE_AND_WORD, When::Message).seen_in_memory(),
            Step::new(Receiver, Write, Size::Fixed(GRANT), When::Freed { parts: 1, most: 1 })
                .release()
                .seen_in_memory(),
        ],
        ..direct_write(
            Protocol::DirectWriteEach,
            "direct-write-each",
            "Direct-Write with a grant for each buffer",
            "a grant for each buffer",
            WireId::new(14),
        )
    },
    Description {
        steps: &[WRITE_IMMEDIATE, REPORT_BY_SEND],
        ..buffered_write(
            Protocol::BufferedWriteImmediateSend,
            "buffered-write-immediate-send",
            "Buffered-Write with immediate data, acknowledged by SEND",
            "immediate, SEND",
            WireId::new(6),
        )
    },
    Description {
        steps: &[WRITE_IMMEDIATE, ASK_AHEAD],
        ..buffered_write(
            Protocol::BufferedWriteImmediateRead,
            "buffered-write-immediate-read",
            "Buffered-Write with immediate data, acknowledged by READ",
            "immediate, READ",
            WireId::new(7),
        )
    },
    Description {
        steps: &[WRITE, WRITE_TAIL, REPORT_BY_SEND],
        ..buffered_write(
            Protocol::BufferedWriteTailSend,
            "buffered-write-tail-send",
            "Buffered-Write with tail offset, acknowledged by SEND",
            "tail, SEND",
            WireId::new(8),
        )
    },
    Description {
        steps: &[WRITE, WRITE_TAIL, ASK_AHEAD],
        ..buffered_write(
            Protocol::BufferedWriteTailRead,
            "buffered-write-tail-read",
            "Buffered-Write with tail offset, acknowledged by READ",
            "tail, READ",
            WireId::new(9),
        )
    },
    Description {
        passes: CLEARED,
        steps: &[WRITE.seen_in_memory(), REPORT_BY_SEND],
        ..buffered_write(
            Protocol::BufferedWriteReverseSend,
            "buffered-write-reverse-send",
            "Buffered-Write in reverse, acknowledged by SEND",
            "reverse, SEND",
            WireId::new(10),
        )
    },
    Description {
        passes: CLEARED,
        steps: &[WRITE.seen_in_memory(), ASK_AHEAD],
        ..buffered_write(
            Protocol::BufferedWriteReverseRead,
            "buffered-write-reverse-read",
            "Buffered-Write in reverse, acknowledged by READ",
            "reverse, READ",
            WireId::new(11),
        )
    },
    // After the death of a sender, the receiver and the remaining senders also exchange SENDs of 0 B. These SENDs are
    // no steps of the protocol.
    Description {
        steps: &[
            Step::new(Sender, FetchAdd, WORD, When::Waiting { in_flight: RESERVATIONS_IN_FLIGHT }),
            WRITE_IMMEDIATE,
            ASK_LATE,
        ],
        ..shared_write(Protocol::SharedWrite, "shared-write", "Shared-Write", "shared-write")
    },
    Description {
        steps: &[Step::new(Sender, FetchAdd, WORD, When::Message), WRITE_IMMEDIATE, ASK_LATE],
        ..shared_write(
            Protocol::SharedWriteEach,
            "shared-write-each",
            "Shared-Write with a reservation for each message",
            "a reservation for each message",
        )
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

/// Returns a row with the common properties of all variants of Direct-Read, without steps.
const fn direct_read(
    protocol: Protocol,
    name: &'static str,
    title: &'static str,
    variant: &'static str,
    wire_id: WireId,
) -> Description {
    Description {
        protocol,
        name,
        title,
        family: "direct-read",
        variant,
        page: "docs/protocols/direct-read.md",
        wire_id,
        zero_copy: ZeroCopy::Yes,
        shared_buffers: true,
        sent_from: Store::Slots,
        received_into: Store::Announcements,
        passes: [0, 0],
        steps: &[],
    }
}

/// Returns a row with the common properties of all variants of Direct-Write, without steps.
const fn direct_write(
    protocol: Protocol,
    name: &'static str,
    title: &'static str,
    variant: &'static str,
    wire_id: WireId,
) -> Description {
    Description {
        protocol,
        name,
        title,
        family: "direct-write",
        variant,
        page: "docs/protocols/direct-write.md",
        wire_id,
        zero_copy: ZeroCopy::Partly,
        shared_buffers: false,
        sent_from: Store::Slots,
        received_into: Store::Slots,
        passes: [0, 0],
        steps: &[],
    }
}

/// Returns a row with the common properties of all variants of Shared-Write, without steps. The variants look equal to
/// the peer.
const fn shared_write(
    protocol: Protocol,
    name: &'static str,
    title: &'static str,
    variant: &'static str,
) -> Description {
    Description {
        protocol,
        name,
        title,
        family: "shared-write",
        variant,
        page: "docs/protocols/shared-write.md",
        wire_id: WireId::new(12),
        zero_copy: ZeroCopy::No,
        shared_buffers: true,
        sent_from: Store::Slots,
        received_into: Store::Ring,
        passes: [0, 0],
        steps: &[],
    }
}

/// Returns a row with the common properties of all variants of Buffered-Write, without steps.
const fn buffered_write(
    protocol: Protocol,
    name: &'static str,
    title: &'static str,
    variant: &'static str,
    wire_id: WireId,
) -> Description {
    Description {
        protocol,
        name,
        title,
        family: "buffered-write",
        variant,
        page: "docs/protocols/buffered-write.md",
        wire_id,
        zero_copy: ZeroCopy::No,
        shared_buffers: false,
        sent_from: Store::Slots,
        received_into: Store::Ring,
        passes: [0, 0],
        steps: &[],
    }
}
