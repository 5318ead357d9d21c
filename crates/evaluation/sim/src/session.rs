//! Sessions of the study in virtual time.
//!
//! Each of two hosts of a testbed has an end of the session with one thread. If the connections of an end are
//! distributed over several threads, this thread creates the other threads.

use std::fs::File;
use std::sync::Arc;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::setup::{EndpointDescription, SetupError};
use doorbell_fabric::FaultPlan;
use doorbell_machine::Machine;
use doorbell_record::{Environment, Parameters, PointResult, SimulatedTestbed};
use doorbell_study::session::{
    Asking, FromServer, LocalPeer, Patience, Peer, Presence, SessionError, Terms, ToServer, answer, local_pair,
};

use crate::measure::{ANSWERING, ASKING, HOSTS};
use crate::simulation::{Simulation, SimulationError, Summary};
use crate::testbed::Testbed;
use crate::threads::VirtualWaiter;

/// The other end of a session in the same simulation. It sends `S` and receives `H`.
///
/// A thread receives a message once its clock has reached the time of the send. Apart from the wake-up of a sleeping
/// thread, messages take no time, since sessions only set up the measurement.
#[derive(Debug)]
pub struct VirtualPeer<S, H> {
    peer: LocalPeer<S, H>,
    waiter: VirtualWaiter,
}

/// Creates both ends of a session in one simulation. The first peer is for the asking end to use, the second for the
/// answering end.
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

/// Error of a simulated point.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PointError {
    /// An end of the session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The simulation did not reach its end.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// The asking end has no result, although both ends finished without an error.
    #[error("a simulated session ended without a result")]
    Unfinished,
}

/// A simulated point.
#[derive(Clone, Debug)]
pub struct Point {
    /// Result in the form of a measurement's record.
    pub result: PointResult,
    /// Summary of the simulation.
    pub summary: Summary,
}

/// Simulates messages of one size between two hosts of a testbed. The simulation runs the same session that would
/// measure these messages between two processes. `seed` determines all random choices.
///
/// # Errors
///
/// Returns an error if the parameters are not allowed, a connection breaks (as may happen without credits), or the
/// simulation ends early.
pub fn simulate(testbed: &Testbed, parameters: &Parameters, bytes: usize, seed: u64) -> Result<Point, PointError> {
    Ok(simulate_under(testbed, parameters, bytes, seed, None, None)?.0)
}

/// Works as [`simulate`], and injects the faults of a plan into the packets of both hosts. Also returns the number of
/// firings of each rule of the plan. The journal gets one line of JSON for each firing.
///
/// # Errors
///
/// Returns the errors of [`simulate`]. A connection may also break because of the faults.
pub fn simulate_under(
    testbed: &Testbed,
    parameters: &Parameters,
    bytes: usize,
    seed: u64,
    faults: Option<&FaultPlan>,
    journal: Option<&Arc<File>>,
) -> Result<(Point, Vec<u64>), PointError> {
    parameters.check().map_err(SessionError::from)?;
    let mut simulation = Simulation::new(testbed, HOSTS, seed)?;
    if let Some(plan) = faults {
        simulation.inject_with_journal(plan, journal);
    }
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
    // Check the asking end first, because it reports the errors of both ends.
    let result = measured.take().ok_or(PointError::Unfinished)??;
    answered.take().ok_or(PointError::Unfinished)??;
    Ok((Point { result, summary }, simulation.fired()))
}

/// Returns the environment of simulated points for records.
///
/// # Errors
///
/// Returns the errors of [`Simulation::new`].
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

/// Number of processors of a simulated host. The number exceeds the maximum number of threads of both ends, because
/// each simulated thread has its own processor.
const PROCESSORS: usize = 1024;
