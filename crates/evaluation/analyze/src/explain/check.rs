//! Checks that counters can be those of RoCE v2 traffic.

use doorbell_wire::{
    BTH_LEN, FCS_LEN, GAP_LEN, ICRC_LEN, IMM_DT_LEN, MIN_FRAME_LEN, OuterKind, PREAMBLE_LEN, RETH_LEN,
};

use super::{Hints, Rates};

/// Errors of counters that no RoCE v2 traffic can cause. The counters count other traffic, or were read incorrectly.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// A rate is negative, infinite or not a number.
    #[error("{name} is {value} per second: must be at least 0 and finite; the counter may have restarted")]
    Rate {
        /// Name of the rate.
        name: &'static str,
        /// Given value.
        value: f64,
    },
    /// Bytes without packets, or packets without bytes.
    #[error("{direction} shows {bytes} bytes and {packets} packets per second: both must be 0, or both above 0")]
    OneWithoutTheOther {
        /// Name of the counters.
        direction: &'static str,
        /// Bytes per second.
        bytes: f64,
        /// Packets per second.
        packets: f64,
    },
    /// Packets are shorter than any RoCE v2 packet.
    #[error(
        "{direction} shows {mean:.1} bytes per packet: the smallest RoCE v2 frame has {least}, so these counters count \
         other traffic, alone or in addition"
    )]
    TooShort {
        /// Name of the counters.
        direction: &'static str,
        /// Bytes per packet.
        mean: f64,
        /// Length of the smallest frame.
        least: usize,
    },
    /// Packets are longer than the path MTU allows.
    #[error(
        "{direction} shows {mean:.1} bytes per packet: at path MTU {mtu} a RoCE v2 frame has at most {most}. The \
         counters do not belong together, the path MTU is larger, or packets are counted before segmentation"
    )]
    TooLong {
        /// Name of the counters.
        direction: &'static str,
        /// Bytes per packet.
        mean: f64,
        /// Given path MTU, or the largest path MTU if none was given.
        mtu: u64,
        /// Length of the largest frame.
        most: usize,
    },
    /// The rate of the link is out of range.
    #[error("the link's rate is {0} bit/s: it must be above 0")]
    Link(f64),
    /// The tolerance is out of range.
    #[error("the tolerance is {0}: allowed is 0 to 0.1 (10 %)")]
    Tolerance(f64),
}

/// Rejects counters that no traffic can cause. After this check no code divides by zero, and all rates are finite.
pub(super) fn check(rates: &Rates, hints: &Hints) -> Result<(), ExplainError> {
    if !(0.0..=0.1).contains(&hints.tolerance) {
        return Err(ExplainError::Tolerance(hints.tolerance));
    }
    if let Some(link) = hints.link_bits_per_s
        && !(link.is_finite() && link > 0.0)
    {
        return Err(ExplainError::Link(link));
    }
    for (name, value) in [
        ("rx_bytes", rates.rx_bytes),
        ("rx_packets", rates.rx_packets),
        ("tx_bytes", rates.tx_bytes),
        ("tx_packets", rates.tx_packets),
    ] {
        if !(value.is_finite() && value >= 0.0) {
            return Err(ExplainError::Rate { name, value });
        }
    }
    direction("rx", rates.rx_bytes, rates.rx_packets, hints)?;
    direction("tx", rates.tx_bytes, rates.tx_packets, hints)
}

fn direction(direction: &'static str, bytes: f64, packets: f64, hints: &Hints) -> Result<(), ExplainError> {
    if (bytes > 0.0) != (packets > 0.0) {
        return Err(ExplainError::OneWithoutTheOther { direction, bytes, packets });
    }
    if packets == 0.0 {
        return Ok(());
    }
    let mean = bytes / packets;
    let outers = hints.outers();
    let frame = |outer: &OuterKind| outer.header_len() + BTH_LEN + ICRC_LEN;
    let (least, most) = (outers.iter().map(frame).min(), outers.iter().map(frame).max());
    let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
    let mtu = hints.longest_payload();
    let most = most + mtu as usize + RETH_LEN + IMM_DT_LEN;
    if mean < hints.around(least as f64).min {
        return Err(ExplainError::TooShort { direction, mean, least });
    }
    if mean > hints.around(most as f64).max {
        return Err(ExplainError::TooLong { direction, mean, mtu, most });
    }
    Ok(())
}

/// Returns the line bytes of frames, with padding, preamble, FCS and gap.
pub(super) fn line_bytes(bytes: f64, packets: f64) -> f64 {
    // The result is exact if all packets have one length, and a lower bound otherwise.
    bytes.max(packets * MIN_FRAME_LEN as f64) + packets * (PREAMBLE_LEN + FCS_LEN + GAP_LEN) as f64
}
