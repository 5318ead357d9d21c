/// Error of parsing bytes or codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffer is shorter than a header, or shorter than a length field of a header states.
    #[error("truncated packet: {found} bytes found, {needed} bytes needed")]
    Truncated {
        /// Bytes that the header takes, or that its length field states.
        needed: usize,
        /// Bytes in the buffer.
        found: usize,
    },
    /// The BTH's transport header version is not 0, the only version that IBTA defines.
    #[error("BTH transport header version {0}: must be 0")]
    HeaderVersion(u8),
    /// The number is not IBTA's code of a path MTU (1 to 5).
    #[error("path MTU code {0}: must be 1 to 5")]
    PathMtuCode(u8),
    /// The frame carries neither IPv4 nor IPv6.
    #[error("EtherType 0x{0:04x}: must be IPv4 (0x0800) or IPv6 (0x86dd)")]
    EtherType(u16),
    /// The IP version field contradicts the EtherType, or the header length is impossible.
    #[error("malformed IP header: its version contradicts the EtherType, or its length is impossible")]
    IpHeader,
    /// The packet is an IP fragment. Its transport header is in another fragment or incomplete.
    #[error("the packet is an IP fragment: only unfragmented packets can be parsed")]
    Fragment,
    /// The IP packet does not carry UDP.
    #[error("IP protocol {0}: must be UDP (17)")]
    IpProtocol(u8),
    /// The UDP length contradicts the IP length.
    #[error("malformed UDP header: its length contradicts the length in the IP header")]
    UdpHeader,
}
