//! One client at work.

use std::collections::BTreeMap;

use doorbell_exchange::asynchronous::Waiter;
use doorbell_verbs::Device;
use hdrhistogram::Histogram;

use super::{Load, Random, Zipf, key, value};
use crate::client::{Client, Outcome, StoreOperation, Ticket};
use crate::counts::ClientCounts;
use crate::error::StoreError;

/// Operations of an open loop that may wait for a place. Beyond that, those that are due are skipped and counted.
const MAX_LATE: u64 = 1 << 16;
/// The longest time that a histogram holds, in nanoseconds: a minute.
const LONGEST_NS: u64 = 60_000_000_000;

/// Results of one client.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Nanoseconds that gets took. In an open loop they count from when the get was due.
    pub gets_ns: Histogram<u64>,
    /// Nanoseconds that puts took.
    pub puts_ns: Histogram<u64>,
    /// Counters of the client in the time in which operations counted.
    pub counts: ClientCounts,
    /// Operations that gave up, since others were faster each time.
    pub gave_up: u64,
    /// Operations of an open loop that were never begun, since too many waited already.
    pub skipped: u64,
    /// Gets and puts that found no such key, which a workload does not expect.
    pub absent: u64,
    /// Bytes of frames that its device sent and received meanwhile, those of other clients included; `None` where the
    /// device does not count.
    pub wire_bytes: Option<u64>,
    /// The time at which the first counted operation may have begun, and the end of the last, on the device's clock.
    pub span_ns: (u64, u64),
}

impl Tally {
    pub(super) fn new(from_ns: u64) -> Self {
        // Significant digits of 3 and these bounds are always allowed.
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

    /// Operations that counted.
    pub fn operations(&self) -> u64 {
        self.gets_ns.len() + self.puts_ns.len()
    }

    /// Returns the time in which operations counted, in nanoseconds.
    pub fn lasted_ns(&self) -> u64 {
        self.span_ns.1.saturating_sub(self.span_ns.0).max(1)
    }
}

/// Hears of each operation, by its number: to judge what came of all, or to ignore it. Operations that have begun and
/// not ended may have taken effect, and may not.
pub trait Witness {
    /// Records that an operation is about to begin; of a put, `written` is its value.
    fn begins(&mut self, now_ns: u64, operation: u64, rank: u64, written: Option<&[u8]>);

    /// Records that it has ended without an error; of a get that found a value, `read` is this value.
    fn ended(&mut self, now_ns: u64, operation: u64, outcome: Outcome, read: Option<&[u8]>);

    /// Records that it has ended and had no effect.
    fn gave_up(&mut self, operation: u64);
}

/// Ignores everything.
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

/// Bytes of frames that a device has sent and received.
fn wire_bytes(device: &Device) -> Option<u64> {
    let counters = device.counters()?;
    Some(counters.tx_vport_rdma_unicast_bytes + counters.rx_vport_rdma_unicast_bytes)
}

/// Runs a workload with one client. `number` tells the clients apart, and with `seed` decides which operations come.
///
/// # Errors
///
/// An operation failed for another reason than that others were faster.
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
    // Times at which the next operation of each place may begin, in a closed loop. A random start keeps clients out
    // of step.
    let mut ready_ns: Vec<u64> =
        (0..load.outstanding).map(|_| start_ns + random.below(load.client_ns.max(1))).collect();
    // The same in an open loop.
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
    // Operations that still run do not count any more.
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

/// Says what came of an operation. `None` if it gave up.
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

/// Moves a client along, or waits until something happens, or until a time.
async fn progress<W: Waiter>(client: &mut Client, waiter: &W, until_ns: Option<u64>) {
    if client.poll() {
        waiter.breathe().await;
    } else {
        let deadline_ns = client.deadline_ns().into_iter().chain(until_ns).min();
        waiter.wait(None, deadline_ns).await;
    }
}

/// Closes a client: gives back what it holds.
pub async fn close<W: Waiter>(mut client: Client, waiter: &W) {
    client.close();
    while !client.is_closed() && !client.is_over() {
        progress(&mut client, waiter, None).await;
    }
}
