use std::ops::RangeInclusive;

use super::*;
use crate::{Cause, Finding, Load, Noise, Quantity, Setting};

/// Source whose values follow from a function of the fixed settings.
struct MadeUp {
    value: fn(&Load<'_>, Quantity) -> f64,
    noise: Noise,
    lack: Option<&'static str>,
}

impl MadeUp {
    fn of(value: fn(&Load<'_>, Quantity) -> f64) -> Self {
        Self { value, noise: Noise::default(), lack: None }
    }

    fn judge(&mut self, id: &str) -> Verdict {
        judge(crate::shape(id).expect("a published sentence"), self)
    }
}

impl Source for MadeUp {
    fn places(&mut self, _: &Load<'_>, _: Setting, range: RangeInclusive<f64>) -> Result<Vec<f64>, Gap> {
        let doublings = std::iter::successors(Some(*range.start()), |value| Some(2.0 * value));
        Ok(doublings.take_while(|value| range.contains(value)).collect())
    }

    fn value(&mut self, load: &Load<'_>, quantity: Quantity) -> Result<f64, Gap> {
        Ok((self.value)(load, quantity))
    }

    fn noise(&self) -> Noise {
        self.noise
    }

    fn lack_of(&self, _: Cause) -> Option<&'static str> {
        self.lack
    }
}

#[test]
fn each_sentence_has_one_rule() {
    let mut rules: Vec<&str> = FAMILIES.into_iter().flatten().map(|(id, _)| *id).collect();
    let mut shapes: Vec<&str> =
        crate::all().iter().flat_map(|testbed| &testbed.shapes).map(|shape| shape.id.as_str()).collect();
    rules.sort_unstable();
    shapes.sort_unstable();
    assert_eq!(rules, shapes);
}

/// A new claim is a sentence in a published file and one rule. Each source then has a verdict on it.
#[test]
fn a_toy_claim_needs_a_sentence_and_a_rule() {
    const SENTENCE: &str = r#"
[[shape]]
id = "send-receive/toy"
says = "a window of four doubles the rate"
experiment = "send-receive/window"
protocol = "send-receive"
numbers = { gain = 2 }
configuration = { like = "sequential", window = [1, 4] }
source = "evaluation"
uncertain = []
"#;
    const RULE: Rules = &[("send-receive/toy", |asked| {
        let one = asked.load_with(Setting::Window, 1.0);
        let gain = asked.rate(&one.with(Setting::Window, 4.0))? / asked.rate(&one)?;
        Ok((asked.is_at_least(gain, asked.number("gain")?), format!("the rate grows {gain:.1} times")))
    })];
    let file = doorbell_data::PUBLISHED.iter().find(|file| file.name == "t1").expect("a published file");
    let text = file.text.to_owned() + SENTENCE;
    let testbed = crate::Testbed::from_toml(file.path, &text).expect("the sentence is valid");
    let toy = testbed.shape("send-receive/toy").expect("the file has the sentence");
    let judged =
        |value: fn(&Load<'_>, Quantity) -> f64| judge_by(&[send_receive::RULES, RULE], toy, &mut MadeUp::of(value));
    let verdict = judged(|load, _| load.fixed[&Setting::Window]);
    assert_eq!((verdict.finding, verdict.because.as_str()), (Finding::Holds, "the rate grows 4.0 times"));
    assert_eq!(judged(|_, _| 1.0).finding, Finding::DoesNotHold);
    assert_eq!(judge(toy, &mut MadeUp::of(|_, _| 1.0)).finding, Finding::NoValues, "the rule is missing");
}

#[test]
fn sentence_without_a_rule_or_a_number_has_no_verdict() {
    let mut toy = crate::shape("send-receive/window-gains").expect("a sentence").clone();
    let gains = |load: &Load<'_>, _| load.fixed.get(&Setting::Window).map_or(1e6, |window| 1e6 * window);
    assert_eq!(judge(&toy, &mut MadeUp::of(gains)).finding, Finding::Holds);
    toy.numbers.insert("gain".to_owned(), 1000.0);
    assert_eq!(judge(&toy, &mut MadeUp::of(gains)).finding, Finding::DoesNotHold);
    toy.numbers.clear();
    let verdict = judge(&toy, &mut MadeUp::of(gains));
    assert_eq!((verdict.finding, verdict.because.contains("`gain`")), (Finding::NoValues, true), "{verdict:?}");
    toy.id = "send-receive/toy".to_owned();
    let verdict = judge(&toy, &mut MadeUp::of(gains));
    assert_eq!((verdict.finding, verdict.because.contains("no rule")), (Finding::NoValues, true), "{verdict:?}");
}

/// The rate grows by 10 % after the knee. Only a source with noise calls that flat.
#[test]
fn noise_widens_a_tolerance() {
    let id = "send-receive/window-linear-then-flat";
    let bent = |load: &Load<'_>, _| {
        let window = load.fixed[&Setting::Window];
        1e6 * window.min(32.0) * if window > 32.0 { 1.1 } else { 1.0 }
    };
    let mut exact = MadeUp::of(bent);
    assert_eq!(exact.judge(id).finding, Finding::DoesNotHold);
    let mut noisy = MadeUp { noise: Noise { timed: 0.1, counted: 0.0 }, ..MadeUp::of(bent) };
    assert_eq!(noisy.judge(id).finding, Finding::Holds);
    let late = |load: &Load<'_>, _| 1e6 * load.fixed[&Setting::Window].min(64.0);
    assert_eq!(MadeUp { value: late, ..noisy }.judge(id).finding, Finding::DoesNotHold);
    // A difference within the noise is none.
    let faster = |load: &Load<'_>, _| if load.is(Setting::Inline) == Some(true) { 1000.0 } else { 1100.0 };
    let id = "send-receive/inline-is-faster";
    assert_eq!(MadeUp::of(faster).judge(id).finding, Finding::Holds);
    let mut noisy = MadeUp { noise: Noise { timed: 0.1, counted: 0.0 }, ..MadeUp::of(faster) };
    assert_eq!(noisy.judge(id).finding, Finding::DoesNotHold);
}

#[test]
fn source_without_the_cause_has_no_negative_verdict() {
    let mut equal = MadeUp::of(|_, _| 1e6);
    let id = "send-receive/batch-gains";
    assert_eq!(equal.judge(id).finding, Finding::DoesNotHold);
    equal.lack = Some("no doorbell");
    let verdict = equal.judge(id);
    assert_eq!((verdict.finding, verdict.because.ends_with("; no doorbell")), (Finding::CannotShow, true));
    let gains = |load: &Load<'_>, _| if load.fixed[&Setting::Batch] > 1.0 { 2e6 } else { 1e6 };
    assert_eq!(MadeUp { lack: equal.lack, ..MadeUp::of(gains) }.judge(id).finding, Finding::Holds);
}

#[test]
fn line_is_fitted_with_relative_errors() {
    let line = line::Line::fit(&[(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]).expect("three points");
    assert!((line.base - 1.0).abs() < 1e-9 && (line.slope - 2.0).abs() < 1e-9 && line.worst < 1e-9);
    let bent = line::Line::fit(&[(1.0, 1.0), (2.0, 2.0), (4.0, 16.0)]).expect("three points");
    assert!(bent.worst > 0.1);
    assert!(line::Line::fit(&[(1.0, 1.0), (2.0, 2.0)]).is_none());
    assert!(line::Line::fit(&[(1.0, 0.0), (2.0, 2.0), (3.0, 1.0)]).is_none());
}
