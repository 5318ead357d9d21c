//! Drawing of the first screen: the best protocol for each size.

use maud::{Markup, html};

use crate::figure;
use crate::view::{Answer, Answers, Question};

/// Columns of the table after the size.
const COLUMNS: [&str; 2] = ["lowest latency", "highest throughput"];

/// Renders the answers to the question of the page: a table for each run, and a plot for each question.
pub(crate) fn draw(answers: &Answers) -> Markup {
    html! {
        section #answers {
            @for of in &answers.runs {
                @if let Some(run) = &of.run { h3 { (run) } }
                div.scroll.cards tabindex="0" { table {
                    thead { tr {
                        th scope="col" { "size" } @for column in COLUMNS { th scope="col" { (column) } }
                    } }
                    tbody {
                        @for (size, found) in &of.rows {
                            tr {
                                th scope="row" { (size) }
                                @for (column, one) in COLUMNS.iter().zip(found) {
                                    td { span.label { (column) } (answer(one.as_ref())) }
                                }
                            }
                        }
                    }
                } }
            }
            div.questions { @for one in &answers.plots { (question(one)) } }
            p.setting {
                "Medians over one connection. The window is the maximum number of unacknowledged messages, the batch the "
                "number of messages per post."
            }
        }
    }
}

fn answer(found: Option<&Answer>) -> Markup {
    let Some(Answer { figure, protocol, configuration, others }) = found else {
        return html! { span.missing { "not measured" } };
    };
    html! { b { (figure) } " " (protocol) ", " (configuration) " " small { (others) } }
}

fn question(one: &Question) -> Markup {
    html! {
        div {
            h3 { (one.question) }
            (figure::small_plot(&one.plot))
            p.setting { (one.setting) }
        }
    }
}
