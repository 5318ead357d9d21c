use doorbell_verbs::soft::{self, SoftOptions};
use doorbell_verbs::{Completion, CompletionOpcode, Status};

use super::outgoing::RESERVE;
use super::{Connection, SharedWrite};
use crate::connection::config::Config;
use crate::connection::error::ConnectionError;
use crate::connection::{Connector, MessageConnection};

/// Returns a connection whose peer has not connected yet. The peer therefore executes no request.
fn connection() -> (Connection, impl Sized) {
    let endpoint = || {
        let device = soft::open(&SoftOptions::default()).unwrap();
        SharedWrite::default().endpoint(&device.create_pd().unwrap(), &Config::default(), None).unwrap()
    };
    let (a, b) = (endpoint(), endpoint());
    let of_b = b.description();
    (a.connect(&of_b).unwrap(), b)
}

/// The test makes the completion itself. No RNIC executes the FETCH_ADD. Without the check, the sender
/// would take the content of its own memory as the peer's tail, and could write over messages of other senders.
#[test]
fn a_fetch_add_that_completes_without_its_result_ends_the_connection() {
    let (mut a, _b) = connection();
    a.send(b"message").unwrap();
    a.flush().unwrap();
    let completion = Completion {
        wr_id: RESERVE,
        status: Status::Success,
        opcode: CompletionOpcode::FetchAdd,
        ..Completion::default()
    };
    assert_eq!(a.take_completion(&completion).unwrap_err(), ConnectionError::NoResult);
}
