//! Operations that a capture shows.

use std::fmt;
use std::net::IpAddr;

use doorbell_wire::{MessageKind, Transport};

use super::{Explanation, Pattern, Requester};
use crate::decode::{Direction, Summary};

/// Transports of explanations.
const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];

/// Operations of a host in a capture, each with its transport.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Operations that the host posted.
    pub sent: Vec<(Transport, MessageKind)>,
    /// Operations that peers of the host posted.
    pub received: Vec<(Transport, MessageKind)>,
}

impl Seen {
    /// Returns the operations of a host in a capture. Returns `None` if the capture does not determine them, because it
    /// has no whole message of the host, or more conversations than were followed.
    pub fn of(summary: &Summary, host: IpAddr) -> Option<Self> {
        if summary.other_conversations_packets > 0 {
            return None;
        }
        let mut seen = Self::default();
        for conversation in &summary.conversations {
            for (from, to, direction) in [
                (conversation.a, conversation.b, &conversation.from_a),
                (conversation.b, conversation.a, &conversation.from_b),
            ] {
                if from == host {
                    add(&mut seen.sent, direction);
                }
                if to == host {
                    add(&mut seen.received, direction);
                }
            }
        }
        (seen != Self::default()).then_some(seen)
    }

    /// Removes operations and transports that were not seen from an explanation. Returns whether any operation remains.
    pub(super) fn restrict(&self, it: &mut Explanation) -> bool {
        let (forth, back) = match it.requester {
            Requester::ThisHost | Requester::Both => (&self.sent, &self.received),
            Requester::Peer => (&self.received, &self.sent),
        };
        // The receiver grants credits by messages with immediate data.
        if it.pattern == Pattern::OneWayWithCredits && !back.contains(&(Transport::Rc, MessageKind::SendImm)) {
            return false;
        }
        let seen = match it.requester {
            Requester::ThisHost | Requester::Peer => forth.clone(),
            Requester::Both if forth.is_empty() || back.is_empty() => return false,
            Requester::Both => [&forth[..], &back[..]].concat(),
        };
        let fits = |transport: &Transport, kind: &MessageKind| seen.contains(&(*transport, *kind));
        it.operations.retain(|kind| it.transports.iter().any(|transport| fits(transport, kind)));
        it.transports.retain(|transport| it.operations.iter().any(|kind| fits(transport, kind)));
        !it.operations.is_empty()
    }
}

/// Adds the operations of a direction that explanations can have.
fn add(seen: &mut Vec<(Transport, MessageKind)>, direction: &Direction) {
    for counted in &direction.operations {
        let transport = TRANSPORTS.into_iter().find(|transport| transport.to_string() == counted.transport);
        let kind = MessageKind::ALL.into_iter().find(|kind| kind.to_string() == counted.operation);
        if let (Some(transport), Some(kind)) = (transport, kind)
            && !seen.contains(&(transport, kind))
        {
            seen.push((transport, kind));
        }
    }
}

/// Writes the operations that the host sent, and those that it received.
impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |seen: &[(Transport, MessageKind)]| match seen {
            [] => "no message".to_owned(),
            seen => {
                let texts: Vec<_> = seen.iter().map(|(transport, kind)| format!("{kind} ({transport})")).collect();
                texts.join(", ")
            }
        };
        write!(f, "sent {}; received {}", list(&self.sent), list(&self.received))
    }
}

#[cfg(test)]
mod tests {
    use doorbell_wire::IpVersion;

    use super::*;
    use crate::explain::{Hints, Rates, explain};

    /// Rates of a host whose peer posts WRITEs of 1 to 4 B. A SEND of 17 to 20 B has the same length.
    const RATES: Rates = Rates { rx_packets: 481e3, rx_bytes: 481e3 * 78.0, tx_packets: 481e3, tx_bytes: 481e3 * 62.0 };

    #[test]
    fn operations_that_were_not_seen_are_excluded() {
        let all = explain(&RATES, &Hints::default()).unwrap();
        assert_eq!(all.explanations[0].operations, [MessageKind::Write]);
        let seen = Seen { sent: Vec::new(), received: vec![(Transport::Rc, MessageKind::Send)] };
        let hints = Hints { ip: Some(IpVersion::V4), seen: Some(seen), ..Hints::default() };
        let answer = explain(&RATES, &hints).unwrap();
        assert!(!answer.explanations.is_empty() && answer.explanations.len() < all.explanations.len());
        for it in &answer.explanations {
            assert_eq!((&it.operations[..], it.ip_version), (&[MessageKind::Send][..], 4), "{}", it.summary);
            assert_eq!((it.requester, &it.transports[..]), (Requester::Peer, &[Transport::Rc][..]), "{}", it.summary);
        }
        let best = &answer.explanations[0];
        assert_eq!((best.pattern, best.payload_bytes.max), (Pattern::OneWay, 20), "{}", best.summary);
        let note = "The capture shows these messages, and the explanations have no others: sent no message; received \
                    SEND (RC).";
        assert!(answer.notes.iter().any(|other| other == note), "{:?}", answer.notes);
    }

    #[test]
    fn one_direction_without_messages_excludes_exchanges() {
        let mut explanations = explain(&RATES, &Hints::default()).unwrap().explanations;
        let mut both = explanations.remove(0);
        both.requester = Requester::Both;
        let write = vec![(Transport::Rc, MessageKind::Write)];
        assert!(!Seen { sent: Vec::new(), received: write.clone() }.restrict(&mut both.clone()));
        assert!(Seen { sent: write.clone(), received: write }.restrict(&mut both));
    }
}
