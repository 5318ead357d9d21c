//! Control messages: data that a socket call passes to or from the kernel in addition to a message's bytes.
//!
//! The kernel's interface defines the layout of a control message: a length, a level, a type and the data, padded to
//! the size of a pointer. So this module writes and reads control messages as bytes.

use std::mem;
use std::net::SocketAddr;

const HEADER_BYTES: usize = mem::size_of::<usize>() + 8;
const ALIGNMENT: usize = mem::size_of::<usize>();

/// One message to send. The kernel sends `bytes` as one datagram, or splits them into several.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) destination: SocketAddr,
    /// Bytes of each datagram, if the kernel should split the message.
    pub(super) segment_bytes: Option<u16>,
    /// The traffic class, if it differs from [`DEFAULT_TRAFFIC_CLASS`](super::DEFAULT_TRAFFIC_CLASS).
    pub(super) traffic_class: Option<u8>,
    /// The hop limit, if it differs from [`DEFAULT_HOP_LIMIT`](super::DEFAULT_HOP_LIMIT).
    pub(super) hop_limit: Option<u8>,
}

/// Control data that the kernel adds to a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Bytes of each datagram, if the kernel combined several datagrams into the message.
    pub(super) segment_bytes: Option<usize>,
    pub(super) traffic_class: Option<u8>,
    pub(super) hop_limit: Option<u8>,
    /// Total number of messages that the socket has dropped because its receive buffer was full.
    pub(super) overflows: Option<u32>,
}

/// Buffer for all control messages of one message, aligned as the kernel requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Buffer([u8; Self::BYTES]);

impl Buffer {
    /// Room for four control messages of up to eight bytes of data. A received message has at most four: segment size,
    /// traffic class, hop limit and overflows. A sent message has fewer.
    pub(super) const BYTES: usize = 4 * (HEADER_BYTES + 8);

    pub(super) const EMPTY: Self = Self([0; Self::BYTES]);

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Writes the control messages of a message that will be sent. Returns the number of bytes written.
    pub(super) fn describe(&mut self, message: &Outgoing<'_>) -> usize {
        let ipv4 = message.destination.is_ipv4();
        let mut used = 0;
        if let Some(segment_bytes) = message.segment_bytes {
            self.put(&mut used, libc::SOL_UDP, libc::UDP_SEGMENT, &segment_bytes.to_ne_bytes());
        }
        if let Some(traffic_class) = message.traffic_class {
            let (level, name) =
                if ipv4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
            self.put(&mut used, level, name, &i32::from(traffic_class).to_ne_bytes());
        }
        if let Some(hop_limit) = message.hop_limit {
            let (level, name) =
                if ipv4 { (libc::IPPROTO_IP, libc::IP_TTL) } else { (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) };
            self.put(&mut used, level, name, &i32::from(hop_limit).to_ne_bytes());
        }
        used
    }

    /// Parses the control messages in the first `used` bytes, which the kernel wrote.
    pub(super) fn read(&self, used: usize) -> Received {
        let mut received = Received::default();
        let mut rest = &self.0[..used.min(Self::BYTES)];
        while let Some((len, after)) = rest.split_first_chunk() {
            let len = usize::from_ne_bytes(*len);
            let Some((&[a, b, c, d, e, f, g, h], _)) = after.split_first_chunk() else {
                break;
            };
            let Some(data) = rest.get(HEADER_BYTES..len) else {
                break;
            };
            let level = i32::from_ne_bytes([a, b, c, d]);
            let kind = i32::from_ne_bytes([e, f, g, h]);
            let byte = data.first().copied();
            let word = data.first_chunk().copied();
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    received.segment_bytes = word.and_then(|word| usize::try_from(i32::from_ne_bytes(word)).ok());
                }
                // The kernel reports IP_TOS as one byte, and all other values as integers.
                (libc::IPPROTO_IP, libc::IP_TOS) => received.traffic_class = byte,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    received.traffic_class = word.map(|word| i32::from_ne_bytes(word) as u8);
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    received.hop_limit = word.map(|word| i32::from_ne_bytes(word) as u8);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    received.overflows = word.map(u32::from_ne_bytes);
                }
                _ => {}
            }
            let Some(next) = rest.get(len.next_multiple_of(ALIGNMENT)..) else {
                break;
            };
            rest = next;
        }
        received
    }

    fn put(&mut self, used: &mut usize, level: i32, kind: i32, data: &[u8]) {
        let out = &mut self.0[*used..];
        let len = HEADER_BYTES + data.len();
        out[..ALIGNMENT].copy_from_slice(&len.to_ne_bytes());
        out[ALIGNMENT..ALIGNMENT + 4].copy_from_slice(&level.to_ne_bytes());
        out[ALIGNMENT + 4..HEADER_BYTES].copy_from_slice(&kind.to_ne_bytes());
        out[HEADER_BYTES..len].copy_from_slice(data);
        *used += len.next_multiple_of(ALIGNMENT);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn control_messages_have_the_kernel_layout_and_parse_back() {
        let mut buffer = Buffer::EMPTY;
        let message = Outgoing {
            bytes: &[],
            destination: (Ipv4Addr::LOCALHOST, 4791).into(),
            segment_bytes: Some(36),
            traffic_class: Some(0x68),
            hop_limit: Some(3),
        };
        assert_eq!(buffer.describe(&message), 72);
        assert_eq!(buffer.0[..8], 18_usize.to_ne_bytes());
        let read = buffer.read(72);
        assert_eq!((read.traffic_class, read.hop_limit), (Some(0x68), Some(3)));
        // The control message of the segment size has one type for sending and another for receiving. `read` must
        // ignore the type for sending.
        assert_eq!(read.segment_bytes, None);

        let message = Outgoing { destination: (Ipv6Addr::LOCALHOST, 1).into(), ..message };
        let mut buffer = Buffer::EMPTY;
        let used = buffer.describe(&message);
        let read = buffer.read(used);
        assert_eq!((read.traffic_class, read.hop_limit), (Some(0x68), Some(3)));
    }

    #[test]
    fn all_kernel_messages_fit_and_invalid_ones_are_ignored() {
        let mut buffer = Buffer::EMPTY;
        let mut used = 0;
        buffer.put(&mut used, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &7_u32.to_ne_bytes());
        buffer.put(&mut used, libc::IPPROTO_IP, libc::IP_TTL, &64_i32.to_ne_bytes());
        buffer.put(&mut used, libc::IPPROTO_IP, libc::IP_TOS, &[2]);
        buffer.put(&mut used, libc::SOL_UDP, libc::UDP_GRO, &4112_i32.to_ne_bytes());
        let expected =
            Received { segment_bytes: Some(4112), traffic_class: Some(2), hop_limit: Some(64), overflows: Some(7) };
        assert_eq!(buffer.read(used), expected);
        for cut in 0..used {
            buffer.read(cut);
        }
        for len in [0_usize, 1, 15, 17, usize::MAX, usize::MAX - 6] {
            let mut broken = Buffer::EMPTY;
            broken.0[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(broken.read(Buffer::BYTES), Received::default());
        }
    }
}
