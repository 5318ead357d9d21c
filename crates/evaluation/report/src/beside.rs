//! Published curves beside the simulation of their points.
//!
//! Published numbers form a curve if they have one subject and their configurations differ in one amount only, such as
//! the window. In rounds, a list has as many requests as the window, so both amounts are one. Each point of a curve has
//! its own row, which is simulated in its own configuration.

use std::collections::BTreeSet;

use doorbell_claims::{Amount, Configuration, Relation};
use doorbell_model::check::Checked;
use doorbell_record::Quantity;
use serde_json::Value;

use crate::published::{drawn, drawn_value};
use crate::sweep::{SweepCurve, plot};

/// Index of the run with simulated figures in plots.
pub(crate) const SIMULATED: usize = 0;
/// Index of the run with published figures in plots.
pub(crate) const PUBLISHED: usize = 1;

/// Minimum number of points of a curve.
const LEAST_POINTS: usize = 3;

/// Plot of the curves over one amount.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Beside {
    /// Name of the amount.
    pub(crate) over: String,
    /// Data for the script.
    pub(crate) data: Value,
}

/// A published number at its position on the axis.
#[derive(Clone, Copy)]
struct Place<'a> {
    checked: &'a Checked<'a>,
    x: f64,
    quantity: Quantity,
    published: f64,
}

impl Place<'_> {
    fn simulated(&self) -> Option<f64> {
        let compared = self.checked.outcome.as_ref().ok()?;
        Some(drawn_value(self.checked.row, compared.found)?.1)
    }
}

/// Returns the plots of the curves of a testbed, one for each amount over which there are curves. `runs` are the names
/// of the simulated and of the published figures.
pub(crate) fn plots(runs: [&str; 2], rows: &[&Checked<'_>]) -> Vec<Beside> {
    let amounts = rows.iter().flat_map(|checked| checked.row.configuration.amounts());
    let mut fields: Vec<&'static str> = Vec::new();
    for (field, _) in amounts {
        if !fields.contains(&field) {
            fields.push(field);
        }
    }
    fields.into_iter().filter_map(|field| one_plot(field, runs, rows)).collect()
}

fn one_plot(field: &'static str, runs: [&str; 2], rows: &[&Checked<'_>]) -> Option<Beside> {
    let curves = curves(field, rows);
    if curves.is_empty() {
        return None;
    }
    let mut quantities: Vec<Quantity> = Vec::new();
    for place in curves.iter().flatten() {
        if !quantities.contains(&place.quantity) {
            quantities.push(place.quantity);
        }
    }
    let named = curves.iter().zip(names(field, &curves));
    let series = named.flat_map(|(places, name)| {
        let simulated = drawn_curve(&name, places, &quantities, Place::simulated);
        let published = drawn_curve(&name, places, &quantities, |place| Some(place.published));
        [simulated.series(SIMULATED), published.series(PUBLISHED)]
    });
    let series = series.collect();
    let (over, unit) = (field.replace('_', " "), if field == "bytes" { "B" } else { "" });
    let quantities: Vec<_> = quantities.into_iter().map(|quantity| (quantity.name(), quantity.unit())).collect();
    let runs = [(runs[SIMULATED], true), (runs[PUBLISHED], false)];
    let data = plot((&over, unit), &quantities, &runs, series);
    Some(Beside { over, data })
}

/// Returns the curves over a field. All places of a curve have one subject, and one configuration apart from the field.
fn curves<'a>(field: &'static str, rows: &[&'a Checked<'a>]) -> Vec<Vec<Place<'a>>> {
    let place = |checked: &'a Checked<'a>| {
        let row = checked.row;
        // A bound is no point of a curve.
        if matches!(row.relation, Relation::AtLeast | Relation::AtMost) {
            return None;
        }
        let (_, amount) = row.configuration.amounts().find(|(name, _)| *name == field)?;
        let Amount::Is(x) = amount else { return None };
        let (quantity, published) = drawn(row)?;
        Some(Place { checked, x, quantity, published })
    };
    let mut all: Vec<Vec<Place<'a>>> = Vec::new();
    for place in rows.iter().filter_map(|&checked| place(checked)) {
        let row = place.checked.row;
        let belongs = |curve: &&mut Vec<Place<'a>>| {
            let first = curve[0].checked.row;
            let configurations = [&first.configuration, &row.configuration];
            first.subject == row.subject && differ_only_in(field, configurations)
        };
        match all.iter_mut().find(belongs) {
            Some(curve) => curve.push(place),
            None => all.push(vec![place]),
        }
    }
    all.retain(|curve| is_curve(curve));
    all
}

/// Returns whether two configurations differ in one field only. Two rounds of requests may also differ in the list,
/// which is as long as the window.
fn differ_only_in(field: &str, [one, other]: [&Configuration; 2]) -> bool {
    let are_rounds = field == "window" && is_round(one) && is_round(other);
    one.differences(other).iter().all(|name| *name == field || are_rounds && ["batch", "in_rounds"].contains(name))
}

/// Returns whether requests are posted in rounds of one list. A single outstanding request is such a round.
fn is_round(configuration: &Configuration) -> bool {
    let Configuration { window, batch, in_rounds, .. } = configuration;
    *window == Some(Amount::Is(1.0)) || (*in_rounds == Some(true) && batch == window)
}

/// Returns whether a quantity has enough positions.
fn is_curve(places: &[Place<'_>]) -> bool {
    places.iter().any(|one| {
        let own = places.iter().filter(|place| place.quantity == one.quantity);
        own.map(|place| place.x.to_bits()).collect::<BTreeSet<_>>().len() >= LEAST_POINTS
    })
}

/// Returns a name for each curve: its subject, and the amounts in which the curves differ.
fn names(field: &'static str, curves: &[Vec<Place<'_>>]) -> Vec<String> {
    let first = |curve: &Vec<Place<'_>>| curve[0].checked.row.configuration.clone();
    let first: Vec<_> = curves.iter().map(first).collect();
    let mut differing: BTreeSet<&str> = first.iter().flat_map(|one| first[0].differences(one)).collect();
    differing.remove(field);
    let name = |curve: &Vec<Place<'_>>| {
        let row = curve[0].checked.row;
        let amounts = row.configuration.amounts().filter(|(name, _)| differing.contains(name));
        let amounts = amounts.map(|(name, amount)| format!(", {} {amount}", name.replace('_', " ")));
        format!("{}{}", row.subject.name(), amounts.collect::<String>())
    };
    let mut names: Vec<String> = Vec::new();
    for curve in curves {
        let name = name(curve);
        // The first row distinguishes curves that differ in words only.
        names.push(if names.contains(&name) { format!("{name} ({})", curve[0].checked.row.id) } else { name });
    }
    names
}

/// Returns a curve with the values of places, in the order of positions.
fn drawn_curve<'a>(
    name: &str,
    places: &[Place<'a>],
    quantities: &[Quantity],
    value: impl Fn(&Place<'a>) -> Option<f64>,
) -> SweepCurve {
    let mut points: Vec<(f64, Vec<Option<f64>>)> = Vec::new();
    for place in places {
        let index = points.iter().position(|(x, _)| *x == place.x).unwrap_or_else(|| {
            points.push((place.x, vec![None; quantities.len()]));
            points.len() - 1
        });
        let column = quantities.iter().position(|quantity| *quantity == place.quantity);
        if let Some(result) = column.and_then(|column| points[index].1.get_mut(column)) {
            *result = result.or(value(place));
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    SweepCurve { name: name.to_owned(), points }
}

#[cfg(test)]
mod tests {
    use doorbell_claims::{Compared, Row, Testbed};
    use doorbell_model::check::Lack;
    use serde_json::json;

    use super::*;

    /// Operation, window, queue pairs, quantity, unit and value of a row.
    type Said<'a> = (&'a str, u32, u32, &'a str, &'a str, f64);

    /// Returns a published testbed with these rows.
    fn published(rows: &[Said<'_>]) -> Testbed {
        let head = "schema = \"doorbell-published/1\"\ntestbed = \"T9\"\nabout = \"a test\"\nhardware = \"none\"\n\
                    link_gbps = 100.0\nunknown = []\nshape = []\n[sources]\npaper = \"a paper\"\n[configurations]\n";
        let row = |(number, &(operation, window, pairs, quantity, unit, value)): (usize, &Said<'_>)| {
            format!(
                "[[row]]\nid = \"a/row-{number}\"\nsays = \"a number\"\nexperiment = \"one-sided/{operation}\"\n\
                 operation = \"{operation}\"\nquantity = \"{quantity}\"\nrelation = \"about\"\nvalue = {value:?}\n\
                 unit = \"{unit}\"\nsource = \"paper\"\nuncertain = []\n\
                 configuration = {{ bytes = 8, window = {window}, connections = {pairs}, path_mtu = 4096 }}\n"
            )
        };
        let rows: String = rows.iter().enumerate().map(row).collect();
        Testbed::from_toml("test", &format!("{head}{rows}")).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the rows, each simulated at twice its published value. Rows of `lacking` have no simulated value.
    fn checked<'a>(testbed: &'a Testbed, lacking: &str) -> Vec<Checked<'a>> {
        let outcome = |row: &Row| match row.subject.name() == lacking {
            true => Err(Lack::Parameters),
            false => Ok(Compared::of(row, 2.0 * row.value.in_base(), 0.0)),
        };
        let one = |row: &'a Row| Checked { row, is_fitted: false, outcome: outcome(row), binding: None };
        testbed.rows.iter().map(one).collect()
    }

    fn drawn_plots(rows: &[Said<'_>], lacking: &str) -> Vec<Beside> {
        let testbed = published(rows);
        let checked = checked(&testbed, lacking);
        plots(["T9, simulated", "T9, published"], &checked.iter().collect::<Vec<_>>())
    }

    #[test]
    fn rows_that_differ_in_one_amount_are_drawn_as_a_curve() {
        let rate = |operation, window, value| (operation, window, 20, "operation-rate", "M/s", value);
        let packets =
            |window, value| ("write", window, 20, "request-packets-per-operation", "packets/operation", value);
        let plots = drawn_plots(
            &[
                rate("write", 4, 41.0),
                rate("write", 1, 11.0),
                rate("write", 16, 92.0),
                rate("cas", 1, 8.0),
                rate("cas", 4, 35.0),
                rate("cas", 8, 51.0),
                packets(1, 1.5),
                // Two windows of READs are no curve.
                rate("read", 1, 9.0),
                rate("read", 4, 35.0),
            ],
            "cas",
        );
        let [Beside { over, data }] = &plots[..] else { panic!("{plots:?}") };
        assert_eq!((over.as_str(), &data["sweep"]), ("window", &json!("window")));
        assert_eq!(
            (&data["runs"], &data["simulated"]),
            (&json!(["T9, simulated", "T9, published"]), &json!([true, false]))
        );
        let names: Vec<_> = data["quantities"].as_array().expect("quantities").iter().map(|it| &it["name"]).collect();
        assert_eq!(names, ["message rate", "request packets"]);
        let series = data["series"].as_array().expect("series");
        let of = |at: usize| (series[at]["name"].as_str().expect("a name"), series[at]["run"].as_u64().expect("a run"));
        assert_eq!([of(0), of(1), of(2), of(3)], [("write", 0), ("write", 1), ("cas", 0), ("cas", 1)]);
        let medians = |at: usize, quantity: usize| -> Vec<(Option<f64>, Option<f64>)> {
            let points = series[at]["points"].as_array().expect("points").iter();
            points.map(|point| (point["x"].as_f64(), point["y"][quantity]["median"].as_f64())).collect()
        };
        let (one, four, sixteen) = (Some(1.0), Some(4.0), Some(16.0));
        assert_eq!(medians(1, 0), [(one, Some(11.0)), (four, Some(41.0)), (sixteen, Some(92.0))]);
        assert_eq!(medians(0, 0), [(one, Some(22.0)), (four, Some(82.0)), (sixteen, Some(184.0))]);
        assert_eq!(medians(0, 1), [(one, Some(3.0)), (four, None), (sixteen, None)]);
        assert!(medians(2, 0).iter().all(|(_, value)| value.is_none()), "CAS has no simulated values");
    }

    #[test]
    fn curves_of_one_subject_are_told_apart_by_their_configurations() {
        let rate = |window, pairs| ("write", window, pairs, "operation-rate", "M/s", 1.0);
        let rows: Vec<_> = [1, 20].iter().flat_map(|&pairs| [1, 2, 4].map(|window| rate(window, pairs))).collect();
        let plots = drawn_plots(&rows, "");
        assert_eq!(plots.len(), 1, "two numbers of queue pairs are no curve");
        let series = plots[0].data["series"].as_array().expect("series");
        let names: Vec<_> = series.iter().map(|series| &series["name"]).collect();
        assert_eq!(
            names,
            ["write, connections 1", "write, connections 1", "write, connections 20", "write, connections 20"]
        );
    }

    /// The lists of a round are as long as its window, so the rows differ in two fields.
    #[test]
    fn counted_packets_of_requests_and_responses_are_one_curve() {
        let t2 = doorbell_claims::testbed("t2").expect("a testbed");
        let checked = checked(t2, "");
        let plots = plots(["simulated", "published"], &checked.iter().collect::<Vec<_>>());
        let [Beside { over, data }] = &plots[..] else { panic!("{plots:?}") };
        assert_eq!(over, "window");
        let names = data["quantities"].as_array().expect("quantities").iter().map(|it| it["name"].as_str());
        let names: Vec<_> = names.map(|name| name.expect("a name")).collect();
        let [requests, responses] = ["request packets", "response packets"]
            .map(|wanted| names.iter().position(|name| *name == wanted).unwrap_or_else(|| panic!("{names:?}")));
        let series = data["series"].as_array().expect("series").iter();
        let is_published = |one: &&Value| one["run"] == PUBLISHED && one["name"] == "request-response";
        let published = series.filter(is_published).collect::<Vec<_>>();
        let [published] = published[..] else { panic!("{published:?}") };
        let points = |quantity: usize| -> Vec<(f64, f64)> {
            let all = published["points"].as_array().expect("points").iter();
            all.filter_map(|at| Some((at["x"].as_f64()?, at["y"][quantity]["median"].as_f64()?))).collect()
        };
        let counted = [(1.0, 2.0), (8.0, 1.73), (32.0, 1.53), (64.0, 1.64)];
        assert_eq!(points(requests), counted);
        assert_eq!(points(responses), counted);
    }

    #[test]
    fn single_numbers_and_bounds_are_no_curves() {
        assert_eq!(drawn_plots(&[("write", 1, 1, "operation-rate", "M/s", 1.0)], ""), []);
        let mut testbed = published(&[1, 2, 4].map(|window| ("read", window, 1, "operation-rate", "M/s", 1.0)));
        testbed.rows[0].relation = Relation::AtMost;
        let checked = checked(&testbed, "");
        assert_eq!(plots(["a", "b"], &checked.iter().collect::<Vec<_>>()), []);
    }
}
