//! Writes a capture of WRITEs and their ACKs, with which to measure the speed of reading captures:
//!
//! ```console
//! $ cargo run --release -p doorbell-analyze --example make_capture -- /tmp/writes.pcap 2000000 64
//! $ time cargo run --release -- wire decode /tmp/writes.pcap
//! ```

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::Ipv4Addr;

use doorbell_wire::{
    AethRepr, BTH_LEN, BthRepr, Encapsulation, Flow, Msn, Opcode, Outer, Psn, Qpn, RKey, ROCE_UDP_PORT, RethRepr,
    Syndrome,
};

/// Number of queue pairs that send in turn.
const QUEUE_PAIRS: u64 = 16;
/// Messages per ACK.
const COALESCED: u64 = 4;

fn main() -> std::io::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [path, packets, bytes] = arguments.as_slice() else {
        eprintln!("usage: make_capture FILE PACKETS BYTES");
        std::process::exit(2);
    };
    let number = |text: &String| text.parse::<u64>().map_err(std::io::Error::other);
    let (packets, bytes) = (number(packets)?, number(bytes)?.min(4096) as usize);
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for field in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.write_all(&field.to_le_bytes())?;
    }
    let mut written = 0;
    let mut frame = Vec::new();
    for message in 0.. {
        if written >= packets {
            break;
        }
        let (pair, psn) = (message % QUEUE_PAIRS, message / QUEUE_PAIRS);
        let start = Psn::new(pair as u32 * 1_000_003).add(psn as u32);
        let mut reth = [0; 16];
        RethRepr { virtual_address: 1 << 20, rkey: RKey::new(9), dma_length: bytes as u32 }.write(&mut reth);
        emit(&mut frame, (1, 2), Opcode::RC_WRITE_ONLY, 0x200 + pair as u32, start, &reth, bytes);
        record(&mut file, written * 300, &frame)?;
        written += 1;
        if psn % COALESCED == COALESCED - 1 {
            let mut aeth = [0; 4];
            AethRepr { syndrome: Syndrome::ACK_UNLIMITED, msn: Msn::new(psn as u32) }.write(&mut aeth);
            emit(&mut frame, (2, 1), Opcode::RC_ACKNOWLEDGE, 0x100 + pair as u32, start, &aeth, 0);
            record(&mut file, written * 300, &frame)?;
            written += 1;
        }
    }
    file.flush()
}

/// Builds one frame from one host to another.
fn emit(frame: &mut Vec<u8>, (from, to): (u8, u8), opcode: Opcode, qpn: u32, psn: Psn, extension: &[u8], bytes: usize) {
    let address = |host| Ipv4Addr::new(10, 0, 0, host).into();
    let outer = Outer {
        src: address(from),
        dst: address(to),
        traffic_class: 0,
        hop_limit: 64,
        identification: Some(0),
        dont_fragment: Some(true),
    };
    let ports = (49_152, ROCE_UDP_PORT);
    let encapsulation =
        Encapsulation { src_mac: [2; 6], dst_mac: [4; 6], vlan: None, src_port: ports.0, dst_port: ports.1 };
    let padded = bytes.next_multiple_of(4);
    let bth = BthRepr { opcode, dest_qpn: Qpn::new(qpn), psn, pad_count: (padded - bytes) as u8, ..BthRepr::default() };
    let mut header = [0; BTH_LEN];
    bth.write(&mut header);
    frame.clear();
    frame.resize(encapsulation.header_len(&outer), 0);
    let headers = frame.len();
    encapsulation.emit_frame_headers(&outer, BTH_LEN + extension.len() + padded + 4, frame);
    frame.extend(header);
    frame.extend(extension);
    frame.resize(frame.len() + padded, 0x5a);
    let icrc = Flow::new(outer.src, outer.dst, ports.0, ports.1).icrc(0, true, &frame[headers..]);
    frame.extend(icrc.to_le_bytes());
}

fn record(file: &mut impl Write, at_ns: u64, frame: &[u8]) -> std::io::Result<()> {
    let length = frame.len() as u32;
    for field in [(at_ns / 1_000_000_000) as u32, (at_ns % 1_000_000_000) as u32, length, length] {
        file.write_all(&field.to_le_bytes())?;
    }
    file.write_all(frame)
}
