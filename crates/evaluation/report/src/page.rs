//! The HTML document.

use doorbell_claims::Finding;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::table::{self, anchor};
use crate::view::table::Table;
use crate::view::{Common, Judged, ModelOfRun, Overview, Published, Quality, Section, View};
use crate::{Tally, answers, figure, matrix};

const STYLE: &str = include_str!("../assets/style.css");
pub(crate) const SCRIPT: &str = include_str!("../assets/script.js");

/// Content security policy of the page. It forbids to load anything, even if a record could break out of its escaping.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; \
                      form-action 'none'";

/// Renders the head of a document.
pub(crate) fn head(title: Markup) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta http-equiv="Content-Security-Policy" content=(POLICY);
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) }
            style { (PreEscaped(STYLE)) }
        }
    }
}

/// Renders a document with a title.
pub(crate) fn document(title: Markup, body: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head(title))
            body { (body) script { (PreEscaped(SCRIPT)) } }
        }
        "\n"
    };
    // HTML allows no control characters except newlines, but names and records may contain all of them.
    page.into_string().replace(|c: char| c.is_control() && c != '\n', "\u{fffd}")
}

/// Renders the report.
pub(crate) fn page(view: &View) -> String {
    let body = html! {
        (header(view))
        main {
            @if let Some(found) = &view.answers { (answers::draw(found)) }
            @if let Some(sentence) = view.unanswered { p.summary { (sentence) } }
            @if let Some(changes) = &view.changes { (overview(changes)) }
            @if let Some(table) = &view.glance { (glance(table)) }
            @if let Some(table) = &view.requests { (requests(table)) }
            @if !view.links.is_empty() { (matrix::links(&view.links)) }
            @if !view.strategies.is_empty() { (matrix::strategies(&view.strategies)) }
            (contents(&view.sections))
            @for one in &view.sections { (section(one)) }
            (verdicts(view))
            @if let Some(models) = &view.models { (quality(models)) }
            h2 #environment { "Environment" }
            (table::draw(&view.environments, "scroll", None, None))
            @if let Some(hosts) = &view.hosts { h2 #hosts { "Hosts" } (table::sortable(hosts)) }
            (reading())
        }
    };
    document(html! { "Doorbell study: " (view.names) }, body)
}

fn header(view: &View) -> Markup {
    html! {
        header {
            p.kicker { "Doorbell study" }
            h1 { (view.question) }
            @for of in &view.origins {
                @if let Some(testbed) = &of.testbed {
                    p.where {
                        (of.prefix) b { "simulated, not measured" } ": testbed " (testbed) " in virtual time (" (of.cpu) "), "
                        (of.date)
                    }
                } @else {
                    p.where {
                        (of.prefix) (of.cpu) " on " (of.cpus) " CPUs, Linux " (of.kernel) ", provider " (of.provider) ", "
                        (of.date)
                    }
                }
            }
            @for (prefix, sentence) in &view.quiet { p.quiet { (prefix) (sentence) } }
            p.where {
                @if let Some((points, times)) = view.tiles.measured { b { (points) } " points, measured " (times) " times. " }
                @if view.tiles.simulated > 0 { b { (view.tiles.simulated) } " points, simulated." }
            }
        }
    }
}

fn tile(finding: Finding) -> &'static str {
    match finding {
        Finding::Holds => "published shapes hold",
        Finding::DoesNotHold => "do not hold here",
        Finding::CannotShow => "cannot show on this provider",
        Finding::NoValues => "not measured",
    }
}

fn overview(changes: &Overview) -> Markup {
    let Overview { before, after, environments, experiments } = changes;
    html! {
        h2 #changes { "Changes from " (before) " to " (after) }
        @match environments {
            None => p { "The environments of both are the same, as far as records say." },
            Some(table) => (table::draw(table, "scroll", None, Some("differences"))),
        }
        p {
            "A point counts as more or less if all repetitions of " b { (after) } " lie on one side of all repetitions of "
            b { (before) } ". With three repetitions each, one point in ten does so by chance; the table has the expected "
            "number. The mean ratio is the geometric mean of the ratios of medians."
        }
        (table::draw(experiments, "scroll cards", Some("sortable"), Some("changed")))
    }
}

fn glance(table: &Table) -> Markup {
    html! {
        h2 #glance { "Protocols at a glance" }
        p {
            "Latency is measured with one message at a time, throughput with 64 unacknowledged messages (32 for "
            "Direct-Read), one per post. Each figure is that of the fastest variant."
        }
        (table::draw(table, "scroll", Some("sortable"), Some("comparison")))
    }
}

fn requests(table: &Table) -> Markup {
    html! {
        h2 #requests { "Requests with replies" }
        p {
            "Each client has one request outstanding, and one thread of each side polls all connections. The latency of one "
            "client is that of a request alone; with more clients, a request waits for those of the others. Gb/s count the "
            "longer one of request and reply."
        }
        (table::sortable(table))
    }
}

/// Renders all verdicts on published shapes and on goals.
fn verdicts(view: &View) -> Markup {
    let Tally { findings, restless } = &view.tiles.verdicts;
    html! {
        @if let Some(table) = &view.shapes {
            h2 #verdicts { "Published shapes, and what the data say" }
            ul.tiles {
                @for (finding, count) in findings {
                    li class=(table::class(*finding)) { b { (count) } " " (tile(*finding)) }
                }
                @if *restless > 0 { li class=(table::RESTLESS) { b { (restless) } " " (Tally::RESTLESS) } }
            }
            p {
                "Shapes of an evaluation on ConnectX-5 RNICs over 100 Gb/s Ethernet; each verdict is computed from the "
                "best repetition of each point, since other programs can only slow one down. Verdicts of experiments in "
                "which repetitions differ much are grey: the machine was not quiet."
            }
            (table::draw(table, "scroll cards", Some("sortable"), None))
        }
        @if !view.goals.is_empty() { h2 #goals { "Goals of shared memory" } (judged(&view.goals)) }
    }
}

/// Renders verdicts, each with its reason.
fn judged(verdicts: &[Judged]) -> Markup {
    html! {
        @if !verdicts.is_empty() {
            ul.verdicts {
                @for Judged { prefix, says, verdict, is_restless } in verdicts {
                    li {
                        (table::badge(verdict.finding, *is_restless)) " " b { (says) } " " span { (prefix) (verdict.because) }
                    }
                }
            }
        }
    }
}

fn contents(sections: &[Section]) -> Markup {
    html! {
        h2 #experiments { "Experiments" }
        nav { ol {
            @for one in sections { li { a href={ "#" (anchor(&one.name)) } { (one.name) } " " (one.question) } }
        } }
    }
}

fn section(section: &Section) -> Markup {
    html! {
        section id=(anchor(&section.name)) {
            h3 {
                (section.name)
                @for testbed in &section.testbeds { " " span.badge.simulated { "simulated: " (testbed) } }
            }
            p.question { (section.question) }
            p.setting { (section.setting) }
            @if let Some(page) = section.page { p.setting { "More in the guide: " code { (page) } } }
            @for (prefix, summary) in &section.summaries { p.summary { b { (prefix) } (summary) } }
            (figure::plot(&section.plot))
            (judged(&section.verdicts))
            @if let Some(changes) = &section.changes { (common(changes)) }
            (table::sortable(&section.points))
            @if let Some(cpu) = &section.cpu {
                p.setting { "CPU time of each host per sent message, or per received message on a host that only answers:" }
                (table::draw(cpu, "scroll", Some("sortable hosts"), None))
            }
            @if let Some(published) = &section.published { (figures(published)) }
        }
    }
}

/// Renders the points of an experiment that two runs have in common.
fn common(changes: &Common) -> Markup {
    let Common { before, after, points } = changes;
    html! {
        @match points {
            None => p.setting { "The two runs have no point of this experiment in common." },
            Some(table) => {
                p.setting {
                    "The ratio is the median of " b { (after) } " divided by that of " b { (before) } ". Its range "
                    "covers every repetition of the first divided by every repetition of the second."
                }
                (table::draw(table, "scroll", Some("sortable changes"), None))
            }
        }
    }
}

/// Renders published numbers and sentences, with their uncertainty.
fn figures(published: &Published) -> Markup {
    html! {
        h4 { "Published: " (published.testbed) ", " (published.hardware) }
        @if let Some(numbers) = &published.numbers { (table::sortable(numbers)) }
        @if !published.sentences.is_empty() {
            ul.reading {
                @for sentence in &published.sentences {
                    li {
                        (sentence.says)
                        @if sentence.is_drawn { " (drawn)" }
                        @for doubt in &sentence.uncertain { " " i { (doubt) } }
                    }
                }
            }
        }
    }
}

/// Renders the quality of the model for each run.
fn quality(models: &[ModelOfRun]) -> Markup {
    html! {
        h2 #model { "The model" }
        p {
            "Dotted curves are the model. Its parameters were fitted to every fourth workload of a run; the curves at "
            "the other workloads are predictions. Of points that the model cannot tell apart, the fastest counts."
        }
        @for ModelOfRun { run, quality } in models {
            @if let Some(run) = run { h3 { (run) } }
            @match quality {
                Ok(Quality { summary, parameters, interventions }) => {
                    p.summary { (summary) }
                    (table::draw(parameters, "scroll", Some("sortable"), Some("parameters")))
                    @if let Some(table) = interventions {
                        p {
                            "This table compares the measured and the predicted effect of changes. Each row doubles one "
                            "parameter; the gain is the ratio of messages per second."
                        }
                        (table::draw(table, "scroll", Some("sortable"), Some("interventions")))
                    }
                }
                Err(why) => { p.summary { "There is none of this run: " (why) "." } }
            }
        }
    }
}

fn reading() -> Markup {
    html! {
        h2 #reading { "How to read this" }
        ul.reading {
            li {
                "A point is measured several times, and all other points between two of its repetitions. Curves go through "
                "the medians, bars reach from minimum to maximum, and faint dots are the single measurements."
            }
            li {
                "Points with hollow markers were simulated: in virtual time, once each, since the same seed gives the same "
                "result. They have their own curves, verdicts and model, separate from measured points."
            }
            li {
                "With shared memory, each CAS and each READ of a value is an attempt. It succeeds if it finds the newest node. "
                "Bytes are frame bytes, relative to a run in which each first attempt succeeds."
            }
            li {
                "Latency is half a round trip of a ping-pong, or the time from a request to its reply. Gb/s are 10"
                sup { "9" } " bits of payload per second."
            }
            li {
                "Data packets are counted by the RNICs of both ends and predicted by the arithmetic of packets; "
                "\u{2260} marks differences. " i { "Repeated" } " packets are retransmissions, of all repetitions."
            }
            li {
                "Jain\u{2019}s index is 1 if all connections sent the same amount, and 1/N if one sent everything."
            }
            li { "This file contains all text and pictures; it loads nothing." }
        }
    }
}
