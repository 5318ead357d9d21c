//! Measures how long a device delays the acknowledgement of a message that the receiving program never answers. If a
//! SIGKILL ends the receiving program during this delay, the sender does not learn that the message arrived.
//!
//! ```console
//! $ cargo run --release -p doorbell-verbs --example ack_window
//! ```
//!
//! One program answers twelve messages, receives a thirteenth message, and then makes no further call. The example
//! measures the time from the thirteenth receive until the sender, which polls, sees the completion of its send. It
//! repeats the measurement for many rounds with each `AckPolicy`: `answer` delays acknowledgements until the next
//! answer, `strict` never delays them.

use std::sync::mpsc;
use std::time::Instant;

use doorbell_verbs::soft::{self, AckPolicy, SoftOptions};
use doorbell_verbs::{
    Access, AddressVector, Completion, Cq, Device, MemoryKind, PathMtu, Payload, Pd, Qp, QpAttributes, QpCapacities,
    QpKind, QpOptions, QpState, RecvRequest, Region, SendFlags, SendOperation, SendRequest,
};

const ANSWERS: usize = 12;
const ROUNDS: usize = 2_000;

struct Side {
    qp: Qp,
    cq: Cq,
    memory: Region,
    device: Device,
    _pd: Pd,
}

impl Side {
    fn new(ack: AckPolicy) -> Self {
        let device = soft::open(&SoftOptions { ack: Some(ack), ..SoftOptions::default() }).expect("a software RNIC");
        let pd = device.create_pd().expect("a protection domain");
        let cq = device.create_cq(64).expect("a completion queue");
        let capacities =
            QpCapacities { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let options =
            QpOptions { kind: QpKind::Rc, send_cq: &cq, recv_cq: &cq, srq: None, capacities, signal_all: false };
        let qp = pd.create_qp(options).expect("a queue pair");
        let memory = pd.allocate(4096, Access::LOCAL_WRITE, MemoryKind::Plain).expect("memory");
        Self { qp, cq, memory, device, _pd: pd }
    }

    fn connect(&self, peer: &Side, send_psn: doorbell_verbs::Psn, receive_psn: doorbell_verbs::Psn) {
        let steps = [
            QpAttributes {
                state: Some(QpState::Init),
                pkey_index: Some(0),
                port: Some(1),
                access: Some(Access::empty()),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(QpState::ReadyToReceive),
                address: Some(AddressVector::to(peer.device.attributes().address)),
                path_mtu: Some(PathMtu::Mtu1024),
                dest_qpn: Some(peer.qp.qpn()),
                receive_psn: Some(receive_psn),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(1),
                ..QpAttributes::default()
            },
            QpAttributes {
                state: Some(QpState::ReadyToSend),
                send_psn: Some(send_psn),
                timeout: Some(14),
                retry_count: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..QpAttributes::default()
            },
        ];
        for step in steps {
            self.qp.modify(&step).expect("the usual way up");
        }
    }

    fn receive(&self) {
        self.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[self.memory.sge(0, 64)] }]).expect("there is room");
    }

    fn send(&self, flags: SendFlags) {
        let sges = [self.memory.sge(64, 16)];
        let (operation, payload) = (SendOperation::Send, Payload::Sges(&sges));
        let request = SendRequest { wr_id: 2, operation, flags, payload, destination: None };
        self.qp.post_send(&[request]).expect("there is room");
    }

    /// Polls until a request completes, and returns its number.
    fn wait(&self) -> u64 {
        let mut out = [Completion::default()];
        while self.cq.poll(&mut out).expect("the queue is deep enough") == 0 {}
        assert_eq!(out[0].status, doorbell_verbs::Status::Success);
        out[0].wr_id
    }
}

fn measure(ack: AckPolicy) {
    let (a, b) = (Side::new(ack), Side::new(ack));
    let (psn_a, psn_b) = (a.device.random_psn(), b.device.random_psn());
    a.connect(&b, psn_a, psn_b);
    b.connect(&a, psn_b, psn_a);
    let (seen, when_seen) = mpsc::channel::<Instant>();
    let (go_on, told_to_go_on) = mpsc::channel::<()>();
    let mut waits_ns: Vec<u64> = Vec::with_capacity(ROUNDS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (seen, told_to_go_on) = (seen, told_to_go_on);
            for _ in 0..ROUNDS {
                for _ in 0..ANSWERS {
                    b.wait();
                    b.receive();
                    b.send(SendFlags::empty());
                }
                b.wait();
                seen.send(Instant::now()).expect("the other thread waits for it");
                // The receiving program makes no further call on its device until the round is over.
                told_to_go_on.recv().expect("the other thread goes on");
                b.receive();
            }
        });
        b.receive();
        for _ in 0..ROUNDS {
            for _ in 0..ANSWERS {
                a.receive();
                a.send(SendFlags::empty());
                a.wait();
            }
            a.send(SendFlags::SIGNALED);
            assert_eq!(a.wait(), 2, "the send");
            let done = Instant::now();
            let seen = when_seen.recv().expect("the program saw the message");
            waits_ns.push(done.saturating_duration_since(seen).as_nanos() as u64);
            go_on.send(()).expect("the other thread waits");
        }
    });
    waits_ns.sort_unstable();
    let at = |share: f64| waits_ns[((ROUNDS - 1) as f64 * share) as usize] as f64 / 1000.0;
    println!(
        "{ack:>6}: {ROUNDS} rounds, median {:.1} us, 99 % {:.1} us, 99.9 % {:.1} us, longest {:.1} us",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn main() {
    measure(AckPolicy::Answer);
    measure(AckPolicy::Strict);
}
