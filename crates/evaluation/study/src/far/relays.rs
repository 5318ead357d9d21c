//! Middlebox in a thread of this process. The thread has a socket, forwards packets, and numbers requests.

use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use doorbell_fabric::{BindError, BindRequest, Link, UdpLink, bind};
use doorbell_steer::{Config, Driver, Limits, Order, SetupError, Steer};
use doorbell_verbs::Device;
use doorbell_wire::Qpn;

use doorbell_machine::pinning::Pinning;

/// Reason why the middlebox could not be made or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BoxError {
    /// The middlebox's socket could not be made.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The middlebox has no capacity for a connection.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The middlebox's socket failed, or its thread could not be started.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The middlebox's thread panicked.
    #[error("the thread of the middlebox panicked")]
    Panicked,
}

/// Request to forward packets between two ends, and the channel for the answer.
type Asked = ([(IpAddr, Qpn); 2], Sender<Result<(), SetupError>>);

/// Handle to the middlebox. When the handle is dropped, the middlebox's thread ends.
pub(super) struct Relays {
    pub(super) address: IpAddr,
    asking: Sender<Asked>,
    thread: JoinHandle<io::Result<Order>>,
}

impl Relays {
    /// Starts a middlebox on a free address for `connections` connections. The RNICs of these connections use the same
    /// UDP port as `beside`. The middlebox's thread is pinned to the second CPU.
    pub(super) fn start(beside: &Device, connections: usize, pinning: &Pinning) -> Result<Self, BoxError> {
        let limits = Limits { clients: connections, ..Limits::default() };
        let (driver, address) = box_at(None, beside.attributes().udp_port, limits, 0)?;
        let (asking, asked) = channel();
        let (clock, pinning) = (beside.clone(), pinning.clone());
        let thread = std::thread::Builder::new().name("box".to_owned()).spawn(move || {
            let _pinned = pinning.pin(1);
            run(driver, &asked, &clock)
        })?;
        Ok(Self { address, asking, thread })
    }

    /// Makes the middlebox forward packets between two queue pairs.
    pub(super) fn pass(&self, client: (IpAddr, Qpn), node: (IpAddr, Qpn)) -> Result<(), BoxError> {
        let (answer, answers) = channel();
        // Sending fails only if the thread has ended since its socket failed. `end` reports that error.
        let _ = self.asking.send(([client, node], answer));
        Ok(answers.recv().unwrap_or(Ok(()))?)
    }

    /// Ends the middlebox. Returns the order in which requests were answered.
    pub(super) fn end(self) -> Result<Order, BoxError> {
        drop(self.asking);
        Ok(self.thread.join().map_err(|_| BoxError::Panicked)??)
    }
}

/// Makes a middlebox at `address`, or at a free address. Returns the middlebox and its address.
pub(crate) fn box_at(
    address: Option<IpAddr>,
    port: u16,
    limits: Limits,
    seed: u64,
) -> Result<(Driver<UdpLink>, IpAddr), BoxError> {
    let link = bind(BindRequest { address, port, ..BindRequest::default() })?;
    let address = link.local_address();
    Ok((Driver::new(Steer::new(Config { address, limits, seed }), link, port), address))
}

/// Forwards packets until the handle is dropped. Returns the order in which requests were answered.
fn run<L: Link>(mut driver: Driver<L>, asked: &Receiver<Asked>, clock: &Device) -> io::Result<Order> {
    loop {
        match asked.try_recv() {
            Ok(([client, node], answer)) => {
                let _ = answer.send(driver.steer_mut().relay(client, node)); // the caller waits for the answer
            }
            Err(TryRecvError::Disconnected) => return Ok(driver.steer().order()),
            Err(TryRecvError::Empty) => {}
        }
        if driver.pump(clock.now_ns())? == 0 {
            std::thread::yield_now(); // a peer may wait for this CPU
        }
    }
}
