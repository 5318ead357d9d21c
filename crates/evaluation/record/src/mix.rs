//! Mix of message sizes, and the sequence in which a connection sends them.

use std::ops::RangeInclusive;

use doorbell_protocols::{Protocol, Size};
use doorbell_wire::split_mix;
use serde::{Deserialize, Serialize};

use crate::memory::MAX_MESSAGE;

/// Number of messages after which the sequence of sizes repeats.
const PERIOD: usize = 1 << 16;
/// Seed of the order of sizes within a period.
const SEED: u64 = 0x5152_5354;

/// Message sizes in bytes, each with its weight. The weights are shares of the messages, and need not add up to one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SizeMix(pub Vec<(usize, f64)>);

impl From<&[(u64, f64)]> for SizeMix {
    /// Returns the mix of these sizes. [`check`](Self::check) rejects sizes beyond the address space.
    fn from(sizes: &[(u64, f64)]) -> Self {
        Self(sizes.iter().map(|&(bytes, weight)| (usize::try_from(bytes).unwrap_or(usize::MAX), weight)).collect())
    }
}

impl SizeMix {
    /// Maximum number of sizes of a mix.
    pub const MAX_SIZES: usize = 1024;
    /// Weights that a size can have.
    pub const WEIGHTS: RangeInclusive<f64> = 1e-9..=1e9;

    /// Parses a histogram in CSV: one row `bytes,weight` for each size. Empty lines, lines that begin with `#`, a first
    /// row `bytes,weight`, and a byte order mark are skipped. `file` is the name of the file in errors.
    ///
    /// # Errors
    ///
    /// A row is malformed, or a size or weight is out of range. The error names the file and the line.
    pub fn from_csv(file: &str, text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let (mut rows, mut is_first) = (Vec::new(), true);
        for (index, line) in text.lines().enumerate() {
            let row = line.trim();
            if row.is_empty() || row.starts_with('#') {
                continue;
            }
            if std::mem::take(&mut is_first) && row.replace(' ', "").eq_ignore_ascii_case("bytes,weight") {
                continue;
            }
            let refuse = |problem: String| format!("{file}, line {}: {problem}", index + 1);
            let malformed = || {
                let shown: String = row.chars().take(60).collect();
                refuse(format!("{shown:?} is no row: must be BYTES,WEIGHT, as in 4096,0.25"))
            };
            let (bytes, weight) = row.split_once(',').ok_or_else(malformed)?;
            let bytes: usize = bytes.trim().parse().map_err(|_| malformed())?;
            let weight: f64 = weight.trim().parse().map_err(|_| malformed())?;
            check_row(bytes, weight).map_err(|(given, allowed)| refuse(format!("{given}: must be {allowed}")))?;
            if rows.len() == Self::MAX_SIZES {
                return Err(refuse(format!("the file has more rows: must be 1 to {}", Self::MAX_SIZES)));
            }
            rows.push((bytes, weight));
        }
        let mix = Self(rows);
        mix.check().map_err(|(given, allowed)| format!("{file}: {given}: must be {allowed}"))?;
        Ok(mix)
    }

    /// Checks the number of sizes, each size and each weight.
    ///
    /// # Errors
    ///
    /// A value is out of range. The error has the value and the allowed values.
    pub fn check(&self) -> Result<(), (String, String)> {
        if !(1..=Self::MAX_SIZES).contains(&self.0.len()) {
            return Err((format!("{} sizes", self.0.len()), format!("1 to {} sizes", Self::MAX_SIZES)));
        }
        self.0.iter().try_for_each(|&(bytes, weight)| check_row(bytes, weight))
    }

    /// Returns whether messages of a protocol may have a mix of sizes. Packets are predicted only if each operation
    /// carries one message at most.
    pub fn suits(protocol: Protocol) -> bool {
        !protocol.steps().iter().any(|step| matches!(step.size, Size::AllNew { .. }))
    }

    /// Returns the longest size.
    pub fn longest(&self) -> usize {
        self.0.iter().map(|&(bytes, _)| bytes).max().unwrap_or(0)
    }

    /// Returns the mean size in bytes. The mix must have passed [`check`](Self::check).
    pub fn mean(&self) -> f64 {
        let weights: f64 = self.0.iter().map(|&(_, weight)| weight).sum();
        self.0.iter().map(|&(bytes, weight)| bytes as f64 * weight).sum::<f64>() / weights
    }

    /// Returns the sequence of sizes. The mix must have passed [`check`](Self::check).
    pub fn sequence(&self) -> SizeSequence {
        let all: f64 = self.0.iter().map(|&(_, weight)| weight).sum();
        let divided = PERIOD.saturating_sub(self.0.len()) as f64;
        let (mut order, mut reached) = (Vec::with_capacity(PERIOD), 0.0);
        for (index, &(_, weight)) in self.0.iter().enumerate() {
            reached += weight;
            // Each size occurs at least once. The other messages are divided by weight.
            let end = index + 1 + (reached / all * divided).round() as usize;
            order.resize(end.min(PERIOD), index as u16);
        }
        order.resize(PERIOD, self.0.len().saturating_sub(1) as u16);
        let mut state = SEED;
        for last in (1..PERIOD).rev() {
            order.swap(last, (split_mix(&mut state) % (last as u64 + 1)) as usize);
        }
        SizeSequence { sizes: self.0.iter().map(|&(bytes, _)| bytes).collect(), order }
    }
}

/// Checks a size and its weight. The error has the given and the allowed values.
fn check_row(bytes: usize, weight: f64) -> Result<(), (String, String)> {
    // NaN is in no range.
    if bytes <= MAX_MESSAGE && SizeMix::WEIGHTS.contains(&weight) {
        return Ok(());
    }
    let (least, most) = SizeMix::WEIGHTS.into_inner();
    let allowed = format!("0 to {MAX_MESSAGE} B with a weight of {least} to {most}");
    Err((format!("{bytes} B with a weight of {weight}"), allowed))
}

/// Sizes of the messages of a connection, in a fixed order that looks random. The order repeats after 65,536 messages,
/// among which each size has its share, and at least one message.
#[derive(Clone, Debug)]
pub struct SizeSequence {
    sizes: Vec<usize>,
    /// Index of the size of each message of a period.
    order: Vec<u16>,
}

impl SizeSequence {
    /// Returns the bytes of a message.
    pub fn bytes(&self, message: u64) -> usize {
        self.sizes[usize::from(self.order[(message % PERIOD as u64) as usize])]
    }

    /// Returns the number of messages of each size among `messages` messages from message `from`, as pairs of bytes and
    /// messages.
    pub fn counts(&self, from: u64, messages: u64) -> Vec<(u64, u64)> {
        let mut counts: Vec<(u64, u64)> = self.sizes.iter().map(|&bytes| (bytes as u64, 0)).collect();
        let (periods, left) = (messages / PERIOD as u64, messages % PERIOD as u64);
        for &index in self.order.iter().filter(|_| periods > 0) {
            counts[usize::from(index)].1 += 1;
        }
        for (_, count) in &mut counts {
            *count = count.saturating_mul(periods);
        }
        for message in 0..left {
            let index = self.order[(from.wrapping_add(message) % PERIOD as u64) as usize];
            counts[usize::from(index)].1 += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_their_shares_of_a_period() {
        let mix = SizeMix(vec![(64, 0.9), (65_536, 0.1), (1 << 20, 1e-9)]);
        mix.check().unwrap();
        let sequence = mix.sequence();
        let counts = sequence.counts(0, PERIOD as u64);
        let share = |index: usize| counts[index].1 as f64 / PERIOD as f64;
        assert!((mix.mean() - (0.9 * 64.0 + 0.1 * 65_536.0)).abs() < 1.0, "{}", mix.mean());
        assert!((share(0) - 0.9).abs() < 1e-4 && (share(1) - 0.1).abs() < 1e-4, "{counts:?}");
        assert_eq!((counts[2], mix.longest()), ((1 << 20, 1), 1 << 20), "each size occurs");
        // The shares are near also among few messages, and counts agree with the sizes one by one.
        for (from, messages) in [(0, 1000), (65_000, 5000), (3, 2 * PERIOD as u64 + 77)] {
            let counts = sequence.counts(from, messages);
            let one_by_one = |bytes: u64| {
                (from..from + messages).filter(|&message| sequence.bytes(message) as u64 == bytes).count() as u64
            };
            assert!(counts.iter().all(|&(bytes, count)| one_by_one(bytes) == count), "{counts:?}");
            let share = counts[0].1 as f64 / messages as f64;
            assert!((share - 0.9).abs() < 0.05, "{share}");
        }
        let even = SizeMix((0..SizeMix::MAX_SIZES).map(|bytes| (bytes, 1.0)).collect()).sequence();
        assert!(even.counts(0, PERIOD as u64).iter().all(|&(_, count)| count == 64));
    }

    #[test]
    fn a_histogram_is_read_row_by_row() {
        let read = |text: &str| SizeMix::from_csv("sizes.csv", text);
        let mix = read("bytes,weight\n# small ones\n64, 9\n\n4096,1\n").unwrap();
        assert_eq!(mix, SizeMix(vec![(64, 9.0), (4096, 1.0)]));
        assert_eq!(read("\u{feff}# sizes\n\nBytes, Weight\n64,9\n4096,1\n").unwrap(), mix);
        assert_eq!(read("\u{feff}64,9\n4096,1\n").unwrap(), mix);
        assert!(read("64,9\nbytes,weight\n").unwrap_err().contains("line 2: \"bytes,weight\" is no row"));
        let many = "1,1\n".repeat(SizeMix::MAX_SIZES + 1);
        let allowed = "must be 0 to 1073741824 B with a weight of 0.000000001 to 1000000000";
        for (text, said) in [
            ("64\n", "sizes.csv, line 1: \"64\" is no row: must be BYTES,WEIGHT, as in 4096,0.25".to_owned()),
            ("64,1\n4K,1\n", "sizes.csv, line 2: \"4K,1\" is no row: must be BYTES,WEIGHT, as in 4096,0.25".to_owned()),
            ("64,0\n", format!("sizes.csv, line 1: 64 B with a weight of 0: {allowed}")),
            ("64,NaN\n", format!("sizes.csv, line 1: 64 B with a weight of NaN: {allowed}")),
            ("2000000000,1\n", format!("sizes.csv, line 1: 2000000000 B with a weight of 1: {allowed}")),
            ("bytes,weight\n", "sizes.csv: 0 sizes: must be 1 to 1024 sizes".to_owned()),
            (many.as_str(), "sizes.csv, line 1025: the file has more rows: must be 1 to 1024".to_owned()),
        ] {
            assert_eq!(read(text).unwrap_err(), said);
        }
    }
}
