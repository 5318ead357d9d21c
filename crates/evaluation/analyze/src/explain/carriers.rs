//! Operations that carry their payload in the request.

use doorbell_wire::{DETH_LEN, IMM_DT_LEN, MessageKind, RETH_LEN};

use super::Span;
use super::classes::Class;

/// Operation that carries its payload in the request. Messages of all `kinds` have equal lengths. A message has `once`
/// bytes in addition to the payload and the headers of each packet. `unusual` is the implausibility of the kinds.
pub(super) struct Carrier {
    pub(super) kinds: &'static [MessageKind],
    pub(super) once: u64,
    pub(super) unusual: f64,
}

pub(super) const CARRIERS: [Carrier; 4] = [
    Carrier { kinds: &[MessageKind::Send], once: 0, unusual: 0.0 },
    Carrier { kinds: &[MessageKind::SendImm, MessageKind::SendInv], once: IMM_DT_LEN as u64, unusual: 0.4 },
    Carrier { kinds: &[MessageKind::Write], once: RETH_LEN as u64, unusual: 0.0 },
    Carrier { kinds: &[MessageKind::WriteImm], once: (RETH_LEN + IMM_DT_LEN) as u64, unusual: 1.0 },
];

/// Carriers of UD; `once` includes the DETH.
pub(super) const DATAGRAMS: [Carrier; 2] = [
    Carrier { kinds: &[MessageKind::Send], once: DETH_LEN as u64, unusual: 0.4 },
    Carrier { kinds: &[MessageKind::SendImm], once: (DETH_LEN + IMM_DT_LEN) as u64, unusual: 0.8 },
];

/// Kinds of messages for which the receiver may return a credit message.
pub(super) const WITH_CREDITS: &[MessageKind] = &[MessageKind::Send, MessageKind::SendImm, MessageKind::SendInv];

impl Carrier {
    /// Returns [`once`](Self::once) as a range.
    pub(super) fn exactly(&self) -> Span {
        Span { min: self.once, max: self.once }
    }
}

/// Merges the classes of several carriers. The result has the kinds of all carriers and their largest `once`.
pub(super) fn merge<'a>(each: impl Iterator<Item = (&'a Carrier, Class)>) -> Option<(Vec<MessageKind>, Class, u64)> {
    each.fold(None, |merged: Option<(Vec<MessageKind>, Class, u64)>, (carrier, class)| {
        Some(match merged {
            None => (carrier.kinds.to_vec(), class, carrier.once),
            Some((mut kinds, all, once)) => {
                kinds.extend(carrier.kinds);
                let class = Class {
                    payload: all.payload.union(class.payload),
                    nearest: None,
                    packets: all.packets.union(class.packets),
                    misfit: all.misfit.min(class.misfit),
                };
                (kinds, class, once.max(carrier.once))
            }
        })
    })
}
