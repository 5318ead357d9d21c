//! Published sentences as curves.
//!
//! A sentence with an absolute number ("about 0.2 us per KB") is drawn at the published values. A sentence may state
//! only a form ("the rate grows linearly up to 32, then it is flat"). Such a form is drawn through the first point of
//! the matching curve of the run. A sentence without a number and without a form is not drawn.

use doorbell_claims::{Shape, Testbed};
use doorbell_record::Quantity;
use doorbell_study::experiment::View;

use crate::Run;

/// Published sentence, drawn as a curve.
pub(crate) struct Curve {
    /// Name in the legend.
    pub(crate) name: String,
    pub(crate) quantity: Quantity,
    /// Points: position on the axis, and value in the quantity's unit.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Form of the curve that a sentence describes.
enum Form {
    /// Values at positions.
    Absolute(Quantity, Vec<(f64, f64)>),
    /// Function that is proportional to the run's curve with this name. The curve is drawn from this position on.
    Like(Quantity, &'static str, f64, Box<dyn Fn(f64) -> f64>),
}

/// Returns the positions of a sweep in which each position is twice the one before, and the last one is `most`.
fn doubling(least: f64, most: f64) -> impl Iterator<Item = f64> {
    let double = move |place: &f64| (*place < most).then(|| (2.0 * place).min(most));
    std::iter::successors(Some(least), double)
}

fn flat(quantity: Quantity, (least, most): (f64, f64), value: f64) -> Form {
    Form::Absolute(quantity, doubling(least, most).map(|place| (place, value)).collect())
}

fn like(quantity: Quantity, series: &'static str, of: impl Fn(f64) -> f64 + 'static) -> Form {
    Form::Like(quantity, series, 0.0, Box::new(of))
}

/// Minimum and maximum message size of the published sweeps, in bytes.
const SIZES: (f64, f64) = (16.0, 8192.0);
/// Minimum and maximum number of threads or senders in the published sweeps.
const THREADS: (f64, f64) = (1.0, 32.0);

fn form(testbed: &Testbed, shape: &Shape) -> Option<Form> {
    use Quantity::{MedianLatency, MessageRate, RequestPackets, Throughput};
    let number = |name: &str| shape.number(name);
    Some(match shape.id.as_str() {
        "send-receive/latency-is-a-line" => {
            let (base, per_kib, most) = (number("base_us")?, number("us_per_kib")?, number("to_bytes")?);
            let points = doubling(SIZES.0, most).map(|bytes| (bytes, base + per_kib * bytes / 1024.0));
            Form::Absolute(MedianLatency, points.collect())
        }
        "send-receive/window-linear-then-flat" => {
            let knee = number("knee_window")?;
            like(MessageRate, "one per post", move |window| window.min(knee))
        }
        "send-receive/batch-gains" => {
            let (knee, gain) = (number("knee_batch")?, number("gain")?);
            like(MessageRate, "window 256", move |batch| 1.0 + (gain - 1.0) * (batch.min(knee) - 1.0) / (knee - 1.0))
        }
        "send-receive/batch-linear-where-posts-bind" => {
            let knee = number("knee_batch")?;
            like(MessageRate, "4 posts in flight", move |batch| batch.min(knee))
        }
        "send-receive/single-connection-ceiling" => {
            flat(MessageRate, (number("batch")?, 64.0), number("ceiling_m_per_s")?)
        }
        "send-receive/sequential-is-slow" => {
            flat(Throughput, (SIZES.0, number("to_bytes")?), number("most_share")? * testbed.link_gbps)
        }
        "send-receive/unbatched-is-linear" => like(Throughput, "unbatched", |bytes| bytes),
        "send-receive/threads-are-linear" => like(MessageRate, "16 B", |threads| threads),
        "direct-read/threads-are-linear" => like(MessageRate, "16 B", |threads| threads),
        "send-receive/threads-line-rate" | "send-receive/n-to-1-line-rate" | "direct-read/threads-line-rate" => {
            flat(Throughput, THREADS, testbed.link_gbps)
        }
        "send-receive/srq-needs-throttling" => flat(MessageRate, THREADS, number("rate_m_per_s")?),
        "send-receive/srq-limits" => flat(MessageRate, (2.0, THREADS.1), number("rate_m_per_s")?),
        "direct-read/latency-is-flat" => {
            let row = testbed.rows.iter().find(|row| row.id == "direct-read/latency")?;
            flat(MedianLatency, (SIZES.0, number("to_bytes")?), row.value.in_base() / 1e3)
        }
        "direct-read/fence-is-slower" => {
            Form::Absolute(MedianLatency, vec![(SIZES.0, number("without_us")? + number("longer_us")?)])
        }
        "direct-read/window-of-32" => {
            let form = Box::new(|_| 1.0);
            Form::Like(MessageRate, "unfenced", number("knee_window")?, form)
        }
        "direct-read/n-to-1-small-flat" => like(MessageRate, "16 B", |_| 1.0),
        "wire/acks-are-packets" => flat(RequestPackets, (1.0, 1.0), number("packets")?),
        _ => return None,
    })
}

/// Returns the curve of a published sentence for the plot of its experiment, which also has the curves of the runs.
pub(super) fn curve(testbed: &Testbed, shape: &Shape, runs: &[Run]) -> Option<Curve> {
    curve_beside(testbed, shape, |series, quantity, from| {
        let own = |run: &Run| {
            let mut curve = View::new(&run.records).curve(&shape.experiment, series, quantity);
            curve.retain(|point| point.0 >= from);
            (!curve.is_empty()).then_some((format!("{series} of {}", run.name), curve))
        };
        runs.iter().find_map(own)
    })
}

/// Returns the curve of a published sentence. `own` returns the curve of a run with this series name, for this quantity
/// and from this position on: its name in the legend, and its points.
pub(crate) fn curve_beside(
    testbed: &Testbed,
    shape: &Shape,
    own: impl Fn(&str, Quantity, f64) -> Option<(String, Vec<(f64, f64)>)>,
) -> Option<Curve> {
    let id = &shape.id;
    match form(testbed, shape)? {
        Form::Absolute(quantity, points) => Some(Curve { name: format!("{id} (shape)"), quantity, points }),
        Form::Like(quantity, series, from, of) => {
            let (called, own) = own(series, quantity, from)?;
            let (first, value) = *own.first()?;
            let points = own.iter().map(|&(place, _)| (place, value * of(place) / of(first))).collect();
            Some(Curve { name: format!("{id} (shape, through the first point of {called})"), quantity, points })
        }
    }
}
