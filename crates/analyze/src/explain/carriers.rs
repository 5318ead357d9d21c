//! The operations whose payload travels with the request.

use doorbell_wire::{DETH_LEN, IMM_DT_LEN, MessageKind, RETH_LEN};

use super::Span;
use super::classes::Class;

/// An operation whose payload travels with the request: kinds of equal length, bytes that a
/// message has besides payload and the headers of each packet, and how unusual it is.
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

/// The carriers of UD: `once` holds the DETH too.
pub(super) const DATAGRAMS: [Carrier; 2] = [
    Carrier { kinds: &[MessageKind::Send], once: DETH_LEN as u64, unusual: 0.4 },
    Carrier { kinds: &[MessageKind::SendImm], once: (DETH_LEN + IMM_DT_LEN) as u64, unusual: 0.8 },
];

/// Carriers whose messages may be followed by a credit message of the receiver.
pub(super) const WITH_CREDITS: &[MessageKind] = &[MessageKind::Send, MessageKind::SendImm, MessageKind::SendInv];

impl Carrier {
    /// [`once`](Self::once) as a range.
    pub(super) fn exactly(&self) -> Span {
        Span { min: self.once, max: self.once }
    }
}

/// Classes of several carriers as one, with all their kinds and the most bytes that one of their
/// messages has besides.
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
