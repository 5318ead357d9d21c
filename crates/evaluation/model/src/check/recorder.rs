//! Recorder of a predictor's requests and answers, which become the points of plots.

use super::{Binding, Lack, Manner, Needed, Order, Ordered, Packets, Predictor, Rated, StoreFigures, Stored};
use crate::operation::{Posted, PostedOperation};
use crate::workload::Workload;

/// Answer of a predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Fields of the request to the predictor, each with its name and value. Requests about messages all have the same
    /// field names, and so do requests about operations.
    pub fields: Vec<(&'static str, Field)>,
    /// Bytes of each message.
    pub bytes: u64,
    /// Predicted value.
    pub said: Said,
}

/// Value of a request's field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field {
    /// A number with its unit.
    Number(u64, &'static str),
    /// A word.
    Word(&'static str),
}

/// Predicted value of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Said {
    /// Half a round trip, in nanoseconds.
    LatencyNs(f64),
    /// Messages or operations per second, with the binding resource.
    Rate(f64, Binding),
}

/// Predictor that forwards requests to another predictor and records the answers.
pub struct Recorder<'a> {
    by: &'a mut dyn Predictor,
    answers: Vec<Answer>,
}

impl std::fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("answers", &self.answers).finish_non_exhaustive()
    }
}

impl<'a> Recorder<'a> {
    /// Creates a recorder that keeps the answers of this predictor.
    pub fn new(by: &'a mut dyn Predictor) -> Self {
        Self { by, answers: Vec::new() }
    }

    /// Returns the distinct answers that were recorded since the last call.
    pub fn take(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }

    fn keep(&mut self, fields: Vec<(&'static str, Field)>, bytes: u64, said: Said) {
        let answer = Answer { fields, bytes, said };
        if !self.answers.contains(&answer) {
            self.answers.push(answer);
        }
    }
}

fn messages(workload: &Workload, manner: Manner) -> Vec<(&'static str, Field)> {
    let peers = workload.peers;
    let number = |number: u32| Field::Number(number.into(), "");
    let word = |is_so: bool, so: &'static str, otherwise: &'static str| Field::Word(if is_so { so } else { otherwise });
    let receives = match (workload.srq, workload.repost_thread) {
        (false, _) => "own",
        (true, false) => "shared",
        (true, true) => "shared, reposted by a thread",
    };
    vec![
        ("protocol", Field::Word(workload.protocol.name())),
        ("size", Field::Number(workload.bytes, "B")),
        ("window", number(workload.window)),
        ("batch", number(workload.batch)),
        ("completions per poll", number(workload.receive_batch)),
        ("inline", Field::Number(workload.inline_bytes, "B")),
        ("senders", number(peers.senders)),
        ("receivers", word(peers.receivers < peers.senders, "one", "one each")),
        ("completion queues", word(manner.one_queue, "one", "one each")),
        ("receives", Field::Word(receives)),
        ("credits", word(workload.credits, "yes", "no")),
        ("pace", word(manner.is_paced, "highest without RNR NAK", "unlimited")),
    ]
}

fn operations(posted: &Posted) -> Vec<(&'static str, Field)> {
    let number = |number: u32| Field::Number(number.into(), "");
    vec![
        ("operation", Field::Word(posted.operation.name())),
        ("size", Field::Number(posted.bytes, "B")),
        ("outstanding together", number(posted.outstanding.unwrap_or(posted.connections * posted.window))),
        ("queue pairs", number(posted.connections)),
        ("addresses", number(posted.addresses)),
        ("immediate data", Field::Word(if posted.immediate { "yes" } else { "no" })),
    ]
}

impl Predictor for Recorder<'_> {
    fn is_fitted(&self, id: &str) -> bool {
        self.by.is_fitted(id)
    }

    fn latency_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        let ns = self.by.latency_ns(workload)?;
        self.keep(messages(workload, Manner::default()), workload.bytes, Said::LatencyNs(ns));
        Ok(ns)
    }

    fn rate(&mut self, workload: &Workload, manner: Manner) -> Result<Rated, Lack> {
        let rated = self.by.rate(workload, manner)?;
        self.keep(messages(workload, manner), workload.bytes, Said::Rate(rated.messages_per_s, rated.binding));
        Ok(rated)
    }

    fn line_rate(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.by.line_rate(workload)
    }

    fn posting_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.by.posting_ns(workload)
    }

    fn sending_cpu_ns(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.by.sending_cpu_ns(workload)
    }

    fn operations(&mut self, posted: &Posted) -> Result<Rated, Lack> {
        let rated = self.by.operations(posted)?;
        self.keep(operations(posted), posted.bytes, Said::Rate(rated.messages_per_s, rated.binding));
        Ok(rated)
    }

    fn packets(&mut self, posted: &Posted) -> Result<Packets, Lack> {
        self.by.packets(posted)
    }

    fn order(&mut self, requests: &Ordered) -> Result<Order, Lack> {
        self.by.order(requests)
    }

    fn store(&mut self, asked: &Stored) -> Result<StoreFigures, Lack> {
        self.by.store(asked)
    }

    fn unstated_window(&self, operation: PostedOperation) -> Result<u32, Lack> {
        self.by.unstated_window(operation)
    }

    fn reads_in_flight(&self) -> Result<u32, Lack> {
        self.by.reads_in_flight()
    }

    fn inline_receive_bytes(&self) -> Result<u64, Lack> {
        self.by.inline_receive_bytes()
    }

    fn has(&self, needed: Needed) -> Result<(), Lack> {
        self.by.has(needed)
    }

    fn line_filling_bytes(&mut self, workload: &Workload, manner: Manner, range: (u64, u64)) -> Result<u64, Lack> {
        self.by.line_filling_bytes(workload, manner, range)
    }
}
