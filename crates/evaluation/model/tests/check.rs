//! Comparison of published rows with the model's predictions, and with a stored table of earlier comparisons.
//!
//! `DOORBELL_UPDATE_CHECK=1 cargo test -p doorbell-model --test check` rewrites the table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use doorbell_claims::{Amount, CheckedShape, Compared, Finding, Receivers, Relation, Row, Unit, Value, Verdict};
use doorbell_model::check::{Analytic, Binding, Checked, Lack, Status, check, check_shape, check_shapes, lack_of};
use doorbell_model::parameters::Parameters;
use doorbell_model::predict::BoundKind;
use serde::Deserialize;

/// Percentage points by which a deviation may grow before a row counts as worse.
const SLACK_PERCENT: f64 = 1.0;

/// Stored comparison of a row.
#[derive(Debug, Deserialize)]
struct Kept {
    status: String,
    deviation_percent: Option<f64>,
}

fn all() -> Vec<Checked<'static>> {
    doorbell_claims::all()
        .iter()
        .flat_map(|testbed| check(testbed, &mut Analytic::new(Parameters::of_testbed(&testbed.name).as_ref())))
        .collect()
}

fn all_shapes() -> Vec<CheckedShape<'static>> {
    doorbell_claims::all()
        .iter()
        .flat_map(|testbed| check_shapes(testbed, &mut Analytic::new(Parameters::of_testbed(&testbed.name).as_ref())))
        .collect()
}

/// Returns in words whether the predictions of the model have a shape.
fn verdict(shape: &CheckedShape<'_>) -> &'static str {
    match shape.verdict.finding {
        Finding::Holds => "has it",
        Finding::DoesNotHold => "has it not",
        Finding::CannotShow | Finding::NoValues => "no model",
    }
}

fn table(rows: &[Checked<'_>]) -> String {
    let mut text = "# How each published row compares with the model's prediction. tests/check.rs fails if one gets \
                    worse;\n# DOORBELL_UPDATE_CHECK=1 cargo test -p doorbell-model --test check writes this file anew.\n"
        .to_owned();
    for checked in rows {
        let (id, status) = (&checked.row.id, checked.status());
        let deviation = checked.outcome.as_ref().map_or_else(
            |_| String::new(),
            |compared| format!(", deviation_percent = {:.1}", compared.deviation * 100.0 + 0.0),
        );
        let _ = writeln!(text, "\"{id}\" = {{ status = \"{status}\"{deviation} }}");
    }
    text += "\n# Published shapes: whether the predictions have them.\n";
    for shape in all_shapes() {
        let _ = writeln!(text, "\"{}\" = {{ status = \"{}\" }}", shape.shape.id, verdict(&shape));
    }
    text
}

/// Returns a description of the change if the comparison of a row is worse than the stored comparison.
fn worse(kept: &Kept, now: &Checked<'_>) -> Option<String> {
    let id = &now.row.id;
    match (kept.deviation_percent, &now.outcome) {
        (Some(_), Err(lack)) => Some(format!("{id} was predicted and no longer is: {lack}")),
        (Some(before), Ok(compared)) => {
            let deviation = compared.deviation * 100.0;
            let was_within = kept.status == Status::Within.name();
            (was_within && !compared.is_within() || deviation.abs() > before.abs() + SLACK_PERCENT).then(|| {
                format!("{id} was {}, {before:+.1} %, and is {}, {deviation:+.1} %", kept.status, now.status())
            })
        }
        (None, _) => None,
    }
}

fn is_published(id: &str) -> bool {
    doorbell_claims::row(id).is_some() || doorbell_claims::shape(id).is_some()
}

#[test]
fn no_row_is_worse_than_in_the_stored_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check.toml");
    let rows = all();
    if std::env::var_os("DOORBELL_UPDATE_CHECK").is_some() {
        std::fs::write(&path, table(&rows)).unwrap();
    }
    let kept: BTreeMap<String, Kept> = toml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let worse: Vec<String> = rows
        .iter()
        .filter_map(|now| match kept.get(&now.row.id) {
            Some(kept) => worse(kept, now),
            None => Some(format!("{} is not in the table", now.row.id)),
        })
        .chain(all_shapes().iter().filter_map(|now| match kept.get(&now.shape.id) {
            Some(kept) if kept.status == "has it" && verdict(now) != "has it" => {
                Some(format!("{}: the model had the shape: {:?}", now.shape.id, now.verdict))
            }
            Some(_) => None,
            None => Some(format!("{} is not in the table", now.shape.id)),
        }))
        .chain(kept.keys().filter(|id| !is_published(id)).map(|id| format!("{id} is neither a row nor a shape")))
        .collect();
    assert!(worse.is_empty(), "{}\n{}: DOORBELL_UPDATE_CHECK=1 rewrites the table", worse.join("\n"), path.display());
}

#[test]
fn only_larger_deviations_count_as_worse() {
    let row = doorbell_claims::row("send-receive/base-latency").unwrap();
    let now = |deviation: f64| {
        let found = Value { number: 1.0, unit: Unit::Us };
        let outcome = Ok(Compared { found, deviation, tolerance: 0.15 });
        Checked { row, is_fitted: false, outcome, binding: None }
    };
    let within = |percent| Kept { status: "within".to_owned(), deviation_percent: Some(percent) };
    let beyond = |percent| Kept { status: "beyond".to_owned(), deviation_percent: Some(percent) };
    assert_eq!(worse(&within(5.0), &now(0.055)), None);
    assert_eq!(worse(&within(5.0), &now(-0.02)), None);
    assert!(
        worse(&within(5.0), &now(0.07)).is_some_and(|text| text.contains("was within, +5.0 %, and is within, +7.0 %"))
    );
    assert!(worse(&within(14.9), &now(0.151)).is_some_and(|text| text.contains("and is beyond")));
    assert!(worse(&beyond(-40.0), &now(-0.5)).is_some());
    assert_eq!(worse(&beyond(-40.0), &now(0.1)), None);
    let unpredicted = Checked { row, is_fitted: false, outcome: Err(Lack::Parameters), binding: None };
    assert!(worse(&within(5.0), &unpredicted).is_some_and(|text| text.contains("no longer is")));
    let not_predicted = Kept { status: "no model".to_owned(), deviation_percent: None };
    assert_eq!(worse(&not_predicted, &unpredicted), None);
    assert_eq!(worse(&not_predicted, &now(0.9)), None);
}

fn row(id: &str) -> Row {
    doorbell_claims::row(id).unwrap_or_else(|| panic!("a row {id}")).clone()
}

fn check_row(row: &Row, parameters: Option<&Parameters>) -> Result<Compared, Lack> {
    Checked::of(row, &mut Analytic::new(parameters)).outcome
}

#[track_caller]
fn compared(row: &Row) -> Compared {
    check_row(row, Some(&Parameters::t1())).unwrap_or_else(|lack| panic!("{}: {lack}", row.id))
}

#[track_caller]
fn binding(row: &Row) -> Option<Binding> {
    Checked::of(row, &mut Analytic::new(Some(&Parameters::t1()))).binding
}

#[track_caller]
fn assert_near(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found} is not {expected}");
}

#[test]
fn twice_the_prediction_deviates_by_minus_50_percent() {
    let mut made_up = row("send-receive/batch-ceiling");
    assert_eq!(made_up.value.unit, Unit::Gibit);
    made_up.value = compared(&made_up).found;
    assert_eq!((compared(&made_up).deviation, compared(&made_up).is_within()), (0.0, true));
    made_up.value.number *= 2.0;
    assert_near(compared(&made_up).deviation, -0.5);
    assert!(!compared(&made_up).is_within());
    // A deviation from a bound counts only if the prediction is beyond the bound.
    made_up.relation = Relation::AtMost;
    assert_eq!((compared(&made_up).deviation, compared(&made_up).is_within()), (0.0, true));
    made_up.value.number /= 4.0;
    assert_near(compared(&made_up).deviation, 1.0);
}

#[test]
fn tolerances_are_15_percent_and_10_of_a_rate_of_operations() {
    for (id, tolerance) in [
        ("send-receive/base-latency", 0.15),
        ("send-receive/batch-ceiling", 0.15),
        ("far-memory/cas-twenty-pairs", 0.10),
    ] {
        let mut made_up = row(id);
        let predicted = compared(&made_up).found;
        for (off, is_within) in [(tolerance - 0.001, true), (tolerance + 0.001, false)] {
            made_up.value.number = predicted.number / (1.0 + off);
            assert_eq!(compared(&made_up).is_within(), is_within, "{id} off by {off}");
        }
    }
}

#[test]
fn predictions_are_in_the_unit_of_the_row() {
    let bits = compared(&row("send-receive/batch-ceiling")).found;
    let messages = compared(&row("send-receive/batch-ceiling-messages")).found;
    assert_eq!((bits.unit, messages.unit), (Unit::Gibit, Unit::Millions));
    assert_near(bits.in_base(), messages.in_base() * 16.0);
    let latency = compared(&row("send-receive/base-latency"));
    assert_eq!((latency.found.unit, binding(&row("send-receive/base-latency"))), (Unit::Us, None));
    assert!((2.0..2.3).contains(&latency.found.number), "{latency:?}");
    assert_near(compared(&row("direct-read/threads-8192")).found.number, 100.0);
}

/// The published configuration has no credits, and its lists have one entry. Each of these settings changes the
/// bottleneck.
#[test]
fn rows_are_compared_as_published() {
    let batched = row("send-receive/batch-ceiling-messages");
    assert_eq!(binding(&batched), Some(BoundKind::SendingUnits.into()));
    assert_near(compared(&batched).found.number, 1e3 / 71.0);
    assert_eq!(binding(&row("send-receive/srq-without-rnr")), Some(BoundKind::RepostThread.into()));
    assert_eq!(binding(&row("send-receive/srq-limit")), Some(BoundKind::Srq.into()));
    // 16 threads that share their NIC send to one receiver.
    let mut many = row("send-receive/n-to-1-8192");
    assert_eq!(binding(&many), Some(BoundKind::Link.into()));
    many.configuration.bytes = Some(Amount::Is(16.0));
    assert_eq!(binding(&many), Some(BoundKind::ReceivingCpu.into()));
    many.configuration.receivers = Some(Receivers::Own);
    assert_eq!(binding(&many), Some(BoundKind::SendingCeiling.into()));
}

#[test]
fn missing_inputs_are_named() {
    let t1 = Parameters::t1();
    let base = row("send-receive/srq-limit");
    let reason = |change: &dyn Fn(&mut Row)| {
        let mut changed = base.clone();
        change(&mut changed);
        check_row(&changed, Some(&t1)).expect_err("a statement is missing").to_string()
    };
    assert_eq!(
        reason(&|row| row.configuration.window = Some(Amount::Unknown)),
        "the publication does not state `window`, which a prediction needs"
    );
    assert_eq!(
        reason(&|row| row.configuration.credits = None),
        "the publication does not state `credits`, which a prediction needs"
    );
    assert_eq!(
        reason(&|row| row.configuration.threads = Some(Amount::Span(1.0, 32.0))),
        "`threads` is 1 to 32, and a prediction needs one number"
    );
    assert_eq!(
        reason(&|row| row.quantity = doorbell_claims::Quantity::SaturatingWindow),
        "`window` is the single number 64, but the row states a change over a range of `window`"
    );
    assert_eq!(
        reason(&|row| row.configuration.batch = Some(Amount::Is(100.0))),
        "the batch is 100, allowed is 1 to 64"
    );
    assert_eq!(check_row(&base, None), Err(Lack::Parameters));
    let without = Parameters { o_srq_ns: 0.0, limits: doorbell_model::parameters::Limits::default(), ..t1.clone() };
    let fills = check_row(&row("send-receive/srq-fills-line"), Some(&without)).expect_err("there is no limit");
    assert!(fills.to_string().contains("the parameters have no limit"), "{fills}");
    let inline = check_row(&row("send-receive/inline-receive-size"), Some(&without))
        .expect_err("the model has no such quantity");
    assert!(matches!(inline, Lack::Parameter(_)), "{inline}");
    let store = check_row(&row("far-memory/bytes-50"), Some(&t1)).expect_err("the row measures a store");
    assert_eq!(
        store.to_string(),
        "there are predictions for messages of a protocol and for single operations, but not for stores on passive memory"
    );
}

/// Each row whose prediction is beyond the tolerance has a sentence about the reason. No other row has a sentence.
#[test]
fn only_missed_rows_have_a_reason() {
    for checked in all() {
        let sentence = lack_of(&checked.row.id);
        assert_eq!(checked.status() == Status::Beyond, sentence.is_some(), "{}", checked.row.id);
        assert!(sentence.is_none_or(|text| text.ends_with('.') && text.matches(". ").count() == 0), "{sentence:?}");
    }
}

/// Few of T1's parameters are fitted. All fitted parameters were fitted to rows and shapes of Send-Receive.
#[test]
fn little_of_t1_is_fitted() {
    let t1 = Parameters::t1();
    let fitted: Vec<_> = t1.origins.iter().filter(|origin| !origin.fitted_to.is_empty()).collect();
    assert!(fitted.len() <= 6, "{fitted:?}");
    assert!(fitted.iter().flat_map(|origin| &origin.fitted_to).all(|id| id.starts_with("send-receive/")));
    let published = doorbell_claims::all().iter().find(|testbed| testbed.name == "T1").expect("T1 is published");
    let rows = check(published, &mut Analytic::new(Some(&t1)));
    let count = |is_fitted| rows.iter().filter(|row| row.outcome.is_ok() && row.is_fitted == is_fitted).count();
    assert!(count(false) > 3 * count(true), "{} rows were used for the fit", count(true));
}

/// Each sentence has a judge function, and each judgement has numbers or a list.
#[test]
fn every_shape_is_judged() {
    for shape in all_shapes() {
        let Verdict { finding, because } = shape.verdict;
        assert!(!because.contains("no rule of this sentence"), "{}", shape.shape.id);
        assert!(finding == Finding::NoValues || because.chars().any(|c| c.is_ascii_digit()), "{because}");
    }
}

/// A set of parameters that differs from those of T1 lacks shapes that T1 has. So the judge reads the predictions.
#[test]
fn other_parameters_have_other_shapes() {
    let t1 = Parameters::t1();
    let has = |parameters: &Parameters, id: &str| {
        let shape = doorbell_claims::shape(id).unwrap_or_else(|| panic!("a shape {id}"));
        let Verdict { finding, because } = check_shape(shape, &mut Analytic::new(Some(parameters))).verdict;
        assert!(matches!(finding, Finding::Holds | Finding::DoesNotHold), "{id}: {because}");
        finding == Finding::Holds
    };
    for (id, other) in [
        ("send-receive/single-connection-ceiling", Parameters { o_nic_ns: 100.0, ..t1.clone() }),
        ("send-receive/n-to-1-falls", Parameters { o_pairs_ns: 0.0, ..t1.clone() }),
        ("send-receive/n-to-1-16-slower-than-512", Parameters { o_inline_ns: 0.0, ..t1.clone() }),
        ("send-receive/receiver-never-binds", Parameters { o_inline_ns: 40.0, ..t1.clone() }),
        ("send-receive/srq-limits", Parameters { o_srq_ns: 0.0, ..t1.clone() }),
        ("send-receive/srq-thread-hurts", Parameters { o_repost_thread_ns: 0.0, ..t1.clone() }),
        ("send-receive/threads-small-beat-512", Parameters { o_nic_ns: 40.0, ..t1.clone() }),
        ("send-receive/latency-is-a-line", Parameters { gap_latency_ns_per_byte: 0.0, ..t1.clone() }),
        ("send-receive/window-linear-then-flat", Parameters { g_fix_ns: 40_000.0, ..t1.clone() }),
        ("direct-read/latency-is-flat", Parameters { gap_latency_ns_per_byte: 5.0, ..t1.clone() }),
        ("direct-read/fence-is-slower", Parameters { g_fix_ns: 400.0, ..t1.clone() }),
    ] {
        assert!(has(&t1, id), "{id}");
        assert!(!has(&other, id), "{id}");
    }
}

#[test]
fn every_row_has_an_outcome() {
    let rows = all();
    let published: usize = doorbell_claims::all().iter().map(|testbed| testbed.rows.len()).sum();
    assert_eq!(rows.len(), published);
    for checked in &rows {
        if let Ok(compared) = &checked.outcome {
            assert!(compared.deviation.is_finite() && compared.found.number > 0.0, "{checked:?}");
        }
    }
    assert!(Status::ALL.iter().all(|status| rows.iter().any(|checked| checked.status() == *status)));
}
