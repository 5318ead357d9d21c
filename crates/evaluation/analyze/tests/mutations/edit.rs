//! Changes of the packets of a capture.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use doorbell_analyze::decode::capture::{CaptureReader, LinkType};
use doorbell_wire::{
    AETH_LEN, AethRepr, BTH_LEN, BthRepr, CNP_RESERVED_LEN, Flow, ICRC_LEN, IPV4_LEN, Opcode, RETH_LEN, SyndromeKind,
    UDP_LEN,
};

use crate::table::{Change, Selector};

const IP: usize = 14;
const UDP: usize = IP + IPV4_LEN;
const BTH: usize = UDP + UDP_LEN;

#[derive(Clone)]
struct Packet {
    /// Number of the frame in the unchanged capture; `None` for an inserted packet.
    number: Option<u64>,
    at_ns: u64,
    frame: Vec<u8>,
}

pub(crate) struct Capture {
    packets: Vec<Packet>,
    /// Packets before the first change, to which selectors refer.
    original: Vec<Packet>,
}

fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

impl Packet {
    fn bth(&self) -> BthRepr {
        BthRepr::read(&bytes_at(&self.frame, BTH))
    }

    fn opcode(&self) -> Opcode {
        self.bth().opcode
    }

    fn from(&self) -> Ipv4Addr {
        bytes_at::<4>(&self.frame, IP + 12).into()
    }

    fn is_kind(&self, kind: &str) -> bool {
        if !self.opcode().has_aeth() {
            return false;
        }
        match AethRepr::read(&bytes_at::<AETH_LEN>(&self.frame, BTH + BTH_LEN)).syndrome.kind() {
            SyndromeKind::Ack { .. } => kind == "ack",
            SyndromeKind::RnrNak { .. } => kind == "rnr-nak",
            SyndromeKind::Nak(_) => kind == "nak",
            SyndromeKind::Unknown(_) => false,
        }
    }

    /// Writes the lengths of IP and UDP, and the ICRC.
    fn seal(&mut self, keep_icrc: bool) {
        let length = self.frame.len();
        let lengths = [(IP + 2, length - IP), (UDP + 4, length - UDP)];
        for (at, value) in lengths {
            self.frame[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
        }
        if keep_icrc {
            return;
        }
        let port = |at| u16::from_be_bytes(bytes_at(&self.frame, at));
        let to: Ipv4Addr = bytes_at::<4>(&self.frame, IP + 16).into();
        let flow = Flow::new(self.from().into(), to.into(), port(UDP), port(UDP + 2));
        let identification = u16::from_be_bytes(bytes_at(&self.frame, IP + 4));
        let dont_fragment = self.frame[IP + 6] & 0x40 != 0;
        let icrc = flow.icrc(identification, dont_fragment, &self.frame[BTH..length - ICRC_LEN]);
        self.frame[length - ICRC_LEN..].copy_from_slice(&icrc.to_le_bytes());
    }

    /// Returns the first bit of a field in the frame, and its number of bits.
    fn place(&self, field: &str) -> Result<(usize, u32), String> {
        let opcode = self.opcode();
        let unknown = || format!("{field:?} is no field; README.md has the names");
        let (header, name) = field.split_once('.').unwrap_or((field, ""));
        let after_bth = BTH + BTH_LEN;
        let body = after_bth + opcode.extension_len();
        let index = || name.parse::<usize>().map_err(|_| unknown());
        let (has_it, at) = match header {
            "bth" => (true, BTH),
            "reth" => (opcode.has_reth(), after_bth),
            "aeth" => (opcode.has_aeth(), after_bth),
            "atomic" => (opcode.has_atomic_eth(), after_bth),
            "atomic-ack" => (opcode.has_atomic_ack_eth(), after_bth + AETH_LEN),
            "imm" => (opcode.has_imm(), after_bth + if opcode.has_reth() { RETH_LEN } else { 0 }),
            "ieth" => (opcode.has_ieth(), after_bth),
            "cnp" => (opcode == Opcode::CNP, after_bth),
            "payload" => (body + ICRC_LEN < self.frame.len(), body),
            "icrc" => (true, self.frame.len() - ICRC_LEN),
            "ip" => (true, IP),
            "udp" => (true, UDP),
            _ => return Err(unknown()),
        };
        let (bit, bits) = match (header, name) {
            ("bth", "opcode") => (0, 8),
            ("bth", "solicited") => (8, 1),
            ("bth", "migrated") => (9, 1),
            ("bth", "pad-count") => (10, 2),
            ("bth", "version") => (12, 4),
            ("bth", "partition-key") => (16, 16),
            ("bth", "fecn") => (32, 1),
            ("bth", "becn") => (33, 1),
            ("bth", "reserved-6") => (34, 6),
            ("bth", "dest-qpn") => (40, 24),
            ("bth", "ack-request") => (64, 1),
            ("bth", "reserved-7") => (65, 7),
            ("bth", "psn") => (72, 24),
            ("reth", "address") | ("atomic", "address") | ("atomic-ack", "original") => (0, 64),
            ("reth", "rkey") | ("atomic", "rkey") => (64, 32),
            ("reth", "length") => (96, 32),
            ("aeth", "syndrome") => (0, 8),
            ("aeth", "msn") => (8, 24),
            ("atomic", "swap-or-add") => (96, 64),
            ("atomic", "compare") => (160, 64),
            ("imm" | "ieth" | "icrc", "") => (0, 32),
            ("udp", "source-port") => (0, 16),
            ("udp", "destination-port") => (16, 16),
            ("ip", "hop-limit") => (64, 8),
            ("payload" | "cnp", _) => (8 * index()?, 8),
            _ => return Err(unknown()),
        };
        let is_inside = 8 * at + bit + bits <= 8 * self.frame.len();
        match has_it && is_inside {
            true => Ok((8 * at + bit, bits as u32)),
            false => Err(format!("a packet with opcode {opcode} has no {header} for {field:?}")),
        }
    }

    fn get(&self, (bit, bits): (usize, u32)) -> u64 {
        let one = |at: usize| u64::from(self.frame[at / 8] >> (7 - at % 8) & 1);
        (bit..bit + bits as usize).fold(0, |value, at| value << 1 | one(at))
    }

    fn put(&mut self, (bit, bits): (usize, u32), value: u64) {
        for index in 0..bits as usize {
            let (at, one) = (bit + index, (value >> (bits as usize - 1 - index) & 1) as u8);
            let mask = 1 << (7 - at % 8);
            self.frame[at / 8] = self.frame[at / 8] & !mask | (one * mask);
        }
    }

    fn edit(&mut self, change: &Change) -> Result<(), String> {
        // The opcode determines the places of the other fields, so it changes last.
        let mut changes = Vec::new();
        for (field, &value) in &change.set {
            let place = self.place(field)?;
            if place.1 < 64 && value >> place.1 != 0 {
                return Err(format!("{field:?} has {} bits, too few for {value}", place.1));
            }
            changes.push((place, value));
        }
        for (field, &value) in &change.add {
            let place = self.place(field)?;
            let mask = if place.1 < 64 { (1 << place.1) - 1 } else { u64::MAX };
            changes.push((place, self.get(place).wrapping_add_signed(value) & mask));
        }
        for (place, value) in changes {
            self.put(place, value);
        }
        let end = self.frame.len() - ICRC_LEN;
        let more = usize::try_from(change.payload_bytes.unsigned_abs()).map_err(|error| error.to_string())?;
        if change.payload_bytes >= 0 {
            self.frame.splice(end..end, std::iter::repeat_n(0x5a, more));
        } else {
            let start = end.checked_sub(more).filter(|start| *start >= BTH + BTH_LEN);
            let start = start.ok_or_else(|| format!("a packet has no {more} bytes to remove"))?;
            self.frame.drain(start..end);
        }
        self.seal(change.keep_icrc);
        Ok(())
    }
}

impl Capture {
    /// Reads a capture of Ethernet frames with IPv4 packets.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = CaptureReader::new(bytes).map_err(|error| error.to_string())?;
        let mut packets = Vec::new();
        while let Some(frame) = reader.next().map_err(|error| error.to_string())? {
            let is_ipv4 = frame.bytes.get(12..15) == Some(&[8, 0, 0x45]);
            if frame.link_type != LinkType::ETHERNET || !is_ipv4 || frame.bytes.len() < BTH + BTH_LEN + ICRC_LEN {
                return Err("captures to change must have Ethernet frames with IPv4 packets of RoCE v2".to_owned());
            }
            packets.push(Packet {
                number: Some(packets.len() as u64 + 1),
                at_ns: frame.timestamp_ns.unwrap_or(0),
                frame: frame.bytes.to_vec(),
            });
        }
        Ok(Self { original: packets.clone(), packets })
    }

    /// Returns the packets as a pcap file with times in nanoseconds.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut file = [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
        for packet in &self.packets {
            let (seconds, rest) = (packet.at_ns / 1_000_000_000, packet.at_ns % 1_000_000_000);
            let length = packet.frame.len() as u32;
            file.extend([seconds as u32, rest as u32, length, length].map(u32::to_le_bytes).concat());
            file.extend(&packet.frame);
        }
        file
    }

    /// Returns the number of the selected packet.
    fn select(&self, selector: &Selector) -> Result<u64, String> {
        if let Some(name) = &selector.opcode
            && !Opcode::KNOWN.iter().any(|opcode| opcode.name() == name)
        {
            let names: Vec<_> = Opcode::KNOWN.iter().map(|opcode| opcode.name()).collect();
            return Err(format!("{name:?} is no opcode; opcodes are {names:?}"));
        }
        let mut seen = BTreeSet::new();
        let is_selected = |packet: &&Packet| {
            let bth = packet.bth();
            let key = (packet.from(), bth.dest_qpn.get(), bth.psn.get(), bth.opcode);
            let is_repeated = !seen.insert(key);
            selector.number.is_none_or(|number| packet.number == Some(number))
                && selector.opcode.as_ref().is_none_or(|name| bth.opcode.name() == name)
                && selector.from.is_none_or(|from| from == packet.from())
                && selector.to_qpn.is_none_or(|qpn| qpn == bth.dest_qpn.get())
                && selector.psn.is_none_or(|psn| psn == bth.psn.get())
                && selector.answer.as_ref().is_none_or(|kind| packet.is_kind(kind))
                && selector.repeated.is_none_or(|repeated| repeated == is_repeated)
        };
        let index = selector.nth.unwrap_or(1).checked_sub(1).ok_or("nth counts from 1")?;
        let packet = self.original.iter().filter(is_selected).nth(index);
        packet.and_then(|packet| packet.number).ok_or_else(|| format!("no packet is {selector:?}"))
    }

    fn position(&self, number: u64) -> Result<usize, String> {
        let position = self.packets.iter().position(|packet| packet.number == Some(number));
        position.ok_or_else(|| format!("an earlier change has removed packet {number}"))
    }

    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), String> {
        let at = self.position(self.select(&change.packet)?)?;
        let insert_after = |packets: &mut Vec<Packet>, position: usize, mut packet: Packet| {
            packet.at_ns = packets[position].at_ns + 1000 * change.after_us;
            packets.insert(position + 1, packet);
        };
        if change.remove {
            self.packets.remove(at);
        } else if change.insert_cnp {
            let mut cnp = self.packets[at].clone();
            cnp.number = None;
            let bth = BthRepr { opcode: Opcode::CNP, becn: true, dest_qpn: cnp.bth().dest_qpn, ..BthRepr::default() };
            cnp.frame.truncate(BTH);
            cnp.frame.resize(BTH + BTH_LEN + CNP_RESERVED_LEN + ICRC_LEN, 0);
            bth.write((&mut cnp.frame[BTH..BTH + BTH_LEN]).try_into().unwrap());
            cnp.edit(change)?;
            insert_after(&mut self.packets, at, cnp);
        } else if let Some(after) = &change.copy_after {
            let mut copy = self.packets[at].clone();
            copy.number = None;
            copy.edit(change)?;
            let after = self.position(self.select(after)?)?;
            insert_after(&mut self.packets, after, copy);
        } else if let Some(after) = &change.move_after {
            let mut packet = self.packets.remove(at);
            packet.edit(change)?;
            let after = self.position(self.select(after)?)?;
            insert_after(&mut self.packets, after, packet);
        } else {
            let before = self.packets[at].frame.clone();
            self.packets[at].edit(change)?;
            if self.packets[at].frame == before {
                return Err(format!("{change:?} changes nothing"));
            }
        }
        Ok(())
    }
}
