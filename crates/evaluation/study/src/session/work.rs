//! Work of an end of a point: the workload of its role on each connection.
//!
//! [`Work::perform`] is the definition of the work. Threads of the operating system, tasks of one thread and simulated
//! threads run it.

use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::send_receive::Hub;
use doorbell_exchange::{ConnectionError, Connector, Replication};
use doorbell_record::{Extent, Fitted, Kind, Parameters, Part, Role, Timed};
use doorbell_verbs::Device;
use hdrhistogram::Histogram;

use crate::one_sided::{self, RemoteMemory};
use crate::unacknowledged;
use crate::workload::{self, Plan, Progress, Reception, SendMemory, Tally};

/// Connected end, which one task serves.
pub enum End<P: Connector> {
    /// Connection with the memory of its messages.
    Messages(P::Connection, SendMemory),
    /// Source for all readers, the number of readers, and the memory of the source.
    Replicated(Replication<P::Connection>, usize, SendMemory),
    /// Connections of a single receiver.
    Gathered(Box<Hub>),
    /// End of one-sided operations. An initiator has the memory of its target.
    OneSided(one_sided::End, Option<RemoteMemory>),
    /// End of messages without acknowledgements.
    Unacknowledged(unacknowledged::End),
}

/// Results of ends that have done their work.
#[derive(Debug, Default)]
pub struct Done {
    /// Tally of each connection.
    pub tallies: Vec<Tally>,
    /// Times of rounds, if the workload measures them.
    pub histogram: Option<Histogram<u64>>,
}

impl From<Vec<Tally>> for Done {
    fn from(tallies: Vec<Tally>) -> Self {
        Self { tallies, histogram: None }
    }
}

impl From<Tally> for Done {
    fn from(tally: Tally) -> Self {
        vec![tally].into()
    }
}

impl From<(Tally, Histogram<u64>)> for Done {
    fn from((tally, histogram): (Tally, Histogram<u64>)) -> Self {
        Self { tallies: vec![tally], histogram: Some(histogram) }
    }
}

/// Result of the work of one end. An end whose queue pair must exist until all threads have ended is part of the
/// result.
pub type Worked<P> = Result<(Done, Option<End<P>>), ConnectionError>;

impl Done {
    /// Combines the results of all ends.
    ///
    /// # Errors
    ///
    /// The work of an end failed.
    pub fn gather<P: Connector>(all: Vec<Worked<P>>) -> Result<Self, ConnectionError> {
        let all = all.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut sum = Self::default();
        for (Self { tallies, histogram }, _) in all {
            sum.tallies.extend(tallies);
            match (&mut sum.histogram, histogram) {
                (Some(all), Some(histogram)) => {
                    all.add(&histogram).unwrap_or_else(|_| unreachable!("both histograms resize automatically"));
                }
                (all, histogram) => *all = all.take().or(histogram),
            }
        }
        Ok(sum)
    }
}

/// Work of the ends of a part.
pub struct Work {
    pub(super) parameters: Parameters,
    /// Part that the ends perform.
    pub part: Part,
    pub(super) fitted: Fitted,
    pub(super) plan: Plan,
    pub(super) device: Device,
}

impl Work {
    /// Returns the same work with requests in rounds ([`Plan::in_rounds`]).
    pub fn in_rounds(self) -> Self {
        Self { plan: Plan { in_rounds: true, ..self.plan }, ..self }
    }

    /// Returns the same work with another window, which must not exceed the window of the ends. The number of messages
    /// changes in proportion to the window, so that both works take about as long.
    pub fn with_window(&self, window: usize) -> Self {
        let Self { parameters, part, fitted, plan, device } = self;
        let extent = match plan.extent {
            Extent::Messages(count) => Extent::Messages((count * window as u64).div_ceil(plan.window.max(1) as u64)),
            extent => extent,
        };
        Self {
            parameters: parameters.clone(),
            part: *part,
            fitted: Fitted { window, batch: fitted.batch.min(window), ..fitted.clone() },
            plan: Plan { window, extent, ..*plan },
            device: device.clone(),
        }
    }

    /// Does the work of one end. Calls `progress` with the number of completed messages.
    ///
    /// # Errors
    ///
    /// A connection of the end breaks.
    pub async fn perform<P: Connector, W: Waiter + Clone>(
        &self,
        end: End<P>,
        waiter: W,
        progress: Progress<'_>,
    ) -> Worked<P> {
        let Self { parameters, part, fitted, plan, device } = self;
        let (plan, device) = (*plan, device.clone());
        let is_timed = parameters.kind == Kind::Latency;
        let reception = Reception { verify: parameters.verify, pause_ns: part.pause_ns };
        let done: Done = match end {
            End::Messages(connection, memory) => match part.role {
                Role::Requester if is_timed => {
                    let divisor = if parameters.operation.timed() == Timed::HalfRoundTrip { 2 } else { 1 };
                    workload::ping(connection, waiter, device, plan, memory, divisor, progress).await?.into()
                }
                Role::Requester => workload::request(connection, waiter, device, plan, memory, progress).await?.into(),
                Role::Responder => workload::respond(connection, waiter, device, plan, memory, reception).await?.into(),
                role => {
                    let sends = (role == Role::Sender).then_some((plan, memory));
                    workload::stream(connection, waiter, device, sends, reception, progress).await?.into()
                }
            },
            End::Replicated(readers, count, memory) => {
                workload::publish(readers, count, waiter, device, (plan, memory), progress).await?.into()
            }
            End::Gathered(hub) => workload::gather(*hub, waiter, device, reception).await?.into(),
            End::Unacknowledged(end) => {
                let done = if is_timed {
                    unacknowledged::ping(&end, plan, waiter, progress).await?.into()
                } else {
                    unacknowledged::stream(&end, fitted.batch, plan, waiter, progress).await?.into()
                };
                return Ok((done, Some(End::Unacknowledged(end))));
            }
            End::OneSided(end, Some(memory)) => {
                let done = if is_timed {
                    one_sided::time(&end, memory, parameters, plan, waiter, progress).await?.into()
                } else {
                    one_sided::stream(&end, memory, parameters, fitted, plan, waiter, progress).await?.into()
                };
                return Ok((done, Some(End::OneSided(end, Some(memory)))));
            }
            // The RNIC of a target serves the operations.
            end @ End::OneSided(_, None) => return Ok((Done::default(), Some(end))),
        };
        Ok((done, None))
    }
}
