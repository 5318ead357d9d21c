//! Table of protocols.

use doorbell_wire::MessageKind::{FetchAdd, Read, Send, SendImm, Write, WriteImm};

use crate::protocol::{WireId, ZeroCopy};
use crate::step::End::{Receiver, Sender};
use crate::step::Joined::{Chained, Fenced};
use crate::step::{Credits, Size, Step, When};

/// Protocol of message exchange, in one of its variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// SENDs into receives.
    #[default]
    SendReceive,
    /// The receiver READs each message, then WRITEs its signal byte.
    DirectRead,
    /// The receiver posts READ and signal byte together, the latter with a fence. It has the message when the READ is
    /// complete.
    DirectReadFenced,
    /// Same as [`Self::DirectReadFenced`], but the receiver waits until the WRITE of the signal byte is complete.
    DirectReadFencedAwaited,
    /// The receiver READs each message, then reports it by SEND.
    DirectReadSend,
    /// The receiver posts READ and SEND together, the latter with a fence.
    DirectReadFencedSend,
    /// WRITEs into buffers that the receiver grants.
    DirectWrite,
    /// WRITEs into a ring, with immediate data as notification. The receiver reports space by SEND.
    BufferedWriteImmediateSend,
    /// WRITEs into a ring, with immediate data as notification. The sender READs the free space.
    BufferedWriteImmediateRead,
    /// WRITEs into a ring, with the tail's offset as notification. The receiver reports space by SEND.
    BufferedWriteTailSend,
    /// WRITEs into a ring, with the tail's offset as notification. The sender READs the free space.
    BufferedWriteTailRead,
    /// WRITEs into a ring from its end to its start. The receiver reports space by SEND.
    BufferedWriteReverseSend,
    /// WRITEs into a ring from its end to its start. The sender READs the free space.
    BufferedWriteReverseRead,
    /// Many senders WRITE into one ring, in which they reserve space by FETCH_ADD.
    SharedWrite,
    /// The receiver READs all new data from a ring at the sender.
    BufferedRead,
}

/// Memory of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Buffers of the maximum message length.
    Slots,
    /// Ring with consecutive messages.
    Ring,
    /// Memory of the program, which places each message. The connection stores only the announcements.
    Announcements,
}

/// Static properties of a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Protocol of this row.
    pub protocol: Protocol,
    /// Name on the command line, in JSON and in experiments.
    pub name: &'static str,
    /// Name in sentences.
    pub title: &'static str,
    /// Common name of all variants.
    pub family: &'static str,
    /// Name of the variant within its family.
    pub variant: &'static str,
    /// Id for connection set-up.
    pub wire_id: WireId,
    /// Placement of received messages without a copy.
    pub zero_copy: ZeroCopy,
    /// Whether connections can share receive buffers.
    pub shared_buffers: bool,
    /// Memory of sent messages until they are complete.
    pub sent_from: Store,
    /// Memory of received messages until the program frees them.
    pub received_into: Store,
    /// Operations, in the order in which a message causes them.
    pub steps: &'static [Step],
}

/// The message without additional bytes.
const MESSAGE: Size = Size::Message { beside: 0 };
/// The message, and a word with its length and a signal byte.
const MESSAGE_AND_WORD: Size = Size::Message { beside: 8 };
/// No payload; the immediate data is sufficient.
const EMPTY: Size = Size::Fixed(0);
/// An offset or a number.
const WORD: Size = Size::Fixed(8);
/// Address, key and length of a message.
const READ_REQUEST: Size = Size::Fixed(16);
const SIGNAL_BYTE: Size = Size::Fixed(1);

/// Rows in the order of [`Protocol`].
pub(crate) const DESCRIPTIONS: [Description; 15] = [
    Description {
        protocol: Protocol::SendReceive,
        name: "send-receive",
        title: "Send-Receive",
        family: "send-receive",
        variant: "send-receive",
        wire_id: WireId::new(1),
        zero_copy: ZeroCopy::No,
        shared_buffers: true, // with a shared receive queue
        sent_from: Store::Slots,
        received_into: Store::Slots,
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
            // One SEND reports all messages read.
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
        protocol: Protocol::DirectWrite,
        name: "direct-write",
        title: "Direct-Write",
        family: "direct-write",
        variant: "direct-write",
        wire_id: WireId::new(5),
        zero_copy: ZeroCopy::Partly,
        shared_buffers: false,
        sent_from: Store::Slots,
        received_into: Store::Slots,
        steps: &[
            Step::new(Sender, Write, MESSAGE_AND_WORD, When::Message).seen_in_memory(),
            // Address and key of each free buffer, then the number of buffers granted so far.
            Step::new(Receiver, Write, Size::Entries(16), When::Freed { parts: 4, most: 16 }).release(),
            Step::new(Receiver, Write, WORD, When::Freed { parts: 4, most: 16 })
                .joined(Chained)
                .release()
                .seen_in_memory(),
        ],
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
        steps: &[WRITE.seen_in_memory(), ASK_AHEAD],
        ..buffered_write(
            Protocol::BufferedWriteReverseRead,
            "buffered-write-reverse-read",
            "Buffered-Write in reverse, acknowledged by READ",
            "reverse, READ",
            WireId::new(11),
        )
    },
    // After the death of a sender, the receiver and the other senders also exchange SENDs of 0 B.
    Description {
        protocol: Protocol::SharedWrite,
        name: "shared-write",
        title: "Shared-Write",
        family: "shared-write",
        variant: "shared-write",
        wire_id: WireId::new(12),
        zero_copy: ZeroCopy::No,
        shared_buffers: true,
        sent_from: Store::Slots,
        received_into: Store::Ring,
        steps: &[
            Step::new(Sender, FetchAdd, WORD, When::Waiting),
            WRITE_IMMEDIATE,
            Step::new(Sender, Read, WORD, When::Short { parts: 1 }).release(),
        ],
    },
    Description {
        protocol: Protocol::BufferedRead,
        name: "buffered-read",
        title: "Buffered-Read",
        family: "buffered-read",
        variant: "buffered-read",
        wire_id: WireId::new(13),
        zero_copy: ZeroCopy::No,
        shared_buffers: false,
        sent_from: Store::Ring,
        received_into: Store::Ring,
        steps: &[
            // The tail, all messages up to it, and the head.
            Step::new(Receiver, Read, WORD, When::Polled),
            Step::new(Receiver, Read, Size::AllNew { beside: 8, unit: 16 }, When::Pulled),
            Step::new(Receiver, Write, WORD, When::Pulled).release().seen_in_memory(),
        ],
    },
];

/// Signal byte that is posted together with the READ.
const FENCED_SIGNAL: Step = Step::new(Receiver, Write, SIGNAL_BYTE, When::Message).release().seen_in_memory();
/// WRITE of a message that takes a receive.
const WRITE_IMMEDIATE: Step = Step::new(Sender, WriteImm, MESSAGE, When::Message);
const WRITE: Step = Step::new(Sender, Write, MESSAGE_AND_WORD, When::Message);
/// WRITE of the end of the last message, after all messages of a post.
const WRITE_TAIL: Step = Step::new(Sender, Write, WORD, When::Post).joined(Chained).seen_in_memory();
/// The receiver reports the head in the immediate data.
const REPORT_BY_SEND: Step = Step::new(Receiver, SendImm, EMPTY, When::Freed { parts: 8, most: u32::MAX }).release();
/// The sender reads the head.
const ASK_AHEAD: Step = Step::new(Sender, Read, WORD, When::Short { parts: 2 }).release();

/// Returns the common properties of the variants of Direct-Read.
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
        wire_id,
        zero_copy: ZeroCopy::Yes,
        shared_buffers: true,
        sent_from: Store::Slots,
        received_into: Store::Announcements,
        steps: &[],
    }
}

/// Returns the common properties of the variants of Buffered-Write.
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
        wire_id,
        zero_copy: ZeroCopy::No,
        shared_buffers: false,
        sent_from: Store::Slots,
        received_into: Store::Ring,
        steps: &[],
    }
}
