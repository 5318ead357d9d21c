//! `shm-events` and `udp-events`: a ping-pong in which each end waits for a notification, as `ib_send_lat -e` does.
//!
//! Each end has a thread. In one thread, the message of the other end would have arrived before each wait, so no wait
//! would look for packets, yield its processor or sleep.

use std::thread;
use std::time::Duration;

use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::EndpointDescription;
use doorbell_verbs::{
    Access, Channel, Completion, Cq, Device, MemoryKind, Notify, Payload, Psn, Qp, QpCapacities, QpKind, QpOptions,
    RecvRequest, Region, SendFlags, SendOperation, SendRequest, Status,
};

const DEPTH: usize = 64;
/// One send of this number has a completion, which frees the send queue.
const SENDS_PER_COMPLETION: u64 = 16;

/// Numbers of work requests.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;

/// Time of a wait that ends without a notification, and the number of such waits in a row after which an end gives up.
const WAIT: Duration = Duration::from_secs(1);
const WAITS_MAX: u32 = 60;

/// The peer retransmits after about four seconds, since packets take many times longer under an instruction counter.
const SETTINGS: RcSettings = RcSettings { timeout: 20, retry_count: 7, rnr_retry: 7, min_rnr_timer: 12 };

/// An end of the connection. The first half of its memory is for received messages, the second for sent ones.
struct End {
    qp: Qp,
    cq: Cq,
    channel: Channel,
    memory: Region,
    bytes: usize,
}

impl End {
    fn new(device: &Device, bytes: usize) -> Self {
        let pd = device.create_pd().expect("room");
        let channel = device.create_channel().expect("room");
        let cq = device.create_cq_on(2 * DEPTH, &channel).expect("room");
        let capacities =
            QpCapacities { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
        let options =
            QpOptions { kind: QpKind::Rc, send_cq: &cq, recv_cq: &cq, srq: None, capacities, signal_all: false };
        let qp = pd.create_qp(options).expect("room");
        rc::initialise(&qp, Access::empty()).expect("a new queue pair");
        let memory = pd.allocate(2 * bytes, Access::LOCAL_WRITE, MemoryKind::Plain).expect("room");
        let end = Self { qp, cq, channel, memory, bytes };
        end.receive();
        end.cq.arm(Notify::Next);
        end
    }

    fn description(&self) -> EndpointDescription {
        EndpointDescription::bare(&self.qp, Psn::new(0))
    }

    fn receive(&self) {
        let sges = [self.memory.sge(0, self.bytes)];
        self.qp.post_recv(&[RecvRequest { wr_id: RECEIVE, sges: &sges }]).expect("room");
    }

    fn send(&self, number: u64) {
        let sges = [self.memory.sge(self.bytes, self.bytes)];
        let flags = if number.is_multiple_of(SENDS_PER_COMPLETION) { SendFlags::SIGNALED } else { SendFlags::empty() };
        let (operation, payload) = (SendOperation::Send, Payload::Sges(&sges));
        let request = SendRequest { wr_id: SEND, operation, flags, payload, destination: None };
        self.qp.post_send(&[request]).expect("room");
    }

    /// Waits for the next message. The queue is armed before and afterwards.
    fn wait(&self) {
        let mut waits = 0;
        loop {
            if self.channel.wait(Some(WAIT)).expect("a descriptor of this process") {
                while self.channel.next().is_some() {}
                waits = 0;
            } else {
                waits += 1;
                assert!(waits < WAITS_MAX, "no message has arrived for a minute");
            }
            self.cq.arm(Notify::Next);
            if self.reap() {
                return;
            }
        }
    }

    /// Reaps completions, at most until that of a receive. Returns whether a message has arrived.
    fn reap(&self) -> bool {
        let mut reaped = [Completion::default()];
        while self.cq.poll(&mut reaped).expect("the queue is deep enough") > 0 {
            let [Completion { wr_id, status, .. }] = reaped;
            assert_eq!(status, Status::Success, "work request {wr_id}");
            if wr_id == RECEIVE {
                return true;
            }
        }
        false
    }
}

/// Runs a ping-pong with `round_trips` messages of `bytes` in each direction.
pub(crate) fn ping_pong(devices: [Device; 2], bytes: usize, round_trips: u64) {
    let ends = devices.each_ref().map(|device| End::new(device, bytes));
    let [of_a, of_b] = ends.each_ref().map(End::description);
    let [a, b] = &ends;
    rc::connect(&a.qp, &of_a, &of_b, &SETTINGS).expect("the ends fit");
    rc::connect(&b.qp, &of_b, &of_a, &SETTINGS).expect("the ends fit");
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..round_trips {
                b.wait();
                b.receive();
                b.send(number);
            }
        });
        for number in 0..round_trips {
            a.send(number);
            a.wait();
            a.receive();
        }
    });
}
