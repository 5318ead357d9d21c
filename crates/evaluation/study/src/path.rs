//! Examination of the path between two machines by packets.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use doorbell_verbs::{Device, PathMtu};
use socket2::SockRef;

use crate::session::{Client, Introduction, Patience, SessionError};
use doorbell_machine::doctor::{Finding, Severity};
use doorbell_record::{Extent, Kind, Operation, Parameters};

/// Number of round trips for each path MTU. Each message fills one packet, and its payload is verified.
const ROUND_TRIPS: u64 = 16;

/// Exponent of the ACK timeout (IBTA 9.7.6.1.3): 4.096 us * 2^14 is 67 ms. A round trip between machines takes far
/// less.
const TIMEOUT_EXPONENT: u8 = 14;

/// Number of retransmissions. If a path carries no packet, the attempt fails after a quarter of a second.
const RETRIES: u8 = 3;

/// Bytes of filler in an introduction. These bytes fill several packets of the control connection, even with jumbo
/// frames.
const BALLAST_BYTES: usize = 16 << 10;

/// Bytes of the TCP payload that fits every path of IPv4 (RFC 9293, 3.7.1).
const SHORT_SEGMENT_BYTES: u32 = 536;

/// Checks whether packets of full length pass on the control connection. Call this function before steps with a longer
/// timeout. `connect` opens a control connection; its argument is the maximum TCP segment size.
///
/// If only short segments pass, returns a finding and the maximum size of such a segment in bytes. TCP retransmits a
/// dropped long segment forever. A connection that carries short messages therefore stalls at the first long message.
///
/// # Errors
///
/// The control connection fails even with short segments, or the other end refuses.
pub fn probe_control<E: From<SessionError>>(
    introduction: &Introduction,
    mut connect: impl FnMut(Option<u32>) -> Result<TcpStream, E>,
) -> Result<Option<(Finding, u32)>, E> {
    let introduction = Introduction { examine: false, ballast: "x".repeat(BALLAST_BYTES), ..introduction.clone() };
    let mut attempt = |segment| {
        let stream = connect(segment)?;
        let ends_at_once = stream.try_clone().map_err(SessionError::Control)?;
        let met = Client::meet_within(stream, introduction.clone(), Patience::Reason);
        if met.is_err() {
            // Reset the connection. A normal close waits until all data are acknowledged, and until then the other end
            // serves no other client.
            let _ = SockRef::from(&ends_at_once).set_linger(Some(Duration::ZERO));
        }
        Ok::<_, E>(met)
    };
    let stalled = match attempt(None)? {
        Ok(_) => return Ok(None),
        // The short greeting passed, and then the long introduction timed out.
        Err(SessionError::Control(error)) if error.kind() == io::ErrorKind::TimedOut => error,
        Err(error) => return Err(error.into()),
    };
    match attempt(Some(SHORT_SEGMENT_BYTES))? {
        // A third attempt with full segments passed, so the first attempt failed because the other end was slow.
        Ok(_) if attempt(None)?.is_ok() => Ok(None),
        Ok(_) => {
            let dropped = format!(
                "long packets are dropped on the way: on the control connection, {BALLAST_BYTES} B pass both ways in packets with \
                 {SHORT_SEGMENT_BYTES} B, but not in packets of full length"
            );
            let remedy = "a device on the path has a smaller MTU than both interfaces and sends no ICMP: raise its MTU, or \
                          lower the MTU of both interfaces. `ping -M do -s 1472 HOST` shows whether 1500 B pass";
            Ok(Some((Finding::new("control", Severity::Spoils, dropped, remedy), SHORT_SEGMENT_BYTES)))
        }
        Err(_) => Err(SessionError::Control(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "the other end greets, but {BALLAST_BYTES} B do not pass both ways within 2 s, neither in packets of full length nor \
                 in packets with {SHORT_SEGMENT_BYTES} B ({stalled})"
            ),
        ))
        .into()),
    }
}

/// Result of sending packets of one size.
#[derive(Debug)]
enum Tried {
    /// All packets came back. The value is the payload of a packet in bytes.
    Through(usize),
    /// No packet came back.
    Lost(SessionError),
}

/// Sends full packets back and forth. The function starts with the largest path MTU that both devices support, and
/// reduces the MTU until packets pass. `theirs` is the path MTU of the other end's device in bytes. `connect` opens a
/// control connection to the other end.
///
/// # Errors
///
/// The control connection fails, or the other end refuses.
pub fn probe<E: From<SessionError>>(
    device: &Device,
    theirs: usize,
    introduction: &Introduction,
    mut connect: impl FnMut() -> Result<TcpStream, E>,
) -> Result<Finding, E> {
    let own = device.attributes().active_mtu;
    let other = PathMtu::from_bytes(theirs).unwrap_or(own);
    let mut lost = Vec::new();
    for mtu in PathMtu::ALL.into_iter().rev().filter(|mtu| *mtu <= own.min(other)) {
        match attempt(device, introduction, connect()?, mtu)? {
            Tried::Through(used) => return Ok(found([own, other], used, &lost)),
            Tried::Lost(error) => lost.push((mtu, error)),
        }
    }
    Ok(nothing(device, lost.last().map(|(_, error)| error)))
}

/// Returns the finding for a path on which packets with `used` bytes of payload passed. `own` and `other` are the path
/// MTUs of the two devices. `lost` lists the larger path MTUs with which no packet passed.
fn found([own, other]: [PathMtu; 2], used: usize, lost: &[(PathMtu, SessionError)]) -> Finding {
    const SUBJECT: &str = "path MTU";
    let Some((largest, error)) = lost.first() else {
        return match used {
            used if used < own.bytes() => Finding::new(
                SUBJECT,
                Severity::Shifts,
                format!("{used} B is the path MTU of the other end; this end supports {} B", own.bytes()),
                "raise the MTU of the other end's interface",
            ),
            _ => Finding::fine(SUBJECT, format!("packets with {used} B of payload come through both ways")),
        };
    };
    let whose = match own == other {
        true => format!("both ends have a path MTU of {own} B"),
        false => format!("this end has a path MTU of {own} B, the other end of {other} B"),
    };
    Finding::new(
        SUBJECT,
        Severity::Spoils,
        format!("{whose}, but packets with {largest} B do not come through, while packets with {used} B do ({error})"),
        format!(
            "raise the MTU of all devices on the path, or lower the MTU of both interfaces; `doorbell bench --mtu {used}` \
             measures without a change of MTUs"
        ),
    )
}

/// Returns the finding for a path on which no packet passed.
fn nothing(device: &Device, error: Option<&SessionError>) -> Finding {
    let port = device.attributes().udp_port;
    let error = error.map_or_else(String::new, |error| format!(" ({error})"));
    Finding::new(
        "path",
        Severity::Spoils,
        format!("the control connection works, but no packet of RoCE v2 comes through{error}"),
        format!("open UDP port {port} in the firewalls of both hosts and of all devices on the path"),
    )
}

fn attempt(
    device: &Device,
    introduction: &Introduction,
    stream: TcpStream,
    mtu: PathMtu,
) -> Result<Tried, SessionError> {
    let parameters = Parameters {
        extent: Extent::Messages(ROUND_TRIPS),
        mtu: Some(mtu.bytes()),
        timeout: TIMEOUT_EXPONENT,
        retry_count: RETRIES,
        verify: true,
        // A message of one packet needs little memory.
        memory_bytes: 1 << 20,
        ..Parameters::plain(Kind::Latency, Operation::Send, mtu.bytes())
    };
    let introduction = Introduction { examine: false, ..introduction.clone() };
    let (mut client, _) = Client::introduced(device, stream, introduction, parameters)?;
    match client.measure(mtu.bytes(), |_| {}) {
        Ok(result) => {
            client.finish()?;
            Ok(Tried::Through(result.mtu))
        }
        // The connection failed since its packets did not pass. Either end may have noticed the failure first.
        Err(error @ (SessionError::Connection { .. } | SessionError::Both { .. })) => Ok(Tried::Lost(error)),
        Err(error @ SessionError::Peer(_)) => Ok(Tried::Lost(error)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_on_lost_packets_names_the_mtu_of_each_end() {
        let lost = |mtu| [(mtu, SessionError::Peer("nothing came".to_owned()))];
        let said = |ends: [PathMtu; 2], used| found(ends, used, &lost(ends[0].min(ends[1])));
        let same = said([PathMtu::Mtu4096; 2], 1024);
        assert!(same.what.starts_with("both ends have a path MTU of 4096 B, but packets with 4096 B"), "{}", same.what);
        let two = said([PathMtu::Mtu4096, PathMtu::Mtu1024], 512);
        let words = "this end has a path MTU of 4096 B, the other end of 1024 B, but packets with 1024 B do not";
        assert!(two.what.starts_with(words), "{}", two.what);
        assert!(two.remedy.contains("doorbell bench --mtu 512"), "{}", two.remedy);
    }
}
