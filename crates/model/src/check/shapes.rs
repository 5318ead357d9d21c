//! Published sentences: whether the model's predictions have the shape that each tells of.
//!
//! A shape is judged with numbers that this file names; they are readings of words such as "about linear", and the
//! same for every testbed.

use doorbell_protocols::Protocol;
use doorbell_published::{Amount, Operation as Said, Receivers, Shape, Subject};

use super::{Lack, bound, operations, workload};
use crate::operation::{Operation, Posted, predict_operation};
use crate::parameters::Parameters;
use crate::predict::{BoundKind, Prediction, predict};
use crate::workload::{Peers, Workload};

/// A published sentence beside what the model says.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedShape<'a> {
    /// What was published.
    pub shape: &'a Shape,
    /// Whether the model has the shape, or what it lacks to say something.
    pub outcome: Result<Judged, Lack>,
}

/// Whether the model has a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// It has.
    pub is_had: bool,
    /// What the model says, in a sentence with its numbers.
    pub because: String,
}

/// "Flat" is a twentieth more at most.
const FLAT: f64 = 1.05;
/// "Linear" grows by this share of what is proportional, or more.
const LINEAR: f64 = 0.9;
/// "About linear" gains this share of what is proportional, or more, whenever the cause doubles.
const ABOUT_LINEAR: f64 = 0.75;
/// "As fast as", "about": a fifth off at most.
const ABOUT: f64 = 0.20;
/// "Line rate" is this share of what the line carries, or more.
const LINE_RATE: f64 = 0.95;
/// "Near line rate" is this share.
const NEAR_LINE_RATE: f64 = 0.7;
/// Sizes of sweeps over size, up to 8 KiB.
const SIZES: [u64; 10] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// Numbers of threads or senders of sweeps.
const THREADS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// One sentence, judged on what the parameters predict.
///
/// # Errors
///
/// The model lacks something that the sentence is about.
pub fn check_shape(shape: &Shape, parameters: Option<&Parameters>) -> Result<Judged, Lack> {
    let parameters = parameters.ok_or(Lack::Parameters)?;
    match &shape.subject {
        Subject::Protocol(name) => {
            let protocol = Protocol::by_name(name).ok_or_else(|| Lack::Protocol(name.clone()))?;
            Messages { shape, parameters, protocol }.judge()
        }
        Subject::Operation(said) => operation(shape, *said, parameters),
        Subject::Store(_) => Err(Lack::Subject("stores on passive memory")),
    }
}

fn judged(is_had: bool, because: String) -> Judged {
    Judged { is_had, because }
}

fn millions(rate: f64) -> String {
    format!("{} M/s", crate::explain::millions(rate))
}

fn is_about(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() <= ABOUT
}

struct Messages<'a> {
    shape: &'a Shape,
    parameters: &'a Parameters,
    protocol: Protocol,
}

impl Messages<'_> {
    /// The configuration as published; of ranges the smallest, which judges replace.
    fn base(&self) -> Result<Workload, Lack> {
        let mut configuration = self.shape.configuration.clone();
        for amount in [
            &mut configuration.bytes,
            &mut configuration.window,
            &mut configuration.batch,
            &mut configuration.threads,
            &mut configuration.connections,
        ] {
            if let Some(Amount::Span(least, _)) = *amount {
                *amount = Some(Amount::Is(least));
            }
        }
        workload(self.protocol, &configuration, None)
    }

    fn predict(&self, workload: Workload) -> Result<Prediction, Lack> {
        Ok(predict(self.parameters, &workload)?)
    }

    fn rate(&self, workload: Workload) -> Result<f64, Lack> {
        Ok(self.predict(workload)?.messages_per_s)
    }

    /// Rates with each of these values.
    fn rates<T: Copy>(&self, values: &[T], with: impl Fn(T) -> Workload) -> Result<Vec<f64>, Lack> {
        values.iter().map(|&value| self.rate(with(value))).collect()
    }

    /// The share of what the line carries of such messages.
    fn line_share(&self, workload: Workload) -> Result<f64, Lack> {
        let prediction = self.predict(workload)?;
        let link = prediction.bound(BoundKind::Link).ok_or(Lack::Parameter("link"))?;
        Ok(prediction.messages_per_s / link.messages_per_s())
    }

    fn number(&self, name: &'static str) -> Result<f64, Lack> {
        self.shape.number(name).ok_or(Lack::Unstated(name))
    }

    /// T threads on each side, or as many senders to one receiver where the configuration has a single one.
    fn threads(&self, base: Workload, count: u32) -> Workload {
        let is_single = self.shape.configuration.receivers == Some(Receivers::Single);
        let receivers = if is_single { 1 } else { count };
        Workload { peers: Peers { senders: count, receivers, connections: count }, ..base }
    }

    fn judge(&self) -> Result<Judged, Lack> {
        let base = self.base()?;
        match self.shape.id.as_str() {
            "send-receive/latency-is-a-line" => self.latency_is_a_line(base),
            "send-receive/window-linear-then-flat" => self.linear_then_flat(base, self.number("knee_window")? as u32),
            "direct-read/window-of-32" => {
                let knee = self.number("knee_window")? as u32;
                let (at, above) =
                    (self.rate(Workload { window: knee, ..base })?, self.rate(Workload { window: 4 * knee, ..base })?);
                let because = format!("window {knee}: {}, {}: {}", millions(at), 4 * knee, millions(above));
                Ok(judged(above <= at * FLAT, because))
            }
            "send-receive/window-gains" => {
                let gain = self.rate(Workload { window: 256, ..base })? / self.rate(Workload { window: 1, ..base })?;
                Ok(judged(gain >= self.number("gain")?, format!("window 256 brings {gain:.1} times window 1")))
            }
            "send-receive/batch-gains" => {
                let batch = self.number("knee_batch")? as u32;
                let gain = self.rate(Workload { batch, ..base })? / self.rate(Workload { batch: 1, ..base })?;
                let is_had = FLAT <= gain && gain <= self.number("gain")?;
                Ok(judged(is_had, format!("{batch} per post bring {gain:.2} times one per post")))
            }
            "send-receive/batch-linear-where-posts-bind" => {
                let knee = self.number("knee_batch")? as u32;
                let batches: Vec<u32> = (0..).map(|power| 1 << power).take_while(|batch| *batch <= knee).collect();
                // Eight posts in flight, however many messages each has.
                let rates = self.rates(&batches, |batch| Workload { batch, window: 8 * batch, ..base })?;
                let is_had = rates.windows(2).all(|pair| pair[1] >= 2.0 * ABOUT_LINEAR * pair[0]);
                Ok(judged(is_had, format!("eight posts in flight, 1 to {knee} per post: {}", list(&rates))))
            }
            "send-receive/batch-flat-above-8" => {
                let knee = self.number("knee_batch")? as u32;
                let rates = self.rates(&[knee, 8 * knee], |batch| Workload { batch, ..base })?;
                Ok(judged(rates[1] <= rates[0] * FLAT, format!("{knee} and {} per post: {}", 8 * knee, list(&rates))))
            }
            "send-receive/batch-wants-window" => {
                let (narrow, wide) = (self.number("narrow_window")? as u32, self.number("wide_window")? as u32);
                let rates = self.rates(&[narrow, wide], |window| Workload { window, ..base })?;
                let because = format!("8 per post, window {narrow} and {wide}: {}", list(&rates));
                Ok(judged(rates[1] > rates[0] * FLAT, because))
            }
            "send-receive/single-connection-ceiling" => {
                let ceiling = 1e6 * self.number("ceiling_m_per_s")?;
                let one = self.rates(&[8, 64], |batch| Workload { batch, ..base })?;
                let several = self.rate(Workload { batch: 8, ..self.threads(base, 16) })?;
                let is_had = one.iter().all(|rate| is_about(*rate, ceiling)) && several >= 2.0 * ceiling;
                let because = format!("one connection: {}; 16: {}", list(&one), millions(several));
                Ok(judged(is_had, because))
            }
            "send-receive/sequential-is-slow" => {
                let share = self.line_share(Workload { bytes: self.number("to_bytes")? as u64, ..base })?;
                Ok(judged(share <= self.number("most_share")?, format!("{:.0} % of line rate", 100.0 * share)))
            }
            "send-receive/unbatched-is-linear" => {
                let mut because = String::new();
                let is_had = self.is_linear_in_size(base, LINEAR, &mut because)?;
                Ok(judged(is_had, because))
            }
            "direct-read/bandwidth-bends" => {
                let mut because = String::new();
                let is_had = self.is_linear_in_size(base, ABOUT_LINEAR, &mut because)?;
                let end = self.line_share(Workload { bytes: 1 << 16, ..base })?;
                because += &format!("; 64 KiB: {:.0} %", 100.0 * end);
                Ok(judged(is_had && end >= LINE_RATE, because))
            }
            "send-receive/batched-is-steeper" => {
                let most = self.number("to_bytes")? as u64;
                let sizes: Vec<u64> = SIZES.into_iter().filter(|bytes| *bytes <= most).collect();
                let batched = self.rates(&sizes, |bytes| Workload { bytes, ..base })?;
                let plain = self.rates(&sizes, |bytes| Workload { bytes, window: 64, batch: 1, ..base })?;
                let least = batched.iter().zip(&plain).map(|(one, other)| one / other).fold(f64::INFINITY, f64::min);
                Ok(judged(least > FLAT, format!("at least {least:.2} times unbatched up to {most} B")))
            }
            "send-receive/large-beats-batch" => {
                let batch = self.number("batch")? as u32;
                let mut least = f64::INFINITY;
                for bytes in SIZES.into_iter().filter(|bytes| *bytes <= 512) {
                    let small = self.predict(Workload { bytes, batch, ..base })?.bytes_per_s;
                    let bytes = bytes * u64::from(batch);
                    let large = self.predict(Workload { bytes, batch: 1, ..base })?.bytes_per_s;
                    least = least.min(large / small);
                }
                Ok(judged(
                    least > 1.0,
                    format!("at least {least:.2} times the bytes per second of {batch} in one post"),
                ))
            }
            "send-receive/poll-lists-gain" => {
                let lists = Workload { receive_batch: self.number("poll_list")? as u32, ..base };
                let gain = self.rate(lists)? / self.rate(Workload { receive_batch: 1, ..base })?;
                let binding = self.predict(lists)?.bottleneck().binding.kind;
                Ok(judged(is_about(gain, self.number("gain")?), format!("{gain:.2} times; {binding} binds")))
            }
            "send-receive/receiver-never-binds" => {
                let mut kinds = Vec::new();
                for workload in [Workload::sequential(16), Workload::unbatched(16), Workload::batched(16)] {
                    let Workload { window, batch, depth, .. } = workload;
                    let alone = Workload { window, batch, depth, receive_batch: 1, repost_batch: 1, ..base };
                    kinds.push(self.predict(alone)?.bottleneck().binding.kind);
                }
                let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
                let because = format!("sequential, unbatched and batched: {} bind", names.join(", "));
                Ok(judged(!kinds.contains(&BoundKind::ReceivingCpu), because))
            }
            "send-receive/inline-is-faster" => {
                let inline = self.predict(Workload { inline_bytes: 64, ..base })?.latency_ns;
                let fetched = self.predict(Workload { inline_bytes: 0, ..base })?.latency_ns;
                let because = format!(
                    "{inline:.0} ns inline, {fetched:.0} ns fetched by the NIC, for which no time is published"
                );
                Ok(judged(inline < fetched, because))
            }
            "send-receive/batch-saves-cpu" => {
                let (window, most) = (self.number("window")? as u32, self.number("batch")? as u32);
                let cpu = |batch| {
                    let prediction = self.predict(Workload { window, batch, ..base })?;
                    Ok::<f64, Lack>(bound(&prediction, BoundKind::SendingCpu, "CPU time of a send")?.ns_per_message)
                };
                let (alone, listed) = (cpu(1)?, cpu(most)?);
                let because = format!("{alone:.0} ns per message alone, {listed:.0} ns in lists of {most}");
                Ok(judged(listed * FLAT < alone, because))
            }
            "send-receive/inline-costs-cpu" => Err(Lack::Feature("the model has no CPU time for copying inline data")),
            "send-receive/events-save-cpu" => Err(Lack::Feature("the model's ends poll: it has no interrupts")),
            "send-receive/threads-are-linear" | "direct-read/threads-are-linear" => {
                let mut because = Vec::new();
                let mut is_had = true;
                for bytes in [16, 512] {
                    let rates = self.rates(&THREADS, |count| self.threads(Workload { bytes, ..base }, count))?;
                    is_had &= is_linear_then_flat(&rates);
                    because.push(format!("{bytes} B, 1 to 32 threads: {}", list(&rates)));
                }
                Ok(judged(is_had, because.join("; ")))
            }
            "send-receive/threads-line-rate" | "send-receive/n-to-1-line-rate" | "direct-read/threads-line-rate" => {
                let bytes = self.number("bytes")? as u64;
                let share = self.line_share(self.threads(Workload { bytes, ..base }, 16))?;
                Ok(judged(share >= LINE_RATE, format!("16 threads: {:.0} % of line rate", 100.0 * share)))
            }
            "send-receive/threads-small-beat-512" => {
                let rates = self.rates(&[16, 512], |bytes| self.threads(Workload { bytes, ..base }, 32))?;
                Ok(judged(rates[0] >= self.number("gain")? * rates[1], format!("16 and 512 B: {}", list(&rates))))
            }
            "send-receive/srq-thread-hurts" => {
                let of = |repost_thread| Workload { repost_thread, ..self.threads(base, 16) };
                let rates = self.rates(&[true, false], of)?;
                Ok(judged(rates[0] * FLAT < rates[1], format!("by a thread and under a lock: {}", list(&rates))))
            }
            "send-receive/srq-needs-throttling" | "send-receive/srq-limits" => {
                let rate = self.rate(self.threads(base, 16))?;
                let is_had = is_about(rate, 1e6 * self.number("rate_m_per_s")?);
                Ok(judged(is_had, format!("16 senders: {}", millions(rate))))
            }
            "send-receive/srq-short-is-free" | "send-receive/srq-one-pair-is-free" => {
                let (bytes, count) = match self.shape.number("to_bytes") {
                    Some(most) => (most as u64, 16),
                    None => (base.bytes, 1),
                };
                let of = |srq| self.threads(Workload { srq, bytes, ..base }, count);
                let rates = self.rates(&[true, false], of)?;
                Ok(judged(is_about(rates[0], rates[1]), format!("shared and own receives: {}", list(&rates))))
            }
            "send-receive/srq-does-not-decline" => {
                let rates = self.rates(&THREADS, |count| self.threads(base, count))?;
                let is_had = rates.windows(2).all(|pair| pair[1] * FLAT >= pair[0]);
                Ok(judged(is_had, format!("1 to 32 senders: {}", list(&rates))))
            }
            "send-receive/srq-unsuitable-between" => {
                let (from, to) = (self.number("from_bytes")? as u64, self.number("line_bytes")? as u64);
                let mut gains = Vec::new();
                for bytes in [from, 512, 4096, to] {
                    let of = |srq| self.threads(Workload { srq, bytes, ..base }, 16);
                    gains.push(self.rate(of(true))? / self.rate(of(false))?);
                }
                let is_slow = gains[..3].iter().all(|gain| gain * FLAT < 1.0);
                let shares: Vec<String> = gains.iter().map(|gain| format!("{gain:.2}")).collect();
                let because = format!("{from}, 512, 4096 and {to} B: {} times own receives", shares.join(", "));
                Ok(judged(is_slow && gains[3] * FLAT >= 1.0, because))
            }
            "send-receive/n-to-1-falls" => {
                let mut because = Vec::new();
                let mut is_had = true;
                for bytes in [16, 512] {
                    let rates = self.rates(&THREADS, |count| self.threads(Workload { bytes, ..base }, count))?;
                    // From where one sender no longer binds.
                    is_had &= rates[1..].is_sorted_by(|before, after| before > after);
                    let many = self.threads(Workload { bytes, ..base }, 32);
                    let binding = self.predict(many)?.bottleneck().binding.kind;
                    is_had &= binding == BoundKind::ReceivingCpu;
                    because.push(format!("{bytes} B, 1 to 32 senders: {}; {binding} binds", list(&rates)));
                }
                Ok(judged(is_had, because.join("; ")))
            }
            "send-receive/n-to-1-16-slower-than-512" => {
                let rates = self.rates(&[16, 512], |bytes| self.threads(Workload { bytes, ..base }, 16))?;
                Ok(judged(rates[0] < rates[1], format!("16 senders, 16 and 512 B: {}", list(&rates))))
            }
            "send-receive/n-to-1-one-queue" => Err(Lack::Feature("the model has one completion queue per thread")),
            "send-receive/rnr-hurts" | "send-receive/rnr-is-many-to-one" | "send-receive/credits-prevent-rnr" => {
                Err(Lack::Feature("the model has no RNR NAK and no back-off"))
            }
            "direct-read/latency-is-flat" => {
                let most = self.number("to_bytes")? as u64;
                let latency = |bytes| Ok::<f64, Lack>(self.predict(Workload { bytes, ..base })?.latency_ns);
                let growth = latency(most)? / latency(16)? - 1.0;
                Ok(judged(growth <= ABOUT, format!("{:.0} % more at {most} B", 100.0 * growth)))
            }
            "direct-read/fence-is-slower" => {
                let fenced = self.predict(base)?.latency_ns;
                let plain = self.predict(Workload { protocol: Protocol::DirectRead, ..base })?.latency_ns;
                let (longer, without) = (self.number("longer_us")? * 1e3, self.number("without_us")? * 1e3);
                let is_had = is_about(fenced - plain, longer) && is_about(plain, without);
                Ok(judged(is_had, format!("{:.2} us with, {:.2} us without", fenced / 1e3, plain / 1e3)))
            }
            "direct-read/fence-serialises" => {
                let mut least = f64::INFINITY;
                for bytes in SIZES {
                    let fenced = self.rate(Workload { bytes, ..base })?;
                    let plain = self.rate(Workload { bytes, protocol: Protocol::DirectRead, ..base })?;
                    least = least.min(plain / fenced);
                }
                Ok(judged(least >= 2.0, format!("without a fence at least {least:.1} times as much")))
            }
            "direct-read/n-to-1-small-flat" => {
                let rates = self.rates(&THREADS, |count| self.threads(base, count))?;
                let is_had = rates.iter().all(|rate| *rate <= rates[0] * FLAT);
                Ok(judged(is_had, format!("1 to 32 senders: {}", list(&rates))))
            }
            "direct-read/n-to-1-large-gains" => {
                let of = |count| self.threads(base, count);
                let gain = self.rate(of(16))? / self.rate(of(1))?;
                let share = self.line_share(of(16))?;
                let because = format!("16 senders bring {gain:.2} times one, {:.0} % of line rate", 100.0 * share);
                Ok(judged((1.02..=1.6).contains(&gain) && share >= LINE_RATE, because))
            }
            _ => Err(Lack::Feature("nobody has written down how to judge this sentence")),
        }
    }

    fn latency_is_a_line(&self, base: Workload) -> Result<Judged, Lack> {
        let most = self.number("to_bytes")? as u64;
        let latency = |bytes| Ok::<f64, Lack>(self.predict(Workload { bytes, ..base })?.latency_ns);
        let (first, last) = (latency(16)?, latency(most)?);
        let slope = (last - first) / (most - 16) as f64;
        let mut off = 0.0_f64;
        for bytes in SIZES {
            off = off.max((latency(bytes)? / (first + slope * (bytes - 16) as f64) - 1.0).abs());
        }
        let (base_us, per_kib) = (self.number("base_us")?, self.number("us_per_kib")?);
        let (found, slope) = (first / 1e3, slope * 1.024);
        let is_had = off <= 0.02 && is_about(found, base_us) && is_about(slope, per_kib);
        let because = format!("{found:.2} us and {slope:.3} us per KiB, {:.1} % off a line at most", 100.0 * off);
        Ok(judged(is_had, because))
    }

    fn linear_then_flat(&self, base: Workload, knee: u32) -> Result<Judged, Lack> {
        let windows: Vec<u32> = (0..).map(|power| 1 << power).take_while(|window| *window <= 8 * knee).collect();
        let rates = self.rates(&windows, |window| Workload { window, ..base })?;
        let last = windows.iter().position(|window| *window == knee).unwrap_or(0);
        let is_linear =
            windows[..=last].iter().zip(&rates).all(|(window, rate)| *rate >= LINEAR * f64::from(*window) * rates[0]);
        let is_flat = rates[last..].iter().all(|rate| *rate <= rates[last] * FLAT);
        Ok(judged(is_linear && is_flat, format!("windows 1 to {}: {}", 8 * knee, list(&rates))))
    }

    /// Does throughput grow with the size until it is near line rate?
    fn is_linear_in_size(&self, base: Workload, share: f64, because: &mut String) -> Result<bool, Lack> {
        let mut is_linear = true;
        let mut shares = Vec::new();
        for bytes in SIZES {
            let before = self.predict(Workload { bytes: bytes / 2, ..base })?.bytes_per_s;
            let now = self.predict(Workload { bytes, ..base })?.bytes_per_s;
            let of_line = self.line_share(Workload { bytes, ..base })?;
            is_linear &= of_line >= NEAR_LINE_RATE || now >= 2.0 * share * before;
            shares.push(format!("{:.0}", 100.0 * of_line));
        }
        *because = format!("16 to 8192 B: {} % of line rate", shares.join(", "));
        Ok(is_linear)
    }
}

fn list(rates: &[f64]) -> String {
    let all: Vec<String> = rates.iter().map(|rate| crate::explain::millions(*rate)).collect();
    format!("{} M/s", all.join(", "))
}

/// Whenever the number doubles the rate does so too, until it no longer grows.
fn is_linear_then_flat(rates: &[f64]) -> bool {
    let highest = rates.iter().copied().fold(0.0, f64::max);
    rates.windows(2).all(|pair| pair[1] >= 2.0 * LINEAR * pair[0] || pair[1] >= highest / FLAT)
}

fn operation(shape: &Shape, said: Said, parameters: &Parameters) -> Result<Judged, Lack> {
    let number = |name: &'static str| shape.number(name).ok_or(Lack::Unstated(name));
    match (shape.id.as_str(), said) {
        ("wire/acks-are-packets", _) => {
            let mut is_had = true;
            for operation in [Operation::Write, Operation::Read] {
                for bytes in [0, 1] {
                    let packets = operations::packets(&Posted::new(operation, bytes, 1), parameters)?;
                    is_had &= packets == (number("packets")?, number("packets")?);
                }
            }
            Ok(judged(is_had, "WRITEs and READs of 0 and 1 B have one packet each way".to_owned()))
        }
        ("wire/acks-coalesce", _) => {
            let one = operations::packets(&Posted::new(Operation::RequestResponse, 1, 1), parameters)?.0;
            let because =
                format!("{one} packets per operation however many are outstanding: no acknowledgement covers two");
            Ok(judged(false, because))
        }
        ("far-memory/one-address-is-slow", _) => {
            let mut rates = Vec::new();
            for connections in [4, number("connections")? as u32] {
                let posted = Posted { connections, threads: connections, ..Posted::new(Operation::CompareSwap, 8, 64) };
                rates.push(predict_operation(parameters, &posted)?.messages_per_s);
            }
            let is_had = rates.iter().all(|rate| is_about(*rate, 1e6 * shape.number("rate_m_per_s").unwrap_or(0.0)));
            Ok(judged(is_had, format!("4 and 20 queue pairs: {}", list(&rates))))
        }
        ("wire/send-looks-like-ack", _) => {
            let (send, ack) = operations::frames(&Posted::new(Operation::Send, 1, 1), parameters)?;
            let is_had = send == ack && send == number("bytes")?;
            Ok(judged(is_had, format!("SEND of 1 B: {send} B, ACK: {ack} B")))
        }
        ("far-memory/atomics-are-slow", _) => {
            let pairs = number("connections")? as u32;
            let rate = |operation| {
                let posted = Posted::new(operation, 8, 64);
                let posted = Posted { connections: pairs, threads: pairs, addresses: pairs, ..posted };
                Ok::<Prediction, Lack>(predict_operation(parameters, &posted)?)
            };
            let (cas, read) = (rate(Operation::CompareSwap)?, rate(Operation::Read)?);
            let because = format!(
                "{pairs} queue pairs: CAS {}, READ {}; {} binds",
                millions(cas.messages_per_s),
                millions(read.messages_per_s),
                read.bottleneck().binding.kind
            );
            Ok(judged(cas.messages_per_s * FLAT < read.messages_per_s, because))
        }
        ("far-memory/order-within-a-pair" | "far-memory/unreliable-have-no-order", _) => {
            Err(Lack::Quantity("order in which requests of different queue pairs arrive"))
        }
        ("far-memory/long-reads-tear", _) => Err(Lack::Quantity("contents of memory")),
        _ => Err(Lack::Feature("nobody has written down how to judge this sentence")),
    }
}
