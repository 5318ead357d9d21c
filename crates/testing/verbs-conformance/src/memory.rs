//! Kinds of memory, and accesses of programs and peers to memory.

use std::fs::OpenOptions;
use std::io::{Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};

use doorbell_verbs::{
    Access, CompletionOpcode, Error, MemoryKind, RKey, Region, SendOperation, Status, Window, WindowBinding, WindowKind,
};

use crate::Open;
use crate::common::*;

const PAGE: usize = 4096;

/// Creates a temporary file that no other test uses. The file is removed when its handle is closed.
fn temporary_file(length: usize) -> std::fs::File {
    let name = format!("doorbell-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = std::env::temp_dir().join(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(length as u64).unwrap();
    file
}

pub fn every_kind_of_memory_carries_messages(open: Open<'_>) {
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
    for kind in [MemoryKind::Plain, MemoryKind::HugePages, MemoryKind::Mirrored, MemoryKind::File(&file)] {
        let refused = a.pd.allocate(0, ALL_ACCESS, kind);
        assert!(refused.is_err(), "{kind:?}: a region of no bytes was registered: {refused:?}");
    }
}

pub fn mirrored_memory_wraps(open: Open<'_>) {
    let (a, b) = Plan::rc().connect(&open());
    let ring = b.pd.allocate(PAGE, ALL_ACCESS, MemoryKind::Mirrored).unwrap();
    assert_eq!(ring.len(), 2 * PAGE);
    let from = a.patterned(PAGE, 1);
    // The message wraps around the end of the ring, but the mapping shows it as contiguous.
    a.post(1, write_to(&ring, PAGE - 100), &[from.sge(0, PAGE)]);
    a.expect(1);
    let message = pattern(PAGE, 1);
    assert_bytes(&ring, PAGE - 100, &message, "the message in one piece");
    assert_bytes(&ring, 0, &message[100..], "the wrapped bytes, at the start");
    assert_bytes(&ring, 2 * PAGE - 100, &message[..100], "the first bytes, in the second mapping");
    ring.store_release_u64(8, 77);
    assert_eq!(ring.load_acquire_u64(PAGE + 8), 77);
}

pub fn files_are_written_through(open: Open<'_>) {
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

pub fn invalid_sizes_of_memory_are_refused(open: Open<'_>) {
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

pub fn accessors_panic_outside_the_region(open: Open<'_>) {
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

pub fn a_written_word_is_seen_when_spun_on(open: Open<'_>) {
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
            // The device writes the last byte of a message last, so the whole message has arrived.
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

/// Range of the region that the window opens to peers.
const OPENED: std::ops::Range<u64> = 1024..3072;

/// Binds a window to a part of a region that peers cannot access through the key of the region.
fn bind(side: &Side, region: &Region, window: &Window, lowest: u8) -> RKey {
    let binding = WindowBinding {
        rkey: window.key(lowest),
        lkey: region.lkey(),
        address: region.address() + OPENED.start,
        length: OPENED.end - OPENED.start,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        zero_based: false,
    };
    side.post(100, SendOperation::BindWindow(binding), &[]);
    assert_eq!(side.expect(100).opcode, CompletionOpcode::BindWindow);
    binding.rkey
}

/// Makes the key of the window invalid.
fn close(side: &Side, kind: WindowKind, key: RKey) {
    let operation = match kind {
        WindowKind::Type2 => SendOperation::LocalInvalidate(key),
        // A window of type 1 is closed by binding it to no bytes.
        WindowKind::Type1 => SendOperation::BindWindow(WindowBinding {
            rkey: key,
            lkey: doorbell_verbs::LKey(0),
            address: 0,
            length: 0,
            access: Access::empty(),
            zero_based: false,
        }),
    };
    side.post(101, operation, &[]);
    side.expect(101);
}

pub fn a_window_opens_a_part_of_a_region_and_can_be_closed(open: Open<'_>) {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let devices = open();
        let region_of =
            |side: &Side| side.pd.allocate(PAGE, Access::LOCAL_WRITE | Access::WINDOW_BIND, MemoryKind::Plain).unwrap();
        // A refused access puts the connection into the error state, so each refused access uses a new connection.
        let refused = |what: &str, act: &dyn Fn(&Side, &Region, &Window) -> (RKey, u64)| {
            let (a, b) = Plan::with_an_end().connect(&devices);
            let (region, mine) = (region_of(&b), a.patterned(64, 2));
            let window = b.pd.create_window(kind).unwrap();
            let (rkey, offset) = act(&b, &region, &window);
            let remote_address = region.address() + offset;
            a.post(1, SendOperation::Write { remote_address, rkey }, &[mine.sge(0, 64)]);
            let ended = a.reap(1)[0];
            assert_refusal(ended.status, Status::RemoteAccess, &format!("{what}, {kind:?}"));
            assert_bytes(&region, 0, &[0; PAGE], what);
        };
        let (a, b) = Plan::with_an_end().connect(&devices);
        let window = match b.pd.create_window(kind) {
            Ok(window) => window,
            Err(error) => {
                assert_eq!(b.device.attributes().provider, "system", "{error}");
                println!("{error}: windows are left out");
                crate::departures::note(&format!("{error}: windows are left out"));
                return;
            }
        };
        let (region, mine) = (region_of(&b), a.patterned(2048, 1));
        // In each round, bind the window under another key, use the window, and close it.
        for round in 1..=3 {
            let rkey = bind(&b, &region, &window, round);
            region.fill(0, PAGE, 0);
            let remote_address = region.address() + OPENED.start;
            a.post(1, SendOperation::Write { remote_address, rkey }, &[mine.sge(0, 2048)]);
            a.expect(1);
            assert_bytes(&region, OPENED.start as usize, &pattern(2048, 1), "a WRITE through the window");
            region.fill(OPENED.start as usize, 2048, round);
            a.post(2, SendOperation::Read { remote_address, rkey }, &[mine.sge(0, 2048)]);
            a.expect(2);
            assert_bytes(&mine, 0, &[round; 2048], "a READ through the window");
            mine.copy_in(0, &pattern(2048, 1));
            close(&b, kind, rkey);
        }
        refused("the region's own key", &|_, region, _| (region.rkey(), OPENED.start));
        refused("a window that is not bound", &|_, _, window| (window.rkey(), OPENED.start));
        refused("one byte after the window", &|b, region, window| (bind(b, region, window, 1), OPENED.end - 63));
        refused("one byte before the window", &|b, region, window| (bind(b, region, window, 1), OPENED.start - 1));
        refused("another key of the window", &|b, region, window| {
            bind(b, region, window, 1);
            (window.key(2), OPENED.start)
        });
        refused("an invalidated key", &|b, region, window| {
            let rkey = bind(b, region, window, 1);
            close(b, kind, rkey);
            (rkey, OPENED.start)
        });
        refused("a destroyed window", &|b, region, _| {
            let other = b.pd.create_window(kind).unwrap();
            (bind(b, region, &other, 1), OPENED.start)
        });
    }
}
