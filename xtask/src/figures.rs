//! Figures of repeated measurements, and their goals.

use std::fmt;

/// Goal of a ratio.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Goal {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
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

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
