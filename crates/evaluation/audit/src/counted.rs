//! Growth of the counters of a device during a benchmark.

use doorbell_counters::{COMMON, Change, Common, Rates};
use serde_json::Value;

/// Number of intervals at nearly the largest rate from which on a rate counts as steady.
const STEADY_INTERVALS: usize = 3;
/// Share of the largest rate that an interval at nearly that rate has.
const STEADY_SHARE: f64 = 0.9;

/// Error of [`Counted::from_json`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the counters cannot be read: {0}")]
pub struct NotCounters(String);

/// Growth of the counters of a device during a benchmark. An unknown growth is `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// Label of the device.
    pub device: String,
    /// Seconds that the growth covers.
    pub seconds: f64,
    /// Growth of each common counter, in the order of [`Common::ALL`].
    pub deltas: [Option<u64>; COMMON],
    /// Packets per second of each interval, in the direction with more packets.
    pub packet_rates: Vec<f64>,
    /// Whether the rates were given instead of measured, so that they hold during the benchmark.
    pub is_given_rate: bool,
    /// Remarks on the counters, as sentences.
    pub remarks: Vec<String>,
}

impl Counted {
    /// Creates the growth of a device before its first interval.
    pub fn new(device: impl Into<String>) -> Self {
        Self { device: device.into(), ..Self::default() }
    }

    /// Adds an interval.
    pub fn add(&mut self, rates: &Rates) {
        for remark in &rates.remarks {
            if !self.remarks.contains(remark) {
                self.remarks.push(remark.clone());
            }
        }
        if rates.seconds <= 0.0 {
            return;
        }
        let is_first = self.seconds == 0.0;
        for (sum, &new) in self.deltas.iter_mut().zip(&rates.deltas) {
            *sum = if is_first { new } else { sum.zip(new).map(|(sum, new)| sum.saturating_add(new)) };
        }
        self.seconds += rates.seconds;
        let packets = [Common::TxPackets, Common::RxPackets].map(|common| rates.per_second(common));
        self.packet_rates.extend(packets.into_iter().flatten().reduce(f64::max));
    }

    /// Adds the growth of another device during the same time, so that the result concerns both devices.
    pub fn merge(&mut self, other: &Self) {
        self.device = format!("{} and {}", self.device, other.device);
        self.seconds = self.seconds.max(other.seconds);
        for (sum, &more) in self.deltas.iter_mut().zip(&other.deltas) {
            *sum = sum.zip(more).map(|(sum, more)| sum.saturating_add(more)).or(*sum).or(more);
        }
        // The last intervals of both devices are the same ones, since a device may be opened later than another.
        let intervals = self.packet_rates.len().max(other.packet_rates.len());
        let at = |rates: &[f64], index: usize| {
            (index + rates.len()).checked_sub(intervals).map_or(0.0, |index| rates[index])
        };
        let rate = |index| at(&self.packet_rates, index) + at(&other.packet_rates, index);
        self.packet_rates = (0..intervals).map(rate).collect();
        self.is_given_rate &= other.is_given_rate;
        self.remarks.extend(other.remarks.iter().cloned());
    }

    /// Returns the growth of a counter.
    pub fn delta(&self, common: Common) -> Option<u64> {
        self.deltas[common as usize]
    }

    /// Returns the packets in the direction with more packets.
    pub fn packets(&self) -> Option<u64> {
        self.delta(Common::TxPackets).max(self.delta(Common::RxPackets))
    }

    /// Returns the mean bytes of a packet in the direction with more bytes.
    pub fn bytes_per_packet(&self) -> Option<f64> {
        let sent = self.delta(Common::TxBytes).zip(self.delta(Common::TxPackets));
        let received = self.delta(Common::RxBytes).zip(self.delta(Common::RxPackets));
        let (bytes, packets) = sent.max(received)?;
        (packets > 0).then(|| bytes as f64 / packets as f64)
    }

    /// Returns the packets per second of the benchmark, if they were steady for some intervals.
    pub fn steady_packets_per_s(&self) -> Option<f64> {
        let largest = self.packet_rates.iter().copied().reduce(f64::max)?;
        let steady = self.packet_rates.iter().filter(|rate| **rate >= STEADY_SHARE * largest).count();
        (largest > 0.0 && (self.is_given_rate || steady >= STEADY_INTERVALS)).then_some(largest)
    }

    /// Reads lines of `doorbell counters --json`. Several lines are the readings before, during and after a benchmark,
    /// of which the changes of the totals are added. One line has the growth in its interval.
    ///
    /// # Errors
    ///
    /// The text is no JSON, has another layout, or has no device with counters.
    pub fn from_json(text: &str) -> Result<Vec<Self>, NotCounters> {
        let looks: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        let looks = looks.map_err(|error| NotCounters(error.to_string()))?;
        let devices = |look: &Value| look.get("devices").and_then(Value::as_array).cloned();
        let (Some(first), Some(last)) = (looks.first().and_then(devices), looks.last().and_then(devices)) else {
            return Err(NotCounters("use the lines that `doorbell counters --json` prints".to_owned()));
        };
        let seconds = match &looks[..] {
            [before, .., after] => {
                let time = |look: &Value| look.get("unix_time_s").and_then(Value::as_f64);
                time(before).zip(time(after)).map_or(0.0, |(before, after)| (after - before).max(0.0))
            }
            _ => 0.0,
        };
        let is_one = looks.len() == 1;
        let is_named = |device: &Value, name: &str| device.get("device").and_then(Value::as_str) == Some(name);
        let mut found = Vec::new();
        for after in &last {
            let name = after.get("device").and_then(Value::as_str).unwrap_or("?");
            if is_one {
                found.push(Self::of_interval(name, after));
            } else if first.iter().any(|before| is_named(before, name)) {
                let reading = |look| devices(look)?.into_iter().find(|device| is_named(device, name));
                let readings: Vec<Option<Value>> = looks.iter().map(reading).collect();
                found.push(Self::of_totals(name, seconds, &readings));
            }
        }
        let is_used = |counted: &Self| counted.packets().is_some() || counted.steady_packets_per_s().is_some();
        found.retain(|counted| is_used(counted) || !counted.remarks.is_empty());
        if found.is_empty() {
            return Err(NotCounters("no device has packets in all of the readings".to_owned()));
        }
        Ok(found)
    }

    fn of_interval(name: &str, device: &Value) -> Self {
        let number = |part: &str, common: Common| device.pointer(&format!("/{part}/{}", common.name()));
        let mut counted = Self { is_given_rate: true, ..Self::new(name) };
        counted.seconds = device.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
        counted.deltas = Common::ALL.map(|common| number("counted", common).and_then(Value::as_u64));
        let rates =
            [Common::TxPackets, Common::RxPackets].map(|common| number("per_second", common).and_then(Value::as_f64));
        counted.packet_rates.extend(rates.into_iter().flatten().reduce(f64::max));
        counted
    }

    /// Adds the changes between consecutive readings. `None` is a reading without the device.
    fn of_totals(name: &str, seconds: f64, readings: &[Option<Value>]) -> Self {
        let mut counted = Self { seconds, ..Self::new(name) };
        let mut was_reset = false;
        counted.deltas = Common::ALL.map(|common| {
            let total = |device: &Option<Value>| {
                device.as_ref()?.pointer(&format!("/totals/{}", common.name())).and_then(Value::as_u64)
            };
            let mut sum = Some(0_u64);
            for pair in readings.windows(2) {
                let grown = match (total(&pair[0]), total(&pair[1])) {
                    (Some(before), Some(after)) => match change_of_total(before, after) {
                        Change::Grew(grown) => Some(grown),
                        Change::WentBack => {
                            was_reset = true;
                            let name = format!("{} of {name}", common.name());
                            counted.remarks.push(format!(
                                "{name} decreased, so the counters were reset or wrapped: they are not used"
                            ));
                            None
                        }
                        Change::Saturated => {
                            let name = format!("{} of {name}", common.name());
                            counted.remarks.push(format!("{name} has reached its maximum: the counter is not used"));
                            None
                        }
                    },
                    _ => None,
                };
                sum = sum.zip(grown).and_then(|(sum, grown)| sum.checked_add(grown));
                if sum.is_none() {
                    break;
                }
            }
            sum
        });
        if was_reset {
            // The other counters were reset too, so none of them has a known growth.
            counted.deltas = [None; COMMON];
        }
        counted
    }
}

/// Returns the change of a total. A total is a sum of counters of unknown widths, so a wrap looks like a reset.
/// Counters of ports stay at their maximum, so a counter that has reached it may lack a part of its growth.
fn change_of_total(before: u64, after: u64) -> Change {
    let is_maximum = after == u64::from(u32::MAX) || after == u64::MAX;
    if is_maximum {
        return Change::Saturated;
    }
    after.checked_sub(before).map_or(Change::WentBack, Change::Grew)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(time: f64, packets: u64) -> String {
        format!(
            "{{\"schema\":\"doorbell-counters/1\",\"unix_time_s\":{time},\"devices\":[{{\"device\":\"mlx5_0/1\",\
             \"totals\":{{\"tx_packets\":{packets},\"tx_bytes\":{}}}}}]}}\n",
            packets * 4154
        )
    }

    #[test]
    fn totals_before_and_after_are_subtracted() {
        let counted = Counted::from_json(&(look(10.0, 1000) + &look(12.5, 5000))).unwrap();
        assert_eq!((counted[0].device.as_str(), counted[0].seconds), ("mlx5_0/1", 2.5));
        assert_eq!((counted[0].packets(), counted[0].delta(Common::RxPackets)), (Some(4000), None));
        assert_eq!(counted[0].bytes_per_packet(), Some(4154.0));
    }

    #[test]
    fn changes_between_all_lines_are_added() {
        let of = |packets: &[u64]| {
            let lines = packets.iter().enumerate().map(|(second, packets)| look(second as f64, *packets));
            Counted::from_json(&lines.collect::<String>()).unwrap().remove(0)
        };
        assert_eq!(of(&[100, 250, 900]).packets(), Some(800));
        let reset = of(&[5000, 10, 9000]);
        assert_eq!((reset.packets(), reset.remarks.len()), (None, 2));
        // A counter of 32 bits that stays at its maximum, before and at the last reading.
        let full = of(&[100, u64::from(u32::MAX)]);
        assert_eq!(full.packets(), None);
        let full = of(&[100, u64::from(u32::MAX), u64::from(u32::MAX)]);
        assert_eq!(full.packets(), None);
        assert!(full.remarks[0].contains("tx_packets of mlx5_0/1 has reached its maximum"), "{:?}", full.remarks);
    }

    #[test]
    fn totals_that_decrease_have_no_growth() {
        let wrapped = u64::MAX - 9;
        for (before, after, expected) in [
            (5, 12, Change::Grew(7)),
            (wrapped, 10, Change::WentBack),
            (u64::from(u32::MAX) - 9, 10, Change::WentBack),
            (wrapped, u64::MAX, Change::Saturated),
        ] {
            assert_eq!(change_of_total(before, after), expected, "{before} to {after}");
        }
    }

    #[test]
    fn counters_that_decrease_have_a_sentence_and_no_growth() {
        let counted = Counted::from_json(&(look(10.0, 5000) + &look(12.0, 10))).unwrap();
        assert_eq!(counted[0].packets(), None);
        let remarks = counted[0].remarks.join("\n");
        assert!(remarks.contains("of mlx5_0/1 decreased, so the counters were reset or wrapped"), "{remarks}");
    }

    #[test]
    fn intervals_add_up_and_an_unknown_growth_stays_unknown() {
        let mut rates = Rates { seconds: 0.5, ..Rates::default() };
        rates.deltas[Common::TxPackets as usize] = Some(500);
        let mut counted = Counted::new("doorbell0");
        (0..3).for_each(|_| counted.add(&rates));
        assert_eq!((counted.packets(), counted.steady_packets_per_s()), (Some(1500), Some(1000.0)));
        counted.add(&Rates { seconds: 0.5, ..Rates::default() });
        assert_eq!(counted.packets(), None);
    }

    #[test]
    fn devices_that_share_the_traffic_add_up() {
        let device = |name: &str, packets: Option<u64>, rates: &[f64]| {
            let mut counted = Counted::new(name);
            counted.deltas[Common::TxPackets as usize] = packets;
            counted.packet_rates = rates.to_vec();
            counted
        };
        let mut both = device("a", Some(5), &[1.0, 2.0, 3.0]);
        both.merge(&device("b", Some(7), &[10.0]));
        assert_eq!((both.device.as_str(), both.packets()), ("a and b", Some(12)));
        assert_eq!(both.packet_rates, [1.0, 2.0, 13.0]);
        both.merge(&device("c", None, &[]));
        assert_eq!(both.packets(), Some(12));
    }

    #[test]
    fn other_texts_are_errors() {
        for text in ["", "{", "[]", "{\"devices\": 3}", "{\"devices\": []}", "nonsense"] {
            assert!(Counted::from_json(text).is_err(), "{text}");
        }
    }
}
