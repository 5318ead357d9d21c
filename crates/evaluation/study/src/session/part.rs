//! Part of an end: the workload of its role on all its connections.

use doorbell_exchange::send_receive::SharedReceives;
use doorbell_exchange::{ConnectionError, Connector};
use hdrhistogram::Histogram;

use super::SessionError;
use super::peer::Watch;
use super::point::{Ends, Point};
use crate::one_sided::{self, RemoteMemory};
use crate::parameters::{Kind, Parameters, Timed, stride};
use crate::record::Buckets;
use crate::roles::{Part, Role};
use crate::serving::SharedBy;
use crate::threads::Threads;
use crate::unacknowledged;
use crate::workload::{self, Progress, Reception, Tally};

/// Work of an end: one tally for each connection, and the times of rounds if the workload measures them.
pub(super) type Done = (Vec<Tally>, Option<Histogram<u64>>);

/// End that is ready to perform its part of a point.
pub(super) struct Performance<'a, X> {
    pub(super) parameters: &'a Parameters,
    pub(super) part: &'a Part,
    pub(super) threads: &'a X,
    pub(super) watch: Watch<'a>,
}

impl<X: Threads> Performance<'_, X> {
    /// Runs the workload of a point on all its connections. An initiator accesses the peer's `memory`.
    pub(super) async fn of<C: Connector<Connection: Send>>(
        &self,
        point: Point<C>,
        memory: &[RemoteMemory],
        progress: Progress<'_>,
    ) -> Result<Done, SessionError> {
        let Self { parameters, part, threads, watch } = self;
        let Point { ends, fitted, plan, channel, shared, .. } = point;
        let device = watch.device;
        let waiter = threads.waiter(channel);
        let failed = |error| SessionError::Connection { bytes: plan.bytes, error };
        let reception = Reception { verify: parameters.verify, pause_ns: part.pause_ns };
        match ends {
            Ends::Messages(ends) => match part.role {
                Role::Requester if parameters.kind == Kind::Latency => {
                    let divisor = if parameters.operation.timed() == Timed::HalfRoundTrip { 2 } else { 1 };
                    let tasks = ends.into_iter().map(|(connection, memory)| {
                        workload::ping(connection, waiter.clone(), device.clone(), plan, memory, divisor, progress)
                    });
                    timed(threads.run(&waiter, tasks, watch.check()).await?).map_err(failed)
                }
                Role::Requester => {
                    let tasks = ends.into_iter().map(|(connection, memory)| {
                        workload::request(connection, waiter.clone(), device.clone(), plan, memory, progress)
                    });
                    untimed(threads.run(&waiter, tasks, watch.check()).await?).map_err(failed)
                }
                Role::Responder => {
                    let tasks = ends.into_iter().map(|(connection, memory)| {
                        workload::respond(connection, waiter.clone(), device.clone(), plan, memory, reception)
                    });
                    untimed(threads.run(&waiter, tasks, watch.check()).await?).map_err(failed)
                }
                role => {
                    let sends = role == Role::Sender;
                    let tallies = if part.threads > 1 {
                        let task = |(connection, memory), waiter| {
                            let plan = sends.then_some((plan, memory));
                            workload::stream(connection, waiter, device.clone(), plan, reception, &|_| {})
                        };
                        let dealt = threads.deal(part.threads, ends, task, || watch.check());
                        self.reposting(shared.as_ref(), dealt).await?
                    } else {
                        let tasks = ends.into_iter().map(|(connection, memory)| {
                            let plan = sends.then_some((plan, memory));
                            workload::stream(connection, waiter.clone(), device.clone(), plan, reception, progress)
                        });
                        self.reposting(shared.as_ref(), threads.run(&waiter, tasks, watch.check())).await?
                    };
                    untimed(tallies).map_err(failed)
                }
            },
            Ends::Replicated(readers, count, memory) => {
                let source = (plan, memory);
                let task = workload::publish(readers, count, waiter.clone(), device.clone(), source, progress);
                several(threads.run(&waiter, [task], watch.check()).await?).map_err(failed)
            }
            Ends::Gathered(hub) => {
                let gather = workload::gather(*hub, waiter.clone(), device.clone(), reception);
                let gathered = threads.run(&waiter, [gather], watch.check());
                several(self.reposting(shared.as_ref(), gathered).await?).map_err(failed)
            }
            Ends::Unacknowledged(ends) => {
                if parameters.kind == Kind::Latency {
                    let tasks = ends.iter().map(|end| unacknowledged::ping(end, plan, waiter.clone(), progress));
                    return timed(threads.run(&waiter, tasks, watch.check()).await?).map_err(failed);
                }
                let tasks =
                    ends.iter().map(|end| unacknowledged::stream(end, fitted.batch, plan, waiter.clone(), progress));
                untimed(threads.run(&waiter, tasks, watch.check()).await?).map_err(failed)
            }
            Ends::OneSided(ends) => {
                let needed = (fitted.send_buffers * stride(plan.bytes)) as u64;
                if memory.len() != ends.len() || memory.iter().any(|memory| memory.bytes < needed) {
                    let what = format!("the regions {memory:?}: must be {} regions of {needed} B", ends.len());
                    return Err(SessionError::Unexpected(what));
                }
                // Several connections may access the same region. Only the first `addresses` regions are used.
                let addresses = parameters.addresses.unwrap_or(ends.len()).max(1);
                let memory = (0..ends.len()).map(|number| memory[number % addresses]);
                if part.threads > 1 {
                    let task = |(end, memory), waiter| {
                        let fitted = &fitted;
                        async move {
                            let tally =
                                one_sided::stream(&end, memory, parameters, fitted, plan, waiter, &|_| {}).await;
                            // Return the end, so that its queue pair exists until all threads have ended.
                            (end, tally)
                        }
                    };
                    let dealt = ends.into_iter().zip(memory).collect();
                    let tallies = threads.deal(part.threads, dealt, task, || watch.check()).await?;
                    return untimed(tallies.into_iter().map(|(_, tally)| tally).collect()).map_err(failed);
                }
                let ends = ends.iter().zip(memory);
                if parameters.kind == Kind::Latency {
                    let tasks = ends
                        .map(|(end, memory)| one_sided::time(end, memory, parameters, plan, waiter.clone(), progress));
                    return timed(threads.run(&waiter, tasks, watch.check()).await?).map_err(failed);
                }
                let tasks = ends.map(|(end, memory)| {
                    one_sided::stream(end, memory, parameters, &fitted, plan, waiter.clone(), progress)
                });
                untimed(threads.run(&waiter, tasks, watch.check()).await?).map_err(failed)
            }
        }
    }

    /// Runs `body`. If the part has a dedicated thread that posts shared receives again, that thread runs at the same
    /// time.
    async fn reposting<T>(
        &self,
        shared: Option<&SharedReceives>,
        body: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        match (shared, self.part.shared_receives) {
            (Some(shared), Some(SharedBy::Thread)) => {
                self.threads.beside(|| shared.repost(), body).await.map_err(SessionError::Repost)?
            }
            _ => body.await,
        }
    }
}

fn untimed(results: Vec<Result<Tally, ConnectionError>>) -> Result<Done, ConnectionError> {
    Ok((results.into_iter().collect::<Result<_, _>>()?, None))
}

fn several(results: Vec<Result<Vec<Tally>, ConnectionError>>) -> Result<Done, ConnectionError> {
    Ok((results.into_iter().collect::<Result<Vec<_>, _>>()?.concat(), None))
}

/// Combines the histograms of all connections into one.
fn timed(results: Vec<Result<(Tally, Histogram<u64>), ConnectionError>>) -> Result<Done, ConnectionError> {
    let (mut tallies, mut all) = (Vec::new(), Buckets::empty_histogram());
    for result in results {
        let (tally, histogram) = result?;
        tallies.push(tally);
        all.add(&histogram).unwrap_or_else(|_| unreachable!("both histograms resize automatically"));
    }
    Ok((tallies, Some(all)))
}
