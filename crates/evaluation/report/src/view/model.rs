//! Section on the model: its errors, its parameters, and whether it predicts the effect of changes.

use std::fmt::Write;

use super::table::{Cell, Table};
use crate::format::number;
use crate::{Account, Errors, Intervention, Model, Parameter, Run};

/// Quality of the model for one run.
#[derive(Debug)]
pub(crate) struct ModelOfRun {
    /// Name of the run if the page shows several runs.
    pub(crate) run: Option<String>,
    /// The quality, or the reason why the run has no model.
    pub(crate) quality: Result<Quality, String>,
}

/// Errors, parameters and effects of changes.
#[derive(Debug)]
pub(crate) struct Quality {
    pub(crate) summary: String,
    pub(crate) parameters: Table,
    /// `None` if no parameter was doubled.
    pub(crate) interventions: Option<Table>,
}

/// Returns the quality of the model for each run.
pub(super) fn models(runs: &[Run], model: &dyn Model) -> Vec<ModelOfRun> {
    let quality = |account: &Account| Quality {
        summary: summary(account),
        parameters: parameters(account),
        interventions: interventions(account),
    };
    let of = |run: &Run| ModelOfRun {
        run: (runs.len() > 1).then(|| run.name.clone()),
        quality: model.account(run).map(quality).map_err(str::to_owned),
    };
    runs.iter().map(of).collect()
}

fn errors(errors: Errors) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    format!("median error {}, nine tenths within {}", percent(errors.median), percent(errors.p90))
}

fn summary(account: &Account) -> String {
    let mut text =
        format!("Fitted to the best repetition of {} workloads: {}. ", account.fitted.figures, errors(account.fitted));
    if account.predicted.figures > 0 {
        let _ = write!(text, "Of the {} others: {}. ", account.predicted.figures, errors(account.predicted));
    }
    for (why, count) in &account.left_out {
        let _ = write!(text, "Left out, {count}: {why}. ");
    }
    if !account.interventions.is_empty() {
        let agree = account.interventions.iter().filter(|one| one.agrees).count();
        let all = account.interventions.len();
        let _ = write!(
            text,
            "A window or batch was doubled {all} times; {agree} times it helped by more than a tenth exactly if the \
             model says so."
        );
    }
    text
}

fn parameters(account: &Account) -> Table {
    let row = |parameter: &Parameter| {
        let interval = match parameter.interval {
            Some((low, high)) => format!("{} \u{2013} {}", number(low), number(high)),
            None => "not separated by the data".to_owned(),
        };
        let (name, unit) = (Cell::text(&parameter.name), Cell::text(parameter.unit));
        vec![name, Cell::number(parameter.value), unit, Cell::Text(interval)]
    };
    Table {
        rows: account.parameters.iter().map(row).collect(),
        ..Table::default().texts(["parameter, or sum of some"]).numbers(["value"]).texts(["unit", "95 % lie within"])
    }
}

fn interventions(account: &Account) -> Option<Table> {
    let row = |one: &Intervention| {
        vec![
            Cell::text(&one.what),
            Cell::text(&one.bottleneck),
            Cell::shown(one.measured, format_args!("{:.2}", one.measured)),
            Cell::shown(one.predicted, format_args!("{:.2}", one.predicted)),
            Cell::text(if one.agrees { "\u{2713} yes" } else { "\u{2717} no" }),
        ]
    };
    Table::default()
        .texts(["doubled", "bottleneck before"])
        .numbers(["gain measured", "gain predicted"])
        .texts(["agree"])
        .with_rows(account.interventions.iter().map(row))
}
