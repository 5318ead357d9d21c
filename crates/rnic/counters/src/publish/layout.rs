//! File format of a software RNIC's counters: words of 64 bits in the machine's byte order, and text.
//!
//! ```text
//! word 0  magic                    word 4  offset of the text in bytes
//! word 1  layout                   word 5  bytes of text
//! word 2  bytes of the file        word 6  offset of the values in bytes
//! word 3  pid of the publisher     word 7  number of values
//! text    lines "key value"; "counter NAME" once for each value, in their order
//! values  a sequence number, the time of publication, then the values
//! orders  with the line "port_orders 1" in the text: a request to the port, and the reply
//! ```
//!
//! The text holds the names of the counters, so a reader needs no list of counters. A reader ignores unknown keys. The
//! layout number changes only if the meaning of the words changes.
//!
//! The sequence number is odd while the publisher writes values. A reader accepts the values if the sequence number was
//! even, and was the same before and after reading them.

use std::collections::HashMap;

pub(crate) const MAGIC: u64 = u64::from_ne_bytes(*b"doorbell");
pub(crate) const LAYOUT: u64 = 1;
const HEADER_WORDS: usize = 8;
const WORD: usize = size_of::<u64>();
/// Number of words before the values: the sequence number and the time of publication.
pub(crate) const VALUES_START: usize = 2;
/// Words after the values: a request to the port, and the reply.
pub(crate) const REQUEST_WORD: usize = 0;
pub(super) const REPLY_WORD: usize = 1;
pub(super) const ORDER_WORDS: usize = 2;
/// Key of a file with these words.
const ORDERS: &str = "port_orders";
/// Maximum length of a file in bytes.
pub(crate) const MAX_FILE_BYTES: usize = 64 << 10;
/// Maximum number of counters of a device.
pub(crate) const MAX_COUNTERS: usize = 1024;
/// Maximum length of one value in the text, in characters, so that long environment strings do not fill the file.
const MAX_VALUE_CHARS: usize = 128;

/// Parsed header and text of a file, which describe the device and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) pid: u32,
    /// Keys and values of the text, except the lines `counter NAME`.
    pub(crate) text: HashMap<String, String>,
    /// Names of the counters, in the order of their values in the file.
    pub(crate) counters: Vec<String>,
    /// Offset of the sequence number in bytes. The time and the values follow.
    pub(crate) values_at: usize,
    /// Offset of the request in bytes. The reply follows. `None` if the device takes no orders.
    pub(crate) orders_at: Option<usize>,
    pub(crate) file_bytes: usize,
}

/// Returns the text without control characters, cut to the maximum length of a value.
fn line_safe(text: &str) -> String {
    text.chars().take(MAX_VALUE_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Returns the bytes of a new file whose values are all zero, and the offset of its sequence number. Returns `None` if
/// the device has too many counters.
pub(crate) fn encode(pid: u32, keys: &[(&str, String)], counters: &[&str]) -> Option<(Vec<u8>, usize)> {
    if counters.len() > MAX_COUNTERS {
        return None;
    }
    let mut text = String::new();
    for (key, value) in keys {
        text.push_str(&format!("{key} {}\n", line_safe(value)));
    }
    text.push_str(&format!("{ORDERS} 1\n"));
    for name in counters {
        text.push_str(&format!("counter {}\n", line_safe(name)));
    }
    let text_at = HEADER_WORDS * WORD;
    let values_at = (text_at + text.len()).next_multiple_of(WORD);
    let file_bytes = values_at + (VALUES_START + counters.len() + ORDER_WORDS) * WORD;
    if file_bytes > MAX_FILE_BYTES {
        return None;
    }
    let words = [MAGIC, LAYOUT, file_bytes as u64, u64::from(pid), text_at as u64, text.len() as u64]
        .into_iter()
        .chain([values_at as u64, counters.len() as u64]);
    let mut bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    bytes.extend(text.as_bytes());
    bytes.resize(file_bytes, 0);
    Some((bytes, values_at))
}

/// Splits bytes into words of 64 bits.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<WORD>().0.iter().map(|word| u64::from_ne_bytes(*word))
}

/// Parses a file. The error describes what is wrong with the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Header, String> {
    let header: Vec<u64> = words(bytes).take(HEADER_WORDS).collect();
    let &[magic, layout, file_bytes, pid, text_at, text_bytes, values_at, counters] = header.as_slice() else {
        return Err(format!("the file has {} B, less than a header of {} B", bytes.len(), HEADER_WORDS * WORD));
    };
    if magic != MAGIC {
        return Err("the file does not begin with the magic number of a counter file".to_owned());
    }
    if layout != LAYOUT {
        return Err(format!("the file has layout {layout}, but this program reads only layout {LAYOUT}"));
    }
    if file_bytes != bytes.len() as u64 {
        return Err(format!("the file has {} B, but its header states {file_bytes} B", bytes.len()));
    }
    let pid = u32::try_from(pid)
        .map_err(|_| format!("the process number {pid} is too large: at most {} is allowed", u32::MAX))?;
    let counters = usize::try_from(counters).ok().filter(|&counters| counters <= MAX_COUNTERS);
    let counters = counters.ok_or_else(|| format!("the file has more than {MAX_COUNTERS} counters, the maximum"))?;
    let range = |from: u64, length: u64| -> Option<&[u8]> {
        bytes.get(usize::try_from(from).ok()?..usize::try_from(from.checked_add(length)?).ok()?)
    };
    let text = range(text_at, text_bytes).and_then(|text| std::str::from_utf8(text).ok());
    let text = text.ok_or("the text lies outside the file, or is not UTF-8")?;
    let values_bytes = ((VALUES_START + counters) * WORD) as u64;
    let values = range(values_at, values_bytes).filter(|_| values_at.is_multiple_of(WORD as u64));
    values.ok_or("the values lie outside the file, or are not aligned")?;
    let mut keys = HashMap::new();
    let mut names = Vec::with_capacity(counters);
    for line in text.lines() {
        let (key, value) = line.split_once(' ').ok_or("a line of the text has no value")?;
        match key {
            "counter" => names.push(line_safe(value)),
            _ => drop(keys.insert(key.to_owned(), line_safe(value))),
        }
    }
    if names.len() != counters {
        return Err(format!(
            "the file names {} counters, but has {counters} values: both numbers must be equal",
            names.len()
        ));
    }
    let orders_at = keys.contains_key(ORDERS).then(|| values_at + values_bytes);
    if let Some(at) = orders_at {
        range(at, (ORDER_WORDS * WORD) as u64).ok_or("the words for orders lie outside the file")?;
    }
    let (values_at, orders_at) = (values_at as usize, orders_at.map(|at| at as usize));
    Ok(Header { pid, text: keys, counters: names, values_at, orders_at, file_bytes: bytes.len() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file() -> (Vec<u8>, usize) {
        let keys = [("name", "doorbell0".to_owned()), ("program", "a b\nc".to_owned())];
        encode(42, &keys, &["one", "two"]).unwrap()
    }

    #[test]
    fn a_written_file_is_parsed() {
        let (bytes, values_at) = file();
        let header = parse(&bytes).unwrap();
        assert_eq!(header.pid, 42);
        assert_eq!(header.counters, ["one", "two"]);
        assert_eq!(header.text["name"], "doorbell0");
        assert_eq!(header.text["program"], "a b?c", "a control character must be replaced");
        assert_eq!((header.values_at, header.file_bytes), (values_at, bytes.len()));
        assert_eq!(header.orders_at, Some(values_at + 4 * WORD));
        assert_eq!(bytes.len() - values_at, 6 * WORD);
    }

    #[test]
    fn a_damaged_file_is_rejected_with_a_reason() {
        let (bytes, _) = file();
        for (word, value, said) in [
            (0, 1, "does not begin"),
            (1, 2, "layout 2, but this program reads only layout 1"),
            (2, 7, "states 7"),
            (3, 1 << 40, "process number 1099511627776 is too large"),
            (4, u64::MAX, "text lies outside"),
            (5, 1 << 20, "text lies outside"),
            (6, u64::MAX - 8, "values lie outside"),
            (6, 65, "values lie outside"),
            (7, 1, "names 2 counters, but has 1"),
            (7, u64::MAX, "more than 1024"),
        ] {
            let mut damaged = bytes.clone();
            damaged[word * WORD..][..WORD].copy_from_slice(&u64::to_ne_bytes(value));
            let error = parse(&damaged).unwrap_err();
            assert!(error.contains(said), "word {word} = {value}: {error}");
        }
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length]).is_err(), "cut to {length} B");
        }
    }

    #[test]
    fn a_device_with_too_many_counters_is_not_written() {
        assert!(encode(1, &[], &vec!["x"; MAX_COUNTERS]).is_some());
        assert!(encode(1, &[], &vec!["x"; MAX_COUNTERS + 1]).is_none());
        assert!(encode(1, &[("key", "x".repeat(1 << 20))], &[]).is_some(), "a long value is cut");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            damage in proptest::collection::vec((0_usize..400, any::<u8>()), 0..20), cut in 0_usize..400,
        ) {
            let (mut bytes, _) = file();
            for (at, byte) in damage {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            bytes.truncate(cut);
            if let Ok(header) = parse(&bytes) {
                prop_assert!(header.values_at + (VALUES_START + header.counters.len()) * WORD <= bytes.len());
            }
        }
    }
}
