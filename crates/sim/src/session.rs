//! Sessions of the study in virtual time: two hosts of a testbed, an end of the session on each, and one thread for each end,
//! which makes others where connections are dealt out to several.

use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::setup::{EndpointDescription, SetupError};
use doorbell_study::environment::{Environment, SimulatedTestbed};
use doorbell_study::machine::Machine;
use doorbell_study::parameters::Parameters;
use doorbell_study::record::PointResult;
use doorbell_study::session::{
    Asking, FromServer, LocalPeer, Patience, Peer, Presence, SessionError, Terms, ToServer, answer, local_pair,
};

use crate::simulation::{Simulation, SimulationError, Summary};
use crate::testbed::Testbed;
use crate::threads::VirtualWaiter;
use crate::topology::Topology;

/// The other end of a session in the same simulation. It says `S` and hears `H`.
///
/// What is said is heard by whoever comes to that time or later: not while the clock of a thread that lags behind is
/// earlier. Otherwise it takes no time, but that of waking who sleeps: sessions set up what is measured.
#[derive(Debug)]
pub struct VirtualPeer<S, H> {
    peer: LocalPeer<S, H>,
    waiter: VirtualWaiter,
}

/// Two ends of a session in one simulation: that of the end that asks, and that of the other.
pub fn virtual_pair(
    simulation: &Simulation<'_>,
) -> (VirtualPeer<ToServer, FromServer>, VirtualPeer<FromServer, ToServer>) {
    let (server, client) = local_pair();
    let waiter = || simulation.polling();
    (VirtualPeer { peer: server, waiter: waiter() }, VirtualPeer { peer: client, waiter: waiter() })
}

impl<S: Send, H: Send> Peer for VirtualPeer<S, H> {
    type Says = S;
    type Hears = H;

    async fn exchange(&mut self, own: &[EndpointDescription]) -> Result<Vec<EndpointDescription>, SetupError> {
        self.waiter.breathe().await;
        self.peer.exchange(own).await
    }

    async fn send(&mut self, message: S) -> Result<(), SessionError> {
        self.waiter.breathe().await;
        self.peer.send(message).await
    }

    async fn receive(&mut self, patience: Patience) -> Result<H, SessionError> {
        self.peer.receive(patience).await
    }

    async fn until_heard(&mut self, busy: impl FnMut()) -> Result<(), SessionError> {
        self.peer.until_heard(busy).await
    }

    async fn watched<T>(&self, body: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
        self.peer.watched(body).await
    }

    fn look(&self) -> Result<Presence, SessionError> {
        self.peer.look()
    }
}

/// The host that asks, and the one that answers.
const ASKING: usize = 0;
const ANSWERING: usize = 1;

/// The two hosts of a testbed, and the switch between them.
const HOSTS: Topology = Topology::Star { nodes: 2 };

/// Why a point could not be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PointError {
    /// An end of the session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The simulation did not come to its end.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The end that asked has no result, though nothing failed.
    #[error("a simulated session ended without a result")]
    Unfinished,
}

/// A simulated point.
#[derive(Clone, Debug)]
pub struct Point {
    /// What a measurement would have recorded.
    pub result: PointResult,
    /// How the run went.
    pub summary: Summary,
}

/// Simulates messages of one size between two hosts of a testbed: the session that would measure them between two
/// processes. All that is random comes from `seed`.
///
/// # Errors
///
/// The parameters are not allowed, or a connection breaks, as it may without credits; or the simulation ends early.
pub fn simulate(testbed: &Testbed, parameters: &Parameters, bytes: usize, seed: u64) -> Result<Point, PointError> {
    parameters.check().map_err(SessionError::from)?;
    let mut simulation = Simulation::new(testbed, HOSTS, seed)?;
    let (server, client) = virtual_pair(&simulation);
    let (threads, device) = (simulation.threads(ASKING), simulation.device(ASKING).clone());
    let asked = Parameters { sizes: vec![bytes], ..parameters.clone() };
    let memory_bytes = asked.memory_bytes;
    let measured = simulation.spawn(ASKING, "asking", async move {
        let mut asking = Asking::new(&device, server, threads, asked).await?;
        let result = asking.measure(bytes, &|_| {}).await?;
        asking.finish().await?;
        Ok::<_, SessionError>(result)
    });
    let (threads, device) = (simulation.threads(ANSWERING), simulation.device(ANSWERING).clone());
    let answered = simulation.spawn(ANSWERING, "answering", async move {
        answer(&device, client, &threads, &Terms::open(memory_bytes)).await
    });
    let summary = simulation.run()?;
    // The end that asks has the reasons of both.
    let result = measured.take().ok_or(PointError::Unfinished)??;
    answered.take().ok_or(PointError::Unfinished)??;
    Ok(Point { result, summary })
}

/// Where points of this testbed are simulated, as records have it.
///
/// # Errors
///
/// As [`Simulation::new`].
pub fn environment(testbed: &Testbed) -> Result<Environment, SimulationError> {
    let simulation = Simulation::new(testbed, HOSTS, 0)?;
    Ok(Environment {
        kernel: "none: virtual time".to_owned(),
        cpu: testbed.hardware.clone(),
        cpus: PROCESSORS,
        machine: Machine::default(),
        testbed: Some(SimulatedTestbed { name: testbed.name.clone(), values: testbed.digest() }),
        ..Environment::of(&simulation.device(ASKING).attributes())
    })
}

/// More than threads that both ends may have: each simulated thread has a processor.
const PROCESSORS: usize = 1024;
