//! Text form of rules. Inline rules and files of plans use the same fields.

use std::fmt;

use doorbell_wire::{Opcode, PathMtu, Psn};

use super::super::time::{TimeText, parse_delay};
use super::calls::{self, VerbsFault, VerbsFields};
use super::fields::{FAULT_FIELDS, RuleProblem, allowed, problem, wrong};
use super::{
    Corruption, Direction, FaultAction, FaultRule, HoleEnd, PacketField, PacketKind, PacketMatch, Place, Position, Span,
};
use crate::link::PlannedOrder;

/// Names of the actions.
const ACTIONS: [&str; 14] = [
    "drop",
    "duplicate",
    "delay",
    "reorder",
    "corrupt",
    "black-hole",
    "ecn",
    "port-down",
    "device-fatal",
    "completion",
    "post-error",
    "call-error",
    "slow-poll",
    "event",
];

/// Fields that belong to an action, and their actions.
const OF_ACTIONS: [(&str, &[&str]); 14] = [
    ("copies", &["duplicate"]),
    ("for", &["delay", "duplicate", "black-hole", "port-down", "slow-poll"]),
    ("count", &["black-hole"]),
    ("behind", &["reorder"]),
    ("field", &["corrupt"]),
    ("byte", &["corrupt"]),
    ("value", &["corrupt"]),
    ("icrc", &["corrupt"]),
    ("operation", &["completion", "post-error", "slow-poll", "event"]),
    ("status", &["completion"]),
    ("errno", &["post-error", "call-error"]),
    ("call", &["call-error"]),
    ("event", &["event"]),
    ("queue-pair", &["completion", "event"]),
];

/// Conditions that only packets meet.
const OF_PACKETS: [&str; 8] =
    ["direction", "peer", "opcode", "position", "psn", "psn-offset", "retransmission", "message-offset"];

/// Largest PSN and number of a queue pair.
const MAX_24_BITS: u64 = Psn::MASK as u64;

/// Collects the fields of a rule.
#[derive(Debug, Default)]
pub(in super::super) struct RuleParser {
    given: Vec<String>,
    action: Option<String>,
    name: Option<String>,
    optional: bool,
    packets: PacketMatch,
    copies: Option<u64>,
    for_ns: Option<u64>,
    count: Option<u64>,
    behind: Option<u64>,
    place: Option<Place>,
    value: Option<u64>,
    reseals: Option<bool>,
    verbs: VerbsFields,
}

fn number(field: &str, value: &str, span: Span) -> Result<u64, RuleProblem> {
    parse_number(value).filter(|number| span.has(*number)).ok_or_else(|| wrong(field, value))
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().filter(|_| !text.starts_with('+')),
    }
}

/// Parses `3`, `3..7` (with both ends) or `3..`.
fn span(field: &str, value: &str, within: Span) -> Result<Span, RuleProblem> {
    let Some((from, to)) = value.split_once("..") else {
        let number = number(field, value, within)?;
        return Ok(Span { from: number, to: number });
    };
    let end = |text| parse_number(text).filter(|number| within.has(*number)).ok_or_else(|| wrong(field, value));
    let span = Span { from: end(from)?, to: if to.is_empty() { within.to } else { end(to)? } };
    if span.from > span.to {
        let (from, to) = (span.from, span.to);
        return Err(problem(field, format!("the range {from}..{to} is empty, allowed is a range that ascends")));
    }
    Ok(span)
}

const ANY: Span = Span { from: 0, to: u64::MAX };
const FROM_ONE: Span = Span { from: 1, to: u64::MAX };
const BITS_24: Span = Span { from: 0, to: MAX_24_BITS };
/// Offsets in the payload of a packet, which has at most one path MTU.
const PAYLOAD: Span = Span { from: 0, to: PathMtu::Mtu4096.bytes() as u64 - 1 };

/// Returns the name of an opcode in rules, such as `rc-send-only`.
fn opcode_name(opcode: Opcode) -> String {
    opcode.name().to_ascii_lowercase().replace(' ', "-")
}

fn kind(value: &str) -> Option<PacketKind> {
    if let Some((_, class)) = PacketKind::CLASSES.iter().find(|(name, _)| *name == value) {
        return Some(*class);
    }
    let by_name = Opcode::KNOWN.iter().copied().find(|opcode| opcode_name(*opcode) == value);
    let by_number = || parse_number(value).and_then(|number| u8::try_from(number).ok()).map(Opcode);
    by_name.or_else(by_number).map(PacketKind::Exactly)
}

impl RuleParser {
    /// Takes one field.
    pub(in super::super) fn set(&mut self, field: &str, value: &str) -> Result<(), RuleProblem> {
        if self.given.iter().any(|given| given == field) {
            return Err(problem(field, "the field is given twice, allowed is once"));
        }
        let packets = &mut self.packets;
        match field {
            "action" => {
                if !ACTIONS.contains(&value) {
                    return Err(wrong(field, value));
                }
                self.action = Some(value.to_owned());
            }
            "name" => {
                let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
                if value.is_empty() || value.len() > 64 || !value.chars().all(plain) {
                    return Err(wrong(field, value));
                }
                self.name = Some(value.to_owned());
            }
            "optional" => self.optional = value.parse().map_err(|_| wrong(field, value))?,
            "direction" => {
                let named = Direction::NAMES.iter().find(|(name, _)| *name == value);
                packets.direction = named.ok_or_else(|| wrong(field, value))?.1;
            }
            "peer" => packets.peer = Some(value.parse().map_err(|_| wrong(field, value))?),
            "opcode" => packets.opcode = Some(kind(value).ok_or_else(|| wrong(field, value))?),
            "position" => {
                let named = Position::NAMES.iter().find(|(name, _)| *name == value);
                packets.position = Some(named.ok_or_else(|| wrong(field, value))?.1);
            }
            "qp" => packets.qp = Some(number(field, value, BITS_24)? as u32),
            "qp-order" => packets.qp_order = Some(span(field, value, FROM_ONE)?),
            "psn" => packets.psn = Some(span(field, value, BITS_24)?),
            "psn-offset" => packets.psn_offset = Some(span(field, value, BITS_24)?),
            "retransmission" => packets.retransmission = Some(span(field, value, ANY)?),
            "message-offset" => packets.message_offset = Some(span(field, value, ANY)?),
            "after" => packets.after_ns = Some(parse_delay(value).ok_or_else(|| wrong(field, value))?),
            "before" => packets.before_ns = Some(parse_delay(value).ok_or_else(|| wrong(field, value))?),
            "nth" => packets.nth = Some(span(field, value, FROM_ONE)?),
            "every" => packets.every = Some(number(field, value, FROM_ONE)?),
            "share" => {
                let share = value.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0);
                packets.share = Some(share.ok_or_else(|| wrong(field, value))?);
            }
            "copies" => self.copies = Some(number(field, value, Span { from: 1, to: 16 })?),
            "for" => self.for_ns = Some(parse_delay(value).ok_or_else(|| wrong(field, value))?),
            "count" => self.count = Some(number(field, value, FROM_ONE)?),
            "behind" => self.behind = Some(number(field, value, Span { from: 1, to: 64 })?),
            "field" => {
                let index = PacketField::ALL.iter().position(|known| known.name == value);
                self.set_place(field, Place::Field(index.ok_or_else(|| wrong(field, value))?))?;
            }
            "byte" => {
                let offset = number(field, value, PAYLOAD)?;
                self.set_place(field, Place::PayloadByte(offset))?;
            }
            "value" => self.value = Some(number(field, value, ANY)?),
            "icrc" => {
                self.reseals = Some(match value {
                    "stale" => false,
                    "valid" => true,
                    _ => return Err(wrong(field, value)),
                });
            }
            _ if self.verbs.set(field, value)? => {}
            _ => {
                let names: Vec<&str> = FAULT_FIELDS.iter().map(|(name, _)| *name).collect();
                return Err(problem(field, format!("the field is unknown, allowed are {}", names.join(", "))));
            }
        }
        self.given.push(field.to_owned());
        Ok(())
    }

    fn set_place(&mut self, field: &str, place: Place) -> Result<(), RuleProblem> {
        if self.place.is_some() {
            return Err(problem(field, "field and byte are both given, allowed is one of them"));
        }
        self.place = Some(place);
        Ok(())
    }

    /// Returns the rule, or the first contradiction in it.
    pub(in super::super) fn finish(self) -> Result<FaultRule, RuleProblem> {
        let Some(name) = self.action.as_deref() else {
            return Err(problem("action", format!("the field is missing, allowed is {}", allowed("action"))));
        };
        let strange = OF_ACTIONS
            .iter()
            .find(|(field, actions)| self.given.iter().any(|given| given == field) && !actions.contains(&name));
        if let Some((field, actions)) = strange {
            return Err(problem(field, format!("the action is {name}, allowed is {}", actions.join(" or "))));
        }
        let action = self.action_named(name)?;
        match action {
            FaultAction::Verbs(fault) => self.check_calls(name, fault)?,
            _ => self.check_packets(action)?,
        }
        let packets = self.packets;
        if packets.before_ns == Some(0) {
            return Err(problem("before", "the time is 0, so no packet matches, allowed is a time above 0"));
        }
        if let (Some(after), Some(before)) = (packets.after_ns, packets.before_ns)
            && after >= before
        {
            return Err(problem("before", "the time is not later than after, so no packet matches"));
        }
        if let (Some(nth), Some(every)) = (packets.nth, packets.every)
            && nth.to - nth.from < every - 1
        {
            let ranks = nth.to - nth.from + 1;
            return Err(problem("every", format!("nth allows {ranks} of them, of which none is number {every}")));
        }
        Ok(FaultRule { name: self.name, packets, action, optional: self.optional })
    }

    /// Checks that packets can meet the conditions.
    fn check_packets(&self, action: FaultAction) -> Result<(), RuleProblem> {
        let packets = &self.packets;
        if packets.has_only_direction() {
            let needed = "the rule matches every packet; allowed is a rule with a condition, such as nth=1.. for all";
            return Err(problem("action", needed));
        }
        let mut opcodes = Opcode::KNOWN.iter().copied().filter(|opcode| packets.allows(*opcode)).peekable();
        let is_odd = matches!(packets.opcode, Some(PacketKind::Exactly(opcode)) if opcode.operation().is_none());
        if opcodes.peek().is_none() && !(is_odd && packets.position.is_none() && packets.message_offset.is_none()) {
            let anywhere = PacketMatch { message_offset: None, ..packets.clone() };
            let field =
                if Opcode::KNOWN.iter().any(|opcode| anywhere.allows(*opcode)) { "message-offset" } else { "position" };
            return Err(problem(field, "no packet of this opcode has this place in a message with payload"));
        }
        if let FaultAction::Corrupt(corruption) = action
            && !is_odd
            && !opcodes.any(|opcode| corruption.place.is_in(opcode))
        {
            return Err(problem("field", "no packet that the rule matches has this field"));
        }
        Ok(())
    }

    /// Checks that calls or completions can meet the conditions.
    fn check_calls(&self, action: &str, fault: VerbsFault) -> Result<(), RuleProblem> {
        let is_given = |field: &&&str| self.given.iter().any(|given| given == **field);
        if let Some(field) = OF_PACKETS.iter().find(is_given) {
            return Err(problem(field, format!("the action is {action}, allowed is an action on packets")));
        }
        if let Some(field) = ["qp", "qp-order"].iter().find(is_given) {
            calls::check_queue_pair(fault, field)?;
        }
        let names_no_calls = !is_given(&&"operation") && !is_given(&&"call");
        if self.packets.has_only_direction() && names_no_calls {
            let needed = "the rule matches every call; allowed is a rule with a condition, such as nth=1.. for all";
            return Err(problem("action", needed));
        }
        Ok(())
    }

    fn action_named(&self, name: &str) -> Result<FaultAction, RuleProblem> {
        if let Some(fault) = self.verbs.fault(name, self.for_ns)? {
            return Ok(FaultAction::Verbs(fault));
        }
        Ok(match name {
            "drop" => FaultAction::Drop,
            "duplicate" => {
                FaultAction::Duplicate { copies: self.copies.unwrap_or(1) as u32, delay_ns: self.for_ns.unwrap_or(0) }
            }
            "delay" => match self.for_ns {
                Some(delay_ns) if delay_ns > 0 => FaultAction::Delay { delay_ns },
                _ => return Err(problem("for", "the delay is missing or 0, allowed is a time such as for=5ms")),
            },
            "reorder" => FaultAction::Reorder { behind: self.behind.map(|behind| behind as u32) },
            "corrupt" => FaultAction::Corrupt(self.corruption()?),
            "black-hole" => FaultAction::BlackHole(match (self.for_ns, self.count) {
                (Some(for_ns), None) if for_ns > 0 => HoleEnd::After(for_ns),
                (None, Some(count)) => HoleEnd::Packets(count),
                _ => return Err(problem("for", "a black hole needs an end: either for=TIME above 0 or count=PACKETS")),
            }),
            "ecn" => FaultAction::MarkEcn,
            "port-down" => match self.for_ns {
                Some(for_ns) if for_ns > 0 => FaultAction::Port(PlannedOrder::Down { for_ns }),
                _ => return Err(problem("for", "the time is missing or 0, allowed is a time such as for=20ms")),
            },
            "device-fatal" => FaultAction::Port(PlannedOrder::DeviceFatal),
            _ => return Err(wrong("action", name)),
        })
    }

    fn corruption(&self) -> Result<Corruption, RuleProblem> {
        let place = self.place.unwrap_or(Place::AnyBit);
        let max = match place {
            Place::AnyBit => None,
            Place::Field(index) => Some(PacketField::ALL[index].max()),
            Place::PayloadByte(_) => Some(u64::from(u8::MAX)),
        };
        let is_icrc = matches!(place, Place::Field(index) if PacketField::ALL[index].name == "icrc");
        if is_icrc && self.reseals == Some(true) {
            return Err(problem("icrc", "the rule corrupts the ICRC and keeps it valid, allowed is one of both"));
        }
        match (self.value, max) {
            (Some(_), None) => Err(problem("value", "the place is drawn, allowed is a value with field or byte")),
            (Some(value), Some(max)) if value > max => {
                Err(problem("value", format!("the value is {value}, allowed is 0 to {max}")))
            }
            _ => Ok(Corruption { place, value: self.value, reseals: self.reseals.unwrap_or(false) }),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from == self.to { write!(f, "{}", self.from) } else { write!(f, "{}..{}", self.from, self.to) }
    }
}

impl fmt::Display for PacketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = Self::CLASSES.iter().find(|(_, class)| class == self) {
            return f.write_str(name);
        }
        match self {
            Self::Exactly(opcode) if opcode.operation().is_some() => f.write_str(&opcode_name(*opcode)),
            Self::Exactly(opcode) => write!(f, "{:#04x}", opcode.0),
            _ => Ok(()),
        }
    }
}

/// Writes the rule in the form that the parser reads.
impl fmt::Display for FaultRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.action_name())?;
        let packets = &self.packets;
        let mut field = |name: &str, value: Option<&dyn fmt::Display>| match value {
            Some(value) => write!(f, " {name}={value}"),
            None => Ok(()),
        };
        field("name", self.name.as_ref().map(|name| name as _))?;
        field("optional", self.optional.then_some(&true as _))?;
        field(
            "direction",
            (packets.direction != Direction::In).then(|| packets.direction.name()).as_ref().map(|name| name as _),
        )?;
        field("peer", packets.peer.as_ref().map(|peer| peer as _))?;
        field("opcode", packets.opcode.as_ref().map(|kind| kind as _))?;
        let position = packets.position.and_then(|own| Position::NAMES.iter().find(|(_, position)| *position == own));
        field("position", position.map(|(name, _)| name as _))?;
        field("qp", packets.qp.as_ref().map(|qp| qp as _))?;
        let spans = [
            ("qp-order", &packets.qp_order),
            ("psn", &packets.psn),
            ("psn-offset", &packets.psn_offset),
            ("retransmission", &packets.retransmission),
            ("message-offset", &packets.message_offset),
            ("nth", &packets.nth),
        ];
        for (name, span) in spans {
            field(name, span.as_ref().map(|span| span as _))?;
        }
        field("every", packets.every.as_ref().map(|every| every as _))?;
        field("share", packets.share.as_ref().map(|share| share as _))?;
        for (name, time_ns) in [("after", packets.after_ns), ("before", packets.before_ns)] {
            field(name, time_ns.map(TimeText).as_ref().map(|time| time as _))?;
        }
        match self.action {
            FaultAction::Drop
            | FaultAction::MarkEcn
            | FaultAction::Reorder { behind: None }
            | FaultAction::Port(PlannedOrder::DeviceFatal) => Ok(()),
            FaultAction::Port(PlannedOrder::Down { for_ns }) => field("for", Some(&TimeText(for_ns))),
            FaultAction::Duplicate { copies, delay_ns } => {
                field("copies", Some(&copies))?;
                field("for", (delay_ns > 0).then_some(TimeText(delay_ns)).as_ref().map(|time| time as _))
            }
            FaultAction::Reorder { behind: Some(behind) } => field("behind", Some(&behind)),
            FaultAction::Delay { delay_ns } => field("for", Some(&TimeText(delay_ns))),
            FaultAction::BlackHole(HoleEnd::After(for_ns)) => field("for", Some(&TimeText(for_ns))),
            FaultAction::BlackHole(HoleEnd::Packets(count)) => field("count", Some(&count)),
            FaultAction::Verbs(fault) => {
                fault.fields().iter().try_for_each(|(name, value)| field(name, Some(value as _)))
            }
            FaultAction::Corrupt(Corruption { place, value, reseals }) => {
                match place {
                    Place::AnyBit => {}
                    Place::Field(index) => field("field", Some(&PacketField::ALL[index].name))?,
                    Place::PayloadByte(offset) => field("byte", Some(&offset))?,
                }
                field("value", value.as_ref().map(|value| value as _))?;
                field("icrc", reseals.then_some(&"valid" as _))
            }
        }
    }
}

impl FaultRule {
    /// Returns the name of the action.
    pub(in super::super) fn action_name(&self) -> &'static str {
        match self.action {
            FaultAction::Drop => "drop",
            FaultAction::Duplicate { .. } => "duplicate",
            FaultAction::Delay { .. } => "delay",
            FaultAction::Reorder { .. } => "reorder",
            FaultAction::Corrupt(_) => "corrupt",
            FaultAction::BlackHole(_) => "black-hole",
            FaultAction::MarkEcn => "ecn",
            FaultAction::Port(PlannedOrder::Down { .. }) => "port-down",
            FaultAction::Port(PlannedOrder::DeviceFatal) => "device-fatal",
            FaultAction::Verbs(fault) => fault.action_name(),
        }
    }
}

#[cfg(test)]
mod tests;
