//! The fuzz body of the messages: a plain function of bytes, which a test here runs over a corpus and a number of
//! mutations, and cargo-fuzz (`fuzz/` of this crate) for as long as one likes.

use super::message::{MAX_BYTES, Message};

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
    use std::panic::catch_unwind;
    use std::path::Path;

    use super::super::testing::Rng;
    use super::*;

    fn mutate(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..=rng.below(4) {
            let at = rng.below(input.len() as u64 + 1) as usize;
            match rng.below(4) {
                0 => input.insert(at, rng.next() as u8),
                1 if at < input.len() => input[at] = rng.next() as u8,
                2 => input.truncate(at),
                _ => drop(input.splice(at..at, other.iter().copied())),
            }
        }
        input.truncate(4 * MAX_BYTES);
    }

    #[test]
    fn nothing_that_a_peer_says_is_taken_for_more_than_it_is() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/messages");
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        let corpus: Vec<_> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        assert!(!corpus.is_empty(), "the corpus is part of the repository");
        corpus.iter().for_each(|input| fuzz_messages(input));
        let seed = std::env::var("DOORBELL_SEED").ok().map_or(1, |text| text.parse().expect("a number"));
        eprintln!("DOORBELL_SEED={seed}");
        let mut rng = Rng::new(seed);
        for _ in 0..200_000 {
            let mut input = rng.pick(&corpus).clone();
            let other = rng.pick(&corpus);
            mutate(&mut rng, &mut input, other);
            assert!(catch_unwind(|| fuzz_messages(&input)).is_ok(), "put this into the corpus: {input:?}");
        }
    }
}
