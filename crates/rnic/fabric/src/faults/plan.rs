//! Plans of injected faults, and their text form.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::error::FaultPlanError;
use super::journal;
use super::rule::{FaultAction, FaultRule, RuleParser, RuleProblem};
use super::shares::FaultShares;
use crate::struck::{PlanTexts, RULES_MAX};

/// Plan of faults: shares of all packets that arrive, rules for chosen packets, and rules for calls and completions of
/// a program.
///
/// The text form has parts that are separated by semicolons. A part is either a list of shares, as
/// `drop=0.01,seed=7`, or a rule, as `drop opcode=ack nth=1`. Files have the form of [`from_toml`](Self::from_toml).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub(super) shares: FaultShares,
    pub(super) rules: Vec<FaultRule>,
}

impl FaultPlan {
    /// Returns the faults of shares of all packets.
    pub fn shares(&self) -> &FaultShares {
        &self.shares
    }

    /// Returns the rules, in the order of the plan.
    pub fn rules(&self) -> &[FaultRule] {
        &self.rules
    }

    /// Returns whether the plan injects no faults.
    pub fn is_empty(&self) -> bool {
        self.shares.is_empty() && self.rules.is_empty()
    }

    /// Returns the texts for comments of captures, or `None` if the plan injects no faults.
    pub(super) fn texts(&self) -> Option<PlanTexts> {
        let text = |(number, rule): (usize, &FaultRule)| match rule.name() {
            Some(name) => format!("rule {number} {name}"),
            None => format!("rule {number}"),
        };
        let rules = (1..).zip(&self.rules).map(text).collect();
        (!self.is_empty()).then(|| PlanTexts { plan: self.to_string(), rules })
    }

    /// Returns whether the plan may give orders to the port of the device, which only an RNIC can carry out.
    pub fn orders_port(&self) -> bool {
        self.rules.iter().any(FaultRule::orders_port)
    }

    /// Returns whether the plan has rules for calls and completions of a program.
    pub fn strikes_calls(&self) -> bool {
        self.rules.iter().any(|rule| rule.verbs_fault().is_some())
    }

    /// Returns whether the plan may add copies of packets.
    pub fn duplicates(&self) -> bool {
        self.shares.duplicate > 0.0 || self.rules.iter().any(FaultRule::duplicates)
    }

    /// Returns a sentence for each rule that never fired, unless the rule is optional. `journals` has the journals of
    /// all links that used the plan ([`Faults::with_journal`](super::Faults::with_journal)).
    pub fn unfired(&self, journals: &str) -> Vec<String> {
        let fired: BTreeSet<usize> = journals.lines().filter_map(journal::rule_of).collect();
        self.unfired_by(|number| fired.contains(&number))
    }

    /// Returns the sentences of [`unfired`](Self::unfired). `fired` says whether a rule fired, by its number from 1.
    pub fn unfired_by(&self, fired: impl Fn(usize) -> bool) -> Vec<String> {
        let silent = (1..).zip(&self.rules).filter(|(number, rule)| !rule.optional && !fired(*number));
        silent.map(|(number, rule)| never_fired(number, rule)).collect()
    }

    /// Adds a rule. Rejects a rule that contradicts an earlier rule.
    pub(super) fn push(&mut self, rule: FaultRule) -> Result<(), RuleProblem> {
        let refuse = |field: &str, problem: String| Err(RuleProblem { field: field.to_owned(), problem });
        if self.rules.len() == RULES_MAX {
            return refuse("action", format!("the plan has more than {RULES_MAX} rules, allowed are {RULES_MAX}"));
        }
        if let Some(name) = rule.name()
            && self.rules.iter().any(|earlier| earlier.name() == Some(name))
        {
            return refuse("name", format!("two rules have the name {name}, allowed is one"));
        }
        let is_same = |earlier: &&FaultRule| {
            let is_excluded = earlier.verbs_fault().zip(rule.verbs_fault()).is_some_and(|(one, own)| one.excludes(own));
            is_excluded && earlier.packets == rule.packets && rule.packets.share.is_none()
        };
        if let Some(earlier) = self.rules.iter().find(is_same) {
            let action = earlier.action_name();
            let problem = format!("two rules with the action {action} match the same calls, allowed is only one");
            return refuse("action", problem);
        }
        let is_final = |rule: &FaultRule| {
            matches!(rule.action, FaultAction::Drop | FaultAction::BlackHole(_) | FaultAction::Port(_))
        };
        let is_lost = |to_drop: &FaultRule, other: &FaultRule| {
            !other.acts_on_dropped(to_drop)
                && match to_drop.action {
                    FaultAction::Drop => to_drop.packets.covers(&other.packets),
                    _ => is_final(to_drop) && to_drop.packets == other.packets && other.packets.share.is_none(),
                }
        };
        let contradicts = |earlier: &&FaultRule| is_lost(earlier, &rule) || is_lost(&rule, earlier);
        if let Some(earlier) = self.rules.iter().find(contradicts) {
            let (one, other) = (earlier.action_name(), rule.action_name());
            let problem = format!(
                "two rules with the actions {one} and {other} match the same packets, and a dropped packet allows no \
                 other action"
            );
            return refuse("action", problem);
        }
        self.rules.push(rule);
        Ok(())
    }
}

/// Returns the sentence about a rule that never fired.
fn never_fired(number: usize, rule: &FaultRule) -> String {
    format!("fault rule {number} never fired: {rule}; a rule that may remain without effect has optional=true")
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        let mut has_shares = false;
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            // In a list of shares, the first word has a value. A single word is a list too: the action `drop` without
            // any condition would strike every packet.
            let is_rule = part
                .split_once(char::is_whitespace)
                .is_some_and(|(first, rest)| !first.contains('=') && !rest.trim_start().starts_with('='));
            let mut words = part.split_whitespace();
            let action = words.next().filter(|_| is_rule);
            let Some(action) = action else {
                if has_shares {
                    return Err(FaultPlanError::TwoLists);
                }
                has_shares = true;
                plan.shares = part.parse()?;
                continue;
            };
            let refuse =
                |RuleProblem { field, problem }| FaultPlanError::Rule { rule: part.to_owned(), field, problem };
            let mut parser = RuleParser::default();
            parser.set("action", action).map_err(refuse)?;
            for word in words {
                let pair = if word == "optional" { Some(("optional", "true")) } else { word.split_once('=') };
                let (field, value) = pair.ok_or_else(|| {
                    let problem = "the field has no value, allowed is FIELD=VALUE".to_owned();
                    refuse(RuleProblem { field: word.to_owned(), problem })
                })?;
                parser.set(field, value).map_err(refuse)?;
            }
            parser.finish().and_then(|rule| plan.push(rule)).map_err(refuse)?;
        }
        Ok(plan)
    }
}

/// Writes the plan in the form that `from_str` parses. The seed is always included, since it is needed to replay the
/// plan.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shares)?;
        self.rules.iter().try_for_each(|rule| write!(f, ";{rule}"))
    }
}
