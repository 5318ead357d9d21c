//! Identifiability of parameters and of their sums.

use nalgebra::{DMatrix, DVector};

use crate::cost::{Cost, TERMS, Term, Values};
use crate::parameters::{Batchable, Parameters};

/// Share of the largest singular value below which a singular value counts as zero.
const SINGULAR: f64 = 1e-6;
/// Maximum share of a quantity's gradient that lies in directions which the data does not determine. If the share is
/// larger, the quantity counts as undetermined.
const UNSEEN: f64 = 1e-4;
/// Maximum ratio of the upper to the lower end of an interval. Wider intervals are not reported.
const WIDEST: f64 = 4.0;
/// Minimum relative noise that the fit assumes for a measurement.
const FINEST: f64 = 0.002;
/// Maximum number of parameters in a sum.
const MOST_SUMMANDS: u32 = 6;

/// Unit of an [`Estimate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Ns,
    /// Nanoseconds per byte.
    NsPerByte,
}

impl Unit {
    /// Returns the symbol of the unit.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Ns => "ns",
            Unit::NsPerByte => "ns/B",
        }
    }
}

/// Value and uncertainty of a parameter, or of a sum of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Name as in parameter files; the names of a sum are joined by ` + `.
    pub name: String,
    /// Estimated value.
    pub value: f64,
    /// Unit of the value.
    pub unit: Unit,
    /// 95 % confidence interval under the assumption that the model is right. `None` if the data does not separate the
    /// parameter from others. Without an interval, the value means nothing.
    pub interval: Option<(f64, f64)>,
}

/// Singular values and directions of the Jacobian at one optimum, in the space of logarithms.
pub(super) struct View<'a> {
    free: &'a [usize],
    /// Values at the optimum.
    values: Values,
    /// Whether any figure depends on the term, for each free term.
    is_seen: Vec<bool>,
    /// Right singular vectors as rows.
    directions: DMatrix<f64>,
    strengths: DVector<f64>,
    least_strength: f64,
    rank: usize,
    /// Standard deviation of the logarithm of a figure. `None` if there are no more figures than determined directions.
    noise: Option<f64>,
    /// Half of the width of a confidence interval, in standard deviations.
    quantile: f64,
}

impl<'a> View<'a> {
    pub(super) fn of(jacobian: &DMatrix<f64>, errors: &DVector<f64>, free: &'a [usize], values: Values) -> Self {
        // Add rows until there are at least as many rows as columns, so that every direction has a singular value.
        let rows = jacobian.nrows().max(jacobian.ncols());
        let svd = jacobian.clone().resize_vertically(rows, 0.0).svd(false, true);
        let directions = svd.v_t.unwrap_or_else(|| DMatrix::identity(free.len(), free.len()));
        let strengths = svd.singular_values;
        let least_strength = (strengths.max() * SINGULAR).max(f64::MIN_POSITIVE);
        let rank = strengths.iter().filter(|&&strength| strength > least_strength).count();
        let spare = errors.len().saturating_sub(rank);
        let noise = (spare > 0).then(|| (errors.norm_squared() / spare as f64).sqrt().max(FINEST));
        let is_seen = jacobian.column_iter().map(|column| column.iter().any(|slope| *slope != 0.0)).collect();
        let quantile = student_95(spare);
        Self { free, values, is_seen, directions, strengths, least_strength, rank, noise, quantile }
    }

    /// Returns whether any figure depends on a cost.
    fn sees(&self, cost: &Cost) -> bool {
        self.free.iter().zip(&self.is_seen).any(|(&term, is_seen)| *is_seen && cost.coefficients[term] != 0.0)
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the maximum growth of the sum of squared errors that noise can explain.
    pub(super) fn indistinguishable(&self) -> f64 {
        self.noise.map_or(f64::INFINITY, |noise| (self.quantile * noise).powi(2))
    }

    /// Returns the confidence interval of a cost, or `None` if the data does not determine the cost.
    fn interval(&self, cost: &Cost) -> Option<(f64, f64)> {
        let noise = self.noise?;
        let value = cost.ns(&self.values);
        // Derivatives of the cost's logarithm with respect to the logarithms of the terms.
        let gradient = DVector::from_iterator(
            self.free.len(),
            self.free.iter().map(|&term| cost.coefficients[term] * self.values[term] / value),
        );
        let along = &self.directions * &gradient;
        let (mut unseen, mut variance) = (0.0, 0.0);
        for (component, &strength) in along.iter().zip(self.strengths.iter()) {
            if strength > self.least_strength {
                variance += (component * noise / strength).powi(2);
            } else {
                unseen += component * component;
            }
        }
        let half = self.quantile * variance.sqrt();
        let is_known = unseen <= UNSEEN * UNSEEN * gradient.norm_squared() && half.is_finite();
        is_known.then(|| (value * (-half).exp(), value * half.exp()))
    }
}

/// All optima that explain the data as well as the best optimum. The best optimum is the first.
pub(super) struct Knowledge<'a>(pub(super) Vec<View<'a>>);

impl Knowledge<'_> {
    /// Returns the confidence interval of a cost, or `None` if an optimum does not determine the cost or the optima
    /// disagree.
    fn interval(&self, cost: &Cost) -> Option<(f64, f64)> {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for view in &self.0 {
            let (least, most) = view.interval(cost)?;
            (low, high) = (low.min(least), high.max(most));
        }
        (high <= low * WIDEST).then_some((low, high))
    }
}

/// Returns half of the width of the 95 % interval of Student's t distribution. A table contains the values for few
/// degrees of freedom. For more degrees, the function uses the first terms of the expansion around the normal
/// distribution.
fn student_95(degrees: usize) -> f64 {
    const TABLE: [f64; 5] = [12.706, 4.303, 3.182, 2.776, 2.571];
    match degrees {
        0 => f64::INFINITY,
        1..=5 => TABLE[degrees - 1],
        _ => {
            let (z, n) = (1.959_964_f64, degrees as f64);
            let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
            let terms = [
                z,
                (z3 + z) / 4.0,
                (5.0 * z5 + 16.0 * z3 + 3.0 * z) / 96.0,
                (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / 384.0,
            ];
            terms.iter().rev().fold(0.0, |sum, term| sum / n + term)
        }
    }
}

/// Parameter with its name in parameter files.
struct Quantity {
    name: &'static str,
    unit: Unit,
    cost: Cost,
}

/// Returns all parameters that are fitted, which are the parameters that are not zero in the base.
fn quantities(parameters: &Parameters) -> Vec<Quantity> {
    let mut all = Vec::with_capacity(TERMS);
    let share = 1.0 / f64::from(parameters.batch);
    let mut both = |names: [&'static str; 2], Batchable { batched, .. }, once, each| {
        let mut add = |name, share| {
            let cost = Cost::ZERO.with(once, share).with(each, 1.0);
            all.push(Quantity { name, unit: Unit::Ns, cost });
        };
        add(names[0], 1.0);
        if batched.is_some() {
            add(names[1], share);
        }
    };
    both(["o_snd_ns.single", "o_snd_ns.batched"], parameters.o_snd_ns, Term::SendPost, Term::SendEach);
    both(["o_rcv_ns.single", "o_rcv_ns.batched"], parameters.o_rcv_ns, Term::ReceivePoll, Term::ReceiveEach);
    both(["o_post_ns.single", "o_post_ns.batched"], parameters.o_post_ns, Term::RepostList, Term::RepostEach);
    for (name, unit, term) in [
        ("o_nsnd_ns", Unit::Ns, Term::NicSend),
        ("o_nrcv_ns", Unit::Ns, Term::NicReceive),
        ("dma_read_ns", Unit::Ns, Term::DmaRead),
        ("o_list_ns", Unit::Ns, Term::ListFetch),
        ("o_copy_ns_per_byte", Unit::NsPerByte, Term::CopyPerByte),
        ("o_run_ns", Unit::Ns, Term::Run),
        ("l_ns", Unit::Ns, Term::Latency),
        ("g_fix_ns", Unit::Ns, Term::GapFixed),
        ("g_var_ns_per_byte", Unit::NsPerByte, Term::GapPerByte),
        ("gap_latency_ns_per_byte", Unit::NsPerByte, Term::LatencyPerByte),
        ("gap_bandwidth_ns_per_byte", Unit::NsPerByte, Term::BandwidthPerByte),
        ("o_unit_ns", Unit::Ns, Term::NicUnit),
        ("o_nic_ns", Unit::Ns, Term::NicWhole),
        ("o_inline_ns", Unit::Ns, Term::InlineReceive),
        ("o_pairs_ns", Unit::Ns, Term::ManyPairs),
        ("o_srq_ns", Unit::Ns, Term::SharedQueue),
        ("o_repost_thread_ns", Unit::Ns, Term::RepostThread),
        ("o_atomic_ns", Unit::Ns, Term::AtomicPair),
        ("o_atomic_address_ns", Unit::Ns, Term::AtomicAddress),
        ("o_take_ns", Unit::Ns, Term::TakeReceive),
        ("o_slow_ns", Unit::Ns, Term::SlowAccess),
    ] {
        all.push(Quantity { name, unit, cost: Cost::ZERO.with(term, 1.0) });
    }
    let values = parameters.values();
    all.retain(|quantity| quantity.cost.ns(&values) > 0.0);
    all
}

/// Returns the estimate of each parameter. An estimate has an interval if the data separates the parameter from others.
pub(super) fn estimates(knowledge: &Knowledge<'_>, parameters: &Parameters) -> Vec<Estimate> {
    let values = parameters.values();
    let estimate = |Quantity { name, unit, cost }| Estimate {
        name: str::to_owned(name),
        value: cost.ns(&values),
        unit,
        interval: knowledge.interval(&cost),
    };
    quantities(parameters).into_iter().map(estimate).collect()
}

/// Returns sums of times that the data determines, although the data does not separate the summands. The result has
/// minimal sums only: no sum contains another sum. No sum has the single and the batched value of one parameter.
pub(super) fn sums(knowledge: &Knowledge<'_>, parameters: &Parameters, estimates: &[Estimate]) -> Vec<Estimate> {
    let values = parameters.values();
    let unknown: Vec<Quantity> = quantities(parameters)
        .into_iter()
        .zip(estimates)
        .filter(|(quantity, estimate)| quantity.unit == Unit::Ns && estimate.interval.is_none())
        // Skip parameters without influence on the figures, because no determined sum contains them.
        .filter(|(quantity, _)| knowledge.0.first().is_some_and(|best| best.sees(&quantity.cost)))
        .map(|(quantity, _)| quantity)
        .collect();
    let stem = |name: &'static str| name.split('.').next().unwrap_or(name);
    let mut sets: Vec<u32> =
        (1..1_u32 << unknown.len()).filter(|set| (2..=MOST_SUMMANDS).contains(&set.count_ones())).collect();
    sets.sort_by_key(|set| set.count_ones());
    let (mut found, mut sums): (Vec<u32>, Vec<Estimate>) = (Vec::new(), Vec::new());
    for set in sets {
        if found.iter().any(|smaller| set & smaller == *smaller) {
            continue;
        }
        let members = || unknown.iter().enumerate().filter(move |(index, _)| set >> index & 1 == 1).map(|(_, q)| q);
        let stems: Vec<&str> = members().map(|quantity| stem(quantity.name)).collect();
        if stems.windows(2).any(|pair| pair[0] == pair[1]) {
            continue;
        }
        let cost = members().fold(Cost::ZERO, |sum, quantity| sum.plus(&quantity.cost));
        if let Some(interval) = knowledge.interval(&cost) {
            let names: Vec<&str> = members().map(|quantity| quantity.name).collect();
            found.push(set);
            let (name, value) = (names.join(" + "), cost.ns(&values));
            sums.push(Estimate { name, value, unit: Unit::Ns, interval: Some(interval) });
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_few_figures_are_wide() {
        assert_eq!(student_95(0), f64::INFINITY);
        assert_eq!(student_95(2), 4.303);
        for (degrees, table) in [(6, 2.447), (10, 2.228), (30, 2.042), (1000, 1.962)] {
            assert!((student_95(degrees) - table).abs() < 0.01, "{degrees}: {}", student_95(degrees));
        }
    }
}
