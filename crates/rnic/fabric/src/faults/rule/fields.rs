//! The fields of rules, and errors in their values.

/// Fields of a rule and their allowed values.
pub const FAULT_FIELDS: [(&str, &str); 32] = [
    ("name", "1 to 64 letters, digits, dashes, dots and underscores"),
    ("optional", "true or false"),
    ("direction", "in or out"),
    ("peer", "an IP address"),
    (
        "opcode",
        "a class (ack, nak, rnr-nak, send, write, read-request, read-response, atomic-request, atomic-response, cnp, \
         request, response), an opcode such as rc-send-only, or its number, such as 0x11",
    ),
    ("position", "first, middle, last or only"),
    ("qp", "the number of a queue pair, 0 to 16777215"),
    ("qp-order", "a number from 1, or a range such as 2..4"),
    ("psn", "a number from 0 to 16777215, or a range such as 2..4"),
    ("psn-offset", "a number from 0 to 16777215, or a range such as 2..4"),
    ("retransmission", "a number from 0, or a range such as 1..3"),
    ("message-offset", "a number of bytes, or a range such as 4096..8191"),
    ("after", "a time with its unit, up to 60s, such as 5ms"),
    ("before", "a time with its unit, up to 60s, such as 5ms"),
    ("nth", "a number from 1, or a range such as 2..4"),
    ("every", "a number from 1"),
    ("share", "a share of packets, above 0 and up to 1"),
    ("copies", "a number from 1 to 16"),
    ("for", "a time with its unit, up to 60s, such as 5ms"),
    ("count", "a number from 1"),
    ("behind", "a number from 1 to 64"),
    (
        "field",
        "opcode, solicited, pad-count, version, pkey, dest-qp, ack-request, psn, syndrome, msn, remote-address, rkey, \
         length, immediate or icrc",
    ),
    ("byte", "an offset in the payload, 0 to 4095"),
    ("value", "a number that the field or byte can hold"),
    ("icrc", "stale or valid"),
    ("operation", "send, write, read, compare-swap, fetch-add, bind-window, local-invalidate or receive"),
    (
        "status",
        "loc-len-err, loc-qp-op-err, loc-prot-err, wr-flush-err, mw-bind-err, bad-resp-err, loc-access-err, \
         rem-inv-req-err, rem-access-err, rem-op-err, retry-exc-err or rnr-retry-exc-err",
    ),
    ("errno", "an error number of Linux, 1 to 4095, or a common name such as ENOMEM"),
    (
        "call",
        "alloc-pd, dealloc-pd, reg-mr, rereg-mr, dereg-mr, alloc-mw, dealloc-mw, create-comp-channel, create-cq, \
         create-srq, create-qp, modify-qp or attach-mcast",
    ),
    (
        "event",
        "comm-est, sq-drained, qp-fatal, qp-req-err, qp-access-err, qp-last-wqe-reached, cq-err or srq-limit-reached",
    ),
    ("queue-pair", "error or kept"),
    (
        "action",
        "drop, duplicate, delay, reorder, corrupt, black-hole, ecn, port-down, device-fatal, completion, post-error, \
         call-error, slow-poll or event",
    ),
];

/// Problem of one field of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct RuleProblem {
    pub(in super::super) field: String,
    /// The problem and the allowed values.
    pub(in super::super) problem: String,
}

pub(super) fn allowed(field: &str) -> &'static str {
    FAULT_FIELDS.iter().find(|(name, _)| *name == field).map_or("another field", |(_, allowed)| *allowed)
}

pub(super) fn problem(field: &str, problem: impl Into<String>) -> RuleProblem {
    RuleProblem { field: field.to_owned(), problem: problem.into() }
}

pub(super) fn wrong(field: &str, value: &str) -> RuleProblem {
    problem(field, format!("the value is {value:?}, allowed is {}", allowed(field)))
}
