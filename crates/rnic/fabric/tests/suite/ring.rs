//! Tests of the ring in shared memory: all interleavings of a writer and a reader, and a hostile process that writes
//! arbitrary values.

#[allow(dead_code)] // the models do not use all parts
#[path = "../../src/shm/ring.rs"]
mod ring;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use proptest::prelude::*;
use ring::{Header, LINE_BYTES, Memory, Reader, Record, WORD_BYTES, Writer};

/// Maximum bytes of packets in a record that takes one cache line.
const ONE_LINE: usize = LINE_BYTES - WORD_BYTES;

fn header(total_bytes: usize) -> Header {
    Header { total_bytes, segment_bytes: total_bytes, traffic_class: 0, hop_limit: 64 }
}

/// A ring for records of one cache line. Its memory consists of cells and atomics of the model checker, which detects
/// races between writer and reader.
struct Lines {
    words: [AtomicU64; Self::COUNT],
    packets: [UnsafeCell<[u8; ONE_LINE]>; Self::COUNT],
    head: AtomicU64,
    sleeps: AtomicBool,
}

impl Lines {
    const COUNT: usize = 2;

    fn new() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            packets: std::array::from_fn(|_| UnsafeCell::new([0; ONE_LINE])),
            head: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
        }
    }
}

// SAFETY: the model checks that accesses to the cells are ordered.
unsafe impl Sync for Lines {}

#[derive(Clone)]
struct Model(Arc<Lines>);

impl Memory for Model {
    fn capacity(&self) -> usize {
        Lines::COUNT * LINE_BYTES
    }

    fn load(&self, at: usize) -> u64 {
        self.0.words[at / LINE_BYTES].load(Ordering::Acquire)
    }

    fn store(&self, at: usize, word: u64) {
        self.0.words[at / LINE_BYTES].store(word, Ordering::Release);
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        let from = at % LINE_BYTES - WORD_BYTES;
        // SAFETY: the model checker reports two accesses that are not ordered.
        self.0.packets[at / LINE_BYTES]
            .with_mut(|packet| unsafe { (&mut *packet)[from..from + bytes.len()].copy_from_slice(bytes) });
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        // SAFETY: as above.
        self.0.packets[at / LINE_BYTES].with(|packet| unsafe { bytes.copy_from_slice(&(&*packet)[..bytes.len()]) });
    }

    fn head(&self) -> u64 {
        self.0.head.load(Ordering::Acquire)
    }

    fn set_head(&self, head: u64) {
        self.0.head.store(head, Ordering::Release);
    }

    fn sleeps(&self) -> bool {
        self.0.sleeps.load(Ordering::Relaxed)
    }

    fn set_sleeps(&self, sleeps: bool) -> bool {
        self.0.sleeps.swap(sleeps, Ordering::AcqRel)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn discard(&self) {
        self.0.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        // SAFETY: as above.
        self.0.packets.iter().for_each(|packet| packet.with_mut(|packet| unsafe { *packet = [0; ONE_LINE] }));
    }
}

/// Waits for the next record and returns it.
fn next_record(reader: &mut Reader<Model>) -> Record {
    loop {
        match reader.pop() {
            Some(record) => return record,
            None => loom::thread::yield_now(),
        }
    }
}

#[test]
fn records_arrive_whole_and_in_order() {
    const RECORDS: u8 = 3; // more than the ring holds
    loom::model(|| {
        let memory = Model(Arc::new(Lines::new()));
        let mut writer = Writer::new(memory.clone());
        let writing = loom::thread::spawn(move || {
            for number in 1..=RECORDS {
                while !writer.push(header(3), [&[number; 3][..]].into_iter()) {
                    loom::thread::yield_now();
                }
            }
        });
        let mut reader = Reader::new(memory);
        for number in 1..=RECORDS {
            let record = next_record(&mut reader);
            assert_eq!(record.header, header(3));
            let mut packet = [0; 3];
            reader.copy_out(&record, &mut packet);
            assert_eq!(packet, [number; 3]);
            reader.release();
        }
        writing.join().unwrap();
        assert!(reader.pop().is_none());
    });
}

#[test]
fn records_prepared_in_free_memory_arrive_whole_and_in_order() {
    const RECORDS: u8 = 3; // more than the ring holds
    loom::model(|| {
        let memory = Model(Arc::new(Lines::new()));
        let mut writer = Writer::new(memory.clone());
        let writing = loom::thread::spawn({
            let memory = memory.clone();
            move || {
                for number in 1..=RECORDS {
                    let at = loop {
                        let (at, length) = writer.free_memory();
                        if length > 0 {
                            break at;
                        }
                        loom::thread::yield_now();
                    };
                    // The payload lies in the ring before the writer adds the header and publishes the record.
                    memory.copy_in(at + WORD_BYTES + 1, &[number; 2]);
                    writer.publish(header(3), [(0, &[number][..])].into_iter());
                }
            }
        });
        let mut reader = Reader::new(memory);
        for number in 1..=RECORDS {
            let record = next_record(&mut reader);
            let mut packet = [0; 3];
            reader.copy_out(&record, &mut packet);
            assert_eq!(packet, [number; 3]);
            reader.release();
        }
        writing.join().unwrap();
        assert!(reader.pop().is_none());
    });
}

#[test]
fn a_ring_that_gives_its_memory_back_loses_nothing() {
    loom::model(|| {
        let memory = Model(Arc::new(Lines::new()));
        let mut writer = Writer::new(memory.clone());
        let writing = loom::thread::spawn(move || {
            for number in 1..=2 {
                while !writer.push(header(3), [&[number; 3][..]].into_iter()) {
                    loom::thread::yield_now();
                }
                // The writer may call `give_back` at any time, whatever the reader does.
                writer.give_back();
            }
        });
        let mut reader = Reader::new(memory);
        for number in 1..=2 {
            let record = next_record(&mut reader);
            let mut packet = [0; 3];
            reader.copy_out(&record, &mut packet);
            assert_eq!(packet, [number; 3]);
            reader.release();
        }
        writing.join().unwrap();
        assert!(reader.pop().is_none());
    });
}

#[test]
fn a_reader_that_sleeps_is_woken() {
    loom::model(|| {
        let memory = Model(Arc::new(Lines::new()));
        let bell = Arc::new((Mutex::new(false), Condvar::new()));
        let mut writer = Writer::new(memory.clone());
        let writing = loom::thread::spawn({
            let bell = Arc::clone(&bell);
            move || {
                assert!(writer.push(header(1), [&[7][..]].into_iter()));
                if writer.must_wake() {
                    *bell.0.lock().unwrap() = true;
                    bell.1.notify_one();
                }
            }
        });
        let mut reader = Reader::new(memory);
        // If the reader waits here forever, the model checker reports a deadlock.
        if reader.arm() {
            let mut rung = bell.0.lock().unwrap();
            while !*rung {
                rung = bell.1.wait(rung).unwrap();
            }
        }
        assert!(reader.pop().is_some());
        writing.join().unwrap();
    });
}

/// A ring of bytes in which a test may write arbitrary values. An access outside the ring panics.
#[derive(Clone)]
struct Bytes(Rc<Store>);

struct Store {
    ring: RefCell<Vec<u8>>,
    head: Cell<u64>,
    sleeps: Cell<bool>,
}

impl Bytes {
    const CAPACITY: usize = 1 << 17;

    fn new() -> Self {
        Self(Rc::new(Store {
            ring: RefCell::new(vec![0; Self::CAPACITY]),
            head: Cell::new(0),
            sleeps: Cell::new(false),
        }))
    }
}

impl Memory for Bytes {
    fn capacity(&self) -> usize {
        Self::CAPACITY
    }

    fn load(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0.ring.borrow()[at..at + 8].try_into().unwrap())
    }

    fn store(&self, at: usize, word: u64) {
        self.0.ring.borrow_mut()[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= 2 * Self::CAPACITY);
        let mut ring = self.0.ring.borrow_mut();
        bytes.iter().enumerate().for_each(|(index, &byte)| ring[(at + index) % Self::CAPACITY] = byte);
    }

    fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        assert!(at + bytes.len() <= 2 * Self::CAPACITY);
        let ring = self.0.ring.borrow();
        bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = ring[(at + index) % Self::CAPACITY]);
    }

    fn head(&self) -> u64 {
        self.0.head.get()
    }

    fn set_head(&self, head: u64) {
        self.0.head.set(head);
    }

    fn sleeps(&self) -> bool {
        self.0.sleeps.get()
    }

    fn set_sleeps(&self, sleeps: bool) -> bool {
        self.0.sleeps.replace(sleeps)
    }

    fn fence(&self) {}

    fn discard(&self) {
        self.0.ring.borrow_mut().fill(0);
    }
}

/// One step of the writer, of the reader or of a process that writes arbitrary values.
#[derive(Clone, Debug)]
enum Step {
    Push { packets: usize, bytes: usize },
    Publish { packets: usize, bytes: usize },
    Pop,
    Release,
    Arm,
    GiveBack,
    Scribble { at: usize, word: u64 },
    Move { head: u64 },
}

fn honest_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1_usize..=64, 1_usize..=1000).prop_map(|(packets, bytes)| Step::Push { packets, bytes }),
        2 => (1_usize..=64, 1_usize..=1000).prop_map(|(packets, bytes)| Step::Publish { packets, bytes }),
        2 => Just(Step::Pop),
        2 => Just(Step::Release),
        1 => Just(Step::Arm),
        1 => Just(Step::GiveBack),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    let word = prop_oneof![
        any::<u64>(),
        // Generate words that look like a header.
        (any::<u64>(), 0..1_u64 << 17, 0..1_u64 << 17).prop_map(|(rest, a, b)| 1 << 63 | rest << 34 >> 1 | a << 17 | b),
    ];
    let head = prop_oneof![any::<u64>(), 0..1_u64 << 20];
    prop_oneof![
        6 => honest_step(),
        2 => (0..Bytes::CAPACITY / 8, word).prop_map(|(at, word)| Step::Scribble { at: 8 * at, word }),
        1 => head.prop_map(|head| Step::Move { head }),
    ]
}

/// Executes all steps. Returns the pushed and popped runs as bytes.
fn run(steps: &[Step]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let memory = Bytes::new();
    let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory.clone()));
    let (mut pushed, mut popped) = (Vec::new(), Vec::new());
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Push { packets, bytes } => {
                let run: Vec<u8> = (0..packets * bytes).map(|at| (at + number) as u8).collect();
                let header = Header { total_bytes: run.len(), segment_bytes: bytes, traffic_class: 1, hop_limit: 2 };
                if writer.push(header, run.chunks(bytes)) {
                    pushed.push(run);
                }
            }
            Step::Publish { packets, bytes } => {
                let run: Vec<u8> = (0..packets * bytes).map(|at| (at + number) as u8).collect();
                let header = Header { total_bytes: run.len(), segment_bytes: bytes, traffic_class: 1, hop_limit: 2 };
                let (at, length) = writer.free_memory();
                if header.record_bytes() <= length as u64 {
                    let (first, rest) = run.split_at(run.len() / 2);
                    memory.copy_in(at + WORD_BYTES, first);
                    writer.publish(header, std::iter::once((first.len(), rest)));
                    pushed.push(run);
                }
            }
            Step::Pop => {
                if let Some(record) = reader.pop() {
                    let mut run = vec![0; record.header.total_bytes];
                    reader.copy_out(&record, &mut run);
                    popped.push(run);
                }
            }
            Step::Release => reader.release(),
            Step::Arm => {
                reader.arm();
                writer.must_wake();
            }
            Step::GiveBack => {
                writer.give_back();
            }
            Step::Scribble { at, word } => memory.store(at, word),
            Step::Move { head } => memory.set_head(head),
        }
    }
    (pushed, popped)
}

proptest! {
    #[test]
    fn records_are_read_as_written(steps in prop::collection::vec(honest_step(), 0..200)) {
        let (pushed, popped) = run(&steps);
        prop_assert!(popped.len() <= pushed.len());
        prop_assert_eq!(&pushed[..popped.len()], &popped[..]);
    }

    #[test]
    fn hostile_writes_yield_only_runs_of_valid_length(steps in prop::collection::vec(any_step(), 0..200)) {
        let (_, popped) = run(&steps);
        // Each pop returns at most one run, with valid lengths.
        prop_assert!(popped.len() <= steps.len());
        prop_assert!(popped.iter().all(|run| (1..=doorbell_rnic::MAX_RUN_BYTES).contains(&run.len())));
    }
}

#[test]
fn a_full_ring_takes_records_only_after_a_release() {
    let memory = Bytes::new();
    let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory.clone()));
    let run = vec![1; 60_000];
    let push = |writer: &mut Writer<_>| writer.push(header(run.len()), std::iter::once(&run[..]));
    assert!(push(&mut writer) && push(&mut writer));
    assert!(!push(&mut writer), "the ring accepted a third record");
    assert!(reader.pop().is_some());
    assert!(!push(&mut writer), "the ring reused a record that was not released");
    reader.release();
    assert!(push(&mut writer));
    // The writer ignores a position before the reader's last position, and a position beyond the writer's own.
    for nonsense in [0, u64::MAX, 1 << 40] {
        memory.set_head(nonsense);
        assert!(!push(&mut writer), "{nonsense}");
    }
}
