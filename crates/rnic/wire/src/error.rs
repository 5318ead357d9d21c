/// Error of parsing bytes or codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes end before the header, or before the length in a header.
    #[error("truncated: {needed} bytes needed, {found} found")]
    Truncated {
        /// Bytes that the header, or the length in it, requires.
        needed: usize,
        /// Bytes in the buffer.
        found: usize,
    },
    /// The BTH's transport header version is not 0, the only version that IBTA defines.
    #[error("transport header version {0} is unknown")]
    HeaderVersion(u8),
    /// The number is not IBTA's code of a path MTU (1 to 5).
    #[error("{0} is not the code of a path MTU (1 to 5)")]
    PathMtuCode(u8),
    /// The frame carries neither IPv4 nor IPv6.
    #[error("EtherType 0x{0:04x} is neither IPv4 nor IPv6")]
    EtherType(u16),
    /// The IP version field contradicts the EtherType, or the header length is impossible.
    #[error("malformed IP header")]
    IpHeader,
    /// The packet is an IP fragment. Its transport header is in another fragment or incomplete.
    #[error("IP fragment")]
    Fragment,
    /// The IP packet does not carry UDP.
    #[error("IP protocol {0} is not UDP")]
    IpProtocol(u8),
    /// The UDP length contradicts the IP length.
    #[error("malformed UDP header")]
    UdpHeader,
}
