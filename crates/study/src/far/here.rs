//! Points on this machine whose parties are tasks of one thread.

use std::cell::Cell;
use std::pin::Pin;

use doorbell_exchange::asynchronous::{Waiter, yield_now};
use doorbell_exchange::{ConnectError, ConnectionError};
use doorbell_verbs::{Channel, Device, PathMtu, Pd};

use super::relays::{BoxError, Relays};
use super::{FarPoint, OrderPoint, ScopePoint, TearingPoint, order_figures, words};
use crate::executor::{self, Idle};
use crate::record::PointResult;

/// Why a point could not be measured here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HereError {
    /// A verbs object could not be made.
    #[error(transparent)]
    Verbs(#[from] doorbell_verbs::Error),
    /// Two ends do not connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A connection broke.
    #[error("a connection broke: {0}")]
    Connection(#[from] ConnectionError),
    /// The middlebox cannot be made, or its socket broke.
    #[error("the middlebox: {0}")]
    Box(#[from] BoxError),
    /// It has parties that one thread cannot be.
    #[error("such a point runs in virtual time, or as `doorbell far run` does: {0}")]
    Parties(&'static str),
}

/// Tasks of one thread that take turns after each message: one whose answers come as fast as it asks would else never let
/// another one run.
struct Fair(Idle);

impl Waiter for Fair {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        self.0.wait(channel, deadline_ns).await;
    }

    fn wants_notification(&self) -> bool {
        self.0.wants_notification()
    }

    async fn breathe(&self) {
        yield_now().await;
    }
}

/// What decides which words requests go to.
const SEED: u64 = 1;

type Task<'a, T> = Pin<Box<dyn Future<Output = Result<T, ConnectionError>> + 'a>>;

/// Measures a point between two devices of this process: of queue pairs on one, with the memory on the other.
///
/// # Errors
///
/// A verbs object cannot be made, a connection breaks, or the point needs more than two devices and one thread.
pub fn measure([clients, memory]: [&Device; 2], point: &FarPoint) -> Result<PointResult, HereError> {
    let pds = [&clients.create_pd()?, &memory.create_pd()?];
    match point {
        FarPoint::Tearing(point) => tearing(pds, point),
        FarPoint::Scope(point) => scope(pds, point),
        FarPoint::Order(point) => order([clients, memory], pds, point),
        FarPoint::Hot(_) => Err(HereError::Parties("each of its clients has a host")),
        FarPoint::Store(_) => Err(HereError::Parties("a store has a thread for each client")),
    }
}

/// The queue pairs go through a middlebox, which is a thread of this process.
fn order(devices: [&Device; 2], pds: [&Pd; 2], point: &OrderPoint) -> Result<PointResult, HereError> {
    let relays = Relays::start(devices[0], point.queue_pairs)?;
    let region = words::memory(pds[1], point.addresses as usize * words::WORD_STRIDE)?;
    let pairs: Vec<_> = (0..point.queue_pairs)
        .map(|_| {
            words::Pair::relayed(pds, point.outstanding, relays.address, |[client, node]| relays.pass(client, node))
        })
        .collect::<Result<_, HereError>>()?;
    let (memory, idle) = (words::remote(&region), Fair(Idle::spin()));
    let tasks = pairs.iter().enumerate().map(|(number, (pair, _))| -> Task<'_, words::Done> {
        Box::pin(words::request(pair, memory, point, (number as u64, SEED), &idle))
    });
    let ended = executor::run(&idle.0, tasks).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(words::result(8, &ended, order_figures(&relays.end()?)))
}

fn tearing(pds: [&Pd; 2], point: &TearingPoint) -> Result<PointResult, HereError> {
    let mtu = PathMtu::from_bytes(point.mtu);
    let region = words::memory(pds[1], point.bytes)?;
    let [reads, writes] = [0, 1].map(|_| words::Pair::joined(pds, 1, point.bytes, mtu));
    let (reads, writes) = (reads?, writes?);
    let (memory, is_over, idle) = (words::remote(&region), Cell::new(false), Fair(Idle::spin()));
    let look = async {
        let looked = words::look(&reads.0, memory, point, &is_over, &idle).await?;
        Ok(Some(looked))
    };
    let overwrite = async { words::overwrite(&writes.0, memory, point, &is_over, &idle).await.map(|_| None) };
    let tasks: [Task<'_, Option<(words::Done, words::Torn)>>; 2] = [Box::pin(look), Box::pin(overwrite)];
    let mut ended = executor::run(&idle.0, tasks).into_iter().collect::<Result<Vec<_>, _>>()?;
    let (done, torn) = ended.swap_remove(0).unwrap_or_default();
    Ok(words::result(point.bytes, &[done], torn.figures()))
}

fn scope(pds: [&Pd; 2], point: &ScopePoint) -> Result<PointResult, HereError> {
    let region = words::memory(pds[1], point.distance as usize + words::WORD_STRIDE)?;
    let slots = std::iter::once(1).chain(std::iter::repeat_n(point.outstanding, point.others));
    let pairs: Vec<_> = slots.map(|slots| words::Pair::joined(pds, slots, 8, None)).collect::<Result<_, _>>()?;
    let (memory, is_over, idle) = (words::remote(&region), Cell::new(false), Fair(Idle::spin()));
    let mut tasks: Vec<Task<'_, words::Done>> = Vec::new();
    for (number, (pair, _)) in pairs.iter().enumerate() {
        tasks.push(match number {
            0 => Box::pin(words::probe(pair, memory, point, &is_over, &idle)),
            _ => Box::pin(words::crowd(pair, memory, point, &is_over, &idle)),
        });
    }
    let ended = executor::run(&idle.0, tasks).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(words::scope_result(&ended[0], &ended[1..]))
}

#[cfg(test)]
mod tests {
    use doorbell_verbs::soft::{self, SoftOptions};

    use super::*;
    use crate::far::Figure;
    use crate::parameters::Operation;

    #[test]
    fn requests_are_numbered_by_a_box_through_which_they_pass() {
        let open = || soft::open(&SoftOptions { publish: false, ..SoftOptions::default() }).expect("a device");
        for (operation, queue_pairs) in [(Operation::Read, 1), (Operation::CompareSwap, 3)] {
            let (addresses, zipf, rate_per_s, outstanding) = (64, 0.99, 1e6, 4);
            let point = OrderPoint { operation, queue_pairs, addresses, zipf, rate_per_s, outstanding, requests: 300 };
            let result = measure([&open(), &open()], &FarPoint::Order(point)).expect("it is measured");
            assert_eq!(result.messages, 300, "{operation:?}");
            let [in_order, largest] = [Figure::InOrder, Figure::LargestGap].map(|figure| result.far[&figure]);
            assert!(in_order > 0.0 && largest >= 1.0, "{:?}", result.far);
            // An answer that comes twice has a gap of 0, and none is greater than 1 on one queue pair.
            assert!(queue_pairs > 1 || largest == 1.0, "{:?}", result.far);
        }
    }

    #[test]
    fn a_task_that_has_always_something_to_do_lets_others_run() {
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
