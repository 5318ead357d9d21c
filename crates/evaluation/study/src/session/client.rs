//! The asking end of a session.

use std::net::TcpStream;

use doorbell_exchange::{Connector, with_connector};
use doorbell_verbs::{Device, Pd};

use super::introduction::{Introduced, Introduction};
use super::messages::{FromServer, ToServer};
use super::peer::{Patience, Peer};
use super::point::Prepared;
use super::report::Report;
use super::result::Seen;
use super::work::Done;
use super::{SessionError, TcpPeer};
use crate::executor::block_on;
use crate::threads::{OsThreads, Threads};
use crate::workload::Progress;
use doorbell_machine::pinning::Pinning;
use doorbell_record::settings::OPERATION;
use doorbell_record::{Parameters, PointResult, Transport};

/// Asking end of a session with another process, over TCP.
#[derive(Debug)]
pub struct Client(Asking<TcpPeer<ToServer, FromServer>, OsThreads>);

impl Client {
    /// Greets the server and sends the parameters.
    ///
    /// # Errors
    ///
    /// This end or the server rejects the parameters.
    pub fn new(device: &Device, stream: TcpStream, parameters: Parameters) -> Result<Self, SessionError> {
        parameters.check()?;
        block_on(Asking::new(device, TcpPeer::new(stream)?, OsThreads::default(), parameters)).map(Self)
    }

    /// Creates a client like [`new`](Self::new), but introduces the ends to each other first.
    ///
    /// # Errors
    ///
    /// The other end does not admit this client, or an error of [`new`](Self::new) occurs.
    pub fn introduced(
        device: &Device,
        stream: TcpStream,
        introduction: Introduction,
        parameters: Parameters,
    ) -> Result<(Self, Introduced), SessionError> {
        parameters.check()?;
        block_on(async {
            let mut peer = TcpPeer::new(stream)?;
            let introduced = introduce(&mut peer, introduction, Patience::Answer).await?;
            let asking = Asking::accepted(device, peer, OsThreads::default(), parameters).await?;
            Ok((Self(asking), introduced))
        })
    }

    /// Introduces the ends to each other, without a measurement.
    ///
    /// # Errors
    ///
    /// The other end does not admit this client, or is gone.
    pub fn meet(stream: TcpStream, introduction: Introduction) -> Result<Introduced, SessionError> {
        Self::meet_within(stream, introduction, Patience::Answer)
    }

    /// Introduces the ends to each other like [`meet`](Self::meet), but waits for the answer as `patience` specifies.
    ///
    /// # Errors
    ///
    /// As [`meet`](Self::meet).
    pub(crate) fn meet_within(
        stream: TcpStream,
        introduction: Introduction,
        patience: Patience,
    ) -> Result<Introduced, SessionError> {
        block_on(async {
            let mut peer = TcpPeer::new(stream)?;
            let introduced = introduce(&mut peer, introduction, patience).await?;
            peer.send(ToServer::End).await?;
            Ok(introduced)
        })
    }

    /// Sets the CPUs to which threads of this end are pinned while they measure.
    #[must_use]
    pub fn pinned(mut self, pinning: Pinning) -> Self {
        self.0.pinning = pinning;
        self
    }

    /// Measures one message size. Calls `progress` with the number of completed messages of one connection.
    ///
    /// # Errors
    ///
    /// As [`Asking::measure`].
    pub fn measure(&mut self, bytes: usize, progress: impl Fn(u64)) -> Result<PointResult, SessionError> {
        self.measure_heard_by(bytes, &progress)
    }

    /// Measures one message size. The function is not generic over `progress`, so the workloads of all protocols are
    /// compiled only once.
    fn measure_heard_by(&mut self, bytes: usize, progress: Progress<'_>) -> Result<PointResult, SessionError> {
        block_on(self.0.measure(bytes, progress))
    }

    /// Ends the session.
    ///
    /// # Errors
    ///
    /// As [`Asking::finish`].
    pub fn finish(self) -> Result<(), SessionError> {
        block_on(self.0.finish())
    }
}

/// Asking end of a session, for any kind of peer and any kind of threads.
///
/// ```
/// use doorbell_exchange::asynchronous::Spin;
/// use doorbell_record::{Extent, Kind, Operation, Parameters};
/// use doorbell_study::session::{Asking, SessionError, Terms, answer, local_pair};
/// use doorbell_study::threads::OneThread;
/// use doorbell_study::{executor, session};
/// use doorbell_verbs::soft::{self, SoftOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Both ends are tasks of this thread.
/// let [one, other] = [soft::open(&SoftOptions::default())?, soft::open(&SoftOptions::default())?];
/// let (server, client) = local_pair();
/// let stream = Parameters::plain(Kind::Bandwidth, Operation::Send, 16);
/// let parameters = Parameters { extent: Extent::Messages(1000), ..stream };
/// let terms = Terms::open(parameters.memory_bytes);
/// let asking = async {
///     let mut asking = Asking::new(&one, server, OneThread(Spin), parameters).await?;
///     let result = asking.measure(16, &|_| {}).await?;
///     asking.finish().await?;
///     Ok(Some(result))
/// };
/// let answering = async { answer(&other, client, &OneThread(Spin), &terms).await.map(|()| None) };
/// type Ended = Result<Option<doorbell_record::PointResult>, SessionError>;
/// type Task<'a> = std::pin::Pin<Box<dyn Future<Output = Ended> + 'a>>;
/// let tasks: [Task<'_>; 2] = [Box::pin(asking), Box::pin(answering)];
/// let ended: Result<Vec<_>, _> = executor::run(&executor::Idle::spin(), tasks).into_iter().collect();
/// assert_eq!(ended?[0].as_ref().map(|result| result.messages), Some(1000));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Asking<P, X> {
    device: Device,
    pd: Pd,
    peer: P,
    threads: X,
    parameters: Parameters,
    pinning: Pinning,
}

impl<P: Peer<Says = ToServer, Hears = FromServer>, X: Threads> Asking<P, X> {
    /// Greets the peer and sends the parameters.
    ///
    /// # Errors
    ///
    /// This end or the peer rejects the parameters.
    pub async fn new(device: &Device, mut peer: P, threads: X, parameters: Parameters) -> Result<Self, SessionError> {
        parameters.check()?;
        peer.exchange(&[]).await?;
        Self::accepted(device, peer, threads, parameters).await
    }

    /// Sends the parameters to a peer that this end has greeted, and waits for their acceptance.
    async fn accepted(device: &Device, mut peer: P, threads: X, parameters: Parameters) -> Result<Self, SessionError> {
        if parameters.far.is_some() {
            let (given, allowed) =
                ("on memory that several clients share", "an operation between the two ends of a session");
            return Err(OPERATION.refuse(given, allowed).into());
        }
        peer.send(ToServer::Parameters(Box::new(parameters.clone()))).await?;
        peer.receive(Patience::Answer).await?.accepted()?;
        let (pd, device, pinning) = (device.create_pd()?, device.clone(), Pinning::default());
        Ok(Self { device, pd, peer, threads, parameters, pinning })
    }

    /// Measures one message size. Calls `progress` with the number of completed messages of one connection.
    ///
    /// # Errors
    ///
    /// The peer refuses or fails, and the error contains its reason. Or a queue, memory or connection cannot be made,
    /// or a connection or the control connection breaks.
    pub async fn measure(&mut self, bytes: usize, progress: Progress<'_>) -> Result<PointResult, SessionError> {
        let protocol = self.parameters.protocol;
        let result = with_connector!(protocol, connector => self.measure_over(connector, bytes, progress).await);
        let result = result.map_err(|error| error.on(&self.device));
        // If the peer failed too, report its reason as well.
        if let Err(SessionError::Connection { .. } | SessionError::DeviceFailed { .. } | SessionError::Setup(_)) =
            &result
            && let Ok(FromServer::Failed(reason)) = self.peer.receive(Patience::Reason).await
        {
            return Err(SessionError::Both {
                own: result.map_or_else(|e| e.to_string(), |_| String::new()),
                peer: reason,
            });
        }
        result
    }

    async fn measure_over<C: Connector<Connection: Send>>(
        &mut self,
        protocol: C,
        bytes: usize,
        progress: Progress<'_>,
    ) -> Result<PointResult, SessionError> {
        let (parameters, part) = (&self.parameters, self.parameters.cast().asking);
        // Pin before the first access to memory. That access binds the memory to the CPU's NUMA node.
        let _pinned = self.threads.pin(&parameters.pinning(&self.pinning).cpus)?;
        self.peer.send(ToServer::Point { bytes, connections: None }).await?;
        let prepared = Prepared::new(&protocol, &self.pd, parameters, bytes, &part, |config| config)?;
        self.peer.receive(Patience::Answer).await?.accepted()?;
        let mut point = prepared.connect_to(&mut self.peer).await?;
        point.aim(&self.peer.receive(Patience::Answer).await?.ready()?)?;
        let (fitted, before, mtu) = (point.work.fitted.clone(), point.before, point.mtu);
        let threads = (&self.threads, self.threads.cpu_time());
        let (Done { tallies, histogram }, cpu) = point.perform(&self.peer, threads, (false, progress)).await?;
        if parameters.operation.is_one_sided() || parameters.transport != Transport::Rc {
            self.peer.send(ToServer::Done { messages: tallies.iter().map(|tally| tally.sent).collect() }).await?;
        }
        let own = Report::new(&tallies, &self.device, &before, cpu);
        let report = self.peer.receive(Patience::Answer).await?.report()?;
        let ipv6 = self.device.attributes().address.is_ipv6();
        Ok(Seen { parameters, bytes, fitted, mtu, ipv6, tallies: &tallies, histogram, own, report }.result())
    }

    /// Ends the session.
    ///
    /// # Errors
    ///
    /// The control connection is broken.
    pub async fn finish(mut self) -> Result<(), SessionError> {
        self.peer.send(ToServer::End).await
    }
}

/// Greets the peer and introduces the ends to each other. Returns the introduction of the peer.
async fn introduce<P>(peer: &mut P, introduction: Introduction, patience: Patience) -> Result<Introduced, SessionError>
where
    P: Peer<Says = ToServer, Hears = FromServer>,
{
    peer.exchange(&[]).await?;
    peer.send(ToServer::Introduce(Box::new(introduction))).await?;
    peer.receive(patience).await?.introduced()
}
