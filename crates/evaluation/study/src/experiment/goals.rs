//! Goals of Doorbell for shared memory in comparison with UDP.

use doorbell_claims::{Gap, Verdict};

use super::links::{LINK_FIGURES, RATE, THROUGHPUT, TIME, compared};
use super::view::{View, best};
use doorbell_record::{Link, PointRecord};

/// Minimum share of a point's packets that must have used the required link.
const LEAST_CARRIED: f64 = 0.99;

/// Goal of Doorbell, which no publication states: shared memory is better than UDP by a factor.
#[derive(Debug)]
pub(super) struct Goal {
    pub(super) id: &'static str,
    pub(super) says: &'static str,
    pub(super) experiment: &'static str,
    /// Indices of the compared figures.
    figures: &'static [usize],
    /// Minimum factor, for every subject.
    least: f64,
}

pub(super) const ALL: &[Goal] = &[
    Goal {
        id: "links/halves-latency",
        says: "16 B: through shared memory each takes at most half as long",
        experiment: TIME,
        figures: &[0],
        least: 2.0,
    },
    Goal {
        id: "links/rate-of-lists",
        says: "16 B, eight per post: shared memory brings at least 1.5 times the messages of each",
        experiment: RATE,
        figures: &[2],
        least: 1.5,
    },
    Goal {
        id: "links/carries-more",
        says: "64 KiB and 1 MiB: shared memory carries more bytes of each",
        experiment: THROUGHPUT,
        figures: &[3, 4],
        least: 1.1,
    },
];

impl Goal {
    /// Judges the goal by the records of a run. Returns `None` if points are missing.
    pub(super) fn judge(&self, view: View<'_>) -> Option<Verdict> {
        let mut gains: Vec<(f64, &str)> = Vec::new();
        let mut elsewhere = 0;
        for row in compared(view) {
            for &index in self.figures {
                let [Some(udp), Some(memory)] = row.points[index] else { continue };
                let figure = LINK_FIGURES[index];
                let [Some(one), Some(other)] = [udp, memory].map(|record| best(record, figure.quantity)) else {
                    continue;
                };
                gains.push((figure.gain([one, other]), row.subject));
                let went = is_carried(udp, Link::Udp) && is_carried(memory, Link::SharedMemory);
                elsewhere += usize::from(!went);
            }
        }
        gains.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (worst, most) = (*gains.first()?, *gains.last()?);
        let because = format!("{:.2} times ({}) to {:.2} times ({})", worst.0, worst.1, most.0, most.1);
        if elsewhere > 0 {
            let of = gains.len();
            let because = format!("{because}; but packets of {elsewhere} of {of} went over the other link");
            return Some(Gap::CannotShow(because).into());
        }
        Some(Verdict::new(worst.0 >= self.least, because))
    }
}

fn is_carried(record: &PointRecord, link: Link) -> bool {
    let all = record.carried();
    let own = match link {
        Link::Udp => all.udp,
        Link::SharedMemory => all.shared_memory,
    };
    own > 0 && own as f64 >= LEAST_CARRIED * (all.udp as f64 + all.shared_memory as f64)
}
