//! Decides which faults strike the calls and completions of a program. The engine does no IO, and time is an input.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_rnic::{Completed, CompletionFate, CompletionFaults};
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::CompletionOpcode;
use doorbell_wire::Qpn;
use rustc_hash::FxHashMap;

use super::engine::{Dice, RULE_STREAMS};
use super::journal::Journal;
use super::plan::FaultPlan;
use super::rule::{FaultRule, VerbsCall, VerbsFault, operation_name, status_name};

/// The rules of a plan for the calls and completions of the programs of one device. Clones share their state.
///
/// [`Rnic::inject`](doorbell_rnic::Rnic::inject) takes the faults of [`completions`](Self::completions). The provider
/// of the device asks before each call.
#[derive(Clone, Debug)]
pub struct VerbsFaults {
    shared: Arc<Mutex<Boundary>>,
}

#[derive(Debug)]
struct Boundary {
    plan: FaultPlan,
    armed: Vec<Armed>,
    /// Rank of each queue pair, in the order of their creation. The first has rank 1.
    orders: FxHashMap<Qpn, u64>,
    created: u64,
    /// Time of the first call.
    begun_ns: Option<u64>,
    journal: Option<Journal>,
}

/// A rule with its state.
#[derive(Debug)]
struct Armed {
    /// Index in the plan.
    index: usize,
    fault: VerbsFault,
    dice: Dice,
    /// Number of calls that met all conditions before `nth`.
    matched: u64,
    fired: u64,
}

impl VerbsFaults {
    /// Creates the faults of a device; `None` if the plan has no rules for calls and completions.
    pub fn new(plan: &FaultPlan) -> Option<Self> {
        let armed = |(index, rule): (usize, &FaultRule)| {
            let dice = Dice::new(plan.shares.seed, RULE_STREAMS + index as u64, rule.packets.share);
            rule.verbs_fault().map(|fault| Armed { index, fault, dice, matched: 0, fired: 0 })
        };
        let armed: Vec<_> = plan.rules.iter().enumerate().filter_map(armed).collect();
        if armed.is_empty() {
            return None;
        }
        let (plan, orders) = (plan.clone(), FxHashMap::default());
        let boundary = Boundary { plan, armed, orders, created: 0, begun_ns: None, journal: None };
        Some(Self { shared: Arc::new(Mutex::new(boundary)) })
    }

    /// Writes one line of JSON to `to` for each rule that fires.
    #[must_use]
    pub fn with_journal(self, to: impl Write + Send + 'static) -> Self {
        self.lock().journal = Some(Journal::new(to));
        self
    }

    fn lock(&self) -> MutexGuard<'_, Boundary> {
        self.shared.lock().ignore_poison()
    }

    /// Notes a new queue pair, for the order of creation.
    pub fn created(&self, qpn: Qpn) {
        let mut boundary = self.lock();
        boundary.created += 1;
        let order = boundary.created;
        boundary.orders.insert(qpn, order);
    }

    /// Forgets a queue pair that is destroyed.
    pub fn destroyed(&self, qpn: Qpn) {
        self.lock().orders.remove(&qpn);
    }

    /// Returns the errno with which a call fails; `None` if it succeeds. `qpn` is the queue pair of the call.
    pub fn refuses_call(&self, now_ns: u64, call: VerbsCall, qpn: Option<Qpn>) -> Option<i32> {
        let wants = |fault: VerbsFault| matches!(fault, VerbsFault::RefuseCall { call: own, .. } if own == call);
        let facts = [Some(("call", quoted(call.name()))), qpn.map(queue_pair)];
        self.lock().refuses(now_ns, qpn, wants, facts)
    }

    /// Returns the errno with which the post of a work request fails; `None` if it succeeds. `qpn` is `None` for a
    /// shared receive queue.
    pub fn refuses_post(&self, now_ns: u64, qpn: Option<Qpn>, operation: CompletionOpcode) -> Option<i32> {
        let wants = |fault: VerbsFault| matches!(fault, VerbsFault::RefusePost { .. }) && fault.concerns(operation);
        let facts = [Some(("operation", quoted(operation_name(operation)))), qpn.map(queue_pair)];
        self.lock().refuses(now_ns, qpn, wants, facts)
    }

    /// Returns the faults of completions; `None` if the plan has none.
    pub fn completions(&self) -> Option<Box<dyn CompletionFaults>> {
        let strikes = self.lock().armed.iter().any(|armed| armed.fault.is_of_completions());
        strikes.then(|| Box::new(self.clone()) as Box<dyn CompletionFaults>)
    }

    /// Returns the number of firings of each rule of calls and completions, with the number of the rule in the plan,
    /// from 1.
    pub fn fired(&self) -> Vec<(usize, u64)> {
        self.lock().armed.iter().map(|armed| (armed.index + 1, armed.fired)).collect()
    }
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

fn queue_pair(qpn: Qpn) -> (&'static str, String) {
    ("qp", qpn.get().to_string())
}

impl Boundary {
    /// Returns the faults of the wanted kind that strike a call on a queue pair, with the index of the rule and its
    /// number of firings.
    fn strike(
        &mut self,
        now_ns: u64,
        qpn: Option<Qpn>,
        wants: impl Fn(VerbsFault) -> bool,
    ) -> Vec<(VerbsFault, usize, u64)> {
        let since_ns = now_ns.saturating_sub(*self.begun_ns.get_or_insert(now_ns));
        let order = qpn.and_then(|qpn| self.orders.get(&qpn).copied());
        let mut struck = Vec::new();
        for armed in self.armed.iter_mut().filter(|armed| wants(armed.fault)) {
            let conditions = &self.plan.rules[armed.index].packets;
            let is_met = conditions.qp.is_none_or(|own| qpn.is_some_and(|qpn| qpn.get() == own))
                && conditions.qp_order.is_none_or(|own| order.is_some_and(|order| own.has(order)))
                && conditions.after_ns.is_none_or(|after_ns| since_ns >= after_ns)
                && conditions.before_ns.is_none_or(|before_ns| since_ns < before_ns);
            if !is_met {
                continue;
            }
            armed.matched += 1;
            if conditions.counts(armed.matched) && armed.dice.roll().is_some() {
                armed.fired += 1;
                struck.push((armed.fault, armed.index, armed.fired));
            }
        }
        struck
    }

    fn note(&mut self, now_ns: u64, index: usize, count: u64, facts: &[(&str, String)]) {
        if let Some(journal) = &mut self.journal {
            journal.add(index + 1, &self.plan.rules[index], count, now_ns, facts);
        }
    }

    fn refuses(
        &mut self,
        now_ns: u64,
        qpn: Option<Qpn>,
        wants: impl Fn(VerbsFault) -> bool,
        facts: [Option<(&'static str, String)>; 2],
    ) -> Option<i32> {
        let mut refusal = None;
        for (fault, index, count) in self.strike(now_ns, qpn, wants) {
            let (VerbsFault::RefuseCall { errno, .. } | VerbsFault::RefusePost { errno, .. }) = fault else { continue };
            let facts: Vec<_> = facts.iter().flatten().cloned().chain([("errno", errno.to_string())]).collect();
            self.note(now_ns, index, count, &facts);
            refusal = refusal.or(Some(errno));
        }
        refusal
    }
}

impl CompletionFaults for VerbsFaults {
    fn judge(&mut self, now_ns: u64, completed: &Completed<'_>) -> CompletionFate {
        let Completed { completion, cq, srq } = *completed;
        let qpn = completion.qpn;
        let mut boundary = self.lock();
        let lacks_object =
            |fault: VerbsFault| matches!(fault, VerbsFault::Raise { event, .. } if event.of(qpn, cq, srq).is_none());
        let wants =
            |fault: VerbsFault| fault.is_of_completions() && fault.concerns(completion.opcode) && !lacks_object(fault);
        let mut fate = CompletionFate::default();
        for (fault, index, count) in boundary.strike(now_ns, Some(qpn), wants) {
            let mut facts = vec![("operation", quoted(operation_name(completion.opcode))), queue_pair(qpn)];
            facts.push(("wr_id", completion.wr_id.to_string()));
            match fault {
                VerbsFault::Complete { status, ends_queue_pair, .. } => {
                    fate.status = status;
                    fate.ends_queue_pair |= ends_queue_pair;
                    facts.push(("status", quoted(&status_name(status))));
                }
                VerbsFault::Hide { delay_ns, .. } => {
                    fate.delay_ns = fate.delay_ns.saturating_add(delay_ns);
                    facts.push(("for_ns", delay_ns.to_string()));
                }
                VerbsFault::Raise { event, ends_queue_pair, .. } => {
                    fate.events.extend(event.of(qpn, cq, srq));
                    fate.ends_queue_pair |= ends_queue_pair;
                    facts.push(("event", quoted(event.name())));
                }
                VerbsFault::RefusePost { .. } | VerbsFault::RefuseCall { .. } => {}
            }
            boundary.note(now_ns, index, count, &facts);
        }
        fate
    }
}
