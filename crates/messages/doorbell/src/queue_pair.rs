//! A queue pair for programs that post work requests themselves.

use std::net::TcpStream;
use std::time::Duration;

use doorbell_exchange::protocols::Protocol;
use doorbell_exchange::rc::{self, RcSettings};
use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_exchange::{self as exchange, Config};
use doorbell_verbs::{
    self as verbs, Access, Completion, Cq, ModifyError, Overrun, Payload, PostError, Psn, Qp, QpCapacities, QpKind,
    QpOptions, Region, SendFlags, SendOperation, SendRequest, Sge, Status,
};

use crate::device::Device;
use crate::setup::{EstablishError, meet};

/// A reliable connected queue pair, ready to send and to receive.
#[derive(Clone, Debug)]
pub struct QueuePair {
    /// The queue pair.
    pub qp: Qp,
    /// Completion queue of sends and receives.
    pub cq: Cq,
    /// The memory of the peer that this side may access. Its length is 0 if the peer shares no memory.
    pub peer: RemoteRegion,
}

/// Errors of [`Device::queue_pair`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// The set-up between the two sides failed.
    #[error(transparent)]
    Peer(#[from] EstablishError),
    /// The peer sets up a message connection instead of a queue pair.
    #[error("the peer sets up a message connection, this side a queue pair: both sides must make the same call")]
    Messages,
    /// The device rejected a queue pair of these capacities.
    #[error("the queue pair could not be created: {0}")]
    Create(#[from] verbs::Error),
    /// The device rejected the transition to the initial state.
    #[error("the queue pair could not be initialised: {0}")]
    Initialise(#[from] ModifyError),
    /// The device rejected a transition to the connected state, or the two ends do not match.
    #[error("the queue pair could not be connected: {0}")]
    Connect(#[from] exchange::ConnectError),
}

impl Device {
    /// Connects a queue pair with the peer at the other end of a TCP stream. The peer must make the same call.
    ///
    /// The [`Access`] of the region `shared` determines which operations the peer may post on the region.
    /// [`QueuePair::peer`] is the region that the peer shares. The queue pair has no receives until the program posts
    /// receives, so both programs must agree on the side that sends first.
    ///
    /// ```
    /// use std::net::{TcpListener, TcpStream};
    /// use std::time::Duration;
    ///
    /// use doorbell::Device;
    /// use doorbell::verbs::{Access, Payload, QpCapacities, SendFlags, SendOperation, SendRequest};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let soon = Duration::from_secs(10);
    /// let capacities =
    ///     QpCapacities { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline: 64 };
    /// let tcp = TcpListener::bind("127.0.0.1:0")?;
    /// let address = tcp.local_addr()?;
    /// let target = std::thread::spawn(move || {
    ///     let device = Device::open().expect("a device");
    ///     let memory = device.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
    ///     let (stream, _) = tcp.accept().expect("a client");
    ///     let pair = device.queue_pair(&stream, Some(&memory), capacities, soon).expect("a queue pair");
    ///     while memory.load_acquire_u8(4) == 0 {
    ///         pair.qp.pd().device().drive();
    ///     }
    ///     let mut written = [0; 5];
    ///     memory.copy_out(0, &mut written);
    ///     written
    /// });
    ///
    /// let pair = Device::open()?.queue_pair(&TcpStream::connect(address)?, None, capacities, soon)?;
    /// pair.qp.post_send(&[SendRequest {
    ///     wr_id: 1,
    ///     operation: SendOperation::Write { remote_address: pair.peer.address, rkey: pair.peer.rkey },
    ///     flags: SendFlags::SIGNALED,
    ///     payload: Payload::Inline(b"hello"),
    ///     destination: None,
    /// }])?;
    /// assert_eq!(pair.next_completion()?.wr_id, 1);
    /// assert_eq!(&target.join().expect("a target"), b"hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The device rejects a queue pair of these capacities, the peer does not make the same call within the deadline,
    /// or the two devices are incompatible.
    pub fn queue_pair(
        &self,
        stream: &TcpStream,
        shared: Option<&Region>,
        capacities: QpCapacities,
        deadline: Duration,
    ) -> Result<QueuePair, QueuePairError> {
        self.queue_pair_from(self.verbs().random_psn(), stream, shared, capacities, deadline)
    }

    /// Works as [`queue_pair`](Self::queue_pair), with `psn` as the PSN of the first request. Tests of the wrap at 2^24
    /// begin shortly before it. A random PSN protects better against packets of earlier connections.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`queue_pair`](Self::queue_pair).
    pub fn queue_pair_from(
        &self,
        psn: Psn,
        stream: &TcpStream,
        shared: Option<&Region>,
        capacities: QpCapacities,
        deadline: Duration,
    ) -> Result<QueuePair, QueuePairError> {
        let (device, pd) = (self.verbs(), self.pd());
        let cq = device.create_cq(capacities.max_send_wr + capacities.max_recv_wr)?;
        let kind = QpKind::Rc;
        let qp =
            pd.create_qp(QpOptions { kind, send_cq: &cq, recv_cq: &cq, srq: None, capacities, signal_all: false })?;
        rc::initialise(&qp, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
        let own = EndpointDescription {
            protocol: Protocol::SendReceive.wire_id(),
            regions: [shared.map_or(RemoteRegion::NONE, RemoteRegion::of), RemoteRegion::NONE],
            // `bare` sets the depth to 0. A message connection has a depth of at least 1, so the peer can distinguish
            // the two.
            ..EndpointDescription::bare(&qp, psn)
        };
        let Config { timeout, retry_count, rnr_retry, min_rnr_timer, .. } = Config::default();
        let settings = RcSettings { timeout, retry_count, rnr_retry, min_rnr_timer };
        let peer = meet(stream, own, deadline, |peer| {
            if peer.depth != 0 {
                return Err(QueuePairError::Messages);
            }
            rc::connect(&qp, &own, peer, &settings)?;
            Ok(peer.regions[0])
        })?;
        Ok(QueuePair { qp, cq, peer })
    }
}

/// Errors of an operation on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The device did not accept the operation.
    #[error(transparent)]
    Post(#[from] PostError),
    /// Completions were lost, since more operations were outstanding than the capacities allow.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// The operation failed, and the queue pair is now in the error state.
    #[error("the operation failed: {}", .0.describe())]
    Failed(Status),
}

impl QueuePair {
    /// Posts one operation with `memory` as its local memory, and waits until the operation is complete. No other
    /// operation that generates a completion may be outstanding, since this function takes the next completion as its
    /// own.
    ///
    /// # Errors
    ///
    /// The device did not accept the operation, the peer rejected the operation, or the peer did not answer.
    pub fn perform(&self, operation: SendOperation, memory: Sge) -> Result<(), OperationError> {
        let (flags, payload) = (SendFlags::SIGNALED, &[memory]);
        let payload = Payload::Sges(payload);
        self.qp.post_send(&[SendRequest { wr_id: 0, operation, flags, payload, destination: None }])?;
        match self.next_completion()?.status {
            Status::Success => Ok(()),
            failed => Err(OperationError::Failed(failed)),
        }
    }

    /// Polls until the completion queue has a completion. If no operation is outstanding, this function never returns.
    ///
    /// # Errors
    ///
    /// Completions were lost, since more operations were outstanding than the capacities allow.
    pub fn next_completion(&self) -> Result<Completion, Overrun> {
        let mut out = [Completion::default()];
        while self.cq.poll(&mut out)? == 0 {
            std::thread::yield_now(); // the peer may need this CPU
        }
        let [completion] = out;
        Ok(completion)
    }
}
