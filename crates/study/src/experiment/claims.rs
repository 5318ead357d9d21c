//! What is published of each experiment, and how the data are held against it.
//!
//! The figures come from an evaluation on ConnectX-5 RNICs over 100 Gb/s Ethernet ("the testbed" below). Where
//! line rate is meant, the highest throughput of any configuration stands for it here: loopback has no
//! rate of its own. Rates and latencies are the best of each point's repetitions, since other programs
//! only ever slow one down.

pub(super) use super::judge::Claim;
use super::judge::{Judgement, cannot, holds_if, knee, line};
use super::quantity::Quantity::{self, MedianLatency, MessageRate, RnrNaks, Throughput};
use super::view::{View, best};

/// Ratios closer to 1 than this are no difference: runs vary by as much.
const NOISE: f64 = 1.1;

const SOFT_DOORBELL: &str =
    "posting to a software RNIC writes no doorbell register over PCIe, which is what a list saves";

pub(super) const LATENCY: &[Claim] = &[Claim {
    published: "latency is a base of a little over 2 us plus a time per byte (0.2 us/KB): a straight line",
    judge: |view| straight(view, "send-receive/latency", "ping-pong"),
}];

fn straight(view: View<'_>, experiment: &str, series: &str) -> Option<Judgement> {
    let curve = view.best_curve(experiment, series, MedianLatency);
    let (base, slope, worst) = line(&curve)?;
    let because = format!(
        "a line of {base:.1} us + {:.2} us/KB fits all {} sizes within {:.0} %",
        slope * 1000.0,
        curve.len(),
        worst * 100.0
    );
    holds_if(worst <= 0.35 && slope > 0.0, because)
}

/// How one curve compares with another at a place: the other is 1.
fn ratio(view: View<'_>, experiment: &str, series: [&str; 2], quantity: Quantity, x: f64) -> Option<f64> {
    let [one, other] = series.map(|series| view.best_at(experiment, series, quantity, x));
    Some(one? / other?)
}

pub(super) const DIRECT_READ_LATENCY: &[Claim] = &[
    Claim {
        published: "latency is about flat up to 1 KiB",
        judge: |view| {
            let curve = view.best_curve("direct-read/latency", "unfenced", MedianLatency);
            let growth = at(&curve, 512.0)? / at(&curve, 16.0)?;
            holds_if(growth <= 1.2, format!("512 B take {growth:.2} times as long as 16 B"))
        },
    },
    Claim {
        published: "with a fence a message takes nearly 3 us longer: half as long again",
        judge: |view| {
            let longer = ratio(view, "direct-read/latency", ["fenced", "unfenced"], MedianLatency, 16.0)?;
            holds_if(longer >= 1.25, format!("16 B take {longer:.2} times as long"))
        },
    },
];

pub(super) const DIRECT_READ_BANDWIDTH: &[Claim] = &[
    Claim {
        published: "a fence lets READs no longer overlap: drastically less goes through",
        judge: |view| {
            let series = ["fenced, unbatched", "unfenced, unbatched"];
            let share = ratio(view, "direct-read/bandwidth", series, MessageRate, 512.0)?;
            holds_if(share <= 0.6, format!("512 B reach {:.0} % of the rate without", share * 100.0))
        },
    },
    Claim {
        published: "1:1 throughput grows linearly with the size, then less than that, up to line rate",
        judge: |view| {
            let curve = view.best_curve("direct-read/bandwidth", "unfenced, unbatched", Throughput);
            let (small, large) = (at(&curve, 512.0)? / at(&curve, 16.0)?, at(&curve, 8192.0)? / at(&curve, 512.0)?);
            let because = format!("{small:.0}-fold from 16 to 512 B, {large:.1}-fold from there to 8192 B");
            // Linear would be 32 and 16.
            holds_if(small >= 20.0 && large <= 12.0, because)
        },
    },
];

pub(super) const DIRECT_READ_WINDOW: &[Claim] = &[Claim {
    published: "nothing is gained by more than 32 unacknowledged messages",
    judge: |view| {
        let curve = view.best_curve("direct-read/window", "unfenced", MessageRate);
        let (at_32, most) = (at(&curve, 32.0)?, knee(&curve, 1.0)?.1);
        holds_if(
            most <= at_32 * NOISE,
            format!("the most that any window gives is {:.2} times that of 32", most / at_32),
        )
    },
}];

pub(super) const DIRECT_READ_THREADS: &[Claim] = &[Claim {
    published: "8192 B: line rate",
    judge: |view| {
        let most = knee(&view.best_curve("direct-read/threads", "8192 B", Throughput), 1.0)?.1;
        cannot(format!("{most:.1} Gb/s at best; loopback has no line rate, and the CPUs copy every byte"))
    },
}];

pub(super) const DIRECT_READ_N_TO_1: &[Claim] = &[
    Claim {
        published: "more senders do not help small messages: the receiving CPU limits them",
        judge: |view| {
            let (gain, because) = gain_of_senders(view, "16 B")?;
            holds_if(gain <= NOISE, because)
        },
    },
    Claim {
        published: "more senders help large messages a little, up to line rate",
        judge: |view| {
            let (gain, because) = gain_of_senders(view, "8192 B")?;
            holds_if((1.02..=1.6).contains(&gain), because)
        },
    },
];

/// What the most senders of Direct-Read reach, by what the fewest do.
fn gain_of_senders(view: View<'_>, series: &str) -> Option<(f64, String)> {
    let curve = view.best_curve("direct-read/n-to-1", series, MessageRate);
    let ((first, few), (last, many)) = (*curve.first()?, *curve.last()?);
    let gain = many / few;
    (last > first).then(|| (gain, format!("{last:.0} senders reach {gain:.2} times the rate of {first:.0}")))
}

const WINDOW: &str = "send-receive/window";
pub(super) const WINDOWS: &[Claim] = &[
    Claim {
        published: "16 B: the rate grows linearly up to 32 unacknowledged messages, then it is flat",
        judge: |view| {
            let curve = view.best_curve(WINDOW, "one per post", MessageRate);
            let (one, at_32) = (at(&curve, 1.0)?, at(&curve, 32.0)?);
            let (knee, most) = knee(&curve, 0.9)?;
            let because = format!(
                "32 unacknowledged give {:.1} times the rate of one, the most that any window gives is {:.1} times, and \
                 90 % of that are reached at {knee:.0}",
                at_32 / one,
                most / one
            );
            holds_if(at_32 / one >= 16.0 && most / at_32 <= 1.25, because)
        },
    },
    Claim {
        published: "many unacknowledged messages bring five times the rate of one at a time, or more",
        judge: |view| {
            let curve = view.best_curve(WINDOW, "one per post", MessageRate);
            let (one, (knee, most)) = (at(&curve, 1.0)?, knee(&curve, 1.0)?);
            holds_if(most / one >= 5.0, format!("{:.1} times at a window of {knee:.0}", most / one))
        },
    },
];

const BATCH: &str = "send-receive/batch";
pub(super) const BATCHES: &[Claim] = &[
    Claim {
        published: "16 B: the rate grows about linearly up to 8 messages per post",
        judge: |view| {
            let curve = view.best_curve(BATCH, "window 256", MessageRate);
            let gain = at(&curve, 8.0)? / at(&curve, 1.0)?;
            let because = format!("8 per post give {gain:.2} times the rate of one per post");
            match gain >= 4.0 {
                true => holds_if(true, because),
                false if view.is_soft() => cannot(format!("{because}; {SOFT_DOORBELL}")),
                false => holds_if(false, because),
            }
        },
    },
    Claim {
        published: "more than 8 per post gain nothing",
        judge: |view| {
            let curve = view.best_curve(BATCH, "window 256", MessageRate);
            let (at_8, (best, most)) = (at(&curve, 8.0)?, knee(&curve, 1.0)?);
            let because = format!("the best batch is {best:.0}, with {:.2} times the rate of 8", most / at_8);
            holds_if(most / at_8 <= 1.15, because)
        },
    },
];

const BANDWIDTH: &str = "send-receive/bandwidth";

/// The highest throughput of all sizes and configurations.
fn ceiling(view: View<'_>) -> Option<f64> {
    view.of(BANDWIDTH).filter_map(|record| best(record, Throughput)).reduce(f64::max)
}

pub(super) const BANDWIDTHS: &[Claim] = &[
    Claim {
        published: "one message at a time never comes near line rate",
        judge: |view| {
            let share = knee(&view.best_curve(BANDWIDTH, "sequential", Throughput), 1.0)?.1 / ceiling(view)?;
            let because = format!("at best {:.0} % of the highest throughput of any configuration", share * 100.0);
            holds_if(share < 0.7, because)
        },
    },
    Claim {
        published: "64 unacknowledged: throughput grows linearly with the size until near line rate",
        judge: |view| {
            let curve = view.best_curve(BANDWIDTH, "unbatched", Throughput);
            let most = ceiling(view)?;
            let (first, last) = (curve.first()?, curve.iter().take_while(|point| point.1 < 0.6 * most).last()?);
            if last.0 <= first.0 {
                return None;
            }
            let (growth, sizes) = (last.1 / first.1, last.0 / first.0);
            let because = format!(
                "from {:.0} B to {:.0} B, {sizes:.0} times as long, throughput grows {growth:.0}-fold; at its best it \
                 reaches {:.0} % of the highest of all",
                first.0,
                last.0,
                knee(&curve, 1.0)?.1 / most * 100.0
            );
            holds_if(growth >= 0.6 * sizes, because)
        },
    },
    Claim {
        published: "eight per post are faster for small messages",
        judge: |view| {
            let (batched, unbatched) = (
                view.best_curve(BANDWIDTH, "batched", MessageRate),
                view.best_curve(BANDWIDTH, "unbatched", MessageRate),
            );
            let ratios: Vec<f64> = batched
                .iter()
                .filter(|point| point.0 <= 1024.0)
                .filter_map(|point| Some(point.1 / at(&unbatched, point.0)?))
                .collect();
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            if ratios.is_empty() {
                return None;
            }
            holds_if(mean >= NOISE, format!("{mean:.2} times as many messages on average up to 1 KiB"))
        },
    },
];

pub(super) const LARGE_OR_BATCH: &[Claim] = &[Claim {
    published: "one large message beats the same bytes as a list of small ones",
    judge: |view| {
        let name = "send-receive/large-or-batch";
        let (one, eight) =
            (view.best_curve(name, "one message", Throughput), view.best_curve(name, "list of 8", Throughput));
        let ratios: Option<Vec<f64>> = one.iter().map(|point| Some(point.1 / at(&eight, point.0)?)).collect();
        let ratios = ratios.filter(|ratios| !ratios.is_empty())?;
        let wins = ratios.iter().filter(|ratio| **ratio >= NOISE).count();
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let because = format!("faster at {wins} of {} lengths, {most:.1} times at most", ratios.len());
        holds_if(wins * 2 > ratios.len(), because)
    },
}];

const RECEIVE: &str = "send-receive/receive-batching";
pub(super) const RECEIVE_BATCHING: &[Claim] = &[
    Claim {
        published: "taking up to 32 completions per poll brings nearly half as much again (in microbenchmarks)",
        judge: |view| {
            let curve = view.best_curve(RECEIVE, "reposted in lists", MessageRate);
            let gain = at(&curve, 32.0)? / at(&curve, 1.0)?;
            holds_if(gain >= 1.2, format!("{gain:.2} times the rate of taking them one by one"))
        },
    },
    Claim {
        published: "1:1 the receiver is never the bottleneck, even without receive batching",
        judge: |view| {
            let slow = at(&view.best_curve(RECEIVE, "reposted one by one", MessageRate), 1.0)?;
            let fast = at(&view.best_curve(RECEIVE, "reposted in lists", MessageRate), 32.0)?;
            let because = format!("without any batching {:.0} % of the rate with it", slow / fast * 100.0);
            holds_if(fast / slow <= NOISE, because)
        },
    },
];

pub(super) const INLINE: &[Claim] = &[Claim {
    published: "inline data shortens the latency of very small messages",
    judge: |view| {
        let name = "send-receive/inline";
        let without = at(&view.best_curve(name, "not inline", MedianLatency), 16.0)?;
        let gain = without / at(&view.best_curve(name, "inline", MedianLatency), 16.0)?;
        let because = format!("16 B take {:.0} % longer without", (gain - 1.0) * 100.0);
        match gain >= 1.03 {
            true => holds_if(true, because),
            false if view.is_soft() => {
                cannot(format!("{because}; what inline data save, a read over PCIe, a software RNIC never does"))
            }
            false => holds_if(false, because),
        }
    },
}];

const THREADS: &str = "send-receive/threads";

fn scaling(view: View<'_>) -> Option<Judgement> {
    let curve = view.best_curve(THREADS, "16 B", MessageRate);
    let ((first, one), (last, most)) = (*curve.first()?, *curve.last()?);
    if last <= first {
        return None;
    }
    let because = format!("{last:.0} threads send {:.2} times as many messages of 16 B as {first:.0}", most / one);
    let cpus = view.cpus();
    if (cpus as f64) < 4.0 * first {
        return cannot(format!(
            "{because}; twice as many threads take {:.0} CPUs, since both sides poll, and here are {cpus}",
            4.0 * first
        ));
    }
    holds_if(most / one >= 0.6 * last / first, because)
}

pub(super) const THREADS_CLAIMS: &[Claim] = &[
    Claim { published: "small messages: the rate grows linearly with threads up to a ceiling", judge: scaling },
    Claim {
        published: "8192 B: line rate",
        judge: |view| {
            let most = knee(&view.best_curve(THREADS, "8192 B", Throughput), 1.0)?.1;
            cannot(format!("{most:.1} Gb/s at best; loopback has no line rate, and the CPUs copy every byte"))
        },
    },
    Claim {
        published: "16 B reach more than twice the messages/s of 512 B",
        judge: |view| {
            let small = knee(&view.best_curve(THREADS, "16 B", MessageRate), 1.0)?.1;
            let ratio = small / knee(&view.best_curve(THREADS, "512 B", MessageRate), 1.0)?.1;
            let because = format!("{ratio:.2} times at best");
            match ratio >= 2.0 {
                true => holds_if(true, because),
                false if view.is_soft() => cannot(format!(
                    "{because}; on the testbed 512 B fill the line (594 line bytes each, 21 million per second), and loopback \
                     has none"
                )),
                false => holds_if(false, because),
            }
        },
    },
];

const SHARED: &str = "send-receive/threads-srq";
pub(super) const THREADS_SRQ: &[Claim] = &[
    Claim {
        published: "a single reposting thread holds shared receives back",
        judge: |view| {
            let lock = view.best_curve(SHARED, "16 B, lock", MessageRate);
            let (x, by_lock) = *lock.last()?;
            let gain = by_lock / view.best_at(SHARED, "16 B, thread", MessageRate, x)?;
            let because = format!("under a lock, 16 B at {x:.0} threads reach {gain:.2} times the rate");
            let few = if gain >= NOISE && view.cpus() < 3 {
                format!("; but with {} CPUs that thread takes its CPU from those that send and receive", view.cpus())
            } else {
                String::new()
            };
            holds_if(gain >= NOISE, because + &few)
        },
    },
    Claim {
        published: "senders must be held to about 1.8 M messages/s, or shared receives provoke RNR NAKs",
        judge: |view| {
            let naks: Vec<f64> = view.of(SHARED).filter_map(|record| Some(record.spread(RnrNaks)?.most)).collect();
            let most = naks.iter().copied().reduce(f64::max)?;
            let because = format!(
                "{} without any limit on senders: credits grant no more than is posted",
                if most == 0.0 { "not one RNR NAK".to_owned() } else { format!("up to {most:.0} RNR NAKs/s") }
            );
            holds_if(most > 0.0, because)
        },
    },
];

const GATHER: &str = "send-receive/n-to-1";
pub(super) const N_TO_1: &[Claim] = &[
    Claim {
        published: "small messages: the rate falls as senders are added",
        judge: |view| {
            let curve = view.best_curve(GATHER, "16 B, single receiver", MessageRate);
            let ((first, few), (last, many)) = (*curve.first()?, *curve.last()?);
            if last <= first {
                return None;
            }
            let because = format!("{last:.0} senders reach {:.0} % of the rate of {first:.0}", many / few * 100.0);
            holds_if(many * NOISE <= few, because)
        },
    },
    Claim {
        published: "16 B are slower than 512 B, since inline receives cost the polling CPU",
        judge: |view| {
            let curve = view.best_curve(GATHER, "16 B, single receiver", MessageRate);
            let &(senders, small) = curve.last()?;
            let ratio = small / view.best_at(GATHER, "512 B, single receiver", MessageRate, senders)?;
            let because = format!("with {senders:.0} senders 16 B reach {ratio:.2} times the messages/s of 512 B");
            match ratio < 1.0 {
                true => holds_if(true, because),
                false if view.is_soft() => {
                    cannot(format!("{because}; the software RNIC puts no data into completions"))
                }
                false => holds_if(false, because),
            }
        },
    },
    Claim {
        published: "one completion queue for all senders beats polling theirs in turn",
        judge: |view| {
            let curve = view.best_curve(GATHER, "16 B, single receiver", MessageRate);
            let &(senders, single) = curve.last()?;
            let ratio = single / view.best_at(GATHER, "16 B, in turn", MessageRate, senders)?;
            holds_if(ratio >= NOISE, format!("{ratio:.2} times the rate with {senders:.0} senders of 16 B"))
        },
    },
];

const GATHER_SHARED: &str = "send-receive/n-to-1-srq";

/// Messages/s with a shared receive queue over those without, at the most senders that both have.
fn shared_share(view: View<'_>, bytes: &str) -> Option<(f64, f64)> {
    let shared = view.best_curve(GATHER_SHARED, &format!("{bytes}, shared"), MessageRate);
    let own = view.best_curve(GATHER, &format!("{bytes}, single receiver"), MessageRate);
    shared.iter().rev().find_map(|&(senders, rate)| Some((senders, rate / at(&own, senders)?)))
}

pub(super) const N_TO_1_SRQ: &[Claim] = &[
    Claim {
        published: "up to 32 B a shared receive queue is as fast as buffers of each connection's own",
        judge: |view| {
            let (senders, share) = shared_share(view, "16 B")?;
            let because = format!("with {senders:.0} senders of 16 B {:.0} % of that rate", share * 100.0);
            holds_if(share * NOISE >= 1.0, because)
        },
    },
    Claim {
        published: "above 32 B a shared receive queue holds several senders to about 2 M messages/s",
        judge: |view| {
            let (senders, share) = shared_share(view, "512 B")?;
            let because = format!(
                "with {senders:.0} senders of 512 B {:.0} % of the rate with buffers of their own",
                share * 100.0
            );
            match share * 1.25 < 1.0 {
                true => holds_if(true, because),
                false if view.is_soft() => {
                    cannot(format!("{because}; the limit is that of an RNIC's hardware, and this one is software"))
                }
                false => holds_if(false, because),
            }
        },
    },
];

const RNR: &str = "send-receive/rnr";

/// Of the highest rate offered: goodput and RNR NAKs per second.
fn overload(view: View<'_>, series: &str) -> Option<(f64, f64)> {
    let goodput = *view.best_curve(RNR, series, MessageRate).last()?;
    Some((goodput.1, view.best_at(RNR, series, RnrNaks, goodput.0)?))
}

pub(super) const RNR_CLAIMS: &[Claim] = &[
    Claim {
        published: "a sender that outruns the receiver provokes RNR NAKs and a long back-off: goodput falls",
        judge: |view| {
            let share = |senders: &str| {
                let (without, naks) = overload(view, &format!("{senders}, none"))?;
                Some((without / overload(view, &format!("{senders}, credits"))?.0, naks))
            };
            let ((one, naks), (eight, _)) = (share("1 sender")?, share("8 senders")?);
            let because = format!(
                "at the highest rate offered {naks:.0} RNR NAKs/s, and {:.0} % of the goodput that credits give with one \
                 sender, {:.0} % with eight",
                one * 100.0,
                eight * 100.0
            );
            holds_if(naks > 0.0 && one * NOISE < 1.0, because)
        },
    },
    Claim {
        published: "RNR NAKs are above all a matter of many senders to one receiver",
        judge: |view| {
            let ((_, one), (_, eight)) = (overload(view, "1 sender, none")?, overload(view, "8 senders, none")?);
            let because = format!("{one:.0} RNR NAKs/s with one sender, {eight:.0} with eight");
            holds_if(eight > one * NOISE, because)
        },
    },
    Claim {
        published: "a sender that knows how many receives are posted provokes none",
        judge: |view| {
            let most = ["1 sender, credits", "8 senders, credits"]
                .into_iter()
                .flat_map(|series| view.of(RNR).filter(move |record| record.series == series))
                .filter_map(|record| Some(record.spread(RnrNaks)?.most))
                .reduce(f64::max)?;
            holds_if(most == 0.0, format!("with credits {most:.0} RNR NAKs/s in every repetition at most"))
        },
    },
];

/// The value of a curve at a place that was measured.
fn at(curve: &[(f64, f64)], x: f64) -> Option<f64> {
    curve.iter().find(|point| point.0 == x).map(|point| point.1)
}
