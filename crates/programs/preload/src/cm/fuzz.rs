//! Fuzz target for the messages of connection managers. The test in this file runs the target on a corpus, and then on
//! mutations for a bounded time. `cargo xtask fuzz` runs the target for any duration (`fuzz/` in this crate).

use super::message::{MAX_BYTES, Message};

/// Parses the bytes as the messages of a peer on one connection.
pub(crate) fn fuzz_messages(mut bytes: &[u8]) {
    loop {
        match Message::parse(bytes) {
            Ok(Some((message, length))) => {
                assert!(length <= MAX_BYTES && length <= bytes.len(), "{message:?} has a length of {length} B");
                assert_eq!(message.emit(), bytes[..length], "{message:?} encodes to other bytes");
                let early = Message::parse(&bytes[..length - 1]);
                assert_eq!(early, Ok(None), "{message:?} is complete before its last byte");
                bytes = &bytes[length..];
            }
            // The message is incomplete, so it must be shorter than the maximum.
            Ok(None) => return assert!(bytes.len() < MAX_BYTES, "the parser wants more than {} B", bytes.len()),
            Err(malformed) => {
                // If more bytes follow, the error must stay the same.
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
    fn parsing_accepts_only_exact_messages() {
        doorbell_testing::run_fuzz!("messages", fuzz_messages);
    }
}
