//! Points about bare memory on this machine, whose parties are tasks of one thread.

use std::cell::Cell;
use std::pin::Pin;

use doorbell_exchange::asynchronous::{Waiter, yield_now};
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::{Channel, Device, PathMtu};

use super::relays::{BoxError, Relays};
use super::{order_figures, words};
use crate::executor::{self, Idle};
use crate::one_sided::RemoteMemory;
use doorbell_machine::pinning::{PinError, Pinning};
use doorbell_record::{BothEnds, FarPoint, Figures, PointResult, link_by_name};

/// Reason why a point could not be measured on this machine by one thread.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HereError {
    /// A verbs object could not be made.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// Two ends could not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection broke.
    #[error("a connection broke: {0}")]
    Connection(#[from] ConnectionError),
    /// The middlebox could not be made, or its socket failed.
    #[error("the middlebox: {0}")]
    Box(#[from] BoxError),
    /// A thread cannot be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The point has parties that cannot be tasks of one thread.
    #[error("this point cannot run in one thread: {0}; use virtual time, or `doorbell far run`")]
    Parties(&'static str),
}

/// Waiter with which the tasks of one thread take turns after each message. Without these turns, a task that always
/// finds an answer would never let another task run.
struct Fair(Idle);

impl Waiter for Fair {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        self.0.wait(channel, deadline_ns).await;
    }

    fn wants_notification(&self) -> bool {
        self.0.wants_notification()
    }

    async fn breathe(&self) {
        self.0.breathe().await;
        yield_now().await;
    }
}

/// Seed of the random choice of words that requests access.
const SEED: u64 = 1;

type Task<'a> = Pin<Box<dyn Future<Output = Result<PairResult, ConnectionError>> + 'a>>;

/// Work of a queue pair. For the queue pair that READs an object, also the torn READs.
type PairResult = (words::Done, Option<words::Torn>);

/// Resources of a point about bare memory: queue pairs and memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Maximum number of outstanding operations of each queue pair.
    pub(crate) slots: Vec<usize>,
    /// Bytes of each operation.
    pub(crate) bytes: usize,
    /// Requested path MTU. `None` means that the point does not request a path MTU.
    pub(crate) mtu: Option<PathMtu>,
    /// Bytes of the shared memory.
    pub(crate) memory_bytes: usize,
}

impl Shape {
    /// Returns the shape of a point about bare memory, or `None` for other points.
    pub(crate) fn of(point: &FarPoint) -> Option<Self> {
        let word =
            |slots, last: u64| Self { slots, bytes: 8, mtu: None, memory_bytes: last as usize + words::WORD_STRIDE };
        match point {
            FarPoint::Tearing(point) => {
                let mtu = PathMtu::from_bytes(point.mtu);
                Some(Self { slots: vec![1; 2], bytes: point.bytes, mtu, memory_bytes: point.bytes })
            }
            FarPoint::Scope(point) => {
                let slots = std::iter::once(1).chain(std::iter::repeat_n(point.outstanding, point.others));
                Some(word(slots.collect(), point.distance))
            }
            FarPoint::Order(point) => {
                let last = (point.addresses - 1) * words::WORD_STRIDE as u64;
                Some(word(vec![point.outstanding; point.queue_pairs], last))
            }
            FarPoint::Hot(_) | FarPoint::Store(_) => None,
        }
    }
}

/// Runs the queue pairs of a point as tasks of this thread, until all are done or `check` fails. Returns the result
/// without the figures of a middlebox.
///
/// # Errors
///
/// A connection breaks, or `check` fails.
pub(crate) fn run_pairs<E>(
    pairs: &[words::Pair],
    memory: RemoteMemory,
    point: &FarPoint,
    check: impl FnMut() -> Result<(), E>,
    broke: impl FnOnce(ConnectionError) -> E,
) -> Result<PointResult, E> {
    let (is_over, idle) = (&Cell::new(false), &Fair(Idle::spin()));
    let tasks = pairs.iter().enumerate().map(|(number, pair)| -> Task<'_> {
        Box::pin(async move {
            Ok(match point {
                FarPoint::Order(point) => {
                    (words::request(pair, memory, point, (number as u64, SEED), idle).await?, None)
                }
                FarPoint::Tearing(point) if number == 0 => {
                    let (done, torn) = words::look(pair, memory, point, is_over, idle).await?;
                    (done, Some(torn))
                }
                FarPoint::Tearing(point) => (words::overwrite(pair, memory, point, is_over, idle).await?, None),
                FarPoint::Scope(point) if number == 0 => {
                    (words::probe(pair, memory, point, is_over, idle).await?, None)
                }
                FarPoint::Scope(point) => (words::crowd(pair, memory, point, is_over, idle).await?, None),
                FarPoint::Hot(_) | FarPoint::Store(_) => (words::Done::default(), None),
            })
        })
    });
    let ended = executor::run_while(&idle.0, tasks, check)?;
    let ended: Vec<PairResult> = ended.into_iter().collect::<Result<_, _>>().map_err(broke)?;
    let done: Vec<words::Done> = ended.iter().map(|(done, _)| *done).collect();
    Ok(match point {
        FarPoint::Tearing(point) => {
            let torn = ended.iter().find_map(|(_, torn)| *torn).unwrap_or_default();
            words::result(point.bytes, &done[..1], torn.into())
        }
        FarPoint::Scope(_) => words::scope_result(&done[0], &done[1..]),
        _ => words::result(8, &done, Figures::new()),
    })
}

/// Measures a point between two devices of this process. `clients` has the queue pairs, and `memory` has the memory.
/// The thread of the queue pairs is pinned to the first CPU of `pinning`, and the thread of a middlebox to the second.
///
/// # Errors
///
/// A verbs object cannot be made, a connection breaks, a thread cannot be pinned, or the point needs more than two
/// devices or more than one thread.
pub fn measure([clients, memory]: [&Device; 2], point: &FarPoint, pinning: &Pinning) -> Result<PointResult, HereError> {
    let shape = match point {
        FarPoint::Hot(_) => return Err(HereError::Parties("each client needs its own host")),
        point => Shape::of(point).ok_or(HereError::Parties("a store needs a thread for each client"))?,
    };
    pinning.try_all()?;
    // Pin before the first access to memory. That access binds the memory to the CPU's NUMA node.
    let _pinned = pinning.pin(0);
    let before = [clients, memory].map(Device::link_counters);
    let pds = [&clients.create_pd()?, &memory.create_pd()?];
    let region = words::memory(pds[1], shape.memory_bytes)?;
    // In a point about order, requests pass a middlebox that numbers them. The middlebox is a thread of this process.
    let relays = matches!(point, FarPoint::Order(_)).then(|| Relays::start(clients, shape.slots.len(), pinning));
    let relays = relays.transpose()?;
    let join = |&slots: &usize| match &relays {
        Some(relays) => {
            words::Pair::relayed(pds, slots, relays.address, |[client, node]| Ok(relays.pass(client, node)?))
        }
        None => Ok(words::Pair::joined(pds, slots, shape.bytes, shape.mtu)?),
    };
    let pairs: Vec<_> = shape.slots.iter().map(join).collect::<Result<_, HereError>>()?;
    let (own, _others): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let mut result = run_pairs(&own, RemoteMemory::from(&region), point, || Ok(()), HereError::Connection)?;
    if let Some(relays) = relays {
        result.far.extend(order_figures(&relays.end()?));
    }
    result.link = BothEnds {
        client: link_by_name(&clients.link_counters(), &before[0]),
        server: link_by_name(&memory.link_counters(), &before[1]),
    };
    result.carried_by = result.carried().by();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use doorbell_verbs::soft::{self, SoftOptions};

    use super::*;
    use doorbell_record::{Figure, Operation, OrderPoint};

    #[test]
    fn a_middlebox_numbers_the_requests_that_pass() {
        let open = || soft::open(&SoftOptions { publish: false, ..SoftOptions::default() }).expect("a device");
        for (operation, queue_pairs) in [(Operation::Read, 1), (Operation::CompareSwap, 3)] {
            let (addresses, zipf, rate_per_s, outstanding) = (64, 0.99, 1e6, 4);
            let point = OrderPoint { operation, queue_pairs, addresses, zipf, rate_per_s, outstanding, requests: 300 };
            let result = measure([&open(), &open()], &FarPoint::Order(point), &Pinning::default())
                .expect("the point is measured");
            assert_eq!(result.messages, 300, "{operation:?}");
            let [in_order, largest] = [Figure::InOrder, Figure::LargestGap].map(|figure| result.far[&figure]);
            assert!(in_order > 0.0 && largest >= 1.0, "{:?}", result.far);
            // A repeated answer has a gap of 0. On one queue pair, no gap is greater than 1.
            assert!(queue_pairs > 1 || largest == 1.0, "{:?}", result.far);
        }
    }

    #[test]
    fn a_task_that_is_always_busy_lets_others_run() {
        let (is_over, idle) = (&Cell::new(false), &Fair(Idle::spin()));
        let busy: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
            while !is_over.get() {
                idle.breathe().await;
            }
        });
        let other = Box::pin(async move { is_over.set(true) });
        assert_eq!(executor::run(&idle.0, [busy, other]).len(), 2);
    }
}
