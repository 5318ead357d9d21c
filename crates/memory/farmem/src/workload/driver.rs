//! The loop of one client that runs a workload.

use std::collections::BTreeMap;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_verbs::Device;
use hdrhistogram::Histogram;

use super::{Load, Random, Zipf};
use crate::client::Client;
use crate::contents::{key, value};
use crate::counts::ClientCounts;
use crate::error::StoreError;
use crate::operation::{Outcome, StoreOperation, Ticket};

/// Maximum number of due operations that wait in an open loop. Further due operations are skipped and counted.
const MAX_LATE: u64 = 1 << 16;
/// Maximum time that a histogram can hold, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Results of one client.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Durations of gets in nanoseconds. In an open loop they count from the time when the get was due.
    pub gets_ns: Histogram<u64>,
    /// Durations of puts in nanoseconds, counted in the same way.
    pub puts_ns: Histogram<u64>,
    /// Counters of the client for the measurement.
    pub counts: ClientCounts,
    /// Operations that failed because other clients were faster in each attempt.
    pub gave_up: u64,
    /// Operations of an open loop that never began, since too many due operations were waiting.
    pub skipped: u64,
    /// Gets and puts whose key did not exist. A workload expects none.
    pub absent: u64,
    /// Bytes of frames that the client's device sent and received during the measurement, including those of other
    /// clients. `None` if the device does not count them.
    pub wire_bytes: Option<u64>,
    /// The time at which the first counted operation may have begun, and the end of the last one, on the device's
    /// clock.
    pub span_ns: (u64, u64),
}

impl Tally {
    pub(super) fn new(from_ns: u64) -> Self {
        // Three significant digits and these bounds are always valid.
        let histogram = || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds of a histogram");
        Self {
            gets_ns: histogram(),
            puts_ns: histogram(),
            counts: ClientCounts::default(),
            gave_up: 0,
            skipped: 0,
            absent: 0,
            wire_bytes: None,
            span_ns: (from_ns, from_ns),
        }
    }

    /// Returns the number of counted operations.
    pub fn operations(&self) -> u64 {
        self.gets_ns.len() + self.puts_ns.len()
    }

    /// Returns the duration of the measurement in nanoseconds.
    pub fn lasted_ns(&self) -> u64 {
        self.span_ns.1.saturating_sub(self.span_ns.0).max(1)
    }
}

/// Observer of the operations of a client, each identified by its number. An operation that has begun and not ended may
/// or may not have taken effect.
pub trait Witness {
    /// Records that an operation is about to begin. `written` is the value of a put.
    fn begins(&mut self, now_ns: u64, operation: u64, rank: u64, written: Option<&[u8]>);

    /// Records that an operation has ended without an error. `read` is the value that a get found.
    fn ended(&mut self, now_ns: u64, operation: u64, outcome: Outcome, read: Option<&[u8]>);

    /// Records that an operation has ended and had no effect.
    fn gave_up(&mut self, operation: u64);
}

/// Ignores all operations.
impl Witness for () {
    fn begins(&mut self, _: u64, _: u64, _: u64, _: Option<&[u8]>) {}

    fn ended(&mut self, _: u64, _: u64, _: Outcome, _: Option<&[u8]>) {}

    fn gave_up(&mut self, _: u64) {}
}

#[derive(Clone, Copy, Debug)]
struct Running {
    from_ns: u64,
    is_put: bool,
    number: u64,
}

/// Returns the bytes of frames that a device has sent and received.
fn wire_bytes(device: &Device) -> Option<u64> {
    let counters = device.counters()?;
    Some(counters.tx_vport_rdma_unicast_bytes + counters.rx_vport_rdma_unicast_bytes)
}

/// Runs a workload with one client. `number` and `seed` determine the client's operations; each client has another
/// `number`.
///
/// # Errors
///
/// An operation failed for a reason other than that other clients were faster.
pub async fn drive<W: Waiter>(
    client: &mut Client,
    device: &Device,
    load: &Load,
    (number, seed): (u64, u64),
    waiter: &W,
    witness: &mut impl Witness,
) -> Result<Tally, StoreError> {
    let mut random = Random::new(seed.wrapping_mul(0x0100_0000_01b3).wrapping_add(number));
    let zipf = Zipf::new(load.keys, load.zipf);
    let interval_ns = load.rate_per_client.map(|rate| 1e9 / rate);
    let start_ns = device.now_ns();
    let counts_ns = start_ns + load.warm_up_ns;
    let ends_ns = counts_ns + load.measure_ns;
    let mut tally = Tally::new(counts_ns);
    let mut before = (client.counts(), wire_bytes(device));
    let mut is_counting = load.warm_up_ns == 0;
    let mut running: BTreeMap<Ticket, Running> = BTreeMap::new();
    // Times at which the next operation of each slot may begin, in a closed loop. Random start times keep the clients
    // from running in step.
    let mut ready_ns: Vec<u64> =
        (0..load.outstanding).map(|_| start_ns + random.below(load.client_ns.max(1))).collect();
    // Time at which the next operation arrives, in an open loop.
    let mut arrives_ns = start_ns as f64 + interval_ns.map_or(0.0, |interval_ns| random.exponential(interval_ns));
    let mut operations = 0_u64;
    let mut bytes = Vec::with_capacity(load.value_bytes);
    let mut read = Vec::with_capacity(load.value_bytes);
    loop {
        let now_ns = device.now_ns();
        if !is_counting && now_ns >= counts_ns {
            (is_counting, tally.span_ns) = (true, (now_ns, now_ns));
            before = (client.counts(), wire_bytes(device));
        }
        if now_ns >= ends_ns {
            break;
        }
        let mut next_ns = ends_ns;
        while running.len() < load.outstanding {
            let due_ns = match interval_ns {
                Some(interval_ns) => {
                    let late = ((now_ns as f64 - arrives_ns) / interval_ns) as u64;
                    let skipped = late.saturating_sub(MAX_LATE);
                    tally.skipped += skipped;
                    arrives_ns += skipped as f64 * interval_ns;
                    arrives_ns as u64
                }
                None => ready_ns.iter().copied().min().unwrap_or(u64::MAX),
            };
            if due_ns > now_ns {
                next_ns = next_ns.min(due_ns);
                break;
            }
            let (rank, is_put) = (zipf.draw(|| random.unit()), random.unit() * 100.0 < load.write_percent);
            let key = key(rank);
            operations += 1;
            let operation = if is_put {
                value(number, operations, &mut bytes, load.value_bytes);
                StoreOperation::Put { key: &key, value: &bytes }
            } else {
                StoreOperation::Get { key: &key }
            };
            witness.begins(now_ns, operations, rank, is_put.then_some(&bytes));
            let Some(ticket) = client.submit(operation)? else { break };
            if let Some(place) = ready_ns.iter().position(|&ready| ready == due_ns) {
                ready_ns.swap_remove(place);
            }
            let from_ns = match interval_ns {
                Some(interval_ns) => {
                    arrives_ns += random.exponential(interval_ns);
                    due_ns
                }
                None => now_ns,
            };
            running.insert(ticket, Running { from_ns, is_put, number: operations });
        }
        let mut has_ended = false;
        while let Some((ticket, result)) = client.finished(&mut read) {
            has_ended = true;
            let Some(operation) = running.remove(&ticket) else { continue };
            let to_ns = device.now_ns();
            let Running { from_ns, is_put, .. } = operation;
            match answered(witness, to_ns, operation, result, &read) {
                Ok(Some(outcome)) => {
                    tally.absent += u64::from(outcome == Outcome::Absent);
                    let histogram = if is_put { &mut tally.puts_ns } else { &mut tally.gets_ns };
                    if is_counting {
                        histogram.saturating_record((to_ns - from_ns).max(1));
                        tally.span_ns.1 = to_ns;
                    }
                }
                Ok(None) => tally.gave_up += u64::from(is_counting),
                Err(error) => return Err(error),
            }
            if interval_ns.is_none() {
                ready_ns.push(to_ns + load.client_ns);
            }
        }
        if !has_ended {
            progress(client, waiter, Some(next_ns)).await;
        }
    }
    tally.counts = client.counts().since(&before.0);
    tally.wire_bytes = wire_bytes(device).zip(before.1).map(|(now, before)| now - before);
    tally.span_ns.1 = tally.span_ns.1.max(ends_ns);
    // Operations that are still running are not counted.
    while load.drains && !running.is_empty() {
        match client.finished(&mut read) {
            Some((ticket, result)) => {
                if let Some(operation) = running.remove(&ticket) {
                    answered(witness, device.now_ns(), operation, result, &read)?;
                }
            }
            None => progress(client, waiter, None).await,
        }
    }
    Ok(tally)
}

/// Passes the result of an operation to the witness. Returns `None` if the operation gave up.
fn answered(
    witness: &mut impl Witness,
    now_ns: u64,
    operation: Running,
    result: Result<Outcome, StoreError>,
    read: &[u8],
) -> Result<Option<Outcome>, StoreError> {
    match result {
        Ok(outcome) => {
            let has_value = !operation.is_put && outcome == Outcome::Done;
            witness.ended(now_ns, operation.number, outcome, has_value.then_some(read));
            Ok(Some(outcome))
        }
        Err(StoreError::GaveUp { .. }) => {
            witness.gave_up(operation.number);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Advances a client, or waits for an event until a given time.
async fn progress<W: Waiter>(client: &mut Client, waiter: &W, until_ns: Option<u64>) {
    if client.poll() {
        waiter.breathe().await;
    } else {
        let deadline_ns = client.deadline_ns().into_iter().chain(until_ns).min();
        waiter.wait(None, deadline_ns).await;
    }
}

/// Closes a client, which returns its unused nodes to the metadata service.
pub async fn close<W: Waiter>(mut client: Client, waiter: &W) {
    client.close();
    while !client.is_closed() && !client.is_over() {
        progress(&mut client, waiter, None).await;
    }
}
