//! Kinds of memory, and how programs reach it.

use std::fs::OpenOptions;
use std::io::{Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};

use doorbell_verbs::{Error, MemoryKind, Region, SendOperation};

use crate::Open;
use crate::common::*;

const PAGE: usize = 4096;

/// A file of this test alone, gone with its handle.
fn temporary_file(length: usize) -> std::fs::File {
    let name = format!("doorbell-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(length as u64).unwrap();
    file
}

pub(crate) fn every_kind_of_memory_carries_messages(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let file = temporary_file(3 * PAGE);
    let kinds = [MemoryKind::Plain, MemoryKind::HugePages, MemoryKind::Mirrored, MemoryKind::File(&file)];
    let length = 2 * PAGE;
    for (from, to) in kinds.into_iter().zip(kinds.into_iter().cycle().skip(1)) {
        let what = format!("{from:?} to {to:?}");
        let from = a.pd.allocate(length, ALL_ACCESS, from).unwrap();
        let to = b.pd.allocate(length, ALL_ACCESS, to).unwrap();
        from.copy_in(0, &pattern(length, 1));
        b.post_recv(1, &[to.sge(0, length)]);
        a.post(1, SendOperation::Send, &[from.sge(0, length)]);
        a.expect(1);
        b.expect(1);
        assert_bytes(&to, 0, &pattern(length, 1), &what);
        to.copy_in(0, &pattern(length, 2));
        a.post(2, read_from(&to, 0), &[from.sge(0, length)]);
        a.expect(2);
        assert_bytes(&from, 0, &pattern(length, 2), &what);
    }
    match a.pd.allocate(0, ALL_ACCESS, MemoryKind::Plain) {
        Ok(none) => assert!(none.is_empty()),
        Err(error) => assert_eq!(a.device.attributes().provider, "system", "RNICs may refuse this: {error}"),
    }
}

pub(crate) fn mirrored_memory_wraps(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let ring = b.pd.allocate(PAGE, ALL_ACCESS, MemoryKind::Mirrored).unwrap();
    assert_eq!(ring.len(), 2 * PAGE);
    let from = a.patterned(PAGE, 1);
    // A message that wraps around the end of the ring, in one piece.
    a.post(1, write_to(&ring, PAGE - 100), &[from.sge(0, PAGE)]);
    a.expect(1);
    let message = pattern(PAGE, 1);
    assert_bytes(&ring, PAGE - 100, &message, "in one piece");
    assert_bytes(&ring, 0, &message[100..], "what wrapped, at the start");
    assert_bytes(&ring, 2 * PAGE - 100, &message[..100], "the other end of it");
    ring.store_release_u64(8, 77);
    assert_eq!(ring.load_acquire_u64(PAGE + 8), 77);
}

pub(crate) fn files_are_written_through(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let mut file = temporary_file(10_000);
    let from = a.patterned(9_000, 1);
    let to = b.pd.allocate(10_000, ALL_ACCESS, MemoryKind::File(&file)).unwrap();
    a.post(1, write_to(&to, 500), &[from.sge(0, 9_000)]);
    a.expect(1);
    drop((a, b, to));
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content.len(), 10_000);
    assert!(content[500..9_500] == pattern(9_000, 1));
    assert!(content[..500].iter().chain(&content[9_500..]).all(|&byte| byte == 0));
}

pub(crate) fn kinds_that_cannot_be(open: Open<'_>) {
    let pd = open().0.create_pd().unwrap();
    let file = temporary_file(100);
    let error = pd.allocate(101, ALL_ACCESS, MemoryKind::File(&file)).unwrap_err();
    assert!(error.to_string().contains("100 B") && error.to_string().contains("101 B"), "{error}");
    for length in [0, 1, PAGE + 1] {
        let error = pd.allocate(length, ALL_ACCESS, MemoryKind::Mirrored).unwrap_err();
        assert!(matches!(error, Error::Os { .. }));
        assert!(error.to_string().contains("multiple"), "{error}");
    }
    let error = pd.allocate(1 << 47, ALL_ACCESS, MemoryKind::Plain).unwrap_err();
    assert!(!error.to_string().is_empty());
}

pub(crate) fn accessors_refuse_what_is_outside(open: Open<'_>) {
    let side = Plan::rc().side(&open().0);
    let region = side.memory(64);
    let panics = |what: &str, access: &dyn Fn(&Region)| {
        let caught = catch_unwind(AssertUnwindSafe(|| access(&region))).unwrap_err();
        let text = caught.downcast_ref::<String>().map_or("", String::as_str).to_owned();
        assert!(text.contains("not inside") || text.contains("not aligned"), "{what}: {text}");
    };
    panics("copy_out", &|region| region.copy_out(60, &mut [0; 5]));
    panics("copy_in", &|region| region.copy_in(65, &[]));
    panics("fill", &|region| region.fill(usize::MAX, 2, 0));
    panics("load_acquire_u8", &|region| _ = region.load_acquire_u8(64));
    panics("store_release_u64", &|region| region.store_release_u64(57, 0));
    panics("load_acquire_u64", &|region| _ = region.load_acquire_u64(4));
    region.copy_in(64, &[]);
}

pub(crate) fn a_written_word_is_seen_when_spun_on(open: Open<'_>) {
    const ROUNDS: u8 = 200;
    let (a, b) = Plan::rc().connect(&open());
    let (ping, pong) = (a.memory(64), b.memory(64));
    let bounce = |side: &Side, mine: &Region, theirs: &Region, first: bool| {
        let source = side.memory(64);
        for round in 1..=ROUNDS {
            let post = || {
                source.fill(0, 64, round);
                side.post(round.into(), write_to(theirs, 0), &[source.sge(0, 64)]);
                side.expect(round.into());
            };
            if first {
                post();
            }
            eventually("the peer wrote", || mine.load_acquire_u8(63) == round);
            // The last byte is placed last, so all of the message is here with it.
            assert_bytes(mine, 0, &[round; 64], "a message with its last byte");
            if !first {
                post();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| bounce(&a, &ping, &pong, true));
        scope.spawn(|| bounce(&b, &pong, &ping, false));
    });
}
