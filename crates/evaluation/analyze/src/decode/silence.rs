//! Requests that are repeated without an acknowledgement.

use doorbell_wire::Psn;

use super::acknowledged::Acknowledged;
use super::summary::Unanswered;

/// The oldest repeated request since the last acknowledgement.
#[derive(Debug, Default)]
pub(super) struct Silence {
    repeated: Option<Repeated>,
    /// Time of the last answer that acknowledged a request.
    progress_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Repeated {
    psn: Psn,
    transmissions: u64,
    rnr_naks: u64,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
}

impl Silence {
    /// Records a request whose PSN was sent before.
    pub(super) fn repeat(&mut self, psn: Psn, now_ns: Option<u64>) {
        match &mut self.repeated {
            Some(repeated) if repeated.psn == psn => {
                repeated.transmissions += 1;
                repeated.last_ns = now_ns;
            }
            Some(repeated) if repeated.psn.is_before(psn) => {}
            repeated => {
                *repeated = Some(Repeated { psn, transmissions: 2, rnr_naks: 0, first_ns: now_ns, last_ns: now_ns });
            }
        }
    }

    /// Records an answer.
    pub(super) fn answer(&mut self, acknowledged: Acknowledged, now_ns: Option<u64>) {
        let Some(repeated) = &mut self.repeated else {
            if acknowledged != Acknowledged::Nothing {
                self.progress_ns = now_ns;
            }
            return;
        };
        if let Acknowledged::NotReady(psn) = acknowledged
            && psn == repeated.psn
        {
            repeated.rnr_naks += 1;
        } else if acknowledged.covers(repeated.psn) {
            self.repeated = None;
            self.progress_ns = now_ns;
        }
    }

    /// Forgets the requests of a connection that ended.
    pub(super) fn start_anew(&mut self) {
        *self = Self::default();
    }

    /// Returns the repeated request.
    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        self.repeated.map(|repeated| Unanswered {
            psn: repeated.psn.get(),
            transmissions: repeated.transmissions,
            rnr_naks: repeated.rnr_naks,
            duration_ns: repeated
                .last_ns
                .zip(self.progress_ns.or(repeated.first_ns))
                .map(|(last_ns, start_ns)| last_ns.saturating_sub(start_ns)),
        })
    }
}
