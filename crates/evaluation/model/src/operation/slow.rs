//! Slow accesses to a peer's memory.
//!
//! One in `e` accesses is slow: it takes up to `D` longer, `D / 2` on average (`o_slow`). Operations of a queue pair
//! complete in order, so those behind a slow access wait for it, and those of other queue pairs do not. With a window
//! `w` and a time `t` of one operation, operation `i` completes at
//!
//! ```text
//! c(i) = max(c(i - 1) + h, c(i - w) + t + D(i))
//! ```
//!
//! `h` is the time that each operation holds the CPU of its thread, or a processing unit of the NIC. The rate follows
//! from the longest path through this recurrence (F. Baccelli, G. Cohen, G. J. Olsder and J.-P. Quadrat,
//! Synchronization and Linearity, 1992). A path jumps over a window at each slow access. It then reaches the next slow
//! access at least a window away, in whole windows (A) or in steps of `h` (B). Let `q = 1 - 1 / e`, and let
//! `m = w + e - 1` be the mean number of operations between two such accesses. The time per operation is
//!
//! ```text
//! A   (t / (1 - q^w) + D / 2 + h (m - w / (1 - q^w))) / m
//! B   (t + D / 2 + h (e - 1)) / m
//! ```
//!
//! A test compares both with the recurrence.

use super::{Posted, PostedOperation};
use crate::cost::{Cost, Term};
use crate::predict::{BoundKind, Tally};
use crate::setting::Setting;

/// Pushes the bounds of operations that wait for slow accesses. `latency` is the time of one operation, and
/// `outstanding` is the number of operations of all queue pairs.
pub(super) fn bounds(
    setting: &Setting,
    posted: &Posted,
    tally: &Tally,
    (latency, outstanding): (&Cost, f64),
    push: &mut impl FnMut(BoundKind, Cost),
) {
    let accesses = accesses(setting, posted);
    if setting.limits.slow_every == 0 || accesses == 0.0 {
        return;
    }
    let fast = (1.0 - 1.0 / f64::from(setting.limits.slow_every)).powf(accesses);
    let pairs = f64::from(posted.connections).min(outstanding);
    let most = match posted.operation {
        PostedOperation::Write => f64::INFINITY,
        _ => f64::from(setting.limits.reads_in_flight),
    };
    let jumps = Jumps { window: (outstanding / pairs).min(most), every: 1.0 / (1.0 - fast) };
    let posting = tally.cpu[0];
    let unit = Cost::ZERO.with(Term::NicUnit, 1.0);
    for cost in [jumps.by_windows(latency, &posting), jumps.by_steps(latency, &posting), jumps.by_steps(latency, &unit)]
    {
        push(BoundKind::SlowAccesses, cost.scaled(1.0 / pairs));
    }
}

/// Returns the number of packets of an operation that access memory of the peer.
fn accesses(setting: &Setting, posted: &Posted) -> f64 {
    match posted.operation {
        PostedOperation::Write => {
            let mtu = posted.path_mtu.unwrap_or(setting.path_mtu).bytes() as u64;
            posted.bytes.div_ceil(mtu).max(1) as f64
        }
        PostedOperation::Read | PostedOperation::CompareSwap | PostedOperation::FetchAdd => 1.0,
        PostedOperation::Send | PostedOperation::UdSend | PostedOperation::RequestResponse => 0.0,
    }
}

/// Jumps of the longest path of one queue pair.
struct Jumps {
    /// Operations in flight.
    window: f64,
    /// Operations of which one is slow.
    every: f64,
}

impl Jumps {
    /// Returns the mean number of operations from one slow access of the path to the next.
    fn apart(&self) -> f64 {
        self.window + self.every - 1.0
    }

    /// Returns the time per operation of a path that goes from one slow access to the next in whole windows.
    fn by_windows(&self, latency: &Cost, step: &Cost) -> Cost {
        // Windows from one slow access of the path to the next, the one with the slow access included.
        let windows = 1.0 / (1.0 - (1.0 - 1.0 / self.every).powf(self.window));
        let left = (self.apart() - self.window * windows).max(0.0);
        latency.scaled(windows).with(Term::SlowAccess, 0.5).plus(&step.scaled(left)).scaled(1.0 / self.apart())
    }

    /// Returns the time per operation of a path that goes from one slow access to the next in single operations.
    fn by_steps(&self, latency: &Cost, step: &Cost) -> Cost {
        latency.with(Term::SlowAccess, 0.5).plus(&step.scaled(self.every - 1.0)).scaled(1.0 / self.apart())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::predict_operation;
    use crate::parameters::{Limits, Parameters};

    fn t3() -> Parameters {
        Parameters::of_testbed("t3").unwrap()
    }

    /// Returns operations of 8 B over 20 queue pairs with a thread each.
    fn over_twenty(operation: PostedOperation, outstanding: u32) -> Posted {
        let plain = Posted::new(operation, 8, outstanding.div_ceil(20));
        Posted { outstanding: Some(outstanding), connections: 20, threads: 20, addresses: 20, ..plain }
    }

    /// Operations of a recurrence.
    const COUNT: usize = 300_000;

    /// Returns the operations per nanosecond of one queue pair, by the recurrence.
    fn by_recurrence(window: usize, latency_ns: f64, step_ns: f64, every: u64, longest_ns: f64) -> f64 {
        let (mut state, mut ends) = (1_u64, vec![0.0; window]);
        let mut last = 0.0_f64;
        for index in 0..COUNT {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let drawn = (state >> 33) as f64 / f64::from(1_u32 << 31);
            // The low part of the draw is uniform too, given that the access is slow.
            let late = if drawn * (every as f64) < 1.0 { drawn * every as f64 * longest_ns } else { 0.0 };
            last = (last + step_ns).max(ends[index % window] + latency_ns + late);
            ends[index % window] = last;
        }
        COUNT as f64 / last
    }

    #[test]
    fn bounds_follow_the_recurrence() {
        let (latency_ns, step_ns, longest_ns) = (2500.0, 172.0, 13_000.0);
        let (latency, step) = (Cost::constant(latency_ns), Cost::constant(step_ns));
        let slow = Parameters { o_slow_ns: longest_ns, ..t3() }.values();
        for window in [1_usize, 2, 4, 8, 12, 16, 20] {
            let jumps = Jumps { window: window as f64, every: 100.0 };
            let ns = jumps.by_windows(&latency, &step).ns(&slow).max(jumps.by_steps(&latency, &step).ns(&slow));
            let ratio = by_recurrence(window, latency_ns, step_ns, 100, longest_ns) * ns;
            assert!((0.95..1.05).contains(&ratio), "window {window}: {ratio}");
        }
    }

    #[test]
    fn one_operation_at_a_time_waits_for_each_slow_access() {
        let jumps = Jumps { window: 1.0, every: 100.0 };
        let values = Parameters { o_slow_ns: 10_000.0, ..t3() }.values();
        let ns = jumps.by_windows(&Cost::constant(2000.0), &Cost::constant(150.0)).ns(&values);
        assert!((ns - (2000.0 + 5000.0 / 100.0)).abs() < 1e-6, "{ns}");
    }

    #[test]
    fn slow_accesses_bind_by_name_and_let_round_trips_grow() {
        let t3 = t3();
        let none = Parameters { limits: Limits { slow_every: 0, ..t3.limits }, ..t3.clone() };
        for operation in [PostedOperation::Write, PostedOperation::Read] {
            let round_trips = [24, 96, 168, 240].map(|outstanding| {
                let posted = over_twenty(operation, outstanding);
                let prediction = predict_operation(&t3, &posted).unwrap();
                assert_eq!(prediction.bottleneck().binding.kind, BoundKind::SlowAccesses, "{operation:?}");
                assert!(prediction.messages_per_s < predict_operation(&none, &posted).unwrap().messages_per_s);
                f64::from(outstanding) * 1e9 / prediction.messages_per_s
            });
            assert!(round_trips.is_sorted(), "{operation:?}: {round_trips:?}");
        }
    }

    #[test]
    fn messages_into_receives_access_no_memory_of_the_peer() {
        let t3 = t3();
        let send = predict_operation(&t3, &over_twenty(PostedOperation::Send, 96)).unwrap();
        assert_eq!(send.bound(BoundKind::SlowAccesses), None);
        // A WRITE of many packets meets a slow access more often.
        let slow = |bytes| {
            let posted = Posted { bytes, ..over_twenty(PostedOperation::Write, 20) };
            let prediction = predict_operation(&t3, &posted).unwrap();
            let alone = prediction.latency_ns / 20.0;
            prediction.bound(BoundKind::SlowAccesses).unwrap().ns_per_message - alone
        };
        assert!(slow(65_536) > 10.0 * slow(8), "{} {}", slow(65_536), slow(8));
    }
}
