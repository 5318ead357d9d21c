//! Journal of the rules that fired: one JSON object per line.

use std::fmt::Write as _;
use std::io::Write;
use std::net::IpAddr;

use doorbell_wire::BthRepr;

use super::rule::{Direction, FaultRule};

/// Maximum number of lines of a journal. The first firing of each rule is written in any case.
const LINES_MAX: u64 = 1_000_000;

/// One firing of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Firing {
    /// Number of the rule in its plan, from 1.
    pub(super) rule: usize,
    pub(super) at_ns: u64,
    pub(super) direction: Direction,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// Headers of the packet; `None` if it is too short.
    pub(super) bth: Option<BthRepr>,
    /// Number of firings of the rule so far, this one included.
    pub(super) count: u64,
}

/// Writer of a journal. After the first failed write, the journal ends.
pub(super) struct Journal {
    to: Box<dyn Write + Send>,
    lines: u64,
    is_broken: bool,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("lines", &self.lines).finish_non_exhaustive()
    }
}

impl Journal {
    pub(super) fn new(to: impl Write + Send + 'static) -> Self {
        Self { to: Box::new(to), lines: 0, is_broken: false }
    }

    /// Writes one line per firing, each with a separate call of the writer. So several processes can append to one
    /// file.
    pub(super) fn write(&mut self, firings: &[(Firing, &FaultRule)]) {
        firings.iter().for_each(|(firing, rule)| self.put(firing.count, || line(firing, rule)));
    }

    /// Writes a line about a call or a completion. `facts` are further names and values in JSON.
    pub(super) fn add(&mut self, number: usize, rule: &FaultRule, count: u64, at_ns: u64, facts: &[(&str, String)]) {
        self.put(count, || {
            let mut line = head(number, rule);
            let _ = write!(line, ",\"count\":{count},\"at_ns\":{at_ns}"); // writing to a string cannot fail
            for (name, value) in facts {
                let _ = write!(line, ",\"{name}\":{value}");
            }
            line.push_str("}\n");
            line
        });
    }

    fn put(&mut self, count: u64, line: impl FnOnce() -> String) {
        if self.is_broken || (self.lines >= LINES_MAX && count > 1) {
            return;
        }
        self.lines += 1;
        if let Err(error) = self.to.write_all(line().as_bytes()) {
            self.is_broken = true;
            tracing::error!("the journal of faults cannot be written ({error}): it ends after {} lines", self.lines);
        }
    }
}

/// Start of each line.
const PREFIX: &str = "{\"rule\":";

/// Returns the number of the rule in a line of a journal. Returns `None` if the line is not of a journal.
pub(super) fn rule_of(line: &str) -> Option<usize> {
    line.strip_prefix(PREFIX)?.split(',').next()?.parse().ok()
}

/// Returns the start of a line.
fn head(number: usize, rule: &FaultRule) -> String {
    let mut head = format!("{PREFIX}{number},\"action\":\"{}\"", rule.action_name());
    if let Some(name) = rule.name() {
        let _ = write!(head, ",\"name\":\"{name}\""); // writing to a string cannot fail
    }
    head
}

/// Returns a line. All texts in it are names and addresses, which need no escapes.
fn line(firing: &Firing, rule: &FaultRule) -> String {
    let Firing { rule: number, at_ns, direction, from, to, bth, count } = firing;
    let direction = direction.name();
    let mut line = head(*number, rule);
    let mut add = |text: std::fmt::Arguments<'_>| {
        let _ = line.write_fmt(text); // writing to a string cannot fail
    };
    add(format_args!(",\"count\":{count},\"at_ns\":{at_ns},\"direction\":\"{direction}\""));
    add(format_args!(",\"from\":\"{from}\",\"to\":\"{to}\""));
    if let Some(bth) = bth {
        let (opcode, qp, psn) = (bth.opcode, bth.dest_qpn.get(), bth.psn.get());
        add(format_args!(",\"opcode\":\"{opcode}\",\"qp\":{qp},\"psn\":{psn}"));
    }
    add(format_args!("}}\n"));
    line
}

#[cfg(test)]
mod tests {
    use super::super::FaultPlan;
    use super::*;

    #[test]
    fn a_line_has_the_rule_and_the_packet() {
        let plan: FaultPlan = "drop name=lost-ack opcode=ack nth=1".parse().unwrap();
        let bth = BthRepr { opcode: doorbell_wire::Opcode::RC_ACKNOWLEDGE, ..BthRepr::default() };
        let [from, to] = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
        let direction = Direction::Out;
        let firing = Firing { rule: 1, at_ns: 7, direction, from, to, bth: Some(bth), count: 1 };
        let line = line(&firing, &plan.rules()[0]);
        let expected = "{\"rule\":1,\"action\":\"drop\",\"name\":\"lost-ack\",\"count\":1,\"at_ns\":7,\
                        \"direction\":\"out\",\"from\":\"10.0.0.1\",\"to\":\"10.0.0.2\",\
                        \"opcode\":\"RC Acknowledge\",\"qp\":0,\"psn\":0}\n";
        assert_eq!(line, expected);
        assert_eq!(rule_of(&line), Some(1));
        assert_eq!(rule_of("{\"other\":1}"), None);
    }
}
