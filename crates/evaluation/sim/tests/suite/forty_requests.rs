//! The model, the simulator and `advise` answer the same 40 questions about requests with replies on testbed T1. An
//! answer is the mean latency of a request with load, if each of N clients has one request outstanding at a server of
//! one thread.
//!
//! `DOORBELL_UPDATE_QUESTIONS=1 cargo test -p doorbell-sim --test suite forty_requests:: -- --nocapture` prints the
//! answers and writes them to docs/model.md.

use std::fmt::Write as _;

use doorbell_model::advise::{Goal, Need};
use doorbell_model::parameters::Parameters;
use doorbell_model::predict::{Requests, predict_requests};
use doorbell_model::workload::Peers;
use doorbell_protocols::Protocol;
use doorbell_sim::advise::departs;

use crate::forty_questions::PROTOCOLS;
use crate::questions::{Asked, Known, Table, ask};

/// Differences with a known cause: [`Question::name`], [`LOADED`], and the cause.
const KNOWN: &[Known] = &[
    (
        "direct-write, 64 B, 200 B, 16 clients",
        LOADED,
        "the simulated server polls the completions of replies and grants one by one, which lengthens its turns. The \
         model counts them in `o_snd`",
    ),
    (
        "shared-write, 4096 B, 200 B, 64 clients",
        LOADED,
        "the simulated server polls the completion of each WRITE, and the model counts it in `o_snd`. The READ of the \
         head needs further turns",
    ),
    (
        "buffered-read, 64 B, 200 B, 4 clients",
        LOADED,
        "the model adds half a READ of the tail until the next READ begins. In the simulator, the READ in flight may \
         find the message already",
    ),
];

const TABLE: Table =
    Table { begin: "<!-- generated: `crates/evaluation/sim/tests/suite/forty_requests.rs` -->\n\n", known: KNOWN };

const HEAD: &str = "\
| protocol | request, B | reply, B | clients | alone, model, us | loaded, model, us | simulator | `advise` | differs by more than 25 % |
|---|---|---|---|---|---|---|---|---|
";
const LOADED: &str = "loaded latency";

/// Bytes of requests and of their replies.
const SIZES: [(u64, u64); 6] = [(64, 200), (64, 65_536), (200, 200), (200, 65_536), (4096, 200), (4096, 65_536)];
const CLIENTS: [u32; 5] = [1, 4, 16, 24, 64];

#[derive(Clone, Copy)]
struct Question {
    protocol: Protocol,
    bytes: u64,
    reply_bytes: u64,
    clients: u32,
}

/// Returns four questions for each protocol. All together have each size with each number of clients.
fn questions() -> Vec<Question> {
    let protocols = PROTOCOLS.into_iter().flat_map(|protocol| [protocol; 4]);
    let of = |(number, protocol): (usize, Protocol)| {
        let (bytes, reply_bytes) = SIZES[number % SIZES.len()];
        let clients = CLIENTS[number % CLIENTS.len()];
        // A ring of Shared-Write has at least two senders.
        let clients = if protocol == Protocol::SharedWrite { clients.max(2) } else { clients };
        Question { protocol, bytes, reply_bytes, clients }
    };
    protocols.enumerate().map(of).collect()
}

/// Answers to a question, in nanoseconds.
struct Answered {
    question: Question,
    alone_ns: f64,
    model_ns: f64,
    simulator_ns: f64,
    advised_ns: f64,
}

impl Question {
    fn name(&self) -> String {
        let Self { protocol, bytes, reply_bytes, clients } = self;
        format!("{protocol}, {bytes} B, {reply_bytes} B, {clients} clients")
    }

    fn need(&self) -> Need {
        Need {
            reply_bytes: Some(self.reply_bytes),
            peers: Peers::many_to_one(self.clients),
            window: Some(1),
            // Without this, `advise` leaves Direct-Read out.
            receiver_places: true,
            ..Need::new(self.bytes, Goal::Latency)
        }
    }

    fn ask(self) -> Answered {
        let name = self.name();
        let Asked { advice, workload, simulated } = ask(&name, self.protocol, &self.need());
        let requests = Requests { request: workload, reply_bytes: self.reply_bytes, think_us: 0 };
        let predicted = predict_requests(&Parameters::t1(), &requests);
        let predicted = predicted.unwrap_or_else(|error| panic!("{name}: {error}"));
        Answered {
            question: self,
            alone_ns: predicted.latency_ns,
            model_ns: predicted.loaded_ns(requests.in_flight()),
            simulator_ns: simulated.loaded_ns.expect("a closed loop"),
            advised_ns: advice.loaded_ns.expect("a closed loop"),
        }
    }
}

impl Answered {
    /// Returns whether two of the three answers depart from each other.
    fn departs(&self) -> bool {
        let Self { model_ns, simulator_ns, advised_ns, .. } = *self;
        let pairs = [(model_ns, simulator_ns), (model_ns, advised_ns), (advised_ns, simulator_ns)];
        pairs.into_iter().any(|(one, other)| departs(one, other))
    }

    /// Returns the row of the table.
    fn row(&self) -> String {
        let Question { protocol, bytes, reply_bytes, clients } = self.question;
        let times = [self.alone_ns, self.model_ns, self.simulator_ns, self.advised_ns];
        let times = times.map(|ns| format!("{:.2}", ns / 1e3)).join(" | ");
        let reason = match self.departs() {
            true => TABLE.reason(&self.question.name(), LOADED).unwrap_or("no reason is known"),
            false => "",
        };
        format!("| {protocol} | {bytes} | {reply_bytes} | {clients} | {times} | {reason} |")
    }
}

#[test]
fn model_simulator_and_advise_agree_on_forty_requests() {
    let questions = questions();
    assert_eq!(questions.len(), 40);
    let answers: Vec<Answered> = questions.into_iter().map(Question::ask).collect();
    let mut rows = String::from(HEAD);
    for answered in &answers {
        let _ = writeln!(rows, "{}", answered.row());
    }
    let departing = answers.iter().filter(|answered| answered.departs());
    let departures: Vec<(String, &str)> = departing.map(|answered| (answered.question.name(), LOADED)).collect();
    TABLE.check(&rows, &departures);
}

#[test]
fn requests_cover_all_sizes_with_all_numbers_of_clients() {
    let questions = questions();
    for sizes in SIZES {
        for clients in CLIENTS {
            let is_asked = |question: &Question| {
                let of_protocol = if question.protocol == Protocol::SharedWrite { clients.max(2) } else { clients };
                (question.bytes, question.reply_bytes) == sizes && question.clients == of_protocol
            };
            assert!(questions.iter().any(is_asked), "{sizes:?} B, {clients} clients");
        }
    }
    let mut names: Vec<String> = questions.iter().map(Question::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 40, "each question is asked once");
}
