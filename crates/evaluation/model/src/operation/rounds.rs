//! Requests in rounds, and acknowledgements that cover several messages.
//!
//! LogGP extended by two effects of request-response:
//!
//! - **Rounds.** A client posts a list of `n` requests once all replies of the list before have arrived. A round takes
//!   the time of one request and its reply, and each further request adds the slowest stage: the processing unit
//!   (`o_unit`) or the CPU of an end. The NIC of each end fetches a list from memory (`o_list`).
//!
//!   ```text
//!   R(n) = t(1) + lists o_list + (n - 1) max(o_unit, o_snd + o_rcv + o_post of either end)
//!   ```
//!
//! - **Acknowledgements.** A NIC holds an acknowledgement for a time `h` (`ack_hold`). If messages follow each other
//!   after `s`, one acknowledgement covers `1 + floor(h / s)` of them. The first message of a round finds an idle end,
//!   which answers it alone, so its acknowledgement is taken to cover no other:
//!
//!   ```text
//!   acknowledgements = (1 + ceil((n - 1) / (1 + floor(h / s)))) / n
//!   ```

use super::{Posted, PostedOperation, operation_forms};
use crate::cost::{Cost, Term, Values};
use crate::parameters::Parameters;
use crate::predict::{BoundKind, Prediction, Tally};
use crate::setting::Setting;
use crate::workload::WorkloadError;

/// Returns the times by which a further request lengthens a round, each of one stage.
fn stages(tally: &Tally) -> [Cost; 3] {
    let [requester, responder] = tally.cpu;
    [Cost::ZERO.with(Term::NicUnit, 1.0), requester, responder]
}

/// Pushes the bounds of rounds, one for each stage. `latency` is the time of one request and its reply.
pub(super) fn bounds(posted: &Posted, tally: &Tally, latency: &Cost, push: &mut impl FnMut(BoundKind, Cost)) {
    let window = f64::from(posted.window);
    let ends = if posted.operation == PostedOperation::RequestResponse { 2.0 } else { 1.0 };
    let fetched = latency.with(Term::ListFetch, if posted.batch > 1 { ends } else { 0.0 });
    for stage in stages(tally) {
        let round = fetched.plus(&stage.scaled(window - 1.0));
        push(BoundKind::Rounds, round.scaled(1.0 / (f64::from(posted.connections) * window)));
    }
}

/// Returns the acknowledgements per message of one packet.
///
/// # Errors
///
/// Returns the error of [`Posted::check`] if the operations are impossible.
pub(crate) fn acknowledgements(parameters: &Parameters, posted: &Posted) -> Result<f64, WorkloadError> {
    let setting = Setting::of(parameters);
    let held_ns = setting.limits.ack_hold_ns;
    if held_ns == 0.0 || posted.window == 1 {
        return Ok(1.0);
    }
    let values = parameters.values();
    let forms = operation_forms(&setting, posted)?;
    if !posted.in_rounds {
        let rate = Prediction::of(&forms, parameters, 0.0).messages_per_s;
        return Ok(1.0 / covered(held_ns, f64::from(posted.connections) * 1e9 / rate));
    }
    let tally = posted.tally(&setting)?;
    Ok(of_round(posted.window, held_ns, spacing_ns(&tally, &values)))
}

/// Returns the time between two messages of a round.
fn spacing_ns(tally: &Tally, values: &Values) -> f64 {
    stages(tally).iter().map(|stage| stage.ns(values)).fold(0.0, f64::max)
}

/// Returns the number of messages that one acknowledgement covers.
fn covered(held_ns: f64, spacing_ns: f64) -> f64 {
    1.0 + (held_ns / spacing_ns).floor()
}

/// Returns the acknowledgements per message of a round.
fn of_round(window: u32, held_ns: f64, spacing_ns: f64) -> f64 {
    let window = f64::from(window);
    (1.0 + ((window - 1.0) / covered(held_ns, spacing_ns)).ceil()) / window
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::predict_operation;

    fn t2() -> Parameters {
        Parameters::of_testbed("t2").unwrap()
    }

    /// Returns requests of 1 B in rounds of `window`.
    fn rounds(window: u32) -> Posted {
        let posted = Posted::new(PostedOperation::RequestResponse, 1, window);
        Posted { in_rounds: true, batch: window, signals_last: true, ..posted }
    }

    #[test]
    fn a_round_takes_one_request_and_a_stage_for_each_further_one() {
        let t2 = t2();
        let round_ns =
            |window| f64::from(window) * 1e9 / predict_operation(&t2, &rounds(window)).unwrap().messages_per_s;
        // Polling, reposting and one eighth of a post in lists of eight take longer than the processing unit.
        let stage = 52.0 + 16.0 + 16.0;
        assert!(stage > t2.o_unit_ns);
        assert!((round_ns(32) - round_ns(8) - 24.0 * stage).abs() < 1e-6);
        assert!((round_ns(8) - round_ns(1) - 7.0 * stage - 2.0 * t2.o_list_ns).abs() < 1e-6);
        let slow = Parameters { o_unit_ns: 500.0, ..t2.clone() };
        let slow_ns = 8e9 / predict_operation(&slow, &rounds(8)).unwrap().messages_per_s;
        assert!((slow_ns - round_ns(8) - 7.0 * (500.0 - stage)).abs() < 1e-6);
    }

    #[test]
    fn rounds_are_named_and_slower_than_a_free_window() {
        let prediction = predict_operation(&t2(), &rounds(8)).unwrap();
        assert_eq!(prediction.bottleneck().binding.kind, BoundKind::Rounds);
        let free = predict_operation(&t2(), &Posted { in_rounds: false, ..rounds(8) }).unwrap();
        assert!(free.messages_per_s > prediction.messages_per_s);
        assert_eq!(free.bottleneck().binding.kind, BoundKind::RoundTrip);
    }

    #[test]
    fn acknowledgements_cover_the_messages_of_the_hold() {
        // Two messages each, and the first message alone.
        assert_eq!([1, 2, 8, 32].map(|window| of_round(window, 100.0, 84.0)), [1.0, 1.0, 5.0 / 8.0, 17.0 / 32.0]);
        // Three messages each.
        assert_eq!(of_round(7, 100.0, 40.0), 3.0 / 7.0);
        // Messages that come later than the hold ends have their own.
        assert_eq!(of_round(8, 100.0, 101.0), 1.0);
    }

    #[test]
    fn only_messages_within_the_hold_share_an_acknowledgement() {
        let t2 = t2();
        assert_eq!(acknowledgements(&t2, &rounds(8)), Ok(5.0 / 8.0));
        assert_eq!(acknowledgements(&t2, &rounds(1)), Ok(1.0));
        // WRITEs that are fetched follow each other after 300 ns.
        let write = Posted { inline_bytes: 0, ..Posted::new(PostedOperation::Write, 1, 8) };
        assert_eq!(acknowledgements(&t2, &write), Ok(1.0));
        assert_eq!(acknowledgements(&Parameters::t1(), &rounds(8)), Ok(1.0), "T1's NIC holds none");
    }
}
