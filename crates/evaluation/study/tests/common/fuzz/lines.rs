//! Fuzz function for messages of the two ends of a session. Each message is a line of JSON.

use doorbell_study::session;
use serde_json::{Value, json};

use super::super::parameters;
use super::{Choices, json};

/// Parses a line. The line is `data` itself, or a valid line with mutations that `data` selects.
pub fn fuzz_lines(data: &[u8]) {
    let mut choices = Choices(data);
    if choices.byte() < 64 {
        session::judge_line(choices.0);
        return;
    }
    while !choices.is_empty() {
        session::judge_line(line(&mut choices).to_string().as_bytes());
    }
}

/// Returns a valid message of an end, possibly with a small change.
pub fn line(choices: &mut Choices<'_>) -> Value {
    let mut line = match choices.byte() % 11 {
        10 => json!({ "introduce": { "token": "secret", "examine": false } }),
        0..4 => json!({ "parameters": parameters() }),
        4 => json!({ "point": { "bytes": *[16, 5000, 17].get(choices.below(3)).unwrap_or(&16) } }),
        5 => json!({ "done": { "messages": [100, choices.byte()] } }),
        6 => json!("end"),
        7 => json!("accepted"),
        8 => json!({ "ready": { "memory": [{ "address": choices.word(), "rkey": 7, "bytes": 4096 }] } }),
        _ => json!({ "report": { "sent": 1, "received": 2, "damaged": 0, "stalled_on_credits": 0, "keepalives": 0,
            "control_sends": 0, "counters": { "tx_packets": choices.byte() }, "link": {} } }),
    };
    for _ in 0..choices.below(4) {
        json::change(&mut line, choices);
    }
    line
}
