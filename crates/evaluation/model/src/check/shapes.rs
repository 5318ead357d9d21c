//! Judgement of published sentences: whether predictions have the described shape.
//!
//! The constants of this file define words such as "about linear". The same constants hold for every testbed and every
//! predictor.

use doorbell_protocols::Protocol;
use doorbell_published::{Amount, Receivers, Shape, Subject};

use super::configured::{manner, operation, workload};
use super::{Lack, Manner, Needed, Predictor, Rated};
use crate::operation::{Posted, PostedOperation};
use crate::workload::{Peers, Workload};

/// Judgement whether predictions agree with a sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Whether the predictions have the shape.
    pub is_had: bool,
    /// Sentence with the predicted numbers on which the judgement rests.
    pub because: String,
}

/// "Flat": maximum growth, as a factor.
const FLAT: f64 = 1.05;
/// "Linear": minimum growth per doubling, as a share of proportional growth.
const LINEAR: f64 = 0.9;
/// "About linear": minimum growth per doubling, as a share of proportional growth.
const ABOUT_LINEAR: f64 = 0.75;
/// "As fast as", "about": maximum relative deviation.
const ABOUT: f64 = 0.20;
/// "Line rate": minimum share of the line's capacity.
const LINE_RATE: f64 = 0.95;
/// "Near line rate": minimum share of the line's capacity.
const NEAR_LINE_RATE: f64 = 0.7;
/// Message sizes of sweeps over the size, in bytes.
const SIZES: [u64; 10] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
/// Numbers of threads or senders in sweeps.
const THREADS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Number of threads or senders if a sentence says "many" without a number.
const MANY: u32 = 16;

/// Judges one sentence by the predictions.
pub(super) fn judge(shape: &Shape, by: &mut dyn Predictor) -> Result<Judged, Lack> {
    match &shape.subject {
        Subject::Protocol(name) => {
            let protocol = Protocol::by_name(name).ok_or_else(|| Lack::Protocol(name.clone()))?;
            Messages { shape, by, protocol, manner: manner(&shape.configuration) }.judge()
        }
        Subject::Operation(_) => of_operations(shape, by),
        Subject::Store(_) => Err(Lack::Subject("stores on passive memory")),
    }
}

/// Returns `base` with `count` threads on each side. If the configuration has a single receiver, the result has `count`
/// senders to one receiver.
fn threads(shape: &Shape, base: Workload, count: u32) -> Workload {
    let is_single = shape.configuration.receivers == Some(Receivers::Single);
    let peers = if is_single { Peers::many_to_one(count) } else { Peers::pairs(count) };
    Workload { peers, ..base }
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
    by: &'a mut dyn Predictor,
    protocol: Protocol,
    manner: Manner,
}

impl Messages<'_> {
    /// Returns the published configuration with the smallest value of each range. The judge of each sentence replaces
    /// the value that it varies.
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

    fn rated(&mut self, workload: Workload) -> Result<Rated, Lack> {
        self.by.rate(&workload, self.manner)
    }

    fn rate(&mut self, workload: Workload) -> Result<f64, Lack> {
        self.rated(workload).map(|rated| rated.messages_per_s)
    }

    fn bytes_per_s(&mut self, workload: Workload) -> Result<f64, Lack> {
        Ok(self.rate(workload)? * workload.bytes as f64)
    }

    fn latency(&mut self, workload: Workload) -> Result<f64, Lack> {
        self.by.latency_ns(&workload)
    }

    /// Returns the rate of the workload `with(value)` for each value.
    fn rates<T: Copy>(&mut self, values: &[T], with: impl Fn(T) -> Workload) -> Result<Vec<f64>, Lack> {
        values.iter().map(|&value| self.rate(with(value))).collect()
    }

    /// Returns the rate of the workload as a share of the rate that the line can carry.
    fn line_share(&mut self, workload: Workload) -> Result<f64, Lack> {
        Ok(self.rate(workload)? / self.by.line_rate(&workload)?)
    }

    fn number(&self, name: &'static str) -> Result<f64, Lack> {
        self.shape.number(name).ok_or(Lack::Unstated(name))
    }

    fn judge(&mut self) -> Result<Judged, Lack> {
        let base = self.base()?;
        let shape = self.shape;
        let threads = |workload, count| threads(shape, workload, count);
        match shape.id.as_str() {
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
                let is_had = FLAT <= gain && gain <= (1.0 + ABOUT) * self.number("gain")?;
                Ok(judged(is_had, format!("{batch} per post bring {gain:.2} times one per post")))
            }
            "send-receive/batch-linear-where-posts-bind" => {
                let knee = self.number("knee_batch")? as u32;
                let batches: Vec<u32> = (0..).map(|power| 1 << power).take_while(|batch| *batch <= knee).collect();
                // The window grows with the batch, so eight posts are in flight at each batch.
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
                let several = self.rate(Workload { batch: 8, ..threads(base, 16) })?;
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
                    let small = self.bytes_per_s(Workload { bytes, batch, ..base })?;
                    let bytes = bytes * u64::from(batch);
                    let large = self.bytes_per_s(Workload { bytes, batch: 1, ..base })?;
                    least = least.min(large / small);
                }
                Ok(judged(
                    least > 1.0,
                    format!("at least {least:.2} times the bytes per second of {batch} in one post"),
                ))
            }
            "send-receive/poll-lists-gain" => {
                let lists = Workload { receive_batch: self.number("poll_list")? as u32, ..base };
                let Rated { messages_per_s, binding, .. } = self.rated(lists)?;
                let gain = messages_per_s / self.rate(Workload { receive_batch: 1, ..base })?;
                Ok(judged(is_about(gain, self.number("gain")?), format!("{gain:.2} times; {binding} binds")))
            }
            "send-receive/receiver-never-binds" => {
                let mut bindings = Vec::new();
                for workload in [Workload::sequential(16), Workload::unbatched(16), Workload::batched(16)] {
                    let Workload { window, batch, depth, .. } = workload;
                    let alone = Workload { window, batch, depth, receive_batch: 1, repost_batch: 1, ..base };
                    bindings.push(self.rated(alone)?.binding);
                }
                let names: Vec<&str> = bindings.iter().map(|binding| binding.name).collect();
                let because = format!("sequential, unbatched and batched: {} bind", names.join(", "));
                Ok(judged(bindings.iter().all(|binding| !binding.is_receiving_cpu), because))
            }
            "send-receive/inline-is-faster" => {
                let inline = self.latency(Workload { inline_bytes: 64, ..base })?;
                let fetched = self.latency(Workload { inline_bytes: 0, ..base })?;
                let because = format!("{inline:.0} ns inline, {fetched:.0} ns fetched by the NIC");
                Ok(judged(inline < fetched, because))
            }
            "send-receive/batch-saves-cpu" => {
                let (window, most) = (self.number("window")? as u32, self.number("batch")? as u32);
                let alone = self.by.sending_cpu_ns(&Workload { window, batch: 1, ..base })?;
                let listed = self.by.sending_cpu_ns(&Workload { window, batch: most, ..base })?;
                let because = format!("{alone:.0} ns per message alone, {listed:.0} ns in lists of {most}");
                Ok(judged(listed * FLAT < alone, because))
            }
            "send-receive/inline-costs-cpu" => {
                self.by.has(Needed::InlineCopies)?;
                let inline = self.by.sending_cpu_ns(&Workload { inline_bytes: base.bytes, ..base })?;
                let fetched = self.by.sending_cpu_ns(&Workload { inline_bytes: 0, ..base })?;
                let because = format!("{inline:.0} ns per message inline, {fetched:.0} ns fetched by the NIC");
                Ok(judged(inline > fetched, because))
            }
            "send-receive/events-save-cpu" => {
                self.by.has(Needed::Interrupts)?;
                Err(Lack::Feature("no predictor covers the CPU time of sleeping ends"))
            }
            "send-receive/threads-are-linear" | "direct-read/threads-are-linear" => {
                // Only the rates of Send-Receive must grow linearly up to their ceiling. The rates of Direct-Read grow
                // less than linearly before their ceiling.
                let is_ceiling = self.protocol == Protocol::SendReceive;
                let mut because = Vec::new();
                let mut is_had = true;
                for bytes in [16, 512] {
                    let rates = self.rates(&THREADS, |count| threads(Workload { bytes, ..base }, count))?;
                    is_had &= if is_ceiling { is_linear_then_flat(&rates) } else { is_linear_then_less(&rates) };
                    because.push(format!("{bytes} B, 1 to 32 threads: {}", list(&rates)));
                }
                Ok(judged(is_had, because.join("; ")))
            }
            "send-receive/threads-line-rate" | "send-receive/n-to-1-line-rate" | "direct-read/threads-line-rate" => {
                let bytes = self.number("bytes")? as u64;
                let share = self.line_share(threads(Workload { bytes, ..base }, 16))?;
                Ok(judged(share >= LINE_RATE, format!("16 threads: {:.0} % of line rate", 100.0 * share)))
            }
            "send-receive/threads-small-beat-512" => {
                let rates = self.rates(&[16, 512], |bytes| threads(Workload { bytes, ..base }, 32))?;
                Ok(judged(rates[0] >= self.number("gain")? * rates[1], format!("16 and 512 B: {}", list(&rates))))
            }
            "send-receive/srq-thread-hurts" => {
                let of = |repost_thread| Workload { repost_thread, ..threads(base, 16) };
                let rates = self.rates(&[true, false], of)?;
                Ok(judged(rates[0] * FLAT < rates[1], format!("by a thread and under a lock: {}", list(&rates))))
            }
            "send-receive/srq-needs-throttling" | "send-receive/srq-limits" => {
                let rate = self.rate(threads(base, 16))?;
                let is_had = is_about(rate, 1e6 * self.number("rate_m_per_s")?);
                Ok(judged(is_had, format!("16 senders: {}", millions(rate))))
            }
            "send-receive/srq-short-is-free" | "send-receive/srq-one-pair-is-free" => {
                let (bytes, count) = match self.shape.number("to_bytes") {
                    Some(most) => (most as u64, 16),
                    None => (base.bytes, 1),
                };
                let of = |srq| threads(Workload { srq, bytes, ..base }, count);
                let rates = self.rates(&[true, false], of)?;
                Ok(judged(is_about(rates[0], rates[1]), format!("shared and own receives: {}", list(&rates))))
            }
            "send-receive/srq-does-not-decline" => {
                let rates = self.rates(&THREADS, |count| threads(base, count))?;
                let is_had = rates.windows(2).all(|pair| pair[1] * FLAT >= pair[0]);
                Ok(judged(is_had, format!("1 to 32 senders: {}", list(&rates))))
            }
            "send-receive/srq-unsuitable-between" => {
                let (from, to) = (self.number("from_bytes")? as u64, self.number("line_bytes")? as u64);
                let sizes = [from, 512, 4096, to, 8192];
                let mut gains = Vec::new();
                for bytes in sizes {
                    let of = |srq| threads(Workload { srq, bytes, ..base }, MANY);
                    gains.push(self.rate(of(true))? / self.rate(of(false))?);
                }
                let is_slow = gains[..3].iter().all(|gain| gain * FLAT < 1.0);
                let is_free = is_about(gains[3], 1.0) && gains[4] * FLAT >= 1.0;
                let of_sizes = sizes.map(|bytes| bytes.to_string()).join(", ");
                let shares: Vec<String> = gains.iter().map(|gain| format!("{gain:.2}")).collect();
                Ok(judged(is_slow && is_free, format!("{of_sizes} B: {} times own receives", shares.join(", "))))
            }
            "send-receive/n-to-1-falls" => {
                let mut because = Vec::new();
                let mut is_had = true;
                for bytes in [16, 512] {
                    let rates = self.rates(&THREADS, |count| threads(Workload { bytes, ..base }, count))?;
                    is_had &= falls_from_its_highest(&rates);
                    let many = threads(Workload { bytes, ..base }, 32);
                    let binding = self.rated(many)?.binding;
                    is_had &= binding.is_receiving_cpu;
                    because.push(format!("{bytes} B, 1 to 32 senders: {}; {binding} binds", list(&rates)));
                }
                Ok(judged(is_had, because.join("; ")))
            }
            "send-receive/n-to-1-16-slower-than-512" => {
                let rates = self.rates(&[16, 512], |bytes| threads(Workload { bytes, ..base }, 16))?;
                Ok(judged(rates[0] < rates[1], format!("16 senders, 16 and 512 B: {}", list(&rates))))
            }
            "send-receive/n-to-1-one-queue" => {
                self.by.has(Needed::CompletionQueues)?;
                let many = threads(base, MANY);
                let manner = |one_queue| Manner { one_queue, ..self.manner };
                let manners = [true, false].map(manner);
                let [one, each] = manners.map(|manner| self.by.rate(&many, manner));
                let rates = [one?.messages_per_s, each?.messages_per_s];
                let because = format!("{MANY} senders, one queue and one for each: {}", list(&rates));
                Ok(judged(rates[0] > rates[1], because))
            }
            "send-receive/rnr-hurts" => {
                let [free, held] = self.outrunning(base, [false, true])?;
                let because = format!(
                    "{MANY} senders to one receiver: {} with {} RNR NAKs, {} held to the highest rate without",
                    millions(free.messages_per_s),
                    free.rnr_naks,
                    millions(held.messages_per_s)
                );
                Ok(judged(free.rnr_naks > 0 && free.messages_per_s * FLAT < held.messages_per_s, because))
            }
            "send-receive/rnr-is-many-to-one" => {
                self.by.has(Needed::RnrNaks)?;
                let naks = |rated: Rated| rated.rnr_naks;
                let (one, many) = (threads(base, 1), threads(base, MANY));
                let (one, many) = (self.rated(one).map(naks)?, self.rated(many).map(naks)?);
                Ok(judged(one == 0 && many > 0, format!("{one} RNR NAKs of one sender, {many} of {MANY}")))
            }
            "send-receive/credits-prevent-rnr" => {
                let [with, _] = self.outrunning(base, [false, false])?;
                let [without, _] = self.outrunning(Workload { credits: false, ..base }, [false, false])?;
                let (with, without) = (with.rnr_naks, without.rnr_naks);
                let because =
                    format!("{MANY} senders to one receiver: {with} RNR NAKs with credits, {without} without");
                Ok(judged(with == 0 && without > 0, because))
            }
            "direct-read/latency-is-flat" => {
                let most = self.number("to_bytes")? as u64;
                let longest = self.latency(Workload { bytes: most, ..base })?;
                let growth = longest / self.latency(Workload { bytes: 16, ..base })? - 1.0;
                Ok(judged(growth <= ABOUT, format!("{:.0} % more at {most} B", 100.0 * growth)))
            }
            "direct-read/fence-is-slower" => {
                let fenced = self.latency(base)?;
                let plain = self.latency(Workload { protocol: Protocol::DirectRead, ..base })?;
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
                let rates = self.rates(&THREADS, |count| threads(base, count))?;
                let is_had = rates.iter().all(|rate| *rate <= rates[0] * FLAT);
                Ok(judged(is_had, format!("1 to 32 senders: {}", list(&rates))))
            }
            "direct-read/n-to-1-large-gains" => {
                let of = |count| threads(base, count);
                let gain = self.rate(of(16))? / self.rate(of(1))?;
                let share = self.line_share(of(16))?;
                let because = format!("16 senders bring {gain:.2} times one, {:.0} % of line rate", 100.0 * share);
                Ok(judged((1.02..=1.6).contains(&gain) && share >= LINE_RATE, because))
            }
            _ => Err(UNKNOWN),
        }
    }

    /// Returns the rates of many senders to one receiver with one completion queue. `is_paced` selects the highest
    /// rate without RNR NAKs.
    fn outrunning(&mut self, base: Workload, is_paced: [bool; 2]) -> Result<[Rated; 2], Lack> {
        self.by.has(Needed::RnrNaks)?;
        let many = Workload { peers: Peers::many_to_one(MANY), ..base };
        let [first, second] = is_paced.map(|is_paced| self.by.rate(&many, Manner { is_paced, one_queue: true }));
        Ok([first?, second?])
    }

    fn latency_is_a_line(&mut self, base: Workload) -> Result<Judged, Lack> {
        let most = self.number("to_bytes")? as u64;
        let mut latency = |bytes| self.latency(Workload { bytes, ..base });
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

    /// Judges whether the rate grows linearly up to the window `knee` and is flat from there. Sweeps double the window,
    /// so the smallest sufficient window lies between half of the knee and the knee.
    fn linear_then_flat(&mut self, base: Workload, knee: u32) -> Result<Judged, Lack> {
        let windows: Vec<u32> = (0..).map(|power| 1 << power).take_while(|window| *window <= 8 * knee).collect();
        let rates = self.rates(&windows, |window| Workload { window, ..base })?;
        let last = windows.iter().position(|window| *window == knee).unwrap_or(0);
        let is_linear =
            windows[..last].iter().zip(&rates).all(|(window, rate)| *rate >= LINEAR * f64::from(*window) * rates[0]);
        let is_flat = rates[last..].iter().all(|rate| *rate <= rates[last] * FLAT);
        Ok(judged(is_linear && is_flat, format!("windows 1 to {}: {}", 8 * knee, list(&rates))))
    }

    /// Returns whether throughput grows with the size until it is near line rate.
    fn is_linear_in_size(&mut self, base: Workload, share: f64, because: &mut String) -> Result<bool, Lack> {
        let mut is_linear = true;
        let mut shares = Vec::new();
        for bytes in SIZES {
            let before = self.bytes_per_s(Workload { bytes: bytes / 2, ..base })?;
            let now = self.bytes_per_s(Workload { bytes, ..base })?;
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

/// Returns whether each rate doubles the previous rate until the rates no longer grow.
fn is_linear_then_flat(rates: &[f64]) -> bool {
    let highest = rates.iter().copied().fold(0.0, f64::max);
    rates.windows(2).all(|pair| pair[1] >= 2.0 * LINEAR * pair[0] || pair[1] >= highest / FLAT)
}

/// Returns whether the rate doubles in at least the first two steps, and then grows less without falling.
fn is_linear_then_less(rates: &[f64]) -> bool {
    let linear = rates.windows(2).take_while(|pair| pair[1] >= 2.0 * LINEAR * pair[0]).count();
    linear >= 2 && rates[linear..].windows(2).all(|pair| pair[1] * FLAT >= pair[0])
}

/// Returns whether the rate never grows after its highest value, and the last rate is below the highest value.
fn falls_from_its_highest(rates: &[f64]) -> bool {
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let top = rates.iter().position(|rate| *rate >= highest).unwrap_or(0);
    rates[top..].is_sorted_by(|before, after| before >= after) && rates.last().is_some_and(|last| last * FLAT < highest)
}

fn of_operations(shape: &Shape, by: &mut dyn Predictor) -> Result<Judged, Lack> {
    let Subject::Operation(said) = shape.subject else { return Err(Lack::Subject("anything else")) };
    let number = |name: &'static str| shape.number(name).ok_or(Lack::Unstated(name));
    // Each queue pair has its own thread.
    let over = |operation, connections: u32, addresses| Posted {
        connections,
        threads: connections,
        addresses,
        ..Posted::new(operation, 8, IN_FLIGHT)
    };
    match shape.id.as_str() {
        "wire/acks-are-packets" => {
            let mut is_had = true;
            for operation in [PostedOperation::Write, PostedOperation::Read] {
                for bytes in [0, 1] {
                    let packets = by.packets(&Posted::new(operation, bytes, 1))?;
                    is_had &= (packets.packets_in, packets.packets_out) == (number("packets")?, number("packets")?);
                }
            }
            Ok(judged(is_had, "WRITEs and READs of 0 and 1 B have one packet each way".to_owned()))
        }
        "wire/acks-coalesce" => {
            let mut packets = Vec::new();
            for window in OUTSTANDING {
                packets.push(by.packets(&Posted::new(operation(said), 1, window))?.packets_in);
            }
            let range = number("least")?..=number("most")?;
            let is_had = packets.iter().all(|packets| range.contains(packets)) && packets[3] * FLAT < packets[0];
            let packets: Vec<String> = packets.iter().map(|packets| format!("{packets:.2}")).collect();
            let because = format!("1, 8, 32 and 64 outstanding: {} packets per operation each way", packets.join(", "));
            Ok(judged(is_had, because))
        }
        "far-memory/one-address-is-slow" => {
            let rate = 1e6 * number("rate_m_per_s")?;
            let mut rates = Vec::new();
            for connections in [4, number("connections")? as u32] {
                rates.push(by.operations(&over(PostedOperation::CompareSwap, connections, 1))?.messages_per_s);
            }
            let is_had = rates.iter().all(|found| is_about(*found, rate));
            Ok(judged(is_had, format!("4 and 20 queue pairs: {}", list(&rates))))
        }
        "wire/send-looks-like-ack" => {
            let (send, ack) = by.packets(&Posted::new(PostedOperation::Send, 1, 1))?.frames();
            let is_had = send == ack && send == number("bytes")?;
            Ok(judged(is_had, format!("SEND of 1 B: {send} B, ACK: {ack} B")))
        }
        "far-memory/atomics-are-slow" => {
            let pairs = number("connections")? as u32;
            let cas = by.operations(&over(PostedOperation::CompareSwap, pairs, pairs))?;
            let read = by.operations(&over(PostedOperation::Read, pairs, pairs))?;
            let because = format!(
                "{pairs} queue pairs: CAS {}, READ {}; {} binds",
                millions(cas.messages_per_s),
                millions(read.messages_per_s),
                read.binding
            );
            Ok(judged(cas.messages_per_s * FLAT < read.messages_per_s, because))
        }
        "far-memory/order-within-a-pair" | "far-memory/unreliable-have-no-order" => {
            Err(Lack::Quantity("the order in which requests of different queue pairs arrive"))
        }
        "far-memory/cas-has-a-ceiling" => Err(Lack::Quantity("operations outstanding over several queue pairs")),
        "far-memory/long-reads-tear" => Err(Lack::Quantity("contents of memory")),
        _ => Err(UNKNOWN),
    }
}

/// Number of outstanding operations per queue pair if a sentence gives no number. A queue pair has fewer in flight.
const IN_FLIGHT: u32 = 64;
/// Numbers of outstanding requests in the published measurements of request-response.
const OUTSTANDING: [u32; 4] = [1, 8, 32, 64];
/// Reason for a sentence about which this file has no judge.
const UNKNOWN: Lack = Lack::Feature("no judge of this sentence exists");
