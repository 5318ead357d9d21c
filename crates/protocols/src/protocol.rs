//! What a protocol is called, and what it can do.

use crate::step::{Credits, End, Joined, Noticed, Role, Step};
use crate::table::{DESCRIPTIONS, Description, Protocol, Store};

impl Protocol {
    /// Every protocol and variant.
    pub const ALL: [Self; DESCRIPTIONS.len()] = {
        let mut all = [Self::SendReceive; DESCRIPTIONS.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = DESCRIPTIONS[index].protocol;
            // `description` looks a protocol up by its number.
            assert!(all[index] as usize == index, "the table is in the order of the protocols");
            index += 1;
        }
        all
    };

    /// The names of all.
    pub const NAMES: [&'static str; DESCRIPTIONS.len()] = {
        let mut names = [""; DESCRIPTIONS.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = DESCRIPTIONS[index].name;
            index += 1;
        }
        names
    };

    /// Returns its row of the table.
    pub const fn description(self) -> &'static Description {
        &DESCRIPTIONS[self as usize]
    }

    /// Returns its name on the command line, in JSON and in experiments.
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Returns its variant's name, where the protocol is known.
    pub const fn variant(self) -> &'static str {
        self.description().variant
    }

    /// Returns the protocol of this [`name`](Self::name).
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// Returns the id that set-up sends.
    pub const fn wire_id(self) -> WireId {
        self.description().wire_id
    }

    /// Returns its operations, in the order in which a message causes them.
    pub const fn steps(self) -> &'static [Step] {
        self.description().steps
    }

    /// When a sender may use the buffer of a message again.
    pub const fn release(self) -> Release {
        self.description().release()
    }

    /// Does an operation of it carry the fence flag?
    pub fn is_fenced(self) -> bool {
        self.steps().iter().any(|step| matches!(step.joined, Joined::Fenced { .. }))
    }

    /// Is there a form of it without flow control by credits?
    pub fn is_possible_without_credits(self) -> bool {
        self.steps().iter().any(|step| step.credits == Credits::Without)
    }

    /// What it can do.
    pub fn properties(self) -> Properties {
        self.description().properties()
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// What is no name of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownProtocol;

impl std::fmt::Display for UnknownProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a protocol is one of {}", Protocol::NAMES.join(", "))
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

/// The number by which set-up names a protocol. Variants that differ at one end only, such as those with a fence, share
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireId(u8);

impl WireId {
    /// One-sided operations without messages.
    pub const ONE_SIDED: Self = Self(2);

    pub(crate) const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Returns the id with this number, if there is one.
    pub fn known(number: u8) -> Option<Self> {
        let id = Self(number);
        (id == Self::ONE_SIDED || id.protocol().is_some()).then_some(id)
    }

    /// Returns the number.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the first of the protocols with this id; `None` for one-sided operations.
    pub fn protocol(self) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.wire_id() == self)
    }
}

impl std::fmt::Display for WireId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.protocol().map_or("one-sided operations", |protocol| protocol.description().title))
    }
}

/// When a sender may use the buffer of a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// Once the operation that carries the message is acknowledged.
    Acknowledgement,
    /// Once the receiver has reported that it read the message.
    Receiver,
}

/// Where a received message lies without having been copied there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroCopy {
    /// In buffers of the connection: a program that wants it elsewhere copies it.
    No,
    /// In buffers that the program may provide, without choosing one for each message.
    Partly,
    /// Where the program wants each message.
    Yes,
}

/// What a protocol can do and what not, by which programs choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Does a message arrive where the program wants it?
    pub zero_copy: ZeroCopy,
    /// Do short messages take no more memory than they need?
    pub variable_size: bool,
    /// The end that posts neither sends nor receives for messages, and polls nothing but memory, if there is one.
    pub passive: Option<End>,
    /// Can a receiver sleep until a message comes?
    pub receiver_sleeps: bool,
    /// Can a sender sleep until its message is done?
    pub sender_sleeps: bool,
    /// Does a message that is held for long block those behind it, once buffers are full?
    pub slow_message_blocks: bool,
    /// Can connections share their receive buffers?
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

    /// Most follow from the steps, so they cannot contradict them.
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
