//! Message protocols as data: which operations carry a message, in which direction, how the other
//! end learns of them, and what comes back.

use doorbell_wire::MessageKind;

/// An end of a message connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// It sends messages.
    Sender,
    /// It receives them.
    Receiver,
}

impl End {
    /// The other one.
    pub const fn other(self) -> End {
        match self {
            End::Sender => End::Receiver,
            End::Receiver => End::Sender,
        }
    }
}

/// How Direct-Read tells the sender that its buffer is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DirectReadAck {
    /// A WRITE of the signal byte, posted when the READ has completed.
    Unfenced,
    /// The same WRITE, posted together with the READ and fenced: it waits at the RNIC.
    ///
    /// RC orders a WRITE behind an earlier WRITE, but not behind the completion of an earlier READ
    /// (IBTA Vol 1, chapter 10.8.3.3, the table of work request operation ordering).
    Fenced,
    /// A SEND.
    Send,
    /// None: the sender READs the receiver's counter now and then.
    Pull,
}

/// How a receiver learns of a message that was written into its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notification {
    /// The WRITE has immediate data, and takes a receive.
    Immediate,
    /// A second WRITE moves the tail offset, which the receiver polls.
    Tail,
    /// The ring is written backwards, and the receiver polls the byte that is written last.
    Backward,
}

/// How a sender learns that there is space in the receiver's ring again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceReport {
    /// The receiver sends a message whenever an eighth of the ring is free.
    Message,
    /// The sender READs the receiver's head.
    ReadHead,
}

/// A protocol that moves messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The message is the SEND.
    SendReceive,
    /// The sender says where the message lies, the receiver READs it to where it belongs.
    DirectRead(DirectReadAck),
    /// The receiver grants buffers, the sender WRITEs into them.
    DirectWrite,
    /// The sender WRITEs into a ring at the receiver.
    BufferedWrite(Notification, SpaceReport),
    /// Many senders WRITE into one ring, in which FETCH_ADD reserves space.
    SharedWrite,
    /// The receiver READs from a ring at the sender all that is new.
    BufferedRead,
}

/// Bytes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The message, and so many bytes around it.
    Message(u64),
    /// All messages of a batch, each with so many bytes around it.
    Batch(u64),
    /// So many, whatever the message.
    Fixed(u64),
}

/// How often there is an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Often {
    /// With every message.
    Each,
    /// Once per batch of messages.
    Batch,
    /// So often while the receiver's space is filled once, but no more than once per message.
    Filling(u32),
}

/// What an operation is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Without it the receiver does not have the message: it adds to latency.
    Delivery,
    /// It tells the sender that it may reuse buffers, or that the receiver has space.
    Release,
}

/// How the other end of an operation learns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// It completes a receive, which is posted again.
    Receive,
    /// Polling memory finds it. That is taken to cost as much as polling a completion.
    Memory,
    /// Not at all: the end is passive.
    Passive,
}

/// An operation of a protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Who posts it.
    pub by: End,
    /// What it does. RC acknowledges it besides, unless it is a READ or atomic.
    pub verb: MessageKind,
    /// Bytes of payload.
    pub size: Size,
    /// How often.
    pub often: Often,
    /// What for.
    pub role: Role,
    /// How its target learns of it.
    pub noticed: Noticed,
    /// It is posted along with the step before and arrives right behind it.
    pub chained: bool,
    /// How often its latency is paid: 1.5 where a poll is met in the middle on average.
    pub waits: f64,
    /// Whoever posts it waits for its completion: READs and atomics, and fenced ones behind them.
    pub awaited: bool,
}

impl Step {
    const fn new(by: End, verb: MessageKind, size: Size, role: Role, noticed: Noticed) -> Step {
        let awaited = matches!(verb, MessageKind::Read | MessageKind::CompareSwap | MessageKind::FetchAdd);
        Step { by, verb, size, often: Often::Each, role, noticed, chained: false, waits: 1.0, awaited }
    }

    const fn often(self, often: Often) -> Step {
        Step { often, ..self }
    }

    const fn chained(self) -> Step {
        Step { chained: true, ..self }
    }

    /// Does its data come back, instead of an acknowledgement?
    pub const fn is_two_way(&self) -> bool {
        matches!(self.verb, MessageKind::Read | MessageKind::CompareSwap | MessageKind::FetchAdd)
    }
}

/// When a sender may reuse the buffer of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Once its RNIC has the acknowledgement of what carries the message.
    Acknowledgement,
    /// Once the receiver has said so.
    Receiver,
}

/// What a protocol can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Messages land where the receiver wants them.
    pub zero_copy: bool,
    /// Short messages take no more space than they need.
    pub variable_size: bool,
    /// An end whose CPU takes no part in a message's way.
    pub passive: Option<End>,
    /// A receiver may sleep until a message raises a completion event.
    pub receiver_can_sleep: bool,
    /// A message that is not processed does not hold up those behind it.
    pub slow_message_blocks_nothing: bool,
    /// Connections can share buffers.
    pub shared_buffers: bool,
}

/// A read request: address, key and length.
const REQUEST_BYTES: u64 = 16;
/// A granted buffer: address and key, padded.
const GRANT_BYTES: u64 = 16;
/// Buffers that are granted at once, at most.
const GRANTS: u64 = 16;
/// Length and signal byte beside a message, to a multiple of 8.
const RING_BYTES: u64 = 8;
/// An offset, a counter, or the operand of an atomic.
const WORD_BYTES: u64 = 8;
/// Credits are told once a quarter of the receives is posted anew, space once an eighth is free; so
/// many times buffers are granted while all are used once.
pub(crate) const CREDIT_FILLINGS: u32 = 4;
const SPACE_FILLINGS: u32 = 8;

impl Protocol {
    /// Every protocol, each with every way to notify and to acknowledge.
    pub const ALL: [Protocol; 14] = [
        Protocol::SendReceive,
        Protocol::DirectRead(DirectReadAck::Unfenced),
        Protocol::DirectRead(DirectReadAck::Fenced),
        Protocol::DirectRead(DirectReadAck::Send),
        Protocol::DirectRead(DirectReadAck::Pull),
        Protocol::DirectWrite,
        Protocol::BufferedWrite(Notification::Immediate, SpaceReport::Message),
        Protocol::BufferedWrite(Notification::Immediate, SpaceReport::ReadHead),
        Protocol::BufferedWrite(Notification::Tail, SpaceReport::Message),
        Protocol::BufferedWrite(Notification::Tail, SpaceReport::ReadHead),
        Protocol::BufferedWrite(Notification::Backward, SpaceReport::Message),
        Protocol::BufferedWrite(Notification::Backward, SpaceReport::ReadHead),
        Protocol::SharedWrite,
        Protocol::BufferedRead,
    ];

    /// Its name, as the command line has it.
    pub const fn name(self) -> &'static str {
        use {DirectReadAck as Ack, Notification as N, SpaceReport as S};
        match self {
            Protocol::SendReceive => "send-receive",
            Protocol::DirectRead(Ack::Unfenced) => "direct-read",
            Protocol::DirectRead(Ack::Fenced) => "direct-read-fenced",
            Protocol::DirectRead(Ack::Send) => "direct-read-send",
            Protocol::DirectRead(Ack::Pull) => "direct-read-pull",
            Protocol::DirectWrite => "direct-write",
            Protocol::BufferedWrite(N::Immediate, S::Message) => "buffered-write-immediate-send",
            Protocol::BufferedWrite(N::Immediate, S::ReadHead) => "buffered-write-immediate-read",
            Protocol::BufferedWrite(N::Tail, S::Message) => "buffered-write-tail-send",
            Protocol::BufferedWrite(N::Tail, S::ReadHead) => "buffered-write-tail-read",
            Protocol::BufferedWrite(N::Backward, S::Message) => "buffered-write-reverse-send",
            Protocol::BufferedWrite(N::Backward, S::ReadHead) => "buffered-write-reverse-read",
            Protocol::SharedWrite => "shared-write",
            Protocol::BufferedRead => "buffered-read",
        }
    }

    /// The protocol of this [`name`](Self::name).
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Its operations, in the order in which they happen. With `credits`, Send-Receive has flow
    /// control: credits ride as immediate data, and are told alone now and then.
    pub fn steps(self, credits: bool) -> Vec<Step> {
        use End::{Receiver, Sender};
        use MessageKind::{FetchAdd, Read, Send, SendImm, Write, WriteImm};
        use Noticed::{Memory, Passive, Receive};
        use Role::{Delivery, Release};
        let mut steps = Vec::with_capacity(4);
        match self {
            Protocol::SendReceive => {
                let verb = if credits { SendImm } else { Send };
                steps.push(Step::new(Sender, verb, Size::Message(0), Delivery, Receive));
                if credits {
                    let credit = Step::new(Receiver, SendImm, Size::Fixed(0), Release, Receive);
                    steps.push(credit.often(Often::Filling(CREDIT_FILLINGS)));
                }
            }
            Protocol::DirectRead(ack) => {
                steps.push(Step::new(Sender, Send, Size::Fixed(REQUEST_BYTES), Delivery, Receive));
                let read = Step::new(Receiver, Read, Size::Message(0), Delivery, Passive);
                steps.push(Step { awaited: ack != DirectReadAck::Fenced, ..read });
                let signal = Step::new(Receiver, Write, Size::Fixed(1), Release, Memory);
                steps.push(match ack {
                    DirectReadAck::Unfenced => signal,
                    // Only the WRITE's completion says that the READ before it is complete.
                    DirectReadAck::Fenced => Step { role: Delivery, awaited: true, ..signal.chained() },
                    DirectReadAck::Send => Step::new(Receiver, SendImm, Size::Fixed(0), Release, Receive),
                    DirectReadAck::Pull => {
                        let pull = Step::new(Sender, Read, Size::Fixed(WORD_BYTES), Release, Passive);
                        Step { waits: 1.5, ..pull.often(Often::Filling(2)) }
                    }
                });
            }
            Protocol::DirectWrite => {
                // The signal byte is the last of the message's own WRITE.
                steps.push(Step::new(Sender, Write, Size::Message(RING_BYTES), Delivery, Memory));
                // Several at once, and behind them how many there are.
                let grants = Step::new(Receiver, Write, Size::Fixed(GRANTS * GRANT_BYTES), Release, Passive);
                let number = Step::new(Receiver, Write, Size::Fixed(WORD_BYTES), Release, Memory).chained();
                steps.extend([grants, number].map(|step| step.often(Often::Filling(SPACE_FILLINGS))));
            }
            Protocol::BufferedWrite(notification, report) => {
                match notification {
                    Notification::Immediate => {
                        steps.push(Step::new(Sender, WriteImm, Size::Message(0), Delivery, Receive));
                    }
                    Notification::Tail => {
                        steps.push(Step::new(Sender, Write, Size::Message(RING_BYTES), Delivery, Passive));
                        let tail = Step::new(Sender, Write, Size::Fixed(WORD_BYTES), Delivery, Memory);
                        steps.push(tail.chained().often(Often::Batch));
                    }
                    Notification::Backward => {
                        steps.push(Step::new(Sender, Write, Size::Message(RING_BYTES), Delivery, Memory));
                    }
                }
                steps.push(match report {
                    SpaceReport::Message => Step::new(Receiver, Send, Size::Fixed(WORD_BYTES), Release, Receive),
                    SpaceReport::ReadHead => Step::new(Sender, Read, Size::Fixed(WORD_BYTES), Release, Passive),
                });
                if let Some(last) = steps.last_mut() {
                    last.often = Often::Filling(SPACE_FILLINGS);
                }
            }
            Protocol::SharedWrite => {
                // Space is reserved for all that is posted together.
                let reserve = Step::new(Sender, FetchAdd, Size::Fixed(WORD_BYTES), Delivery, Passive);
                steps.push(reserve.often(Often::Batch));
                steps.push(Step::new(Sender, WriteImm, Size::Message(0), Delivery, Receive));
                let head = Step::new(Sender, Read, Size::Fixed(WORD_BYTES), Release, Passive);
                steps.push(head.often(Often::Filling(SPACE_FILLINGS)));
            }
            Protocol::BufferedRead => {
                // A message appears anywhere between two looks at the tail.
                let tail = Step::new(Receiver, Read, Size::Fixed(WORD_BYTES), Delivery, Passive).often(Often::Batch);
                steps.push(Step { waits: 1.5, ..tail });
                steps.push(Step::new(Receiver, Read, Size::Batch(RING_BYTES), Delivery, Passive).often(Often::Batch));
                let head = Step::new(Receiver, Write, Size::Fixed(WORD_BYTES), Release, Memory);
                steps.push(head.often(Often::Filling(SPACE_FILLINGS)));
            }
        }
        steps
    }

    /// When a sender may reuse the buffer of a message.
    pub const fn release(self) -> Release {
        match self {
            Protocol::DirectRead(_) | Protocol::BufferedRead => Release::Receiver,
            _ => Release::Acknowledgement,
        }
    }

    /// Must READs wait for each other?
    pub const fn is_fenced(self) -> bool {
        matches!(self, Protocol::DirectRead(DirectReadAck::Fenced))
    }

    /// What it can do.
    pub const fn properties(self) -> Properties {
        let none = Properties {
            zero_copy: false,
            variable_size: false,
            passive: None,
            receiver_can_sleep: false,
            slow_message_blocks_nothing: false,
            shared_buffers: false,
        };
        match self {
            Protocol::SendReceive => Properties {
                receiver_can_sleep: true,
                slow_message_blocks_nothing: true,
                shared_buffers: true, // with an SRQ
                ..none
            },
            Protocol::DirectRead(_) => Properties {
                zero_copy: true,
                variable_size: true,
                receiver_can_sleep: true,
                slow_message_blocks_nothing: true,
                shared_buffers: true,
                ..none
            },
            // Zero copy where the buffers that the receiver grants are where messages belong.
            Protocol::DirectWrite => Properties { slow_message_blocks_nothing: true, ..none },
            Protocol::BufferedWrite(notification, _) => Properties {
                variable_size: true,
                passive: Some(End::Receiver),
                receiver_can_sleep: matches!(notification, Notification::Immediate),
                ..none
            },
            Protocol::SharedWrite => {
                Properties { variable_size: true, receiver_can_sleep: true, shared_buffers: true, ..none }
            }
            Protocol::BufferedRead => Properties { variable_size: true, passive: Some(End::Sender), ..none },
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found_again() {
        for protocol in Protocol::ALL {
            assert_eq!(Protocol::by_name(protocol.name()), Some(protocol));
        }
        assert_eq!(Protocol::by_name("telepathy"), None);
    }

    #[test]
    fn every_protocol_delivers_and_only_one_fences() {
        for protocol in Protocol::ALL {
            let steps = protocol.steps(true);
            let carries = steps.iter().filter(|step| !matches!(step.size, Size::Fixed(_))).count();
            assert_eq!(carries, 1, "{protocol}: one operation carries the payload");
            assert!(steps.iter().any(|step| step.role == Role::Delivery), "{protocol}");
            let released = steps.iter().any(|step| step.role == Role::Release);
            assert!(released || protocol.is_fenced(), "{protocol}: nobody learns of space");
        }
        assert_eq!(Protocol::ALL.iter().filter(|protocol| protocol.is_fenced()).count(), 1);
    }

    #[test]
    fn passive_ends_post_nothing_on_the_way_of_a_message() {
        for protocol in Protocol::ALL {
            let Some(passive) = protocol.properties().passive else { continue };
            let active = protocol.steps(true).iter().any(|step| step.role == Role::Delivery && step.by == passive);
            assert!(!active, "{protocol}");
        }
    }
}
