//! Pause frames: the names that drivers have for their counters.

use crate::common::{Name, Set};

/// Direction of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received: the switch stopped this interface.
    Received,
    /// Transmitted: this interface stopped the switch.
    Transmitted,
}

impl Direction {
    /// Returns the name of the direction for output.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Received => "rx",
            Direction::Transmitted => "tx",
        }
    }
}

/// Quantity that a counter of pauses counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Pause frames that stop the other side (IEEE 802.3 annex 31B, IEEE 802.1Q clause 36).
    Frames,
    /// Time of pauses in microseconds.
    Microseconds,
}

/// Meaning of a counter of pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Direction of the pause frames.
    pub direction: Direction,
    /// Priority that the frames pause, 0 to 7. `None` for frames that pause the whole link.
    pub priority: Option<u8>,
    /// Quantity of the counter.
    pub quantity: Quantity,
}

/// Names of counters by driver. `D` stands for `rx` or `tx`, `N` for the priority.
const NAMES: [(&str, Quantity); 8] = [
    // mlx5. `D_global_pause` is left out, since `D_pause_ctrl_phy` counts the same frames.
    ("D_pause_ctrl_phy", Quantity::Frames),
    ("D_prioN_pause", Quantity::Frames),
    ("D_prioN_pause_duration", Quantity::Microseconds),
    // bnxt_en
    ("D_pause_frames", Quantity::Frames),
    ("D_pfc_ena_frames_priN", Quantity::Frames),
    ("pfc_priN_D_duration_us", Quantity::Microseconds),
    // ice with the suffix `.nic`, i40e with the prefix `port.`
    ("link_xoff_D", Quantity::Frames),
    ("D_priority_N_xoff", Quantity::Frames),
];

impl Pause {
    /// Returns the meaning of a counter of pauses; `None` for all other counters.
    pub fn of(name: &Name) -> Option<Self> {
        if name.set != Set::Ethtool {
            return None;
        }
        let plain = name.name.strip_prefix("port.").unwrap_or(&name.name);
        let plain = plain.strip_suffix(".nic").unwrap_or(plain);
        let mut digits = plain.chars().filter_map(|c| c.to_digit(10));
        let priority = digits.next();
        if digits.next().is_some() || priority > Some(7) {
            return None;
        }
        let direction = plain.split('_').find_map(|part| match part {
            "rx" => Some(Direction::Received),
            "tx" => Some(Direction::Transmitted),
            _ => None,
        })?;
        let general = |part: &str| match part == direction.name() {
            true => "D".to_owned(),
            false => part.replace(|c: char| c.is_ascii_digit(), "N"),
        };
        let shape = plain.split('_').map(general).collect::<Vec<_>>().join("_");
        let (_, quantity) = NAMES.iter().find(|(name, _)| *name == shape)?;
        Some(Self { direction, priority: priority.map(|priority| priority as u8), quantity: *quantity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_each_driver_are_recognised() {
        use Direction::{Received, Transmitted};
        use Quantity::{Frames, Microseconds};
        for (name, direction, priority, quantity) in [
            ("rx_pause_ctrl_phy", Received, None, Frames),
            ("tx_prio3_pause", Transmitted, Some(3), Frames),
            ("rx_prio0_pause_duration", Received, Some(0), Microseconds),
            ("tx_pause_frames", Transmitted, None, Frames),
            ("rx_pfc_ena_frames_pri7", Received, Some(7), Frames),
            ("pfc_pri5_tx_duration_us", Transmitted, Some(5), Microseconds),
            ("link_xoff_rx.nic", Received, None, Frames),
            ("port.link_xoff_tx", Transmitted, None, Frames),
            ("tx_priority_4_xoff.nic", Transmitted, Some(4), Frames),
            ("port.rx_priority_4_xoff", Received, Some(4), Frames),
        ] {
            let expected = Some(Pause { direction, priority, quantity });
            assert_eq!(Pause::of(&Name::new(Set::Ethtool, name)), expected, "{name}");
        }
    }

    #[test]
    fn other_counters_are_not() {
        for name in
            ["rx_prio9_pause", "rx_prio33_pause", "rx_global_pause", "link_xon_rx.nic", "rx_prio3_bytes", "", "_"]
        {
            assert_eq!(Pause::of(&Name::new(Set::Ethtool, name)), None, "{name}");
        }
        assert_eq!(Pause::of(&Name::new(Set::Hardware, "rx_prio3_pause")), None, "no statistic of an interface");
    }
}
