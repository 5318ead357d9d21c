//! Messages whose packets have a given mean length.

use doorbell_wire::PathMtu;
use doorbell_wire::cost::MAX_MESSAGE_BYTES;

use super::{Range, Span};

/// Relative error below which the counters are treated as exact.
pub(super) const EXACT: f64 = 1e-6;

/// Rate and mean length of packets that carry data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data {
    /// Packets per second.
    pub(super) packets: Range,
    /// Frame bytes per packet, within the tolerance.
    pub(super) mean: Range,
    /// Frame bytes per packet as counted.
    pub(super) counted: f64,
}

/// Messages whose packets have the mean length of [`Data`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    pub(super) payload: Span,
    pub(super) nearest: Option<Span>,
    pub(super) packets: Span,
    pub(super) misfit: f64,
}

/// Returns messages of one packet. `fixed` are the bytes around the payload, `longest` the longest payload.
pub(super) fn single(data: &Data, fixed: u64, longest: u64) -> Option<Class> {
    // Payloads are padded to four bytes.
    let words = |mean: f64| (mean - fixed as f64) / 4.0;
    let most = longest.div_ceil(4);
    let low = (words(data.mean.min) - EXACT).ceil().max(0.0) as u64;
    let high = words(data.mean.max) + EXACT;
    if high < 0.0 || low > most {
        return None;
    }
    let high = (high.floor() as u64).min(most);
    if low > high {
        return None;
    }
    let payload = |low: u64, high: u64| Span { min: (low * 4).saturating_sub(3), max: (high * 4).min(longest) };
    let nearest = (words(data.counted).round().max(0.0) as u64).clamp(low, high);
    Some(Class {
        payload: payload(low, high),
        nearest: Some(payload(nearest, nearest)),
        packets: Span { min: 1, max: 1 },
        misfit: ((fixed + 4 * nearest) as f64 / data.counted - 1.0).abs(),
    })
}

/// Returns messages of several packets, segmented by `mtu`. `fixed` are the bytes around each packet's payload.
/// `once` are the additional bytes of a message: RETH, immediate data, or the AETHs of a READ response. `packets` is
/// the allowed range of packets per message.
pub(super) fn cut(data: &Data, fixed: u64, once: u64, mtu: PathMtu, packets: Span) -> Option<Class> {
    let mtu = mtu.bytes() as f64;
    let (once, fixed) = (once as f64, fixed as f64);
    // Bytes per packet besides `fixed`, that is, (payload + once) / packets.
    let (low, high) = (data.mean.min - fixed, data.mean.max - fixed);
    // All packets but the last are full: (packets - 1) * mtu < payload <= packets * mtu.
    let mut most = (packets.max as f64).min((MAX_MESSAGE_BYTES as f64 / mtu).ceil());
    if low > mtu {
        most = most.min(once / (low - mtu));
    }
    if high < mtu {
        most = most.min((mtu - once - 1.0) / (mtu - high));
    }
    let least = packets.min.max(2);
    if most < least as f64 {
        return None;
    }
    let most = most.floor();
    let payload = |packets: f64| {
        let min = (packets * low - once - 3.0).max((packets - 1.0) * mtu + 1.0);
        let max = (packets * high - once).min(packets * mtu);
        (min, max)
    };
    let ((min, _), (_, max)) = (payload(least as f64), payload(most));
    if max < min {
        return None;
    }
    let longest = (mtu + once / least as f64) + fixed;
    Some(Class {
        payload: Span { min: min.ceil() as u64, max: (max.floor() as u64).min(MAX_MESSAGE_BYTES) },
        nearest: None,
        packets: Span { min: least, max: most as u64 },
        misfit: (data.counted / longest - 1.0).max(0.0),
    })
}

/// Returns the payload whose packets have the mean length of `data`, if this payload is a power of two. All packets of
/// the message are full, and one packet carries `once` additional bytes. If the counters are read during a message,
/// the mean has a small error, so the function uses the nearest power of two.
pub(super) fn exact_power_of_two(data: &Data, fixed: u64, once: u64, mtu: PathMtu) -> Option<Class> {
    let mtu = mtu.bytes() as u64;
    let more = data.counted - (fixed + mtu) as f64;
    if once == 0 || more <= data.counted * EXACT {
        return None;
    }
    let packets = 1_u64 << (once as f64 / more).log2().round().clamp(1.0, 31.0) as u32;
    let payload = packets * mtu;
    let mean = (fixed + mtu) as f64 + once as f64 / packets as f64;
    let misfit = (data.counted / mean - 1.0).abs();
    if payload > MAX_MESSAGE_BYTES || misfit > EXACT {
        return None;
    }
    let span = Span { min: payload, max: payload };
    Some(Class { payload: span, nearest: Some(span), packets: Span { min: packets, max: packets }, misfit })
}

/// Returns whether a range of payloads contains a common size: 0 or a power of two.
pub(super) fn holds_round_size(span: Span) -> bool {
    span.min == 0 || (span.min..=span.max).contains(&span.min.next_power_of_two())
}
