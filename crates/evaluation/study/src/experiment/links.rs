//! Comparison of the links between two processes of one machine: every protocol over UDP and through shared memory.

use doorbell_protocols::Protocol;

use super::families::{FAMILIES, Family};
use super::sweep::{Effort, Experiment, Point};
use super::view::View;
use doorbell_record::Quantity::{self, MedianLatency, MessageRate, TailLatency, Throughput};
use doorbell_record::{Kind, Link, Operation, Parameters, PointRecord};

pub(super) const TIME: &str = "links/time";
pub(super) const RATE: &str = "links/rate";
pub(super) const THROUGHPUT: &str = "links/throughput";

/// Bytes of short messages.
const SHORT: usize = 16;
/// Bytes of the word of an atomic operation.
const WORD: usize = 8;
/// Bytes of long messages.
const LONG: [usize; 2] = [64 << 10, 1 << 20];
/// Messages per post without batches.
const UNBATCHED: usize = 1;
/// Messages per post with batches.
const BATCHED: usize = 8;
/// Window with batches, unless the protocol has its own window.
const BATCHED_WINDOW: usize = 256;
/// Maximum number of outstanding operations in points with one operation per post.
const OPERATIONS: usize = 64;

/// Protocol or operation to compare.
enum Subject {
    Protocol(&'static Family, Protocol),
    Operation(&'static str, Operation),
}

impl Subject {
    /// Returns all subjects for this effort. A quick study has the subjects whose results differ most.
    fn all(effort: Effort) -> Vec<Self> {
        let quick = |family: &Family| match family.variants.len() {
            _ if effort != Effort::Quick => family.variants.len(),
            // Compare the fenced and the unfenced variant.
            1.. if family.family() == "direct-read" => 2,
            1.. if family.family() == "send-receive" => 1,
            _ => 0,
        };
        let protocols = FAMILIES
            .iter()
            .flat_map(|family| family.variants[..quick(family)].iter().map(|&it| Self::Protocol(family, it)));
        let operations =
            [("WRITE", Operation::Write), ("READ", Operation::Read), ("CAS (8 B)", Operation::CompareSwap)];
        let operations = operations.into_iter().take(effort.pick(2, 3, 3));
        protocols.chain(operations.map(|(name, operation)| Self::Operation(name, operation))).collect()
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Protocol(_, protocol) => protocol.name(),
            Self::Operation(name, _) => name,
        }
    }

    /// Returns whether experiments with messages of `bytes` bytes include the subject.
    fn has(&self, bytes: usize) -> bool {
        match self {
            Self::Operation(_, operation) if operation.is_atomic() => bytes == SHORT,
            _ => true,
        }
    }

    /// Returns the parameters for latency, with one message at a time.
    fn timed(&self, effort: Effort, bytes: usize) -> Parameters {
        match self {
            Self::Protocol(_, protocol) => Family::parameters(effort, Kind::Latency, *protocol, bytes),
            Self::Operation(_, operation) => {
                Point::parameters(effort, Kind::Latency, *operation, if operation.is_atomic() { WORD } else { bytes })
            }
        }
    }

    /// Returns the parameters for the maximum rate, with `batch` messages per post.
    fn streamed(&self, effort: Effort, bytes: usize, batch: usize) -> Parameters {
        let (base, window) = match self {
            Self::Protocol(family, protocol) => {
                (Family::parameters(effort, Kind::Bandwidth, *protocol, bytes), family.window())
            }
            Self::Operation(_, it) => {
                let bytes = if it.is_atomic() { WORD } else { bytes };
                (Point::parameters(effort, Kind::Bandwidth, *it, bytes), OPERATIONS)
            }
        };
        let window = if batch == UNBATCHED { window } else { BATCHED_WINDOW };
        Parameters { window, batch, depth: (2 * window).max(64), ..base }
    }
}

/// Returns all experiments on links.
pub(super) fn experiments(effort: Effort) -> [Experiment; 3] {
    [time(effort), rate(effort), throughput(effort)]
}

/// Returns one point for each of the two links.
fn over_both(subject: &Subject, x: usize, parameters: &Parameters) -> impl Iterator<Item = Point> {
    let of =
        |link: Link| Point::new(series(subject.name(), link), x, Parameters { link: Some(link), ..parameters.clone() });
    Link::ALL.map(of).into_iter()
}

fn series(subject: &str, link: Link) -> String {
    format!("{subject}, {}", link.name())
}

/// Returns the name of a record's subject and the link that the record's point required.
pub fn subject_and_link(record: &PointRecord) -> Option<(&str, Link)> {
    let link = record.parameters.link?;
    Some((record.series.strip_suffix(link.name())?.strip_suffix(", ")?, link))
}

fn time(effort: Effort) -> Experiment {
    let sizes = effort.pick(vec![SHORT], vec![SHORT, LONG[0]], vec![SHORT, 512, 8192, LONG[0], LONG[1]]);
    let mut points = Vec::new();
    for subject in Subject::all(effort) {
        for &bytes in sizes.iter().filter(|&&bytes| subject.has(bytes)) {
            let parameters = subject.timed(effort, bytes);
            points.extend(over_both(&subject, parameters.sizes[0], &parameters));
        }
    }
    Experiment::new(
        TIME,
        "How long does one message take over UDP, and how long through shared memory?",
        "two processes of this machine, one connection, one message at a time, both sides polling. Times are half a round \
         trip of a ping-pong, and post to completion of WRITE, READ and CAS",
        "message size, B",
        &[MedianLatency, TailLatency],
        points,
    )
}

fn rate(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for subject in Subject::all(effort) {
        for batch in [UNBATCHED, BATCHED] {
            points.extend(over_both(&subject, batch, &subject.streamed(effort, SHORT, batch)));
        }
    }
    Experiment::new(
        RATE,
        "How many short messages go over UDP, and how many through shared memory?",
        "16 B, or the 8 B of an atomic; one connection between two processes of this machine. One message per post with \
         64 unacknowledged (Direct-Read: 32), or eight per post with 256",
        "messages per post",
        &[MessageRate],
        points,
    )
}

fn throughput(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for subject in Subject::all(effort) {
        for bytes in LONG.into_iter().filter(|&bytes| subject.has(bytes)) {
            points.extend(over_both(&subject, bytes, &subject.streamed(effort, bytes, UNBATCHED)));
        }
    }
    Experiment::new(
        THROUGHPUT,
        "How many bytes go over UDP, and how many through shared memory?",
        "one connection between two processes of this machine, one message per post, at most 64 unacknowledged \
         (Direct-Read: 32). For large messages, window and depth shrink to the size of a cache",
        "message size, B",
        &[Throughput],
        points,
    )
}

/// Figure that a table shows for each link.
#[derive(Clone, Copy, Debug)]
pub struct LinkFigure {
    /// Size and rate of the messages.
    pub of: &'static str,
    /// Measured quantity.
    pub quantity: Quantity,
    experiment: &'static str,
    x: usize,
}

/// All figures of the table.
pub const LINK_FIGURES: [LinkFigure; 5] = [
    LinkFigure { of: "16 B, one at a time", quantity: MedianLatency, experiment: TIME, x: SHORT },
    LinkFigure { of: "16 B", quantity: MessageRate, experiment: RATE, x: UNBATCHED },
    LinkFigure { of: "16 B, eight per post", quantity: MessageRate, experiment: RATE, x: BATCHED },
    LinkFigure { of: "64 KiB", quantity: Throughput, experiment: THROUGHPUT, x: LONG[0] },
    LinkFigure { of: "1 MiB", quantity: Throughput, experiment: THROUGHPUT, x: LONG[1] },
];

impl LinkFigure {
    fn is_of(&self, record: &PointRecord) -> bool {
        // An atomic has an 8-byte word in place of 16 B.
        let is_word = self.x == SHORT && record.parameters.operation.is_atomic() && record.x == WORD as f64;
        record.experiment == self.experiment && (record.x == self.x as f64 || is_word)
    }

    /// Returns the factor by which the second value is better than the first. Less is better for some quantities.
    pub fn gain(&self, [one, other]: [f64; 2]) -> f64 {
        if self.quantity.less_is_better() { one / other } else { other / one }
    }
}

/// Protocol or operation, measured over both links.
#[derive(Clone, Debug)]
pub struct Compared<'a> {
    /// Name of the protocol or operation.
    pub subject: &'a str,
    /// For each of [`LINK_FIGURES`], the measured points over [both links](Link::ALL).
    pub points: [[Option<&'a PointRecord>; 2]; LINK_FIGURES.len()],
}

/// Returns all subjects of records that required a link, in the order of the experiments' points.
pub fn compared(view: View<'_>) -> Vec<Compared<'_>> {
    let mut rows: Vec<Compared<'_>> = Vec::new();
    for experiment in experiments(Effort::Full) {
        let place = |series: &str| experiment.points.iter().position(|point| point.series == series);
        let mut records: Vec<&PointRecord> = view.of(&experiment.name).collect();
        records.sort_by_key(|record| place(&record.series).unwrap_or(usize::MAX));
        for record in records {
            let Some((subject, link)) = subject_and_link(record) else { continue };
            let Some(figure) = LINK_FIGURES.iter().position(|figure| figure.is_of(record)) else { continue };
            let row = match rows.iter().position(|row| row.subject == subject) {
                Some(row) => row,
                None => {
                    rows.push(Compared { subject, points: Default::default() });
                    rows.len() - 1
                }
            };
            rows[row].points[figure][usize::from(link == Link::SharedMemory)] = Some(record);
        }
    }
    rows
}
