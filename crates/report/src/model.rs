//! What the model is worth: its errors, its parameters, and whether changes help where it says so.

use std::fmt::Write;

use crate::escape::Escaped;
use crate::format::number;
use crate::table::{heading, text, value};
use crate::{Account, Errors, Model, Run};

/// The section on the model.
pub(crate) fn section(out: &mut String, runs: &[Run], model: &dyn Model) {
    out.push_str(
        "<h2 id=\"model\">The model</h2><p>Dotted curves are the model, whose parameters were fitted to every fourth \
         workload of a run; of the others they are predictions. Of points that it cannot tell apart, the fastest \
         counts.</p>",
    );
    for run in runs {
        if runs.len() > 1 {
            let _ = write!(out, "<h3>{}</h3>", Escaped(&run.name));
        }
        match model.account(run) {
            Ok(account) => {
                let _ = write!(out, "<p class=\"summary\">{}</p>", Escaped(summary(account)));
                parameters(out, account);
                interventions(out, account);
            }
            Err(why) => {
                let _ = write!(out, "<p class=\"summary\">There is none of this run: {}.</p>", Escaped(why));
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

fn parameters(out: &mut String, account: &Account) {
    out.push_str("<div class=\"scroll\" tabindex=\"0\"><table class=\"sortable\" id=\"parameters\"><thead><tr>");
    heading(out, "parameter, or sum of some", false);
    heading(out, "value", true);
    heading(out, "unit", false);
    heading(out, "95 % lie within", false);
    out.push_str("</tr></thead><tbody>");
    for parameter in &account.parameters {
        out.push_str("<tr>");
        text(out, &parameter.name);
        value(out, parameter.value, number(parameter.value));
        text(out, parameter.unit);
        match parameter.interval {
            Some((low, high)) => text(out, format!("{} \u{2013} {}", number(low), number(high))),
            None => text(out, "not separated by the data"),
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}

fn interventions(out: &mut String, account: &Account) {
    if account.interventions.is_empty() {
        return;
    }
    out.push_str(
        "<p>Does a change help exactly where the model says that it does? Each row doubles one thing; the gain is \
         that of messages per second.</p><div class=\"scroll\" tabindex=\"0\"><table class=\"sortable\" \
         id=\"interventions\"><thead><tr>",
    );
    heading(out, "doubled", false);
    heading(out, "bottleneck before", false);
    heading(out, "gain measured", true);
    heading(out, "gain predicted", true);
    heading(out, "agree", false);
    out.push_str("</tr></thead><tbody>");
    for one in &account.interventions {
        out.push_str("<tr>");
        text(out, &one.what);
        text(out, &one.bottleneck);
        for gain in [one.measured, one.predicted] {
            value(out, gain, format!("{gain:.2}"));
        }
        text(out, if one.agrees { "\u{2713} yes" } else { "\u{2717} no" });
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
}
