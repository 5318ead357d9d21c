//! Questions of a rule to a source, and the meaning of words in sentences.

use std::ops::RangeInclusive;

use crate::tolerance::{ABOUT, ANY, FLAT, LINE_RATE, LINEAR};
use crate::{Cause, Gap, Load, Noise, Quantity, Setting, Shape, Source};

/// Whether values have a shape, and a sentence with the numbers.
pub(super) type Said = Result<(bool, String), Gap>;

/// Points of a curve: pairs of x and y, in the order of x.
pub(super) type Curve = Vec<(f64, f64)>;

/// Message sizes of sweeps over the size, in bytes.
pub(super) const SIZES: RangeInclusive<f64> = 16.0..=8192.0;
/// Numbers of threads or senders in sweeps.
pub(super) const THREADS: RangeInclusive<f64> = 1.0..=32.0;
/// Maximum number of threads or senders if a sentence says "many" without a number.
pub(super) const MANY: f64 = 16.0;

/// Sentence under judgement, with the source of values.
pub(super) struct Asked<'a> {
    shape: &'a Shape,
    source: &'a mut dyn Source,
    noise: Noise,
}

impl<'a> Asked<'a> {
    pub(super) fn new(shape: &'a Shape, source: &'a mut dyn Source) -> Self {
        let noise = source.noise();
        Self { shape, source, noise }
    }

    /// Returns the load of the sentence, without fixed settings.
    pub(super) fn load(&self) -> Load<'a> {
        Load::of(self.shape)
    }

    pub(super) fn load_with(&self, setting: Setting, value: f64) -> Load<'a> {
        self.load().with(setting, value)
    }

    /// Returns a number in the sentence.
    pub(super) fn number(&self, name: &str) -> Result<f64, Gap> {
        self.shape.number(name).ok_or_else(|| Gap::NoValues(format!("the sentence has no number `{name}`")))
    }

    pub(super) fn value(&mut self, load: &Load<'_>, quantity: Quantity) -> Result<f64, Gap> {
        self.source.value(load, quantity)
    }

    /// Returns the messages per second.
    pub(super) fn rate(&mut self, load: &Load<'_>) -> Result<f64, Gap> {
        self.value(load, Quantity::MessageRate)
    }

    pub(super) fn places(
        &mut self,
        load: &Load<'_>,
        axis: Setting,
        range: RangeInclusive<f64>,
    ) -> Result<Vec<f64>, Gap> {
        let places = self.source.places(load, axis, range)?;
        if places.is_empty() { Err(Gap::NoValues(format!("there are no values over {axis:?}"))) } else { Ok(places) }
    }

    /// Returns the points of a curve that the source has. There are at least two.
    pub(super) fn curve(
        &mut self,
        load: &Load<'_>,
        quantity: Quantity,
        axis: Setting,
        range: RangeInclusive<f64>,
    ) -> Result<Curve, Gap> {
        let places = self.places(load, axis, range)?;
        if places.len() < 2 {
            return Err(Gap::NoValues(format!("a curve over {axis:?} needs two points")));
        }
        places.into_iter().map(|x| Ok((x, self.value(&load.with(axis, x), quantity)?))).collect()
    }

    /// Returns the curve of messages per second.
    pub(super) fn rates(&mut self, load: &Load<'_>, axis: Setting, range: RangeInclusive<f64>) -> Result<Curve, Gap> {
        self.curve(load, Quantity::MessageRate, axis, range)
    }

    /// Returns the load with the largest number of connections, up to `most`, and that number.
    pub(super) fn with_many<'l>(&mut self, load: &Load<'l>, most: f64) -> Result<(Load<'l>, f64), Gap> {
        let places = self.places(load, Setting::Connections, 2.0..=most)?;
        let many = places.last().copied().ok_or_else(|| Gap::NoValues("several connections are needed".to_owned()))?;
        Ok((load.with(Setting::Connections, many), many))
    }

    /// Returns the largest ratio of two equal values.
    fn flat(&self) -> f64 {
        FLAT * (1.0 + self.noise.timed)
    }

    /// Returns whether `one` is more than `other`, beyond equality.
    pub(super) fn is_more(&self, one: f64, other: f64) -> bool {
        one > self.flat() * other
    }

    /// Returns whether the ratio of two values is below equality, by however little. The sentence states no amount.
    pub(super) fn is_slower(&self, ratio: f64) -> bool {
        ratio * (1.0 + self.noise.timed) < ANY
    }

    /// Returns whether the ratio of two values is at least `least`.
    pub(super) fn is_at_least(&self, ratio: f64, least: f64) -> bool {
        ratio * (1.0 + self.noise.timed) >= least
    }

    /// Returns whether the ratio of two values is at most `most`.
    pub(super) fn is_at_most(&self, ratio: f64, most: f64) -> bool {
        ratio <= most * (1.0 + self.noise.timed)
    }

    /// Returns whether `found` is about `expected`.
    pub(super) fn is_about(&self, found: f64, expected: f64) -> bool {
        self.is_off_by(found, expected, ABOUT)
    }

    /// Returns whether `found` deviates from `expected` by at most `most`, relative to `expected`.
    pub(super) fn is_off_by(&self, found: f64, expected: f64, most: f64) -> bool {
        (found / expected - 1.0).abs() <= most + self.noise.timed
    }

    /// Returns whether a counted number is `expected`.
    pub(super) fn is_counted(&self, found: f64, expected: f64) -> bool {
        (found / expected - 1.0).abs() <= crate::tolerance::COUNTED + self.noise.counted
    }

    /// Returns whether y grows from one point to the next in proportion to x. `share` is the minimum growth per
    /// doubling, as a share of proportional growth.
    pub(super) fn is_linear(&self, from: (f64, f64), to: (f64, f64), share: f64) -> bool {
        let times = to.0 / from.0;
        self.is_at_least(to.1 / from.1, times * share.powf(times.log2()))
    }

    /// Returns whether no value exceeds the first.
    pub(super) fn is_flat(&self, curve: &[(f64, f64)]) -> bool {
        curve.iter().all(|point| !self.is_more(point.1, curve[0].1))
    }

    /// Returns whether y grows linearly until it no longer grows.
    pub(super) fn is_linear_then_flat(&self, curve: &[(f64, f64)]) -> bool {
        let highest = highest(curve);
        self.is_more(highest, curve[0].1)
            && curve
                .windows(2)
                .all(|pair| self.is_linear(pair[0], pair[1], LINEAR) || !self.is_more(highest, pair[1].1))
    }

    /// Returns whether y grows linearly to at least four times x, and then grows less without falling.
    pub(super) fn is_linear_then_less(&self, curve: &[(f64, f64)]) -> bool {
        let linear = curve.windows(2).take_while(|pair| self.is_linear(pair[0], pair[1], LINEAR)).count();
        curve[linear].0 >= 4.0 * curve[0].0
            && curve[linear..].windows(2).all(|pair| !self.is_more(pair[0].1, pair[1].1))
    }

    /// Returns whether y never grows after its highest value, and ends below it.
    pub(super) fn falls_from_its_highest(&self, curve: &[(f64, f64)]) -> bool {
        let highest = highest(curve);
        let top = curve.iter().position(|point| point.1 >= highest).unwrap_or(0);
        curve[top..].windows(2).all(|pair| !self.is_more(pair[1].1, pair[0].1))
            && self.is_more(highest, curve[curve.len() - 1].1)
    }

    /// Returns whether a share of the line is line rate.
    pub(super) fn is_line_rate(&self, share: f64) -> bool {
        self.is_at_least(share, LINE_RATE)
    }

    /// Returns a share of the line in words.
    pub(super) fn of_line(&self, share: f64) -> String {
        format!("{:.0} % of {}", share * 100.0, self.source.line())
    }

    /// Returns the number of CPUs, if there may be too few.
    pub(super) fn cpus(&self) -> Option<usize> {
        self.source.cpus()
    }

    /// Checks that the source has the cause of a shape. Otherwise the judgement ends without a decision.
    pub(super) fn needs(&self, cause: Cause, because: &str) -> Result<(), Gap> {
        match self.source.lack_of(cause) {
            Some(lack) => Err(Gap::CannotShow(format!("{because}; {lack}"))),
            None => Ok(()),
        }
    }

    /// Returns the judgement of a shape with this cause. A source that lacks the cause gets no negative verdict.
    pub(super) fn unless(&self, cause: Cause, holds: bool, because: String) -> Said {
        if !holds {
            self.needs(cause, &because)?;
        }
        Ok((holds, because))
    }

    /// Checks that the CPUs suffice to double `first` threads on each side.
    pub(super) fn needs_cpus(&self, first: f64, because: &str) -> Result<(), Gap> {
        match self.cpus() {
            Some(cpus) if (cpus as f64) < 4.0 * first => Err(Gap::CannotShow(format!(
                "{because}. Twice as many threads take {:.0} CPUs, since both sides poll, and this machine has {cpus}",
                4.0 * first
            ))),
            _ => Ok(()),
        }
    }

    /// Judges whether messages of `bytes` reach line rate with many threads or senders.
    pub(super) fn reaches_line_rate(&mut self, bytes: f64, load: &Load<'_>) -> Said {
        let (load, many) = self.with_many(&load.with(Setting::Bytes, bytes), MANY)?;
        let share = self.value(&load, Quantity::LineShare)?;
        let because = format!("{many:.0} of {bytes:.0} B: {}", self.of_line(share));
        self.needs(Cause::Line, &because)?;
        Ok((self.is_line_rate(share), because))
    }

    /// Judges whether the rates of messages of 16 B and of 512 B grow with the number of threads as `grows` says.
    pub(super) fn grows_with_threads(&mut self, grows: fn(&Self, &[(f64, f64)]) -> bool) -> Said {
        let (mut holds, mut because, mut first) = (true, Vec::new(), 1.0);
        for bytes in [16.0, 512.0] {
            let rates = self.rates(&self.load_with(Setting::Bytes, bytes), Setting::Connections, THREADS)?;
            holds &= grows(self, &rates);
            first = rates[0].0;
            because.push(format!("{bytes:.0} B, {}", list(&rates, "threads")));
        }
        let because = because.join("; ");
        self.needs_cpus(first, &because)?;
        Ok((holds, because))
    }
}

/// Returns the highest value of a curve.
pub(super) fn highest(curve: &[(f64, f64)]) -> f64 {
    curve.iter().map(|point| point.1).fold(0.0, f64::max)
}

/// Returns the value at `x`.
pub(super) fn at(curve: &[(f64, f64)], x: f64) -> Result<f64, Gap> {
    let point = curve.iter().find(|point| point.0 == x);
    point.map(|point| point.1).ok_or_else(|| Gap::NoValues(format!("there is no value at {x:.0}")))
}

/// Returns the quotients of two curves at their common places. There is at least one.
pub(super) fn of_all(one: &[(f64, f64)], other: &[(f64, f64)]) -> Result<Vec<f64>, Gap> {
    let quotients: Vec<f64> =
        one.iter().filter_map(|point| Some(point.1 / at(other, point.0).ok().filter(|y| *y > 0.0)?)).collect();
    if quotients.is_empty() { Err(Gap::NoValues("two curves have no common place".to_owned())) } else { Ok(quotients) }
}

/// Returns the quotient of two values, of which the second may be too small to measure.
pub(super) fn quotient(one: f64, other: f64) -> Result<f64, Gap> {
    if other > 0.0 { Ok(one / other) } else { Err(Gap::NoValues("a value is too small to compare".to_owned())) }
}

/// Returns a rate in words.
pub(super) fn millions(rate: f64) -> String {
    format!("{} M/s", digits(rate / 1e6))
}

fn digits(number: f64) -> String {
    if number >= 10.0 { format!("{number:.1}") } else { format!("{number:.2}") }
}

/// Returns the rates of a curve in words. `of` names its x.
pub(super) fn list(curve: &[(f64, f64)], of: &str) -> String {
    let all: Vec<String> = curve.iter().map(|point| digits(point.1 / 1e6)).collect();
    format!("{:.0} to {:.0} {of}: {} M/s", curve[0].0, curve[curve.len() - 1].0, all.join(", "))
}
