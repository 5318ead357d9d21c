//! A bare queue pair as the peer of a connection. The test chooses the operations that the queue pair posts.

use std::time::Duration;

use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_exchange::{Config, Connector, MessageConnection, Received, SendReceive, Submit};
use doorbell_verbs::{
    Access, Completion, Cq, Device, MemoryKind, Payload, Pd, Psn, Qp, QpCapacities, QpKind, QpOptions, RecvRequest,
    Region, SendFlags, SendOperation, SendRequest, Status,
};

use super::wire;

/// Bytes of the memory that a bare peer opens to its connection. Each of the two regions in its description is one
/// half.
pub const OPEN_BYTES: usize = 1 << 15;
/// Bytes of the memory from which a bare peer sends.
const OUT_BYTES: usize = 1 << 17;
/// Number of receives that a bare peer keeps posted.
const RECEIVES: usize = 64;
/// Bytes of each receive of a bare peer.
const RECEIVE_BYTES: usize = 512;
const SENDS: usize = 64;

/// Returns the options of connections with bare peers. The values are small, so that the tests reach every bound.
pub fn config() -> Config {
    Config::default()
        .window(4)
        .batch(1)
        .depth(4)
        .inline(32)
        .max_message(400)
        .timeout_exponent(10)
        .retry_count(2)
        .min_rnr_timer_code(1)
        .keepalive(Duration::ZERO)
}

/// Two devices, with a healthy connection between them that a hostile peer must not disturb.
pub struct Stage {
    pub victim: Device,
    pub other: Device,
    /// Protection domain of the connections that have bare peers.
    pub pd: Pd,
    healthy: [<SendReceive as Connector>::Connection; 2],
    exchanged: u64,
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

impl Stage {
    pub fn new() -> Self {
        let [victim, other] = wire::devices();
        let pd = victim.create_pd().expect("a protection domain");
        // The healthy connection must survive on a busy machine.
        let patient = config().timeout_exponent(18).retry_count(7);
        let (a, b) = pair(&SendReceive, [&pd, &other.create_pd().expect("a protection domain")], &patient);
        Self { victim, other, pd, healthy: [a, b], exchanged: 0 }
    }

    /// Sends one message in each direction over the healthy connection.
    pub fn check_health(&mut self) {
        self.exchanged += 1;
        let message = self.exchanged.to_be_bytes().repeat(40);
        for from in 0..2 {
            while !matches!(self.healthy[from].send(&message).expect("a healthy connection"), Submit::Accepted(_)) {
                for end in &mut self.healthy {
                    end.poll().expect("a healthy connection");
                }
            }
            loop {
                self.healthy[from].poll().expect("a healthy connection");
                if let Some(received) = self.healthy[1 - from].receive().expect("a healthy connection") {
                    assert_eq!(&*received, &message[..], "message {} of the healthy connection", self.exchanged);
                    break;
                }
            }
        }
    }
}

/// Returns two connected ends of a protocol.
pub fn pair<P: Connector>(protocol: &P, pds: [&Pd; 2], config: &Config) -> (P::Connection, P::Connection) {
    let [a, b] = pds.map(|pd| protocol.endpoint(pd, config, None).expect("an endpoint"));
    let (of_a, of_b) = (protocol.describe(&a), protocol.describe(&b));
    (protocol.connect(a, &of_b).expect("a connection"), protocol.connect(b, &of_a).expect("a connection"))
}

/// A queue pair that is the peer of a connection, with the memory that it opens to the connection.
pub struct Bare {
    qp: Qp,
    cq: Cq,
    receives: Region,
    /// Memory that the connection may access: see [`OPEN_BYTES`].
    pub open: Region,
    out: Region,
    /// Description of the connection under test.
    pub peer: EndpointDescription,
    /// Number of posted requests.
    posted: u64,
    /// Number of completed requests.
    completed: u64,
    /// Status of the first request that failed.
    pub failed: Option<Status>,
    /// Attachments of received messages.
    pub heard: Vec<doorbell_verbs::Attachment>,
}

impl Bare {
    /// Makes a bare peer and connects it to a new connection of `protocol`. `change` changes the description that the
    /// connection receives.
    pub fn meet<P: Connector>(
        protocol: &P,
        pd: &Pd,
        other: &Device,
        config: &Config,
        change: impl FnOnce(&mut EndpointDescription),
    ) -> (Self, Result<P::Connection, doorbell_exchange::ConnectError>) {
        let endpoint = protocol.endpoint(pd, config, None).expect("an endpoint");
        let peer = protocol.describe(&endpoint);
        Self::join(other, peer, change, |own| protocol.connect(endpoint, own))
    }

    /// Makes a bare peer for an existing endpoint. `peer` is the description of the endpoint, and `connect` connects
    /// the endpoint.
    pub fn join<C>(
        other: &Device,
        peer: EndpointDescription,
        change: impl FnOnce(&mut EndpointDescription),
        connect: impl FnOnce(&EndpointDescription) -> C,
    ) -> (Self, C) {
        let pd = other.create_pd().expect("a protection domain");
        let cq = other.create_cq(4 * (RECEIVES + SENDS)).expect("a completion queue");
        let qp = pd
            .create_qp(QpOptions {
                kind: QpKind::Rc,
                send_cq: &cq,
                recv_cq: &cq,
                srq: None,
                capacities: QpCapacities {
                    max_send_wr: SENDS,
                    max_recv_wr: RECEIVES,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline: 64,
                },
                signal_all: true,
            })
            .expect("a queue pair");
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let open = pd.allocate(OPEN_BYTES, all, MemoryKind::Plain).expect("memory");
        let out = pd.allocate(OUT_BYTES, Access::LOCAL_WRITE, MemoryKind::Plain).expect("memory");
        let receives = pd.allocate(RECEIVES * RECEIVE_BYTES, Access::LOCAL_WRITE, MemoryKind::Plain).expect("memory");
        let half = |half: usize| RemoteRegion {
            address: open.address() + (half * OPEN_BYTES / 2) as u64,
            length: OPEN_BYTES as u64 / 2,
            rkey: open.rkey(),
        };
        let mut own = EndpointDescription {
            gid: other.attributes().gid,
            qpn: qp.qpn(),
            psn: Psn::new(1),
            regions: [half(0), half(1)],
            ..peer
        };
        rc::initialise(&qp, all).expect("a queue pair");
        let bare = Self { qp, cq, receives, open, out, peer, posted: 0, completed: 0, failed: None, heard: Vec::new() };
        (0..RECEIVES as u64).for_each(|slot| bare.post_receive(slot));
        let settings = RcSettings { timeout: 10, retry_count: 2, rnr_retry: 7, min_rnr_timer: 1 };
        rc::connect(&bare.qp, &own, &peer, &settings).expect("a queue pair");
        change(&mut own);
        let connected = connect(&own);
        (bare, connected)
    }

    fn post_receive(&self, slot: u64) {
        let sges = [self.receives.sge(slot as usize * RECEIVE_BYTES, RECEIVE_BYTES)];
        // A queue pair in the error state rejects receives. `poll` detects this state.
        let _ = self.qp.post_recv(&[RecvRequest { wr_id: 1 << 32 | slot, sges: &sges }]);
    }

    /// Posts an operation with these bytes. Returns false if the send queue is full or the queue pair has failed.
    pub fn post(&mut self, operation: SendOperation, bytes: &[u8]) -> bool {
        self.poll();
        if self.failed.is_some() || self.posted - self.completed >= SENDS as u64 {
            return false;
        }
        // Each short operation has its own slot in the first half of the memory. Longer operations all use the second
        // half.
        let at = if bytes.len() > OUT_BYTES / 2 / SENDS {
            OUT_BYTES / 2
        } else {
            (self.posted as usize % SENDS) * (OUT_BYTES / 2 / SENDS)
        };
        self.out.copy_in(at, bytes);
        let sges = [self.out.sge(at, bytes.len())];
        let payload = Payload::Sges(if bytes.is_empty() { &[] } else { &sges });
        let request =
            SendRequest { wr_id: self.posted, operation, flags: SendFlags::SIGNALED, payload, destination: None };
        let taken = self.qp.post_send(&[request]).is_ok();
        self.posted += u64::from(taken);
        taken
    }

    /// Returns the bytes that a read request announces, if they lie in the open memory of this peer.
    pub fn named(&self, request: &[u8]) -> Vec<u8> {
        let Some(place) = request.first_chunk::<16>() else { return Vec::new() };
        let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
        let offset = number(&place[..8]).wrapping_sub(self.open.address());
        let length = number(&place[12..]);
        if offset.saturating_add(length) > OPEN_BYTES as u64 {
            return Vec::new();
        }
        let mut bytes = vec![0; length as usize];
        self.open.copy_out(offset as usize, &mut bytes);
        bytes
    }

    /// Takes completions, and reposts receives.
    pub fn poll(&mut self) {
        let mut list = [Completion::default(); 32];
        while let Ok(count @ 1..) = self.cq.poll(&mut list) {
            for completion in &list[..count] {
                let is_receive = completion.wr_id >> 32 == 1;
                if completion.status != Status::Success {
                    self.failed.get_or_insert(completion.status);
                } else if is_receive {
                    self.heard.push(completion.attachment);
                    self.post_receive(completion.wr_id & 0xffff_ffff);
                }
                self.completed += u64::from(!is_receive);
            }
        }
    }

    /// Drives both devices until all posted requests are complete, or until many polls have brought no progress.
    pub fn settle(&mut self, mut connection: impl FnMut()) {
        let mut looks = 0;
        while self.posted > self.completed && looks < 2_000 {
            let before = self.completed;
            self.poll();
            connection();
            looks = if self.completed == before { looks + 1 } else { 0 };
        }
        // The latest completion may have caused further requests of the connection, so poll a few more times.
        (0..3).for_each(|_| {
            connection();
            self.poll();
        });
    }
}
