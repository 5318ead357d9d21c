//! Goals of Doorbell for shared memory in comparison with UDP.

use super::super::judge::{Judgement, cannot, holds_if};
use super::super::links::{LINK_FIGURES, RATE, THROUGHPUT, TIME, compared};
use super::super::record::PointRecord;
use super::super::view::{View, best};
use super::{Claim, NOISE};
use crate::link::Link;

/// Minimum share of a point's packets that must have used the required link.
const LEAST_CARRIED: f64 = 0.99;

/// Returns the goals, each with its experiment.
pub(super) fn goals() -> [(&'static str, Claim); 3] {
    [
        (
            TIME,
            Claim::of_goal(
                "links/halves-latency",
                "16 B: through shared memory each takes at most half as long",
                |view| gains(view, &[0], 2.0),
            ),
        ),
        (
            RATE,
            Claim::of_goal(
                "links/rate-of-lists",
                "16 B, eight per post: shared memory brings at least 1.5 times the messages of each",
                |view| gains(view, &[2], 1.5),
            ),
        ),
        (
            THROUGHPUT,
            Claim::of_goal(
                "links/carries-more",
                "64 KiB and 1 MiB: shared memory carries more bytes of each",
                |view| gains(view, &[3, 4], NOISE),
            ),
        ),
    ]
}

/// Judges whether shared memory is better than UDP by at least the factor `least`, in these figures and for every
/// subject.
fn gains(view: View<'_>, figures: &[usize], least: f64) -> Option<Judgement> {
    let mut gains: Vec<(f64, &str)> = Vec::new();
    let mut elsewhere = 0;
    for row in compared(view) {
        for &index in figures {
            let [Some(udp), Some(memory)] = row.points[index] else { continue };
            let figure = LINK_FIGURES[index];
            let [Some(one), Some(other)] = [udp, memory].map(|record| best(record, figure.quantity)) else { continue };
            gains.push((figure.gain([one, other]), row.subject));
            let went = is_carried(udp, Link::Udp) && is_carried(memory, Link::SharedMemory);
            elsewhere += usize::from(!went);
        }
    }
    gains.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (worst, most) = (*gains.first()?, *gains.last()?);
    let because = format!("{:.2} times ({}) to {:.2} times ({})", worst.0, worst.1, most.0, most.1);
    if elsewhere > 0 {
        return cannot(format!("{because}; but packets of {elsewhere} of {} went over the other link", gains.len()));
    }
    holds_if(worst.0 >= least, because)
}

fn is_carried(record: &PointRecord, link: Link) -> bool {
    let all = record.carried();
    let own = match link {
        Link::Udp => all.udp,
        Link::SharedMemory => all.shared_memory,
    };
    own > 0 && own as f64 >= LEAST_CARRIED * (all.udp as f64 + all.shared_memory as f64)
}
