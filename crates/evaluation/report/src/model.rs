//! Section on the model: its errors, its parameters, and whether it predicts the effect of changes.

use std::fmt::Write;

use maud::{Markup, html};

use crate::format::number;
use crate::table::{heading, text, value};
use crate::{Account, Errors, Model, Parameter, Run};

/// Renders the section on the model.
pub(crate) fn section(runs: &[Run], model: &dyn Model) -> Markup {
    html! {
        h2 #model { "The model" }
        p {
            "Dotted curves are the model. Its parameters were fitted to every fourth workload of a run; the curves at "
            "the other workloads are predictions. Of points that the model cannot tell apart, the fastest counts."
        }
        @for run in runs {
            @if runs.len() > 1 { h3 { (run.name) } }
            @match model.account(run) {
                Ok(account) => {
                    p.summary { (summary(account)) }
                    (parameters(account))
                    (interventions(account))
                }
                Err(why) => { p.summary { "There is none of this run: " (why) "." } }
            }
        }
    }
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

fn parameters(account: &Account) -> Markup {
    let interval = |parameter: &Parameter| match parameter.interval {
        Some((low, high)) => format!("{} \u{2013} {}", number(low), number(high)),
        None => "not separated by the data".to_owned(),
    };
    html! {
        div.scroll tabindex="0" { table.sortable #parameters {
            thead { tr {
                (heading("parameter, or sum of some", false))
                (heading("value", true))
                (heading("unit", false))
                (heading("95 % lie within", false))
            } }
            tbody {
                @for parameter in &account.parameters {
                    tr {
                        (text(&parameter.name))
                        (value(parameter.value, number(parameter.value)))
                        (text(parameter.unit))
                        (text(interval(parameter)))
                    }
                }
            }
        } }
    }
}

fn interventions(account: &Account) -> Markup {
    if account.interventions.is_empty() {
        return Markup::default();
    }
    html! {
        p {
            "This table compares the measured and the predicted effect of changes. Each row doubles one parameter; the "
            "gain is the ratio of messages per second."
        }
        div.scroll tabindex="0" { table.sortable #interventions {
            thead { tr {
                (heading("doubled", false))
                (heading("bottleneck before", false))
                (heading("gain measured", true))
                (heading("gain predicted", true))
                (heading("agree", false))
            } }
            tbody {
                @for one in &account.interventions {
                    tr {
                        (text(&one.what))
                        (text(&one.bottleneck))
                        @for gain in [one.measured, one.predicted] { (value(gain, format_args!("{gain:.2}"))) }
                        (text(if one.agrees { "\u{2713} yes" } else { "\u{2717} no" }))
                    }
                }
            }
        } }
    }
}
