//! Experiments that compare operations instead of protocols: one-sided operations, requests with answers, and frames.

use super::sweep::{Effort, Experiment, Point, doubling};
use doorbell_record::Quantity::{
    self, MessageRate, RequestFrame, RequestPackets, ResponseFrame, ResponsePackets, Throughput,
};
use doorbell_record::{Kind, Operation, Parameters};

const COUNTED: &[Quantity] = &[MessageRate, Throughput, RequestPackets, ResponsePackets, RequestFrame, ResponseFrame];
const FRAMES: &[Quantity] = &[RequestFrame, ResponseFrame, RequestPackets, ResponsePackets, MessageRate];

/// Returns all experiments on operations.
pub(super) fn experiments(effort: Effort) -> [Experiment; 6] {
    [write(effort), read(effort), outstanding(effort), atomics(effort), request_response(effort), frames(effort)]
}

/// Returns parameters with `window` outstanding operations on each queue pair, and one operation per post.
pub(super) fn operation(
    effort: Effort,
    operation: Operation,
    bytes: usize,
    window: usize,
    connections: usize,
) -> Parameters {
    let base = Point::parameters(effort, Kind::Bandwidth, operation, bytes);
    Parameters { window, connections, depth: 2 * window, depths_are_defaults: false, ..base }
}

fn write(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for (series, bytes, quick) in [("0 B", 0, vec![1]), ("1 B", 1, vec![1, 8]), ("1 MiB", 1 << 20, vec![8])] {
        for window in effort.pick(quick, vec![1, 8], vec![1, 2, 4, 8, 16]) {
            points.push(Point::new(series, window, operation(effort, Operation::Write, bytes, window, 1)));
        }
    }
    Experiment::new(
        "one-sided/write",
        "How many packets do WRITEs take, and how high is their rate?",
        "one queue pair, one WRITE per post; packets of requests and of responses",
        "WRITEs outstanding at most",
        COUNTED,
        points,
    )
}

fn read(effort: Effort) -> Experiment {
    let mut points = Vec::new();
    for (series, bytes) in [("0 B", 0), ("1 B", 1)] {
        for window in effort.pick(vec![1], vec![1, 8], vec![1, 2, 4, 8, 16]) {
            points.push(Point::new(series, window, operation(effort, Operation::Read, bytes, window, 1)));
        }
    }
    Experiment::new(
        "one-sided/read",
        "How many packets do READs take?",
        "one queue pair, one READ per post",
        "READs outstanding at most",
        COUNTED,
        points,
    )
}

const WORDS: [(&str, Operation); 2] = [("READ", Operation::Read), ("CAS", Operation::CompareSwap)];

fn outstanding(effort: Effort) -> Experiment {
    let windows = effort.pick(vec![16], vec![1, 4, 16, 64], doubling(64));
    let point_of = |(series, of): (&'static str, Operation), window: usize| {
        Point::new(series, window, operation(effort, of, 8, window, 1))
    };
    Experiment::new(
        "one-sided/outstanding",
        "How many READs and atomics should be outstanding?",
        "8 B, one queue pair, one operation per post; a queue pair has 16 in flight at most",
        "operations outstanding at most",
        &[MessageRate],
        WORDS.into_iter().flat_map(|word| windows.iter().map(move |&window| point_of(word, window))).collect(),
    )
}

fn atomics(effort: Effort) -> Experiment {
    let pairs = effort.pick(vec![1, 20], vec![1, 2, 4, 8, 20], vec![1, 2, 4, 7, 8, 16, 20, 32]);
    let point_of = |(series, of): (&'static str, Operation), pairs: usize| {
        Point::new(series, pairs, operation(effort, of, 8, 16, pairs))
    };
    Experiment::new(
        "one-sided/atomics",
        "Do atomics keep up with READs as queue pairs are added?",
        "8 B, 16 operations outstanding on each queue pair, one per post; each queue pair has a word of its own",
        "queue pairs",
        &[MessageRate],
        WORDS.into_iter().flat_map(|word| pairs.iter().map(move |&count| point_of(word, count))).collect(),
    )
}

fn request_response(effort: Effort) -> Experiment {
    let windows = effort.pick(vec![1, 64], vec![1, 8, 32, 64], doubling(64));
    // With fewer receive buffers, an end would send credits in separate messages and need more packets.
    let points = windows.into_iter().map(|window| {
        let of = operation(effort, Operation::RequestResponse, 1, window, 1);
        Point::new("1 B", window, Parameters { depth: of.depth.max(64), ..of })
    });
    Experiment::new(
        "wire/request-response",
        "How many packets do a request and its answer take, and how many bytes has each?",
        "requests of 1 B, each answered by 1 B, one connection of Send-Receive; messages carry credits as immediate data",
        "requests without answer at most",
        COUNTED,
        points.collect(),
    )
}

fn frames(effort: Effort) -> Experiment {
    let mut points: Vec<Point> = effort
        .pick(vec![0, 1, 8], vec![0, 1, 4, 5, 8], vec![0, 1, 2, 3, 4, 5, 6, 7, 8])
        .into_iter()
        .map(|bytes| Point::new("WRITE", bytes, operation(effort, Operation::Write, bytes, 1, 1)))
        .collect();
    let send = operation(effort, Operation::Send, 1, 1, 1);
    points.push(Point::new("SEND without credits", 1, Parameters { credits: false, rnr_retry: 7, depth: 64, ..send }));
    Experiment::new(
        "wire/frames",
        "How long are the frames of short messages and of their acknowledgements?",
        "one message outstanding on one queue pair; Ethernet frames without FCS, preamble and gap",
        "payload, B",
        FRAMES,
        points,
    )
}
