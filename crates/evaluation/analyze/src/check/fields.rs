//! Fields of a packet that are judged by themselves.

use doorbell_wire::{BTH_LEN, BthRepr, Opcode, PathMtu, Transport};

use super::findings::Drafts;
use super::packet::{Packet, Place};
use super::rules::RuleId;

/// Index of the BTH byte with the congestion bits and 6 reserved bits.
const CONGESTION_BYTE: usize = 4;
/// Index of the BTH byte with the request for acknowledgement and 7 reserved bits.
const ACK_REQUEST_BYTE: usize = 8;

/// Judges the fields of a BTH that decide whether the packet is followed.
pub(super) fn header(bytes: &[u8; BTH_LEN], bth: &BthRepr, place: Place, drafts: &mut Drafts) {
    drafts.judged(RuleId::Version);
    if bth.version != 0 {
        let found = format!("version {} to queue pair {}", bth.version, bth.dest_qpn);
        drafts.add(RuleId::Version, place, "version 0".to_owned(), found);
    }
    drafts.judged(RuleId::Opcode);
    if is_reserved(bth.opcode) {
        let found = format!("{} to queue pair {}", bth.opcode, bth.dest_qpn);
        drafts.add(RuleId::Opcode, place, "an opcode that IBTA defines".to_owned(), found);
    }
    drafts.judged(RuleId::Reserved);
    let (sixth, seventh) = (bytes[CONGESTION_BYTE] & 0x3f, bytes[ACK_REQUEST_BYTE] & 0x7f);
    if sixth | seventh != 0 {
        let found = format!("0x{sixth:02x} after BECN and 0x{seventh:02x} after the request for acknowledgement");
        drafts.add(RuleId::Reserved, place, "reserved bits of 0".to_owned(), found);
    }
}

/// Returns whether IBTA reserves an opcode. The opcodes of RD, and FLUSH and ATOMIC WRITE (0x1c and 0x1d of a reliable
/// transport), are defined, but not known to [`Opcode`].
fn is_reserved(opcode: Opcode) -> bool {
    let is_extension = matches!(opcode.0 & 0x1f, 0x1c | 0x1d);
    opcode.operation().is_none()
        && match opcode.transport() {
            Transport::Rc | Transport::Xrc => !is_extension,
            Transport::Uc | Transport::Ud | Transport::Cnp => true,
            Transport::Rd | Transport::Vendor => false,
        }
}

/// Judges padding, and the length of the payload by itself.
pub(super) fn padding(packet: &Packet<'_>, drafts: &mut Drafts) {
    let opcode = packet.bth.opcode;
    let pad = usize::from(packet.bth.pad_count);
    if !packet.has_known_payload() {
        drafts.unjudged(RuleId::Padding);
        return;
    }
    drafts.judged(RuleId::Padding);
    let Some(body) = packet.body_bytes() else {
        let found = format!("{} bytes, too short for {opcode}", packet.whole_bytes);
        drafts.add(RuleId::Padding, packet.place, "all headers of the opcode".to_owned(), found);
        return;
    };
    let fits = if opcode.has_payload() { body.is_multiple_of(4) && pad <= body } else { body == 0 && pad == 0 };
    if !fits {
        let expected =
            if opcode.has_payload() { "padding to a multiple of 4 bytes" } else { "neither payload nor padding" };
        let found = format!("{body} bytes after the headers, with a pad count of {pad}, in {opcode}");
        drafts.add(RuleId::Padding, packet.place, expected.to_owned(), found);
        return;
    }
    let payload = body - pad;
    let is_path_mtu = PathMtu::from_bytes(payload).is_some();
    if opcode.has_payload() && (payload > PathMtu::Mtu4096.bytes() || !opcode.is_last() && !is_path_mtu) {
        let found = format!("{payload} bytes in {opcode}");
        drafts.add(RuleId::Mtu, packet.place, "a path MTU of 256 to 4096 bytes".to_owned(), found);
    }
}
