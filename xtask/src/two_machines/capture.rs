//! Checks of frames that another program captured on the cable.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path;

use doorbell_wire::{
    BTH_LEN, BthPacket, ETHERNET_LEN, Flow, Frame, ICRC_LEN, Opcode, PacketOperation, Psn, Qpn, ROCE_UDP_PORT,
    parse_frame,
};
use serde_json::Value;

use super::record::{self, Expected};

/// Maximum number of packets of a segmented send.
const MOST_SEGMENTS: usize = 64;

/// A RoCE packet.
pub(super) struct Packet {
    pub(super) source: IpAddr,
    pub(super) opcode: Opcode,
    pub(super) psn: Psn,
    pub(super) destination: Qpn,
    /// Bytes of the frame of the packet. For a packet of an unsplit send, bytes of the frame that it gets after the
    /// split.
    frame_bytes: u64,
    /// Whether the packet is a SEND with a payload. A SEND without a payload only carries credits.
    is_data: bool,
}

/// Contents of a capture.
#[derive(Default)]
pub(super) struct Seen {
    /// Packets in the order of the capture.
    pub(super) packets: Vec<Packet>,
    /// Segmented sends that the kernel split into frames with identifications 0, 1, 2, ... IPv6 has no identifications,
    /// so a capture of IPv6 has no such runs.
    pub(super) cut: Runs,
    /// Segmented sends that are not split yet, because the interface would split them.
    pub(super) uncut: Runs,
}

/// Number of runs of packets, and length of the longest run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Runs {
    pub(super) count: usize,
    pub(super) longest: usize,
}

impl Runs {
    fn add(&mut self, packets: usize) {
        if packets > 1 {
            self.count += 1;
            self.longest = self.longest.max(packets);
        }
    }
}

/// Reads a capture and checks every packet. Both UDP ports must be the port of RoCE, and DF must be set. The ICRC must
/// match the IP header, including the identification that the kernel wrote.
pub(super) fn read(path: &Path, interface_mtu: u64) -> Result<Seen, String> {
    let file = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut seen = Seen::default();
    let mut rows = HashMap::new();
    for (index, bytes) in frames(&file)?.into_iter().enumerate() {
        let mut look = || -> Result<(), String> {
            let frame = parse_frame(bytes).map_err(|error| error.to_string())?;
            let segments = segments(&frame)?;
            seen.uncut.add(segments.len());
            if let [whole] = segments[..] {
                if bytes.len() > ETHERNET_LEN + interface_mtu as usize {
                    return Err(format!("{} B are more than an MTU of {interface_mtu} B allows", bytes.len()));
                }
                if let Some(identification) = frame.outer.identification {
                    rows.entry(frame.outer.src).or_insert_with(Row::default).follow(
                        identification,
                        whole.len(),
                        &mut seen.cut,
                    )?;
                }
            }
            let around = bytes.len() - frame.payload.len();
            for segment in segments {
                let bth = BthPacket::new_checked(segment).map_err(|error| error.to_string())?;
                let opcode = bth.opcode();
                let empty = BTH_LEN + opcode.extension_len() + ICRC_LEN;
                seen.packets.push(Packet {
                    source: frame.outer.src,
                    opcode,
                    psn: bth.psn(),
                    destination: bth.dest_qpn(),
                    frame_bytes: (around + segment.len()) as u64,
                    is_data: opcode.operation() == Some(PacketOperation::Send) && segment.len() > empty,
                });
            }
            Ok(())
        };
        look().map_err(|why| format!("frame {}: {why}", index + 1))?;
    }
    for row in rows.values() {
        seen.cut.add(row.packets);
    }
    Ok(seen)
}

/// Returns the frames of a file in the format of `dumpcap -P`.
fn frames(file: &[u8]) -> Result<Vec<&[u8]>, String> {
    const HEADER_BYTES: usize = 24;
    const RECORD_HEADER_BYTES: usize = 16;
    let word = |bytes: &[u8], at: usize| -> Option<u32> { Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?)) };
    // This magic number means that the file has the byte order of this machine, and times in microseconds.
    if word(file, 0) != Some(0xa1b2_c3d4) {
        return Err("the file is no pcap file of this byte order".to_owned());
    }
    let mut frames = Vec::new();
    let mut rest = file.get(HEADER_BYTES..).ok_or("the header of the capture file is cut off")?;
    while !rest.is_empty() {
        let (captured, whole) = (word(rest, 8), word(rest, 12));
        let frame = captured.and_then(|bytes| rest.get(RECORD_HEADER_BYTES..)?.get(..bytes as usize));
        let Some(frame) = frame.filter(|_| captured == whole) else {
            return Err(format!("frame {} is cut off", frames.len() + 1));
        };
        frames.push(frame);
        rest = &rest[RECORD_HEADER_BYTES + frame.len()..];
    }
    Ok(frames)
}

/// Returns the packets of a frame: one packet, or the packets of a segmented send that is not split yet. The frame does
/// not state the length of the packets, so the function tries lengths. A length is right if the ICRCs of all packets
/// match, each with the identification that the packet gets when the send is split.
fn segments<'a>(frame: &Frame<'a>) -> Result<Vec<&'a [u8]>, String> {
    let (outer, around) = (frame.outer, frame.encapsulation);
    if (around.src_port, around.dst_port) != (ROCE_UDP_PORT, ROCE_UDP_PORT) {
        return Err(format!("the UDP ports are {} and {}, must be {ROCE_UDP_PORT}", around.src_port, around.dst_port));
    }
    if outer.dont_fragment == Some(false) {
        return Err("DF is not set".to_owned());
    }
    let flow = Flow::new(outer.src, outer.dst, around.src_port, around.dst_port);
    let first = outer.identification.unwrap_or_default();
    let is_right = |index: usize, packet: &[u8]| {
        packet.split_last_chunk::<ICRC_LEN>().is_some_and(|(covered, icrc)| {
            covered.len() >= BTH_LEN
                && u32::from_le_bytes(*icrc) == flow.icrc(first.wrapping_add(index as u16), true, covered)
        })
    };
    // The next packet must begin with a BTH that has the default partition key. This check avoids most computations of
    // an ICRC.
    let may_end = |at: usize| frame.payload.get(at + 2..at + 4).is_none_or(|p_key| p_key == [0xff, 0xff]);
    let whole = frame.payload.len();
    let least = whole.div_ceil(MOST_SEGMENTS).next_multiple_of(4).max(BTH_LEN + ICRC_LEN);
    let shorter = (least..whole).step_by(4).filter(|&length| may_end(length));
    for length in std::iter::once(whole).chain(shorter) {
        let mut packets = frame.payload.chunks(length).enumerate();
        if packets.all(|(index, packet)| is_right(index, packet)) {
            return Ok(frame.payload.chunks(length).collect());
        }
    }
    Err(format!(
        "the ICRC of {} B from {} with identification {first} is wrong for each length of packets",
        frame.payload.len(),
        outer.src
    ))
}

/// Consecutive frames of one sender with identifications from 0 on, which are the packets of one split send.
#[derive(Default)]
struct Row {
    packets: usize,
    /// Bytes of the first packet.
    bytes: usize,
    /// Whether a shorter packet was seen. A shorter packet must be the last packet of the send.
    ended: bool,
}

impl Row {
    fn follow(&mut self, identification: u16, bytes: usize, runs: &mut Runs) -> Result<(), String> {
        if identification == 0 {
            runs.add(self.packets);
            *self = Self { packets: 1, bytes, ended: false };
            return Ok(());
        }
        let (expected, first) = (self.packets, self.bytes);
        if usize::from(identification) != expected || bytes > first || self.ended || expected >= MOST_SEGMENTS {
            return Err(format!(
                "identification {identification} and {bytes} B of payload after {expected} packets of {first} B, \
                 whose identifications start at 0"
            ));
        }
        self.packets += 1;
        self.ended = bytes < first;
        Ok(())
    }
}

/// Checks that the number of captured packets matches the counters of both ends, and that the packets and bytes of data
/// match the messages.
pub(super) fn compare(seen: &Seen, expected: &Expected, record: &Value) -> Result<(), String> {
    for (machine, side, messages) in [(0, "client", expected.client), (1, "server", expected.server)] {
        let address = expected.family.address(machine);
        let own = || seen.packets.iter().filter(|packet| packet.source.to_string() == address);
        let mut packets = HashSet::new();
        let first = own().filter(|packet| packet.is_data && packets.insert((packet.destination, packet.psn)));
        let bytes: u64 = first.map(|packet| packet.frame_bytes).sum();
        let costs = expected.sizes.iter().map(|&bytes| expected.cost(messages, bytes));
        let cost = costs.fold((0, 0), |(packets, bytes), cost| (packets + cost.0, bytes + cost.1));
        if (packets.len() as u64, bytes) != cost {
            let packets = packets.len();
            return Err(format!("{packets} data packets of {bytes} B from {address}, expected are {cost:?}"));
        }
        // The end may send further packets for the disconnect after it has read its counters.
        let (passed, counted) = (own().count() as u64, record::sum(record, side, "tx_vport_rdma_unicast_packets")?);
        let most = counted + record::LAST_PACKETS * expected.sizes.len() as u64;
        if !(counted..=most).contains(&passed) {
            return Err(format!("{passed} packets from {address}, which counted {counted}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use doorbell_wire::{Encapsulation, Outer};

    use super::*;

    /// Returns a frame with packets of the given lengths. The first packet has the identification `first`.
    fn frame(lengths: &[usize], first: u16) -> Vec<u8> {
        let (src, dst) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let flow = Flow::new(src, dst, ROCE_UDP_PORT, ROCE_UDP_PORT);
        let mut payload = Vec::new();
        for (index, &length) in lengths.iter().enumerate() {
            let mut packet = vec![index as u8; length - ICRC_LEN];
            packet[..4].copy_from_slice(&[Opcode::RC_SEND_ONLY.0, 0, 0xff, 0xff]);
            let icrc = flow.icrc(first + index as u16, true, &packet);
            payload.extend(packet);
            payload.extend(icrc.to_le_bytes());
        }
        let outer =
            Outer { src, dst, traffic_class: 0, hop_limit: 64, identification: Some(first), dont_fragment: Some(true) };
        let (src_port, dst_port) = (ROCE_UDP_PORT, ROCE_UDP_PORT);
        let around = Encapsulation { src_mac: [2; 6], dst_mac: [4; 6], vlan: None, src_port, dst_port };
        let mut frame = vec![0; around.header_len(&outer)];
        around.emit_frame_headers(&outer, payload.len(), &mut frame);
        frame.extend(payload);
        frame
    }

    #[test]
    fn segments_are_found_and_damage_is_rejected() {
        for lengths in [&[16][..], &[4112], &[36; 64], &[1044, 1044, 20], &[16, 16]] {
            let mut bytes = frame(lengths, 0);
            let found = segments(&parse_frame(&bytes).unwrap()).unwrap();
            assert_eq!(found.iter().map(|packet| packet.len()).collect::<Vec<_>>(), lengths);
            *bytes.last_mut().unwrap() ^= 1;
            assert!(segments(&parse_frame(&bytes).unwrap()).is_err(), "{lengths:?}");
        }
        // Change the identification in the header, so that it differs from the one that the ICRC covers.
        let mut bytes = frame(&[36], 1);
        assert!(segments(&parse_frame(&bytes).unwrap()).is_ok());
        bytes[ETHERNET_LEN + 5] = 2;
        assert!(segments(&parse_frame(&bytes).unwrap()).is_err());
    }

    #[test]
    fn identifications_count_up_within_a_run_of_equal_packets() {
        let follow = |frames: &[(u16, usize)]| {
            let (mut row, mut runs) = (Row::default(), Runs::default());
            let done = frames.iter().try_for_each(|&(number, bytes)| row.follow(number, bytes, &mut runs));
            done.map(|()| (runs.count, runs.longest, row.packets))
        };
        assert_eq!(follow(&[(0, 16), (0, 36), (1, 36), (2, 20), (0, 16)]), Ok((1, 3, 1)));
        for wrong in [&[(1, 16)][..], &[(0, 16), (2, 16)], &[(0, 16), (1, 20)], &[(0, 36), (1, 20), (2, 20)]] {
            assert!(follow(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn truncated_files_are_rejected() {
        let mut file = [0xa1b2_c3d4_u32, 0, 0, 0, 0, 1, 0, 0, 3, 3].map(u32::to_ne_bytes).concat();
        file.extend([7, 8, 9]);
        assert_eq!(frames(&file).unwrap(), [[7, 8, 9]]);
        for cut in [0, 3, 20, 30, 42] {
            assert!(frames(&file[..cut]).is_err(), "{cut}");
        }
    }
}
