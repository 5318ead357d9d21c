//! Death of a queue pair by a failed request.

use std::fmt;
use std::net::IpAddr;

use doorbell_wire::{Psn, Qpn};

use crate::completion::Status;

/// Target of the log events that report the death of a queue pair. The message of an event is a [`QpDeath`], or a
/// sentence with the number of further deaths.
pub const QP_DEATHS: &str = "doorbell::queue_pair";

/// Reason why a queue pair entered the error state, with the evidence of the RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeathReason {
    /// The peer did not answer.
    Unanswered {
        /// Time since the most recent answer, or since the packet was sent.
        for_ns: u64,
        /// Number of times that the configured timeout has expired.
        expirations: u32,
    },
    /// The peer had no receive posted.
    NotReady {
        /// RNR NAKs of the peer.
        refusals: u32,
    },
    /// A request of this queue pair failed with this status.
    Failed(Status),
    /// This end refused a request of the peer. The text is the reason.
    Refused(&'static str),
    /// A fault plan failed a request of this queue pair.
    Injected,
}

/// Death of a queue pair: its number, the request that ended it, and the reason. `Display` writes one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpDeath {
    /// Number of the queue pair.
    pub qpn: Qpn,
    /// PSN of the oldest unanswered packet, or of the peer's request.
    pub psn: Psn,
    /// Address of the peer, if it is known.
    pub peer: Option<IpAddr>,
    /// Reason.
    pub reason: DeathReason,
}

impl fmt::Display for QpDeath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (qpn, psn) = (self.qpn.get(), self.psn.get());
        write!(f, "QP {qpn:#08x}: ")?;
        let peer = |f: &mut fmt::Formatter<'_>| match self.peer {
            Some(peer) => write!(f, "{peer}"),
            None => f.write_str("the peer"),
        };
        match self.reason {
            DeathReason::Unanswered { for_ns, expirations } => {
                write!(f, "PSN {psn} unanswered by ")?;
                peer(f)?;
                let seconds = for_ns as f64 / 1e9;
                match expirations {
                    1 => write!(f, " for {seconds:.2} s, timer expired once"),
                    _ => write!(f, " for {seconds:.2} s, timer expired {expirations} times"),
                }
            }
            DeathReason::NotReady { refusals } => {
                write!(f, "PSN {psn} refused by ")?;
                peer(f)?;
                write!(f, ", which has no receive posted: {refusals} RNR NAKs")
            }
            DeathReason::Failed(status) => {
                write!(f, "the request with PSN {psn} to ")?;
                peer(f)?;
                write!(f, " failed with status {}: {}", status.number(), status.describe())
            }
            DeathReason::Injected => {
                f.write_str("the fault plan failed a request of the connection with ")?;
                peer(f)
            }
            DeathReason::Refused(why) => {
                write!(f, "refused the request with PSN {psn} of ")?;
                peer(f)?;
                write!(f, ": {why}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn each_reason_has_a_line_with_its_evidence() {
        let line = |reason| {
            let peer = Some(Ipv4Addr::LOCALHOST.into());
            QpDeath { qpn: Qpn::new(0x0a_ad29), psn: Psn::new(123_532), peer, reason }.to_string()
        };
        assert_eq!(
            line(DeathReason::Unanswered { for_ns: 1_750_000_000, expirations: 8 }),
            "QP 0x0aad29: PSN 123532 unanswered by 127.0.0.1 for 1.75 s, timer expired 8 times"
        );
        assert!(line(DeathReason::Unanswered { for_ns: 1, expirations: 1 }).ends_with("timer expired once"));
        assert_eq!(
            line(DeathReason::NotReady { refusals: 4 }),
            "QP 0x0aad29: PSN 123532 refused by 127.0.0.1, which has no receive posted: 4 RNR NAKs"
        );
        assert!(line(DeathReason::Failed(Status::RemoteAccess)).contains("failed with status 10: remote access error"));
        assert!(
            line(DeathReason::Injected).ends_with("the fault plan failed a request of the connection with 127.0.0.1")
        );
        assert!(line(DeathReason::Refused("access denied")).ends_with("PSN 123532 of 127.0.0.1: access denied"));
    }

    #[test]
    fn an_unknown_peer_has_a_word() {
        let reason = DeathReason::NotReady { refusals: 1 };
        let death = QpDeath { qpn: Qpn::new(1), psn: Psn::new(2), peer: None, reason };
        assert!(death.to_string().starts_with("QP 0x000001: PSN 2 refused by the peer,"), "{death}");
    }
}
