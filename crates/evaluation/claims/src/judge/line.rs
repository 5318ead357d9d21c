//! Straight line through a curve.

/// Line `base + slope * x`.
pub(super) struct Line {
    pub(super) base: f64,
    pub(super) slope: f64,
    /// Maximum relative deviation of a point from the line.
    pub(super) worst: f64,
}

impl Line {
    /// Fits a line such that the sum of squared relative errors is minimal. Returns `None` for fewer than three points.
    pub(super) fn fit(curve: &[(f64, f64)]) -> Option<Self> {
        if curve.len() < 3 || curve.iter().any(|point| point.1 <= 0.0) {
            return None;
        }
        // The weights 1/y^2 make errors relative.
        let sum = |term: fn(f64, f64) -> f64| -> f64 { curve.iter().map(|&(x, y)| term(x, y) / (y * y)).sum() };
        let (w, wx, wy) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|_, y| y));
        let (wxx, wxy) = (sum(|x, _| x * x), sum(|x, y| x * y));
        let determinant = w * wxx - wx * wx;
        if determinant <= 0.0 {
            return None;
        }
        let slope = (w * wxy - wx * wy) / determinant;
        let base = (wy - slope * wx) / w;
        let worst = curve.iter().map(|&(x, y)| ((base + slope * x - y) / y).abs()).fold(0.0, f64::max);
        Some(Self { base, slope, worst })
    }
}
