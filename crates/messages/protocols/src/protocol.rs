//! Names and properties of protocols.

use crate::step::{Credits, End, Joined, Noticed, Role, Step};
use crate::table::{DESCRIPTIONS, Description, Protocol, Store, WireId, ZeroCopy};

impl Protocol {
    /// All protocols and variants.
    pub const ALL: [Self; DESCRIPTIONS.len()] = {
        let mut all = [Self::SendReceive; DESCRIPTIONS.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = DESCRIPTIONS[index].protocol;
            // `description` uses the discriminant of a protocol as an index into `DESCRIPTIONS`.
            assert!(all[index] as usize == index, "DESCRIPTIONS must be in the order of the enum Protocol");
            index += 1;
        }
        all
    };

    /// Names of all protocols.
    pub const NAMES: [&'static str; DESCRIPTIONS.len()] = {
        let mut names = [""; DESCRIPTIONS.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = DESCRIPTIONS[index].name;
            index += 1;
        }
        names
    };

    /// Path of the page that lists the pages of all protocols, from the root of the repository.
    pub const PAGES: &'static str = "docs/protocols/README.md";

    /// Returns the row of the protocol in the table of all protocols.
    pub const fn description(self) -> &'static Description {
        &DESCRIPTIONS[self as usize]
    }

    /// Returns the name of the protocol on the command line, in JSON and in experiments.
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Returns the name of the variant within its family.
    pub const fn variant(self) -> &'static str {
        self.description().variant
    }

    /// Returns the path of the page about the protocol and its variants, from the root of the repository.
    pub const fn page(self) -> &'static str {
        self.description().page
    }

    /// Returns the protocol with this [`name`](Self::name).
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Returns the id of the protocol in connection set-up.
    pub const fn wire_id(self) -> WireId {
        self.description().wire_id
    }

    /// Returns the operations that the protocol posts for a message, in the order of their posts.
    pub const fn steps(self) -> &'static [Step] {
        self.description().steps
    }

    /// Returns the event after which a sender may reuse the buffer of a message.
    pub const fn release(self) -> Release {
        self.description().release()
    }

    /// Returns whether the protocol posts an operation with the fence flag.
    pub fn is_fenced(self) -> bool {
        self.steps().iter().any(|step| matches!(step.joined, Joined::Fenced { .. }))
    }

    /// Returns whether the protocol can run without flow control by credits.
    pub fn is_possible_without_credits(self) -> bool {
        self.steps().iter().any(|step| step.credits == Credits::Without)
    }

    /// Returns the properties of the protocol.
    pub fn properties(self) -> Properties {
        self.description().properties()
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Error for a name that no protocol has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownProtocol;

impl std::fmt::Display for UnknownProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the protocol must be one of {}", Protocol::NAMES.join(", "))
    }
}

impl std::error::Error for UnknownProtocol {}

impl std::str::FromStr for Protocol {
    type Err = UnknownProtocol;

    fn from_str(name: &str) -> Result<Self, UnknownProtocol> {
        Self::by_name(name).ok_or(UnknownProtocol)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Protocol {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Protocol {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl serde::de::Visitor<'_> for Name {
            type Value = Protocol;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the name of a protocol")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Protocol, E> {
                Protocol::by_name(name).ok_or_else(|| E::unknown_variant(name, &Protocol::NAMES))
            }
        }

        deserializer.deserialize_str(Name)
    }
}

impl WireId {
    /// Returns the id with this number, or `None` if no protocol has it.
    pub fn known(number: u8) -> Option<Self> {
        let id = Self::new(number);
        (id == Self::ONE_SIDED || id.protocol().is_some()).then_some(id)
    }

    /// Returns the first protocol with this id; `None` for one-sided operations.
    pub fn protocol(self) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.wire_id() == self)
    }
}

impl std::fmt::Display for WireId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.protocol().map_or("one-sided operations", |protocol| protocol.description().title))
    }
}

/// Event after which a sender may reuse the buffer of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The receiver's RNIC acknowledges the operation that carries the message.
    Acknowledgement,
    /// The receiver reports that it has read the message.
    Receiver,
}

/// Properties by which programs choose a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Whether the protocol places received messages in the program's memory without a copy.
    pub zero_copy: ZeroCopy,
    /// Whether a short message occupies less receive memory than a message of maximum length.
    pub variable_size: bool,
    /// End that posts no work requests for messages and only polls memory. `None` if both ends post.
    pub passive: Option<End>,
    /// Whether a receiver can sleep until a completion announces a message.
    pub receiver_sleeps: bool,
    /// Whether a sender can sleep until a completion shows that its message is done.
    pub sender_sleeps: bool,
    /// Whether a message that the program keeps for long blocks later messages once the receive memory is full.
    pub slow_message_blocks: bool,
    /// Whether connections can share receive buffers.
    pub shared_buffers: bool,
}

impl Description {
    pub(crate) const fn release(&self) -> Release {
        let mut index = 0;
        while index < self.steps.len() {
            let step = &self.steps[index];
            if step.size.carries_messages() && matches!(step.by, End::Receiver) {
                return Release::Receiver;
            }
            index += 1;
        }
        Release::Acknowledgement
    }

    /// Returns the properties of the protocol. Most of the properties are derived from the steps.
    pub(crate) fn properties(&self) -> Properties {
        let is_passive = |end: &End| {
            let is_busy = |step: &Step| step.by == *end || step.noticed == Noticed::Completion;
            !self.steps.iter().any(is_busy)
        };
        let is_woken = |end: End, role| {
            let wakes = |step: &&Step| step.by == end.other() && step.role == role;
            self.steps.iter().filter(wakes).any(|step| step.noticed == Noticed::Completion)
        };
        Properties {
            zero_copy: self.zero_copy,
            variable_size: self.received_into != Store::Slots,
            passive: [End::Sender, End::Receiver].into_iter().find(is_passive),
            receiver_sleeps: is_woken(End::Receiver, Role::Delivery),
            sender_sleeps: self.release() == Release::Acknowledgement || is_woken(End::Sender, Role::Release),
            slow_message_blocks: self.received_into == Store::Ring,
            shared_buffers: self.shared_buffers,
        }
    }
}
