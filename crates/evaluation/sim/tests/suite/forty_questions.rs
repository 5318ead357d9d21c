//! The model, the simulator and `advise` answer the same 40 questions about testbed T1. Each question asks for the rate
//! of messages of one size from N sending threads to one receiving thread, and for their latency alone.
//!
//! `DOORBELL_UPDATE_QUESTIONS=1 cargo test -p doorbell-sim --test suite forty_questions:: -- --nocapture` prints the
//! answers and writes them to docs/model.md.

use std::fmt::Write as _;

use doorbell_model::advise::{Advice, Goal, Need};
use doorbell_model::explain::millions;
use doorbell_model::parameters::Parameters;
use doorbell_model::predict::predict;
use doorbell_model::workload::Peers;
use doorbell_protocols::Protocol;
use doorbell_sim::advise::departs;

use crate::questions::{Asked, Known, Table, ask};

/// Differences with a known cause: [`Question::name`], [`RATE`] or [`LATENCY`], and the cause.
const KNOWN: &[Known] = &[
    (
        "buffered-read, 1048576 B, 4:1",
        RATE,
        "in the simulator, a READ of the tail waits while the sender copies the next message. So the copies and READs of \
         a window of two alternate. The model lets them overlap",
    ),
    (
        "buffered-read, 512 B, 16:1",
        RATE,
        "receiving CPU, round trip and link allow about the same rate, and the model has no waits of each for the others",
    ),
];

const TABLE: Table =
    Table { begin: "<!-- generated: `crates/evaluation/sim/tests/suite/forty_questions.rs` -->\n\n", known: KNOWN };

const RATE: &str = "rate";
const LATENCY: &str = "latency alone";

/// Protocols of the questions: all that `advise` may recommend. Of the variants of Buffered-Write in which the sender
/// READs the free space, one stands for all.
pub(crate) const PROTOCOLS: [Protocol; 10] = [
    Protocol::SendReceive,
    Protocol::DirectRead,
    Protocol::DirectReadSend,
    Protocol::DirectWrite,
    Protocol::BufferedWriteImmediateSend,
    Protocol::BufferedWriteTailSend,
    Protocol::BufferedWriteTailRead,
    Protocol::BufferedWriteReverseSend,
    Protocol::SharedWrite,
    Protocol::BufferedRead,
];

const SIZES: [u64; 5] = [16, 512, 4096, 65_536, 1 << 20];
const CLIENTS: [u32; 4] = [1, 4, 16, 64];
/// Maximum number of clients that send messages of 1 MiB, whose buffers would otherwise take gigabytes.
const MOST_CLIENTS_OF_1_MIB: u32 = 16;

#[derive(Clone, Copy)]
struct Question {
    protocol: Protocol,
    bytes: u64,
    clients: u32,
}

/// Returns four questions for each protocol, with all numbers of clients and four of the sizes.
fn questions() -> Vec<Question> {
    let mut questions = Vec::new();
    for (place, protocol) in PROTOCOLS.into_iter().enumerate() {
        for number in 0..4 {
            let bytes = SIZES[(place + 2 * number) % SIZES.len()];
            let clients = CLIENTS[(place + number) % CLIENTS.len()];
            let clients = match (protocol, bytes) {
                // A ring of Shared-Write has at least two senders.
                (Protocol::SharedWrite, _) => clients.max(2),
                _ => clients,
            };
            let most = if bytes == 1 << 20 { MOST_CLIENTS_OF_1_MIB } else { clients };
            questions.push(Question { protocol, bytes, clients: clients.min(most) });
        }
    }
    questions
}

/// A rate in messages per second, and a latency alone in nanoseconds.
type Figures = [f64; 2];

/// Answers to a question.
struct Answered {
    question: Question,
    advice: Advice,
    model: Figures,
    simulator: Figures,
    advised: Figures,
}

impl Question {
    fn name(&self) -> String {
        let Self { protocol, bytes, clients } = self;
        format!("{protocol}, {bytes} B, {clients}:1")
    }

    /// Returns the window, which is smaller for long messages, since few of them fill the link.
    fn window(&self) -> u32 {
        match self.bytes {
            0..=4096 => 16,
            4097..=65_536 => 4,
            _ => 2,
        }
    }

    fn need(&self) -> Need {
        Need {
            peers: Peers::many_to_one(self.clients),
            window: Some(self.window()),
            // Without this, `advise` leaves Direct-Read out.
            receiver_places: true,
            ..Need::new(self.bytes, Goal::Throughput)
        }
    }

    fn ask(self) -> Answered {
        let name = self.name();
        let Asked { advice, workload, simulated } = ask(&name, self.protocol, &self.need());
        let predicted = predict(&Parameters::t1(), &workload).unwrap_or_else(|error| panic!("{name}: {error}"));
        Answered {
            question: self,
            model: [predicted.messages_per_s, predicted.latency_ns],
            simulator: [simulated.messages_per_s, simulated.latency_ns],
            advised: [advice.messages_per_s, advice.latency_ns],
            advice,
        }
    }
}

impl Answered {
    /// Returns the figures in which two of the three answers depart from each other.
    fn departures(&self) -> Vec<&'static str> {
        let Self { model, simulator, advised, .. } = self;
        let pairs = [(model, simulator), (model, advised), (advised, simulator)];
        let in_figure = |index: usize| pairs.iter().any(|(one, other)| departs(one[index], other[index]));
        [RATE, LATENCY].into_iter().enumerate().filter(|(index, _)| in_figure(*index)).map(|(_, name)| name).collect()
    }

    /// Returns the row of the table.
    fn row(&self) -> String {
        let Question { protocol, bytes, clients } = self.question;
        let Advice { window, batch, srq, .. } = &self.advice;
        let departures = self.departures();
        let reason = |figure: &&str| {
            format!("{figure}: {}", TABLE.reason(&self.question.name(), figure).unwrap_or("no reason is known"))
        };
        let reasons: Vec<String> = departures.iter().map(reason).collect();
        let cells = |[rate, latency]: &Figures| format!("{} / {:.2}", millions(*rate), latency / 1e3);
        format!(
            "| {protocol} | {bytes} | {clients}:1 | {window} / {batch}{} | {} | {} | {} | {} |",
            if *srq { ", SRQ" } else { "" },
            cells(&self.model),
            cells(&self.simulator),
            cells(&self.advised),
            reasons.join("; ")
        )
    }
}

fn table(answers: &[Answered]) -> String {
    let mut table = String::from(HEAD);
    for answered in answers {
        let _ = writeln!(table, "{}", answered.row());
    }
    table
}

const HEAD: &str = "\
| protocol | bytes | pattern | window / batch | model, M/s / us | simulator | `advise` | differs by more than 25 % in |
|---|---|---|---|---|---|---|---|
";

#[test]
fn model_simulator_and_advise_agree_on_forty_questions() {
    let questions = questions();
    assert_eq!(questions.len(), 40);
    let answers: Vec<Answered> = questions.into_iter().map(Question::ask).collect();
    let of = |answered: &Answered| {
        let name = answered.question.name();
        answered.departures().into_iter().map(move |figure| (name.clone(), figure)).collect::<Vec<_>>()
    };
    let departures: Vec<(String, &str)> = answers.iter().flat_map(of).collect();
    TABLE.check(&table(&answers), &departures);
}

#[test]
fn questions_cover_sizes_clients_and_protocols() {
    let questions = questions();
    for bytes in SIZES {
        assert!(questions.iter().filter(|question| question.bytes == bytes).count() >= 6, "{bytes} B");
    }
    for clients in CLIENTS {
        assert!(questions.iter().filter(|question| question.clients == clients).count() >= 6, "{clients} clients");
    }
    let mut names: Vec<String> = questions.iter().map(Question::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 40, "each question is asked once");
}
