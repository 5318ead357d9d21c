//! Frames that scapy's RoCE layer built (`scapy.contrib.roce`). scapy computed the ICRCs, over IPv4 and IPv6.

/// RC RDMA WRITE Only of "hello", 3 bytes of padding, over IPv4 with DF.
pub(super) const WRITE_ONLY: &str = "
    020000000002 020000000001 0800
    456a0044123440004011a49cc0a8010ac0a80114 c00112b700300000
    0ab0ffff0000001180abcdef 7f00123456789000 01020304 00000005 68656c6c6f 000000 141b0db3";

/// RC Acknowledge with MigReq, FECN and BECN, over IPv4 without DF.
pub(super) const ACKNOWLEDGE: &str = "
    020000000002 020000000001 0800
    45000030000000000111364fc0a80114c0a8010a c00112b7001c0000
    1140ffffc012345600000001 1f000007 0bd2cf15";

/// RC SEND Only without payload and with a UDP checksum, over IPv4.
pub(super) const SEND_EMPTY: &str = "
    020000000002 020000000001 0800
    4500002cffff4000401126bf0a0000010a000002 12b712b700181234
    0400ffff0000000200000003 95c0b3a4";

/// Headers of an RC SEND Middle over IPv4. Its payload is the bytes 0 to 255.
pub(super) const SEND_MIDDLE_HEADERS: &str = "
    020000000002 020000000001 0800
    4500012c0009400040 1139b37f0000017f010203 000112b701180000
    0100ffff00ffffff00ffffff";

/// ICRC of the same RC SEND Middle.
pub(super) const SEND_MIDDLE_ICRC: &str = "282e1b59";

/// RC RDMA WRITE Only of "hello" over IPv6, with traffic class 3 and flow label 0x12345.
pub(super) const WRITE_ONLY_IPV6: &str = "
    020000000002 020000000001 86dd
    60312345003011 40 fe800000000000000000000000000001 fe800000000000000000000000000002
    c00112b700300000
    0ab0ffff0000001180abcdef 7f00123456789000 01020304 00000005 68656c6c6f 000000 4d22c711";

/// Returns the bytes of hexadecimal digits.
pub(super) fn bytes(hex: &str) -> std::vec::Vec<u8> {
    let digits: std::vec::Vec<u8> = hex
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("a hexadecimal digit") as u8)
        .collect();
    let (pairs, []) = digits.as_chunks::<2>() else {
        panic!("an odd number of digits");
    };
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}

/// Returns the SEND Middle as one frame.
pub(super) fn send_middle() -> std::vec::Vec<u8> {
    let mut frame = bytes(SEND_MIDDLE_HEADERS);
    frame.extend(0..=255);
    frame.extend(bytes(SEND_MIDDLE_ICRC));
    frame
}

/// Returns all golden frames.
pub(super) fn frames() -> [std::vec::Vec<u8>; 5] {
    [bytes(WRITE_ONLY), bytes(ACKNOWLEDGE), bytes(SEND_EMPTY), send_middle(), bytes(WRITE_ONLY_IPV6)]
}
