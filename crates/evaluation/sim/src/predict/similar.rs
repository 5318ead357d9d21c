//! Error of the simulator on published rows of the same kind as a blind row.

use doorbell_claims::Quantity;
use doorbell_model::check::Checked;
use doorbell_record::{FarPoint, Figure, StorePoint, Strategy};

use super::BlindRow;
use crate::far::published::{CLIENTS, published_store};
use crate::reproduce::{Effort, Runs};
use crate::testbed::Testbed;

/// Published rows of the same testbed that are similar to a blind row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similar {
    /// No row.
    Nothing,
    /// Numbers of messages, operations or bytes per second.
    Rates,
    /// Latencies.
    Latencies,
    /// Bytes per operation of the store, over the minimum. Repeated attempts cost bytes and throughput.
    StoreBytes,
    /// 99th percentile of the store's puts over that of steered puts.
    StoreTail,
}

impl Similar {
    /// All kinds of rows.
    const ALL: [Self; 4] = [Self::Rates, Self::Latencies, Self::StoreBytes, Self::StoreTail];

    /// Returns the name of the rows for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Rates => "rates",
            Self::Latencies => "latencies",
            Self::StoreBytes => "bytes of the store",
            Self::StoreTail => "99 % of the store's puts",
        }
    }

    /// Returns the root mean square of the relative deviations of the rows, without the rows to which values of the
    /// testbed were fitted. `None` if there is no such row.
    fn error(self, testbed: &Testbed, runs: &mut Runs<'_>) -> Option<f64> {
        let deviations = match self {
            Self::Nothing => Vec::new(),
            Self::Rates => {
                checked(testbed, runs, &[Quantity::MessageRate, Quantity::OperationRate, Quantity::Throughput])
            }
            Self::Latencies => checked(testbed, runs, &[Quantity::Latency, Quantity::LatencyOverUnfenced]),
            Self::StoreBytes => {
                [("far-memory/bytes-5", 5.0), ("far-memory/bytes-50", 50.0), ("far-memory/bytes-100", 100.0)]
                    .into_iter()
                    .filter_map(|(id, write_percent)| {
                        // The publication has 128 clients here.
                        let store = StorePoint { write_percent, ..published_store(Strategy::Optimistic, 128) };
                        deviation(id, figure(runs, store, Figure::BytesOverLeast)?)
                    })
                    .collect()
            }
            Self::StoreTail => {
                let optimistic = figure(runs, published_store(Strategy::Optimistic, CLIENTS), Figure::PutP99);
                let steered = figure(runs, published_store(Strategy::Steered, CLIENTS), Figure::PutP99);
                let found = optimistic.zip(steered).map(|(optimistic, steered)| optimistic / steered);
                found.and_then(|found| deviation("far-memory/tail-latency", found)).into_iter().collect()
            }
        };
        if deviations.is_empty() {
            return None;
        }
        let squares: f64 = deviations.iter().map(|deviation| deviation * deviation).sum();
        Some((squares / deviations.len() as f64).sqrt())
    }
}

/// Returns the deviations of the published rows of the testbed with one of these quantities.
fn checked(testbed: &Testbed, runs: &mut Runs<'_>, quantities: &[Quantity]) -> Vec<f64> {
    let published = testbed.published.as_deref().and_then(doorbell_claims::testbed);
    let rows = published.iter().flat_map(|published| &published.rows);
    rows.filter(|row| quantities.contains(&row.quantity))
        .map(|row| Checked::of(row, runs))
        .filter(|checked| !checked.is_fitted)
        .filter_map(|checked| checked.outcome.ok().map(|compared| compared.deviation))
        .collect()
}

fn figure(runs: &mut Runs<'_>, store: StorePoint, wanted: Figure) -> Option<f64> {
    let result = runs.far(&FarPoint::Store(store)).ok()?;
    result.far.get(&wanted).copied()
}

/// Returns the relative deviation of a value from the published row with this id.
fn deviation(id: &str, found: f64) -> Option<f64> {
    let row = doorbell_claims::row(id)?;
    Some(row.relation.deviation(row.value.in_base(), found))
}

/// Returns the error for each row. The published rows are simulated with the unchanged testbed.
pub(super) fn errors(rows: &[BlindRow], testbed: &Testbed, effort: Effort) -> Vec<Option<f64>> {
    let mut runs = Runs::new(testbed, effort);
    let errors = Similar::ALL.map(|similar| {
        let is_asked = rows.iter().any(|row| row.similar == similar);
        (similar, if is_asked { similar.error(testbed, &mut runs) } else { None })
    });
    let of = |row: &BlindRow| errors.iter().find(|(similar, _)| *similar == row.similar).and_then(|(_, error)| *error);
    rows.iter().map(of).collect()
}
