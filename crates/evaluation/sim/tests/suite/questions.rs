//! Questions to `advise` and the simulator, their tables in docs/model.md, and answers that differ by more than 25 %.

use doorbell_model::advise::{Advice, Need, advise};
use doorbell_model::parameters::Parameters;
use doorbell_model::workload::Workload;
use doorbell_protocols::Protocol;
use doorbell_sim::advise::{Simulated, simulate};
use doorbell_sim::testbed;

use crate::pages;

/// Answers to a question about messages of one size on testbed T1.
pub(crate) struct Asked {
    pub advice: Advice,
    /// Messages with the advised settings.
    pub workload: Workload,
    /// Simulation of the advice.
    pub simulated: Simulated,
}

/// Asks `advise` about a protocol, and simulates the advice.
///
/// # Panics
///
/// There is no advice, or the simulation fails. The message has the name of the question.
pub(crate) fn ask(name: &str, protocol: Protocol, need: &Need) -> Asked {
    let all = advise(&Parameters::t1(), need).unwrap_or_else(|error| panic!("{name}: {error}"));
    let advice = all.into_iter().find(|advice| advice.protocol == protocol);
    let advice = advice.unwrap_or_else(|| panic!("{name}: no advice"));
    let testbed = testbed::by_name("t1").expect("a built-in testbed");
    let simulated = simulate(testbed, need, &advice).unwrap_or_else(|error| panic!("{name}: {error}"));
    let [(bytes, _)] = need.sizes[..] else { panic!("{name}: {} sizes", need.sizes.len()) };
    // Connections that share receives or a ring also share the advised depth.
    let shares = advice.srq || protocol == Protocol::SharedWrite;
    let workload = Workload {
        protocol,
        depth: if shares { (advice.depth / need.peers.connections).max(1) } else { advice.depth },
        srq: advice.srq,
        peers: need.peers,
        ..Workload::new(bytes, advice.window, advice.batch)
    };
    Asked { advice, workload, simulated }
}

/// Difference with a known cause: the name of a question, the name of the figure, and the cause as a sentence.
pub(crate) type Known = (&'static str, &'static str, &'static str);

/// Maximum number of known differences of a table.
const MOST_KNOWN: usize = 4;

/// Environment variable with which tests write their tables.
const UPDATE: &str = "DOORBELL_UPDATE_QUESTIONS";

/// Table of the page.
pub(crate) struct Table {
    /// Text before the table, which occurs once in the page.
    pub begin: &'static str,
    /// Differences with a known cause.
    pub known: &'static [Known],
}

impl Table {
    /// Returns the cause of a difference, if it is known.
    pub(crate) fn reason(&self, question: &str, figure: &str) -> Option<&'static str> {
        let is_meant = |(name, of, _): &&Known| *name == question && *of == figure;
        self.known.iter().find(is_meant).map(|(.., reason)| *reason)
    }

    /// Checks that each difference has a known cause, that each entry of [`known`](Self::known) still has a difference,
    /// and that the page has these rows. With [`UPDATE`], writes the rows to the page.
    ///
    /// # Panics
    ///
    /// A check fails.
    pub(crate) fn check(&self, rows: &str, departures: &[(String, &str)]) {
        println!("{rows}");
        let is_unknown = |(question, figure): &&(String, &str)| self.reason(question, figure).is_none();
        let unknown: Vec<_> = departures.iter().filter(is_unknown).collect();
        assert!(unknown.is_empty(), "differences without a cause: {unknown:#?}\n{rows}");
        for (name, of, reason) in self.known {
            let is_left = departures.iter().any(|(question, figure)| question == name && figure == of);
            assert!(is_left, "{name}, {of}: no longer a difference, so remove the entry ({reason})");
        }
        let count = self.known.len();
        assert!(count <= MOST_KNOWN, "{count} differences are listed, must be at most {MOST_KNOWN}");
        pages::check("model.md", self.begin, rows, UPDATE);
    }
}
