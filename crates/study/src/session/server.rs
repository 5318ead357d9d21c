//! The other end.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use doorbell_exchange::send_receive::SharedReceives;
use doorbell_exchange::{Connector, setup, with_connector};
use doorbell_verbs::{Device, Pd};

use super::control::{Control, FromServer, Report, ToServer, Watch};
use super::point::{Ends, Point, Prepared, SessionEnd};
use super::{ANSWER_DEADLINE, SessionError};
use crate::executor::{self, Idle};
use crate::one_sided;
use crate::parameters::{Kind, Operation, Parameters};
use crate::serving::SharedBy;
use crate::workload::{self, Reception, Tally};

/// The other end: serves one client until it is done, with up to `memory_bytes` of message memory.
///
/// # Errors
///
/// The client wants what is not allowed, or a point failed: the client was told why. Or the client
/// is gone.
pub fn serve(device: &Device, stream: TcpStream, memory_bytes: usize) -> Result<(), SessionError> {
    setup::exchange(&stream, &[], ANSWER_DEADLINE)?;
    let mut control = Control::new(stream)?;
    let result = serve_points(device, &mut control, memory_bytes);
    if let Err(error) = &result
        && !matches!(error, SessionError::Control(_))
    {
        // If it cannot be told, it is gone, and there is a better reason to report.
        let _ = control.send(&FromServer::Failed(error.to_string()));
    }
    result
}

fn serve_points(device: &Device, control: &mut Control, memory_bytes: usize) -> Result<(), SessionError> {
    let ToServer::Parameters(parameters) = control.receive(Some(ANSWER_DEADLINE))? else {
        return Err(SessionError::Unexpected("no parameters".to_owned()));
    };
    if parameters.memory_bytes > memory_bytes {
        return Err(SessionError::Memory { asked: parameters.memory_bytes, allowed: memory_bytes });
    }
    parameters.check()?;
    let pd = device.create_pd()?;
    control.send(&FromServer::Accepted)?;
    loop {
        match control.receive(None)? {
            ToServer::Point { bytes } if parameters.sizes.contains(&bytes) => {
                let report = with_connector!(parameters.protocol, connector => serve_point(connector, &pd, control, &parameters, bytes)?);
                control.send(&FromServer::Report(Box::new(report)))?;
            }
            ToServer::Point { bytes } => return Err(SessionError::UnknownSize(bytes)),
            ToServer::End => return Ok(()),
            ToServer::Parameters(_) => return Err(SessionError::Unexpected("parameters twice".to_owned())),
            ToServer::Done { .. } => return Err(SessionError::Unexpected("done before there was a point".to_owned())),
        }
    }
}

fn serve_point<P: Connector<Connection: Send>>(
    protocol: P,
    pd: &Pd,
    control: &mut Control,
    parameters: &Parameters,
    bytes: usize,
) -> Result<Report, SessionError> {
    let device = pd.device();
    let prepared = Prepared::new(protocol, pd, parameters, bytes, SessionEnd::Server)?;
    control.send(&FromServer::Accepted)?;
    let Point { ends, plan, idle, before, shared, .. } = prepared.connect(&control.stream)?;
    let watch = Watch { device, side: SessionEnd::Server, rounds_are_long: parameters.slow_receiver_us > 0 };
    let tallies = match ends {
        Ends::OneSided(ends) => {
            control.send(&FromServer::Ready { memory: ends.iter().map(one_sided::End::memory).collect() })?;
            // The RNIC works by itself. But a software RNIC has no processor but those of its
            // programs: a target that polls lends it its own, one that sleeps has it woken.
            // A machine's RNIC needs neither, and on few processors a target that polls costs it much.
            let wants_processor = device.attributes().provider == doorbell_verbs::soft::PROVIDER;
            if let (Some(end), true) = (ends.first(), wants_processor && !parameters.events) {
                control.until_readable(|| end.lend_processor())?;
            }
            let ToServer::Done { messages } = control.receive(None)? else {
                return Err(SessionError::Unexpected("something else than done".to_owned()));
            };
            if messages.len() != ends.len() {
                let what = format!("{} connections done of {}", messages.len(), ends.len());
                return Err(SessionError::Unexpected(what));
            }
            let tally = |(end, received): (&one_sided::End, u64)| {
                let damaged = if parameters.verify {
                    end.damaged(parameters.operation, bytes, plan.buffers, received)
                } else {
                    0
                };
                Tally { received, damaged, ..Tally::default() }
            };
            ends.iter().zip(messages).map(tally).collect()
        }
        Ends::Messages(ends) => {
            control.send(&FromServer::Ready { memory: Vec::new() })?;
            let pause_ns = if parameters.kind == Kind::Latency { 0 } else { parameters.slow_receiver_us * 1000 };
            let reception = Reception { verify: parameters.verify, pause_ns };
            let threads = parameters.serving.threads;
            let answers = parameters.kind == Kind::Latency || parameters.operation == Operation::RequestResponse;
            let control = &*control;
            let results = control.watched(|| {
                if answers {
                    let tasks = ends.into_iter().map(|(connection, memory)| {
                        workload::respond(connection, idle.clone(), device.clone(), plan, memory, reception)
                    });
                    control.run(&watch, &idle, tasks)
                } else if threads > 1 {
                    let hands = reposting(shared.as_ref(), parameters, || {
                        executor::deal(threads, ends, |ends| {
                            let idle = Idle::spin();
                            let tasks = ends.into_iter().map(|(connection, _)| {
                                workload::stream(connection, idle.clone(), device.clone(), None, reception, |_| {})
                            });
                            vec![control.run(&watch, &idle, tasks)]
                        })
                    })?;
                    let hands: Result<Vec<_>, _> = hands.into_iter().collect();
                    Ok(hands?.into_iter().flatten().collect())
                } else {
                    let tasks = ends.into_iter().map(|(connection, memory)| {
                        let plan = parameters.bidirectional.then_some((plan, memory));
                        workload::stream(connection, idle.clone(), device.clone(), plan, reception, |_| {})
                    });
                    reposting(shared.as_ref(), parameters, || control.run(&watch, &idle, tasks))?
                }
            })?;
            let tallies: Result<Vec<Tally>, _> = results.into_iter().collect();
            tallies.map_err(|error| SessionError::Connection { bytes, error })?
        }
        Ends::Replicated(..) => unreachable!("only the side that asks is a source"),
        Ends::Gathered(hub) => {
            control.send(&FromServer::Ready { memory: Vec::new() })?;
            let reception = Reception { verify: parameters.verify, pause_ns: parameters.slow_receiver_us * 1000 };
            let gather = workload::gather(*hub, idle.clone(), device.clone(), reception);
            let control = &*control;
            let run = || control.run(&watch, &idle, [gather]);
            let tallies = control.watched(|| reposting(shared.as_ref(), parameters, run)?)?;
            let tallies: Result<Vec<_>, _> = tallies.into_iter().collect();
            tallies.map_err(|error| SessionError::Connection { bytes, error })?.concat()
        }
    };
    Ok(Report::new(&tallies, device, &before))
}

/// Does something while the thread that posts shared receives again is at work, if there is to be one.
fn reposting<T>(
    shared: Option<&SharedReceives>,
    parameters: &Parameters,
    body: impl FnOnce() -> T,
) -> Result<T, SessionError> {
    let (Some(shared), Some(SharedBy::Thread)) = (shared, parameters.serving.shared_receives) else {
        return Ok(body());
    };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut result = Ok(0);
            while !is_over.load(Ordering::Relaxed) && result.is_ok() {
                result = shared.repost();
                if result == Ok(0) {
                    std::thread::yield_now();
                }
            }
            result
        });
        let value = body();
        is_over.store(true, Ordering::Relaxed);
        match thread.join() {
            Ok(Ok(_)) => Ok(value),
            Ok(Err(error)) => Err(SessionError::Repost(error)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
