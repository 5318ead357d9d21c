//! Creation and connection of queue pairs.

use doorbell_testing::ConnectionEnd;
use doorbell_verbs_core::{Access, CqId, QpAttributes, QpCapacities, QpInit, QpKind, QpState, SrqId};
use doorbell_wire::{PathMtu, Psn, QKey, Qpn};

use super::world::{World, address_of};

/// Options of one end of a connection.
#[derive(Clone, Debug)]
pub struct End {
    pub capacities: QpCapacities,
    pub srq: Option<SrqId>,
    pub send_cq: Option<CqId>,
    pub recv_cq: Option<CqId>,
    pub signal_all: bool,
    pub access: Access,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub send_psn: Psn,
}

impl Default for End {
    fn default() -> Self {
        Self {
            capacities: QpCapacities {
                max_send_wr: 64,
                max_recv_wr: 64,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 64,
            },
            srq: None,
            send_cq: None,
            recv_cq: None,
            signal_all: false,
            access: Access::all(),
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            max_rd_atomic: 8,
            max_dest_rd_atomic: 8,
            send_psn: Psn::new(100),
        }
    }
}

impl End {
    /// Returns the end with the node, the queue pair and the first PSN of its peer.
    fn connection(&self, kind: QpKind, mtu: PathMtu, peer: (usize, Qpn, Psn)) -> ConnectionEnd {
        ConnectionEnd {
            access: self.access,
            qkey: QKEY,
            send_psn: self.send_psn,
            receive_psn: peer.2,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            min_rnr_timer: self.min_rnr_timer,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            ..ConnectionEnd::new(kind, (address_of(peer.0), peer.1), mtu)
        }
    }
}

pub const QKEY: QKey = QKey::new(0x1234_5678);

impl World {
    pub fn create_qp(&mut self, node: usize, kind: QpKind, end: &End) -> Qpn {
        let node = &mut self.nodes[node];
        node.rnic
            .create_qp(QpInit {
                kind,
                pd: node.pd,
                send_cq: end.send_cq.unwrap_or(node.cq),
                recv_cq: end.recv_cq.unwrap_or(node.cq),
                srq: end.srq,
                capacities: end.capacities,
                signal_all: end.signal_all,
            })
            .expect("the capacities are within the device's limits")
    }

    pub fn modify(&mut self, node: usize, qpn: Qpn, attributes: QpAttributes) {
        self.nodes[node].rnic.modify_qp(qpn, &attributes).expect("the transition is in the table");
    }

    pub fn bring_to_init(&mut self, node: usize, qpn: Qpn, kind: QpKind, end: &End) {
        let attributes = end.connection(kind, PathMtu::Mtu4096, (node, qpn, end.send_psn)).to_init();
        self.modify(node, qpn, attributes);
    }

    pub fn bring_to_rtr(
        &mut self,
        node: usize,
        qpn: Qpn,
        kind: QpKind,
        mtu: PathMtu,
        end: &End,
        peer: (usize, Qpn, Psn),
    ) {
        self.modify(node, qpn, end.connection(kind, mtu, peer).to_rtr());
    }

    pub fn bring_to_rts(&mut self, node: usize, qpn: Qpn, kind: QpKind, end: &End) {
        let attributes = end.connection(kind, PathMtu::Mtu4096, (node, qpn, end.send_psn)).to_rts();
        self.modify(node, qpn, attributes);
    }

    /// Connects two existing queue pairs with each other.
    pub fn connect_ends(&mut self, kind: QpKind, mtu: PathMtu, a: (usize, Qpn, &End), b: (usize, Qpn, &End)) {
        for (own, peer) in [(&a, &b), (&b, &a)] {
            self.bring_to_init(own.0, own.1, kind, own.2);
            self.bring_to_rtr(own.0, own.1, kind, mtu, own.2, (peer.0, peer.1, peer.2.send_psn));
        }
        for own in [&a, &b] {
            self.bring_to_rts(own.0, own.1, kind, own.2);
        }
    }

    /// Creates and connects two queue pairs.
    pub fn connect(&mut self, kind: QpKind, mtu: PathMtu, a: (usize, &End), b: (usize, &End)) -> (Qpn, Qpn) {
        let qpns = (self.create_qp(a.0, kind, a.1), self.create_qp(b.0, kind, b.1));
        self.connect_ends(kind, mtu, (a.0, qpns.0, a.1), (b.0, qpns.1, b.1));
        qpns
    }

    /// Creates a UD queue pair that is ready to send.
    pub fn datagram_qp(&mut self, node: usize, end: &End) -> Qpn {
        let qpn = self.create_qp(node, QpKind::Ud, end);
        self.bring_to_init(node, qpn, QpKind::Ud, end);
        self.bring_to_rtr(node, qpn, QpKind::Ud, PathMtu::Mtu4096, end, (node, qpn, Psn::new(0)));
        self.bring_to_rts(node, qpn, QpKind::Ud, end);
        qpn
    }

    /// Moves a queue pair to the reset state or to the error state.
    pub fn bring_to(&mut self, node: usize, qpn: Qpn, state: QpState) {
        self.modify(node, qpn, QpAttributes { state: Some(state), ..QpAttributes::default() });
    }
}
