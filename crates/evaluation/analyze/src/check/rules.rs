//! Table of the rules.

use serde::Serialize;

/// Weight of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Deviation that peers tolerate.
    Warning,
    /// Violation that breaks messages, or makes a peer drop or misread a packet.
    Error,
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// Entry of the table of rules.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rule {
    /// Name in findings.
    pub name: &'static str,
    /// Section of IBTA Vol 1 or its annex.
    pub section: &'static str,
    /// Severity of findings of this rule.
    pub severity: Severity,
    /// Sentence that every capture of correct devices fulfills.
    pub sentence: &'static str,
}

/// Defines [`RuleId`] and [`RULES`] from one list.
macro_rules! rules {
    ($($id:ident $name:literal $section:literal $severity:ident $sentence:literal;)*) => {
        /// Index of a rule in [`RULES`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub(super) enum RuleId { $($id),* }

        /// All rules, in the order of the documentation.
        pub const RULES: &[Rule] = &[
            $(Rule { name: $name, section: $section, severity: Severity::$severity, sentence: $sentence }),*
        ];
    };
}

rules! {
    Icrc "icrc" "A17" Error "The ICRC matches the packet.";
    Version "version" "9.2" Error "The version of the transport header is 0.";
    Reserved "reserved" "9.2" Warning "The reserved bits of the BTH are 0.";
    Opcode "opcode" "9.2" Error "IBTA defines the opcode, or leaves it to vendors.";
    Transport "transport" "9.2" Error "All packets to a queue pair have one transport.";
    Padding "padding" "9.2" Error "The pad count fills the payload to a multiple of 4 bytes.";
    Mtu "mtu" "9.7.4.1.6" Error
        "First and middle packets carry exactly one path MTU of payload, and no packet carries more.";
    Order "opcode-order" "9.7.4.1" Error
        "A message is one only packet, or a first packet, any number of middle packets and a last packet.";
    Length "dma-length" "9.7.4.1.6" Error "The packets of a WRITE carry the bytes that its RETH announces.";
    Psn "psn-order" "9.7.3" Error "Each new request packet takes the next PSN, modulo 2^24.";
    Captured "acknowledged-psn" "9.7.5" Error
        "The requester has sent each acknowledged PSN to this queue pair (--complete).";
    Repeated "retransmission" "9.7.3" Error
        "A retransmitted PSN has the opcode, headers and length of its first transmission.";
    GoBackN "go-back-n" "9.7.5" Error "After a NAK for a missing packet, requests start again at the PSN of the NAK.";
    Rnr "rnr-timer" "9.7.5.2.8" Error
        "After an RNR NAK, the requester waits for the time in the NAK before it repeats the request.";
    Timeout "timeout" "9.7.6" Error "Without a NAK, a request is repeated after the timeout only (--timeout).";
    Retry "retry-count" "9.7.6" Error "An unanswered request is repeated only up to the retry count (--retry-count).";
    Unsent "unsent-psn" "9.7.5" Error "An answer has a PSN that the requester has sent.";
    Nak "nak-sequence" "9.7.5" Error
        "A NAK for a missing packet has a PSN that is not acknowledged yet, and follows a later request.";
    OneNak "one-nak" "9.7.5" Error "A missing packet has one NAK until it is sent again (--complete).";
    Refused "refused-request" "9.7.5" Error "A request that a NAK refuses is never acknowledged.";
    Syndrome "syndrome" "9.7.5" Error "The AETH has a defined kind of syndrome and a defined NAK code.";
    Msn "msn" "9.7.7" Error "The MSN counts the messages up to the acknowledged PSN, duplicates once.";
    Credits "credits" "9.7.7" Warning "A responder grants credits in all of its acknowledgements, or in none.";
    CreditLimit "credit-limit" "9.7.7.2" Warning
        "The requester sends at most one SEND or WRITE with immediate beyond the granted credits (--complete).";
    ReadResponse "read-response" "9.7.4" Error "The response to a READ has the PSNs and the length of its request.";
    OneResponse "one-response" "9.7.4" Error
        "A READ or atomic has one response per transmission of its request (--complete).";
    ResponseOrder "response-order" "9.7.5" Error
        "Each READ and atomic has a response, and responses have the order of their requests (--complete).";
    Atomic "atomic-replay" "9.7.4.4" Error "A response to a repeated atomic has the value of the first response.";
    Alignment "atomic-address" "9.4.5" Error "The responder performs only atomics at multiples of 8 bytes.";
    Solicited "solicited" "9.2" Warning "Only the last packet of a SEND or WRITE with immediate is solicited.";
    AckRequest "ack-request" "9.2" Warning "Answers do not ask for acknowledgements.";
    Migration "migration" "9.2" Warning "The migration bit changes for a path, not for a single packet.";
    PartitionKey "partition-key" "9.2" Error "All packets to a queue pair have one partition key.";
    Cnp "cnp-format" "A17" Error "A CNP has BECN set, and reserved bytes of zero.";
    CnpCause "cnp-cause" "A17" Warning "A CNP follows a packet that switches may mark, one with ECT (--complete).";
    CnpRate "cnp-rate" "A17" Warning "CNPs to one queue pair keep the minimum interval (--cnp-interval).";
}

impl RuleId {
    pub(super) fn rule(self) -> &'static Rule {
        &RULES[self as usize]
    }
}

/// Number of rules.
pub(super) const COUNT: usize = RULES.len();
