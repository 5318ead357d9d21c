//! Checks of captured packets by other programs.
//!
//! Beside each capture `NAME.pcap` lies a file `NAME.expected`. The test that made the capture has written this file:
//!
//! ```text
//! requester 127.0.0.2
//! > opcode=4 psn=17 dqpn=99 imm=0000002a  fields of a request
//! < opcode=16 psn=17                      fields of a response
//! acks 1 3                                minimum and maximum number of plain ACKs
//! renumbered                              a middlebox gives retransmissions new PSNs
//! ```
//!
//! Requests and responses are compared in order, separately for each direction. Retransmissions do not count, since
//! their number depends on the machine. They are copies of earlier packets. In a renumbered capture, they are packets
//! that match an earlier line instead of the next one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::peers;
use crate::shell::{command, output_of, root, run};
use crate::test::StepEnd;

/// Compared fields: their names in `.expected` files, and the names of tshark.
const FIELDS: [(&str, &str); 15] = [
    ("opcode", "infiniband.bth.opcode"),
    ("psn", "infiniband.bth.psn"),
    ("dqpn", "infiniband.bth.destqp"),
    ("se", "infiniband.bth.se"),
    ("pad", "infiniband.bth.padcnt"),
    ("syndrome", "infiniband.aeth.syndrome"),
    ("dmalen", "infiniband.reth.dmalen"),
    ("rkey", "infiniband.reth.r_key"),
    ("imm", "infiniband.immdt"),
    ("ieth", "infiniband.ieth"),
    ("qkey", "infiniband.deth.q_key"),
    ("sqpn", "infiniband.deth.srcqp"),
    ("swap", "infiniband.atomiceth.swapdt"),
    ("compare", "infiniband.atomiceth.cmpdt"),
    ("original", "infiniband.atomicacketh.origremdt"),
];

/// Protocols that tshark tries to find in payloads. The payloads of these captures have no protocol, so each match
/// would be an accident.
const PAYLOAD_GUESSES: [&str; 9] =
    ["smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband.eoib", "infiniband_sdp", "fcoib"];

/// Text in tshark's list of protocols if a payload happens to begin with an EtherType and two zero bytes. No option of
/// tshark disables this guess.
const PAYLOAD_AS_FRAME: &str = ":infiniband:ethertype";

/// Opcode of RC Acknowledge.
const ACKNOWLEDGE: &str = "17";

/// Lowest AETH syndrome that does not mean an ACK. RNR NAKs and NAKs have this or a higher syndrome.
const FIRST_NAK: u64 = 0x20;

/// Dissects every capture with tshark.
pub(crate) fn dissect(captures: &Path) -> StepEnd {
    if !peers::has_tshark() {
        return StepEnd::LeftOut("there is no tshark; Debian's package is tshark".to_owned());
    }
    each_capture(captures, |capture| {
        let packets = dissect_one(capture)?;
        let expected = capture.with_extension("expected");
        let text = std::fs::read_to_string(&expected).map_err(|error| format!("{}: {error}", expected.display()))?;
        compare(&text, &packets)?;
        Ok(packets.len())
    })
    .into()
}

/// Recomputes the ICRC of each packet with scapy, and compares the result with the packet.
pub(crate) fn recompute_icrc(captures: &Path) -> StepEnd {
    let Some(python) = peers::python_with_scapy() else {
        return StepEnd::LeftOut("no Python here has scapy; Debian's package is python3-scapy".to_owned());
    };
    let script = root().join("xtask").join("tests").join("icrc.py");
    let mut check = command(python, &["-B"]);
    check.arg(script).arg(captures);
    run(check).into()
}

fn captures_in(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut captures: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    captures.sort();
    if captures.is_empty() {
        return Err(format!("{} holds no captures: the tests that make them did not run", directory.display()));
    }
    Ok(captures)
}

fn each_capture(directory: &Path, check: impl Fn(&Path) -> Result<usize, String>) -> Result<(), String> {
    let mut failures = Vec::new();
    for capture in captures_in(directory)? {
        let name = capture.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match check(&capture) {
            Ok(packets) => eprintln!("{name}: {packets} packets as expected"),
            Err(why) => {
                eprintln!("{name}: {why}");
                failures.push(name);
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("not as expected: {}", failures.join(", "))) }
}

/// A packet, as tshark dissects it.
pub(crate) struct Packet {
    pub(crate) source: String,
    values: Vec<String>,
}

impl Packet {
    /// Returns the value of one of [`FIELDS`], empty if the packet has no such field.
    pub(crate) fn value(&self, name: &str) -> &str {
        let at = FIELDS.iter().position(|(field, _)| *field == name);
        at.map_or("", |at| &self.values[at])
    }

    fn is_plain_ack(&self) -> bool {
        let syndrome = number(self.value("syndrome"));
        self.value("opcode") == ACKNOWLEDGE && syndrome.is_some_and(|syndrome| syndrome < FIRST_NAK)
    }
}

/// Dissects one capture with tshark, which must report no error.
pub(crate) fn dissect_one(capture: &Path) -> Result<Vec<Packet>, String> {
    let mut tshark = command("tshark", &["-n", "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f", "-r"]);
    tshark.arg(capture);
    for guess in PAYLOAD_GUESSES {
        tshark.args(["--disable-protocol", guess]);
    }
    tshark.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    for field in ["frame.protocols", "frame.comment", "ip.src", "ipv6.src", "_ws.malformed", "_ws.expert.message"] {
        tshark.args(["-e", field]);
    }
    for (_, field) in FIELDS {
        tshark.args(["-e", field]);
    }
    let mut packets = Vec::new();
    for (index, line) in output_of(tshark)?.lines().enumerate() {
        let mut columns = line.split('\t').map(str::to_owned);
        let mut next = || columns.next().unwrap_or_default();
        let (protocols, comment, source, malformed, expert) = (next(), next(), next() + &next(), next(), next());
        let number = index + 1;
        if !protocols.contains("infiniband") {
            return Err(format!("tshark dissects packet {number} as {protocols}, without InfiniBand"));
        }
        if protocols.contains(PAYLOAD_AS_FRAME) {
            // tshark dissected the payload as a frame, so its reports on this packet are unreliable. Ignore them.
        } else if !malformed.is_empty() {
            return Err(format!("tshark finds packet {number} malformed"));
        } else if !expert.is_empty() && expert != comment {
            // tshark reports each comment as an expert message, for example the comment that marks a dropped frame.
            // Other expert messages are errors.
            return Err(format!("tshark reports for packet {number}: {expert}"));
        }
        let values = FIELDS.iter().map(|_| next()).collect();
        packets.push(Packet { source, values });
    }
    Ok(packets)
}

fn compare(expected: &str, packets: &[Packet]) -> Result<(), String> {
    let mut requester = "";
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    let (mut least_acks, mut most_acks) = (0, 0);
    let mut is_renumbered = false;
    for line in expected.lines() {
        if line == "renumbered" {
            is_renumbered = true;
            continue;
        }
        match line.split_once(' ') {
            Some(("requester", address)) => requester = address,
            Some((">", fields)) => requests.push(fields),
            Some(("<", fields)) => responses.push(fields),
            Some(("acks", range)) => {
                let mut range = range.split(' ').map(|text| text.parse::<usize>().unwrap_or_default());
                (least_acks, most_acks) = (range.next().unwrap_or_default(), range.next().unwrap_or_default());
            }
            _ => return Err(format!("the expectation {line:?} cannot be parsed")),
        }
    }
    let acks = distinct(packets.iter().filter(|packet| packet.is_plain_ack())).len();
    if !(least_acks..=most_acks).contains(&acks) {
        return Err(format!("{acks} acknowledgements, expected {least_acks} to {most_acks}"));
    }
    let others = || packets.iter().filter(|packet| !packet.is_plain_ack());
    let sent = distinct(others().filter(|packet| packet.source == requester));
    let received = distinct(others().filter(|packet| packet.source != requester));
    compare_rows("request", &requests, &sent, is_renumbered)?;
    compare_rows("response", &responses, &received, is_renumbered)
}

/// Returns the packets, without copies of earlier packets.
fn distinct<'a>(packets: impl Iterator<Item = &'a Packet>) -> Vec<&'a Packet> {
    let mut seen = HashSet::new();
    packets.filter(|packet| seen.insert((packet.source.as_str(), packet.values.as_slice()))).collect()
}

fn compare_rows(what: &str, expected: &[&str], found: &[&Packet], is_renumbered: bool) -> Result<(), String> {
    let mut index = 0;
    for packet in found {
        let Some(row) = expected.get(index) else {
            if is_renumbered && expected.iter().any(|row| matches(row, packet).is_ok()) {
                continue;
            }
            return Err(format!("{} different {what}s, expected {}", found.len(), expected.len()));
        };
        match matches(row, packet) {
            Ok(()) => index += 1,
            Err(_) if is_renumbered && expected[..index].iter().any(|row| matches(row, packet).is_ok()) => {}
            Err(why) => return Err(format!("{what} {index}: {why}")),
        }
    }
    if index < expected.len() {
        return Err(format!("{index} of {} different {what}s", expected.len()));
    }
    Ok(())
}

/// Compares the fields of a packet with a line of expectations. The error names the first field that differs.
fn matches(fields: &str, packet: &Packet) -> Result<(), String> {
    for field in fields.split_whitespace() {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let found = packet.value(name);
        if value != found && number(value).is_none_or(|value| number(found) != Some(value)) {
            return Err(format!("{name} is {found:?}, expected {value} (of {fields})"));
        }
    }
    Ok(())
}

/// Parses a number that tshark or a test printed. It is decimal, hexadecimal with 0x, `True` or `False`.
pub(crate) fn number(text: &str) -> Option<u64> {
    match text {
        "True" => Some(1),
        "False" => Some(0),
        _ => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns packets with these sources, opcodes and PSNs.
    fn packets(rows: &[(&str, &str, &str)]) -> Vec<Packet> {
        let packet = |&(source, opcode, psn): &(&str, &str, &str)| {
            let mut values = vec![String::new(); FIELDS.len()];
            (values[0], values[1]) = (opcode.to_owned(), psn.to_owned());
            Packet { source: source.to_owned(), values }
        };
        rows.iter().map(packet).collect()
    }

    #[test]
    fn retransmissions_do_not_count() {
        const EXPECTED: &str = "requester a\n> opcode=12\n> opcode=19\n< opcode=12\n< opcode=16\n< opcode=19\n";
        let renumbered = format!("{EXPECTED}renumbered\n");
        let once = [("a", "12", "1"), ("b", "12", "7"), ("b", "16", "7"), ("a", "19", "2"), ("b", "19", "8")];
        let copied = [&once[..3], &[("a", "12", "1"), ("b", "16", "7")], &once[3..]].concat();
        let again = [&once[..3], &[("b", "12", "8"), ("b", "16", "8")], &once[3..4], &[("b", "19", "9")]].concat();
        let late = [&once[..], &[("b", "16", "9")]].concat();
        for (rows, plainly) in [(&once[..], true), (&copied, true), (&again, false), (&late, false)] {
            assert_eq!(compare(EXPECTED, &packets(rows)).is_ok(), plainly, "{rows:?}");
            assert_eq!(compare(&renumbered, &packets(rows)), Ok(()), "{rows:?}");
        }
        for wrong in [&once[..4], &once[1..], &[&once[..2], &[("b", "18", "7")], &once[3..]].concat()] {
            for expected in [EXPECTED, &renumbered] {
                compare(expected, &packets(wrong)).expect_err("a packet is missing or wrong");
            }
        }
    }
}
