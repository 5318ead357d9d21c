//! Fuzz body for a directory of published files. One of the files is valid, and its publisher updates it all the time.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use doorbell_counters::{Common, Kind, Monitor, Name, PublishedSource, Set, monotonic_ns};

use super::{Choices, MOST_STEPS, change, check, directory, place, remove, replace, word, write};

/// Names of the files that the input creates next to the valid file. A name that begins with `.new-` marks an
/// incomplete file. The process 4294967295 does not exist, and `.new-x` contains no process number.
const PLACES: [&str; 6] = ["0.counters", "1.counters", "\x1b[2J.counters", ".new-4294967295-0-0", ".new-x", "another"];

/// Name of the valid file. In a sorted list, it lies between `0.counters` and `1.counters`.
const SOUND: &str = "00.counters";
const SOUND_NAME: &str = "sound";
const COUNTER: &str = "tx_vport_rdma_unicast_packets";

const WORDS: usize = 8;

/// Creates and changes files as the input bytes determine, and reads the directory after each step.
pub fn fuzz_published(data: &[u8]) {
    let mut choices = Choices(data);
    let root = directory();
    let mut monitor = Monitor::of(vec![Box::new(PublishedSource::of(vec![root.path().to_owned()]))]);
    let mut published = 0;
    let mut look = || {
        published += 1;
        look(&mut monitor, root.path(), published);
    };
    look();
    for _ in 0..MOST_STEPS {
        if choices.is_empty() {
            break;
        }
        let path = place(root.path(), &PLACES, &mut choices);
        match choices.below(8) {
            0 | 1 => write(&path, &file(&mut choices)),
            2 => {
                let length = choices.below(256);
                write(&path, &choices.bytes(length));
            }
            3 | 4 => change(&path, &mut choices),
            5 => replace(&path, &mut choices),
            6 => remove(&path),
            _ => look(),
        }
    }
    look();
    look();
}

/// Publishes a value in the valid file, and reads the directory. The reader must find the value despite the other
/// files.
fn look(monitor: &mut Monitor, root: &Path, published: u64) {
    let sound = root.join(SOUND);
    let lines = format!("name {SOUND_NAME}\ncounter {COUNTER}\n");
    let bytes = laid_out(&lines, &[2 * published, monotonic_ns(), published]);
    if published == 1 {
        write(&sound, &bytes);
    } else {
        std::fs::write(&sound, &bytes).expect("room for a file");
    }
    let look = monitor.look();
    check(&look);
    assert!(look.devices.len() <= 2 * (PLACES.len() + 1), "{} devices", look.devices.len());
    let is_sound = |label: &str| label == SOUND_NAME;
    let found = look.devices.iter().find(|device| is_sound(&device.sample.identity.label));
    let found = found.unwrap_or_else(|| panic!("the valid file is not read: {:?}", look.notes));
    assert_eq!(found.sample.identity.kind, Kind::Software);
    assert_eq!(found.sample.raw[&Name::new(Set::Published, COUNTER)], published);
    if published > 1 {
        let rates = found.rates.as_ref().expect("the previous look found the file");
        assert_eq!(rates.delta(Common::TxPackets), Some(1), "{:?}", rates.remarks);
    }
}

/// Returns the contents of a file in the publisher's layout, with changes that the input chooses.
fn file(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut text = String::new();
    for _ in 0..choices.below(12) {
        text.push_str(&line(choices));
    }
    let mut values: Vec<u64> = (0..choices.below(8)).map(|_| word(choices)).collect();
    // Use odd sequence numbers rarely: a reader waits while the number is odd, which takes time.
    if let Some(sequence) = values.first_mut().filter(|_| choices.below(8) > 0) {
        *sequence &= !1;
    }
    let mut bytes = laid_out(&text, &values);
    for _ in 0..choices.below(3) {
        let at = 8 * choices.below(bytes.len() / 8);
        bytes[at..at + 8].copy_from_slice(&word(choices).to_ne_bytes());
    }
    bytes
}

/// Returns a line of a file's text.
fn line(choices: &mut Choices<'_>) -> String {
    let length = choices.below(24);
    let any = |choices: &mut Choices<'_>| String::from_utf8_lossy(&choices.bytes(length)).into_owned();
    let namespace = || std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
    match choices.below(12) {
        0 => format!("name {}\n", any(choices)),
        1 => format!("name {SOUND_NAME}\n"),
        2 => format!("address 127.0.0.{}\n", choices.byte()),
        3 => format!("address {}\n", any(choices)),
        4 => format!("udp_port {}\n", choices.short()),
        5 => format!("program {}\n", any(choices)),
        6 => format!("born_ns {}\n", word(choices)),
        // A process with a number that never existed counts as gone, so the reader removes its file.
        7 => format!("start_ticks {}\npid_namespace {}\n", word(choices), namespace()),
        8 => format!("counter {COUNTER}\n"),
        9 => format!("counter {}\n", any(choices)),
        10 => format!("{} {}\n", any(choices), "x".repeat(choices.short())),
        _ => any(choices),
    }
}

/// Returns the header words of a file, its text, and its values: sequence number, time, and one value per counter.
fn laid_out(text: &str, values: &[u64]) -> Vec<u8> {
    let text_at = 8 * WORDS;
    let values_at = (text_at + text.len()).next_multiple_of(8);
    let length = values_at + 8 * values.len();
    let counters = text.lines().filter(|line| line.starts_with("counter ")).count();
    let magic = u64::from_ne_bytes(*b"doorbell");
    let words = [magic, 1, length as u64, 1, text_at as u64, text.len() as u64, values_at as u64, counters as u64];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    bytes.extend(text.as_bytes());
    bytes.resize(values_at, 0);
    bytes.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
    bytes
}
