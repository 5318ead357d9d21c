//! Results of a qualification.

use std::fmt::Write as _;

use doorbell_machine::Adapter;
use serde::{Deserialize, Serialize};

/// Name of the layout of a qualification as JSON.
pub const SCHEMA: &str = "doorbell-qualification/1";

/// A part of a qualification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Conditions of the machine that spoil measurements.
    Doctor,
    /// Cases of the suite of verbs.
    Verbs,
    /// Cases of the suite of message connections.
    Exchange,
    /// Measurements of the default study.
    Study,
    /// Captured packets, judged by the rules of IBTA.
    Captures,
}

impl Part {
    /// All parts, in the order of a run.
    pub const ALL: [Part; 5] = [Part::Doctor, Part::Verbs, Part::Exchange, Part::Study, Part::Captures];

    /// Returns the name of the part.
    pub const fn name(self) -> &'static str {
        match self {
            Part::Doctor => "doctor",
            Part::Verbs => "verbs",
            Part::Exchange => "exchange",
            Part::Study => "study",
            Part::Captures => "captures",
        }
    }

    /// Returns the part of this name.
    pub fn named(name: &str) -> Option<Self> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }
}

/// State of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The part has not begun, or the run was interrupted during it.
    NotFinished,
    /// The part has ended, and its results are complete.
    Done,
    /// The part could not be carried out.
    Failed,
    /// The user or the device leaves the part out.
    LeftOut,
}

/// Result of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartResult {
    /// The part.
    pub part: Part,
    /// State of the part.
    pub state: State,
    /// Summary of the results, or the reason of the state, as a sentence without a full stop.
    pub what: String,
}

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome", content = "why")]
pub enum Outcome {
    /// The device fulfils the rule, apart from the known departures of the result.
    Passed,
    /// The case failed. The text is the message of the failed check.
    Failed(String),
    /// The case did not end in time.
    Hung(String),
    /// The process of the case died.
    Died(String),
}

/// Result of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// Suite, module or variant, and function, as in `verbs/states/rnr_retries_end`.
    pub name: String,
    /// Outcome of the case.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Known departures that the case found and accepted, each as a sentence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub departures: Vec<String>,
    /// Duration of the case in seconds.
    pub seconds: f64,
}

/// Deviation of the device from the software RNIC, which fulfils all rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deviation {
    /// Case, or rule of `doorbell wire check`, that found the deviation.
    pub found_by: String,
    /// Rule from which the device deviates.
    pub rule: String,
    /// Behaviour of the device.
    pub what: String,
}

impl Deviation {
    /// Returns the deviations that a case found. `rule` is the rule that the case checks.
    pub fn of_case(result: &CaseResult, rule: &str) -> Vec<Self> {
        let deviation =
            |what: &str| Self { found_by: result.name.clone(), rule: rule_text(rule), what: what.to_owned() };
        let failure = match &result.outcome {
            Outcome::Passed => None,
            Outcome::Failed(why) | Outcome::Hung(why) | Outcome::Died(why) => Some(why.as_str()),
        };
        result.departures.iter().map(String::as_str).chain(failure).map(deviation).collect()
    }
}

/// Returns the text of a rule. A section of IBTA Vol 1 is a number, a section of its annex an A with a number.
pub(crate) fn rule_text(rule: &str) -> String {
    let is_section = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    match rule.strip_prefix('A') {
        Some(annex) if is_section(annex) => format!("IBTA Vol 1, annex {rule}"),
        _ if is_section(rule) => format!("IBTA Vol 1, {rule}"),
        _ => rule.to_owned(),
    }
}

/// The device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFacts {
    /// Name of the device.
    pub name: String,
    /// Provider of the device: `soft` is the embedded software RNIC.
    pub provider: String,
    /// Largest path MTU of the port.
    pub active_mtu: usize,
    /// Hardware of the device. The embedded software RNIC has none.
    pub adapter: Option<Adapter>,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Qualification {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Version of Doorbell.
    pub doorbell: &'static str,
    /// Kernel release.
    pub kernel: String,
    /// Model of the processor.
    pub cpu: String,
    /// The device.
    pub device: DeviceFacts,
    /// Results of the parts, in the order of the run.
    pub parts: Vec<PartResult>,
    /// Deviations, in the order in which they were found.
    pub deviations: Vec<Deviation>,
    /// Results of all cases.
    pub cases: Vec<CaseResult>,
}

impl Qualification {
    /// Returns whether a part could not be carried out, or has not ended.
    pub fn has_failed(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.state, State::Failed | State::NotFinished))
    }

    /// Returns the results as a page in Markdown, without the list of cases.
    pub fn page(&self) -> String {
        let DeviceFacts { name, provider, active_mtu, adapter } = &self.device;
        let mut page = format!("# Qualification of {name}\n\n");
        let adapter = adapter.as_ref().map(|adapter| format!(", {adapter}")).unwrap_or_default();
        let _ = writeln!(
            page,
            "Doorbell {}, Linux {}, {}. Provider {provider}, path MTU {active_mtu}{adapter}.\n",
            self.doorbell, self.kernel, self.cpu
        );
        page.push_str("| part | state | result |\n|---|---|---|\n");
        for PartResult { part, state, what } in &self.parts {
            let state = match state {
                State::NotFinished => "not finished",
                State::Done => "done",
                State::Failed => "failed",
                State::LeftOut => "left out",
            };
            let _ = writeln!(page, "| {} | {state} | {} |", part.name(), cell(what));
        }
        page.push_str("\n## Deviations from the software RNIC\n\n");
        if self.deviations.is_empty() {
            page.push_str("None was found.\n");
            return page;
        }
        page.push_str("| rule | deviation | found by |\n|---|---|---|\n");
        for Deviation { found_by, rule, what } in &self.deviations {
            let _ = writeln!(page, "| {} | {} | `{found_by}` |", cell(rule), cell(what));
        }
        page
    }
}

/// Returns a text as the cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qualification(deviations: Vec<Deviation>) -> Qualification {
        Qualification {
            schema: SCHEMA,
            doorbell: "0.1.0",
            kernel: "6.1.0".to_owned(),
            cpu: "a processor".to_owned(),
            device: DeviceFacts {
                name: "rxe0".to_owned(),
                provider: "system".to_owned(),
                active_mtu: 1024,
                adapter: None,
            },
            parts: vec![PartResult { part: Part::Verbs, state: State::Done, what: "2 of 3 cases".to_owned() }],
            deviations,
            cases: Vec::new(),
        }
    }

    #[test]
    fn a_deviation_names_its_rule() {
        let result = CaseResult {
            name: "verbs/states/rnr_retries_end".to_owned(),
            outcome: Outcome::Failed("left | right\n differ".to_owned()),
            departures: vec!["it departs".to_owned()],
            seconds: 0.5,
        };
        let found = Deviation::of_case(&result, "9.7.5.2.8");
        let whats: Vec<&str> = found.iter().map(|deviation| deviation.what.as_str()).collect();
        assert_eq!(whats, ["it departs", "left | right\n differ"]);
        assert!(found.iter().all(|deviation| deviation.rule == "IBTA Vol 1, 9.7.5.2.8"));
        assert_eq!(
            (rule_text("A17"), rule_text("Any device")),
            ("IBTA Vol 1, annex A17".to_owned(), "Any device".to_owned())
        );
        let page = qualification(found).page();
        let row = "| IBTA Vol 1, 9.7.5.2.8 | left \\| right differ | `verbs/states/rnr_retries_end` |\n";
        assert!(page.contains(row) && page.contains("| verbs | done | 2 of 3 cases |\n"), "{page}");
        assert!(qualification(Vec::new()).page().ends_with("None was found.\n"));
    }

    #[test]
    fn a_result_of_a_case_survives_as_json() {
        for outcome in [Outcome::Passed, Outcome::Failed("why".to_owned()), Outcome::Hung("why".to_owned())] {
            let result = CaseResult { name: "a/b".to_owned(), outcome, departures: Vec::new(), seconds: 0.25 };
            let text = serde_json::to_string(&result).unwrap();
            assert_eq!(serde_json::from_str::<CaseResult>(&text).unwrap(), result, "{text}");
        }
    }

    #[test]
    fn parts_have_names() {
        assert!(Part::ALL.into_iter().all(|part| Part::named(part.name()) == Some(part)));
        assert_eq!(Part::named("all"), None);
    }
}
