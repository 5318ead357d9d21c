//! The fuzz body of the messages: a plain function of bytes, which a test here runs over a corpus and for a bounded
//! time of mutation, and `cargo xtask fuzz` (`fuzz/` of this crate) for as long as one likes.

use super::message::{MAX_BYTES, Message};
#[cfg(test)]
use super::testing as common; // which has the runner's generator

#[cfg(test)]
#[path = "../../../rnic/tests/common/fuzz/runner.rs"]
mod runner;

/// Takes bytes for what a peer says on one connection.
pub(crate) fn fuzz_messages(mut bytes: &[u8]) {
    loop {
        match Message::parse(bytes) {
            Ok(Some((message, length))) => {
                assert!(length <= MAX_BYTES && length <= bytes.len(), "{message:?} takes {length} B");
                assert_eq!(message.emit(), bytes[..length], "{message:?} is not what was said");
                let early = Message::parse(&bytes[..length - 1]);
                assert_eq!(early, Ok(None), "{message:?} is complete before its last byte");
                bytes = &bytes[length..];
            }
            // More is to come, of a message that is no longer than allowed.
            Ok(None) => return assert!(bytes.len() < MAX_BYTES, "{} B are no message yet", bytes.len()),
            Err(malformed) => {
                // It stays so, whatever follows.
                let more = [bytes, &[0; MAX_BYTES][..]].concat();
                assert_eq!(Message::parse(&more), Err(malformed));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_peer_says_is_taken_for_more_than_it_is() {
        runner::run("messages", fuzz_messages);
    }
}
