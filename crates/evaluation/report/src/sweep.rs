//! The page of a simulated sweep.

use maud::{Markup, html};
use serde_json::{Value, json};

use crate::figure;
use crate::format::{NOTHING, with_unit};
use crate::page::document;
use crate::table;
use crate::view::table::{Cell, Table};

/// Results of simulations of one testbed with varied parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// The simulated testbed.
    pub testbed: String,
    /// Parameters that all points share, as sentences.
    pub setting: Vec<String>,
    /// Names of the varied parameters.
    pub axes: Vec<String>,
    /// Names and units of the results. The unit is empty for a number without a unit.
    pub quantities: Vec<(&'static str, &'static str)>,
    /// The points.
    pub points: Vec<SweepPoint>,
}

/// A point of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPoint {
    /// Value on each axis, as the user gave it.
    pub values: Vec<String>,
    /// Value on each axis as a number with its unit; `None` if the value is no number.
    pub numbers: Vec<Option<(f64, &'static str)>>,
    /// Results, in the order of `quantities`; `None` if there is no number.
    pub results: Vec<Option<f64>>,
    /// Component that was busy longest.
    pub bottleneck: String,
}

/// A curve of a sweep.
pub(crate) struct SweepCurve {
    pub(crate) name: String,
    /// Points: position on the axis, and results in the order of the quantities.
    pub(crate) points: Vec<(f64, Vec<Option<f64>>)>,
}

impl SweepCurve {
    /// Returns the data of the curve for the script. `run` is the index of the run to which the curve belongs.
    pub(crate) fn series(&self, run: usize) -> Value {
        let one = |result: &Option<f64>| match result {
            Some(value) => json!({ "least": value, "median": value, "most": value, "values": [] }),
            None => Value::Null,
        };
        let point = |(x, results): &(f64, Vec<Option<f64>>)| json!({ "x": x, "y": results.iter().map(one).collect::<Vec<_>>() });
        json!({ "name": self.name, "run": run, "points": self.points.iter().map(point).collect::<Vec<_>>() })
    }
}

/// Returns the data of a plot for the script. The axis has a name and a unit. Each run has a name, and whether the run
/// was simulated.
pub(crate) fn plot(
    (axis, unit): (&str, &str),
    quantities: &[(&str, &str)],
    runs: &[(&str, bool)],
    series: Vec<Value>,
) -> Value {
    let quantity = |(name, unit): &(&str, &str)| json!({ "name": name, "unit": unit, "log": false });
    json!({
        "sweep": if unit.is_empty() { axis.to_owned() } else { format!("{axis}, {unit}") },
        "bytes": unit == "B",
        "quantities": quantities.iter().map(quantity).collect::<Vec<_>>(),
        "runs": runs.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "simulated": runs.iter().map(|(_, is_simulated)| is_simulated).collect::<Vec<_>>(),
        "series": series,
    })
}

impl Sweep {
    /// Returns the index and the unit of the axis of the plots. The values of this axis are numbers with one unit.
    /// Among such axes, returns the preferred axis, or else the axis with the most values.
    fn along(&self, preferred: Option<&str>) -> Option<(usize, &'static str)> {
        let axis = |index: usize| {
            let numbers: Option<Vec<_>> = self.points.iter().map(|point| *point.numbers.get(index)?).collect();
            let numbers = numbers?;
            let unit = numbers.first()?.1;
            let mut values: Vec<u64> = numbers.iter().map(|(number, _)| number.to_bits()).collect();
            values.sort_unstable();
            values.dedup();
            let is_axis = values.len() > 1 && numbers.iter().all(|(_, other)| *other == unit);
            is_axis.then_some((values.len(), index, unit))
        };
        let is_preferred = |index: usize| Some(self.axes[index].as_str()) == preferred;
        // `max_by_key` returns the last maximum, so reverse the axes: of axes with equally many values, the first wins.
        let axes = (0..self.axes.len()).rev().filter_map(axis);
        let best = axes.max_by_key(|(values, index, _)| (is_preferred(*index), *values));
        best.map(|(_, index, unit)| (index, unit))
    }

    /// Returns the axis of the plots, its unit, and a curve for each combination of values on the other axes.
    pub(crate) fn curves(&self, preferred: Option<&str>) -> Option<(&str, &'static str, Vec<SweepCurve>)> {
        let (along, unit) = self.along(preferred)?;
        let name_of = |point: &SweepPoint| {
            let others = self.axes.iter().zip(&point.values).enumerate().filter(|(index, _)| *index != along);
            let named: Vec<String> = others.map(|(_, (axis, value))| format!("{axis}={value}")).collect();
            if named.is_empty() { self.testbed.clone() } else { named.join(", ") }
        };
        let mut names: Vec<String> = Vec::new();
        for point in &self.points {
            let name = name_of(point);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let curve = |name: String| {
            let own = self.points.iter().filter(|point| name_of(point) == name);
            let place = |point: &SweepPoint| Some((point.numbers.get(along).copied()??.0, point.results.clone()));
            let mut points: Vec<(f64, Vec<Option<f64>>)> = own.filter_map(place).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            SweepCurve { name, points }
        };
        Some((&self.axes[along], unit, names.into_iter().map(curve).collect()))
    }

    fn plot(&self) -> Option<Value> {
        let (axis, unit, curves) = self.curves(None)?;
        let series = curves.iter().map(|curve| curve.series(0)).collect();
        Some(plot((axis, unit), &self.quantities, &[(&self.testbed, true)], series))
    }

    /// Renders all results.
    pub(crate) fn table(&self) -> Markup {
        let quantity = |(name, unit): &(&str, &str)| {
            if unit.is_empty() { (*name).to_owned() } else { format!("{name}, {unit}") }
        };
        let axis = |(text, number): (&String, &Option<(f64, &str)>)| match number {
            Some((number, _)) => Cell::shown(*number, text),
            None => Cell::text(text),
        };
        let result = |result: &Option<f64>| result.map_or_else(|| Cell::text(NOTHING), Cell::number);
        let row = |point: &SweepPoint| {
            let axes = point.values.iter().zip(&point.numbers).map(axis);
            axes.chain(point.results.iter().map(result)).chain([Cell::text(&point.bottleneck)]).collect()
        };
        table::sortable(&Table {
            rows: self.points.iter().map(row).collect(),
            ..Table::default().numbers(&self.axes).numbers(self.quantities.iter().map(quantity)).texts(["busy longest"])
        })
    }
}

/// Renders a sweep as one self-contained HTML document. The document states that it is simulated.
pub fn sweep_html(sweep: &Sweep) -> String {
    let body = html! {
        header {
            p.kicker { "Doorbell, simulated" }
            h1 { "Sweep over " (sweep.axes.join(", ")) }
            p.where { "Simulated in virtual time on the testbed " b { (sweep.testbed) } "; nothing here was measured." }
            ul.tiles { li { b { (with_unit(sweep.points.len() as f64, "")) } " points, simulated" } }
        }
        main {
            section #sweep {
                @for sentence in &sweep.setting { p.setting { (sentence) } }
                @if let Some(data) = sweep.plot() { (figure::plot(&data)) }
                (sweep.table())
            }
        }
    };
    document(html! { "Doorbell: a simulated sweep on " (sweep.testbed) }, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(values: [&str; 2], size: f64, rate: f64) -> SweepPoint {
        SweepPoint {
            values: values.map(str::to_owned).to_vec(),
            numbers: vec![None, Some((size, "B"))],
            results: vec![Some(rate), None],
            bottleneck: "port <97 %>".to_owned(),
        }
    }

    fn sweep() -> Sweep {
        Sweep {
            testbed: "mine & yours".to_owned(),
            setting: vec!["Seed 1.".to_owned()],
            axes: vec!["protocol".to_owned(), "size".to_owned()],
            quantities: vec![("message rate", "M messages/s"), ("latency", "us")],
            points: vec![
                point(["send-receive", "4096"], 4096.0, 2.9),
                point(["send-receive", "16"], 16.0, 8.0),
                point(["direct-read", "16"], 16.0, 5.0),
                point(["direct-read", "4096"], 4096.0, 2.8),
            ],
        }
    }

    #[test]
    fn plots_use_the_numeric_axis_and_a_curve_per_other_value() {
        let data = sweep().plot().expect("an axis of numbers");
        assert_eq!((&data["sweep"], &data["bytes"]), (&json!("size, B"), &json!(true)));
        assert_eq!((&data["runs"], &data["simulated"]), (&json!(["mine & yours"]), &json!([true])));
        let series = data["series"].as_array().expect("series");
        let names: Vec<_> = series.iter().map(|series| &series["name"]).collect();
        assert_eq!(names, ["protocol=send-receive", "protocol=direct-read"]);
        let points = &series[0]["points"];
        assert_eq!((&points[0]["x"], &points[0]["y"][0]["median"]), (&json!(16.0), &json!(8.0)));
        assert_eq!(points[0]["y"][1], Value::Null);
        let mut words = sweep();
        words.points.iter_mut().for_each(|point| point.numbers = vec![None, None]);
        assert_eq!(words.plot(), None);
    }

    #[test]
    fn page_is_marked_as_simulated_and_escapes_input() {
        let page = sweep_html(&sweep());
        for needed in ["Doorbell, simulated", "nothing here was measured", "mine &amp; yours", "port &lt;97 %&gt;"] {
            assert!(page.contains(needed), "{needed} is missing");
        }
        assert!(!page.contains("<97 %>"));
    }
}
