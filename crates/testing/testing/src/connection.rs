//! Attributes of the transitions that connect a queue pair (IBTA Vol 1, 10.3.1).

use std::net::IpAddr;

use doorbell_verbs_core::{Access, AddressVector, QpAttributes, QpKind, QpState};
use doorbell_wire::{PathMtu, Psn, QKey, Qpn};

/// One end of a connection. Attributes that the transport does not have are left out.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionEnd {
    /// Transport of the queue pair.
    pub kind: QpKind,
    /// Address and queue pair of the peer; unused for UD.
    pub peer: (IpAddr, Qpn),
    /// Path MTU; unused for UD.
    pub mtu: PathMtu,
    /// Rights of the peer; unused for UD.
    pub access: Access,
    /// Q_Key (UD).
    pub qkey: QKey,
    /// PSN of the first packet sent.
    pub send_psn: Psn,
    /// PSN that the first received packet must have; unused for UD.
    pub receive_psn: Psn,
    /// Exponent of the acknowledgement timeout (RC): 4.096 us times two to this power.
    pub timeout: u8,
    /// Maximum number of acknowledgement timeouts in a row (RC).
    pub retry_count: u8,
    /// Maximum number of RNR NAKs in a row (RC). 7 means unlimited.
    pub rnr_retry: u8,
    /// Code of the time that RNR NAKs to the peer state (RC).
    pub min_rnr_timer: u8,
    /// Maximum number of outstanding READs and atomics at the peer (RC).
    pub max_rd_atomic: u8,
    /// Maximum number of outstanding READs and atomics of the peer (RC).
    pub max_dest_rd_atomic: u8,
}

impl ConnectionEnd {
    /// Creates an end with all rights, the PSN 0 in both directions, a timeout of 67 ms and seven retries.
    pub fn new(kind: QpKind, peer: (IpAddr, Qpn), mtu: PathMtu) -> Self {
        Self {
            kind,
            peer,
            mtu,
            access: Access::all(),
            qkey: QKey::new(0),
            send_psn: Psn::new(0),
            receive_psn: Psn::new(0),
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
        }
    }

    /// Returns the attributes of the transition from reset to the initial state.
    pub fn to_init(&self) -> QpAttributes {
        let is_connected = self.kind != QpKind::Ud;
        QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: is_connected.then_some(self.access),
            qkey: (!is_connected).then_some(self.qkey),
            ..QpAttributes::default()
        }
    }

    /// Returns the attributes of the transition to ready to receive.
    pub fn to_rtr(&self) -> QpAttributes {
        let (is_connected, is_rc) = (self.kind != QpKind::Ud, self.kind == QpKind::Rc);
        QpAttributes {
            state: Some(QpState::ReadyToReceive),
            address: is_connected.then(|| AddressVector::to(self.peer.0)),
            path_mtu: is_connected.then_some(self.mtu),
            dest_qpn: is_connected.then_some(self.peer.1),
            receive_psn: is_connected.then_some(self.receive_psn),
            max_dest_rd_atomic: is_rc.then_some(self.max_dest_rd_atomic),
            min_rnr_timer: is_rc.then_some(self.min_rnr_timer),
            ..QpAttributes::default()
        }
    }

    /// Returns the attributes of the transition to ready to send.
    pub fn to_rts(&self) -> QpAttributes {
        let is_rc = self.kind == QpKind::Rc;
        QpAttributes {
            state: Some(QpState::ReadyToSend),
            send_psn: Some(self.send_psn),
            timeout: is_rc.then_some(self.timeout),
            retry_count: is_rc.then_some(self.retry_count),
            rnr_retry: is_rc.then_some(self.rnr_retry),
            max_rd_atomic: is_rc.then_some(self.max_rd_atomic),
            ..QpAttributes::default()
        }
    }

    /// Returns the attributes of all transitions from reset to ready to send, in order.
    pub fn steps(&self) -> [QpAttributes; 3] {
        [self.to_init(), self.to_rtr(), self.to_rts()]
    }
}

#[cfg(test)]
mod tests {
    use doorbell_verbs_core::transition;

    use super::*;

    #[test]
    fn each_step_has_the_attributes_that_its_transition_requires() {
        let states = [QpState::Reset, QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        for kind in [QpKind::Rc, QpKind::Uc, QpKind::Ud] {
            let end = ConnectionEnd::new(kind, ([10, 0, 0, 2].into(), Qpn::new(5)), PathMtu::Mtu1024);
            for (step, from_to) in end.steps().iter().zip(states.windows(2)) {
                assert_eq!(step.state, Some(from_to[1]));
                let rule = transition(kind, from_to[0], from_to[1]).expect("the transition exists");
                assert!(step.mask().contains(rule.required), "{kind:?} to {:?}", from_to[1]);
                assert!((rule.required | rule.optional).contains(step.mask()), "{kind:?} to {:?}", from_to[1]);
            }
        }
    }
}
