//! Figures of repeated measurements, and their goals.

use std::fmt;

/// Goal of a ratio.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    Between(f64, f64),
}

impl Goal {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
            Self::Between(least, most) => (least..=most).contains(&ratio),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::Between(least, most) => write!(f, "between {least} and {most}"),
        }
    }
}

/// Returns median, minimum and maximum; `None` if there are no figures.
pub(crate) fn spread(figures: impl IntoIterator<Item = f64>) -> Option<(f64, f64, f64)> {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    let (least, most) = (*figures.first()?, *figures.last()?);
    let median = if figures.len() % 2 == 1 { figures[middle] } else { (figures[middle - 1] + figures[middle]) / 2.0 };
    Some((median, least, most))
}

/// Minimum number of figures for an [`interval`].
pub(crate) const INTERVAL_FIGURES: u32 = 6;

/// Returns an interval that contains the median of the distribution in at least 95 of 100 cases, for any distribution.
/// Returns `None` for fewer than [`INTERVAL_FIGURES`] figures, whose range contains the median less often.
///
/// The ends of the interval are two of the sorted values, which the binomial distribution determines (inversion of the
/// sign test).
pub(crate) fn interval(figures: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    // `below` is the probability that fewer than k of n values lie below the median. The loop finds the largest k for
    // which this probability is at most 2.5 %.
    let (mut k, mut term, mut below) = (0, 0.5_f64.powi(count as i32), 0.0);
    while k < count / 2 && below + term <= 0.025 {
        below += term;
        k += 1;
        term *= (count + 1 - k) as f64 / k as f64;
    }
    let k = k.checked_sub(1)?;
    Some([sorted[k], sorted[count - 1 - k]])
}

/// Median of ratios, with the interval that holds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    /// As [`interval`] returns it.
    pub(crate) interval: Option<[f64; 2]>,
}

impl Ratio {
    /// Divides figures by those of the same round. Returns `None` if there are none.
    pub(crate) fn of(figures: &[f64], to: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = figures.iter().zip(to).map(|(figure, to)| figure / to).collect();
        let (median, ..) = spread(ratios.iter().copied())?;
        Some(Self { median, interval: interval(&ratios) })
    }

    /// Returns whether the measurement leaves open which figure is larger: the interval holds 1, or there is none.
    pub(crate) fn may_be_one(&self) -> bool {
        self.interval.is_none_or(|[low, high]| low <= 1.0 && high >= 1.0)
    }

    /// Returns the mark of a ratio that may be 1, for tables.
    pub(crate) fn mark(&self) -> &'static str {
        if self.may_be_one() { "~" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_match_the_sign_test() {
        let values: Vec<f64> = (1..=15).map(f64::from).collect();
        // Of 15 values, at most three lie below the median in 1.8 % of cases, at most four in 5.9 %.
        assert_eq!(interval(&values), Some([4.0, 12.0]));
        let values: Vec<f64> = (1..=25).map(f64::from).collect();
        assert_eq!(interval(&values), Some([8.0, 18.0]));
        // All of six values lie on one side of the median in 3.1 % of cases, all of five in 6.3 %.
        assert_eq!(interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Some([1.0, 6.0]));
        assert_eq!(interval(&[1.0, 2.0, 3.0, 4.0, 5.0]), None);
        assert_eq!(interval(&[]), None);
    }

    #[test]
    fn a_ratio_is_marked_unless_its_interval_excludes_one() {
        let ratio = |figures: &[f64]| Ratio::of(figures, &[2.0; 6]).unwrap();
        assert_eq!(ratio(&[4.0, 5.0, 6.0, 7.0, 8.0, 9.0]), Ratio { median: 3.25, interval: Some([2.0, 4.5]) });
        assert_eq!(ratio(&[4.0, 5.0, 6.0, 7.0, 8.0, 9.0]).mark(), "");
        assert_eq!(ratio(&[1.0, 5.0, 6.0, 7.0, 8.0, 9.0]).mark(), "~");
        assert_eq!(ratio(&[0.5, 0.5, 0.5, 0.5, 0.5, 1.0]).mark(), "");
        assert_eq!(ratio(&[4.0, 5.0]).mark(), "~", "two rounds exclude nothing");
        assert_eq!(Ratio::of(&[], &[]), None);
    }

    #[test]
    fn medians_lie_in_the_middle() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread([4.0, 1.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread([]), None);
    }

    #[test]
    fn a_goal_includes_its_bound() {
        assert!(Goal::AtMost(1.15).is_met(1.15) && !Goal::AtMost(1.15).is_met(1.16));
        assert!(Goal::AtLeast(0.85).is_met(0.85) && !Goal::AtLeast(0.85).is_met(0.84));
        assert!(Goal::AtMost(1.5).is_met(1.5) && !Goal::AtMost(1.5).is_met(1.51));
        assert!(Goal::AtLeast(0.95).is_met(0.95) && !Goal::AtLeast(0.95).is_met(0.949));
        let equal = Goal::Between(0.95, 1.05);
        assert_eq!([0.94, 0.95, 1.05, 1.06].map(|ratio| equal.is_met(ratio)), [false, true, true, false]);
        assert_eq!(equal.to_string(), "between 0.95 and 1.05");
    }
}
