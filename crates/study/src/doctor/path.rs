//! What lies between two machines, found out by packets.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use doorbell_verbs::{Device, PathMtu};
use socket2::SockRef;

use super::{Finding, Severity};
use crate::parameters::{Extent, Kind, Operation, Parameters};
use crate::session::{Client, Introduction, Patience, SessionError};

/// Round trips of a message of one full packet, each checked.
const ROUND_TRIPS: u64 = 16;

/// ACK timeout of IBTA 9.7.6.1.3, 4.096 us * 2^14 or 67 ms, which a round trip between machines stays far below.
const TIMEOUT_EXPONENT: u8 = 14;

/// With the timeout, a path that carries nothing is given up after a quarter of a second.
const RETRIES: u8 = 3;

/// Bytes that fill packets of the control connection, several even where interfaces have jumbo frames.
const BALLAST_BYTES: usize = 16 << 10;

/// Payload of a TCP segment that every path of IPv4 carries (RFC 9293, 3.7.1).
pub const SHORT_SEGMENT_BYTES: u32 = 536;

/// Do packets of full length pass on the control connection? It finds out before anything that is waited for longer.
/// `connect` makes a control connection, with segments no longer than that if it is told so.
///
/// Returns whether segments have to be short, and what that means. TCP repeats a long segment that is dropped without end, so
/// a connection on which short messages pass stalls with the first long one.
///
/// # Errors
///
/// The control connection fails, also with short segments, or the other end refuses.
pub fn probe_control<E: From<SessionError>>(
    introduction: &Introduction,
    mut connect: impl FnMut(Option<u32>) -> Result<TcpStream, E>,
) -> Result<Option<Finding>, E> {
    let introduction = Introduction { examine: false, ballast: "x".repeat(BALLAST_BYTES), ..introduction.clone() };
    let mut attempt = |segment| {
        let stream = connect(segment)?;
        let ends_at_once = stream.try_clone().map_err(SessionError::Control)?;
        let met = Client::meet_within(stream, introduction.clone(), Patience::Reason);
        if met.is_err() {
            // What was not acknowledged would keep the end of the connection from the other end, which then serves nobody else.
            let _ = SockRef::from(&ends_at_once).set_linger(Some(Duration::ZERO));
        }
        Ok::<_, E>(met)
    };
    let stalled = match attempt(None)? {
        Ok(_) => return Ok(None),
        // The greeting has passed before.
        Err(SessionError::Control(error)) if error.kind() == io::ErrorKind::TimedOut => error,
        Err(error) => return Err(error.into()),
    };
    match attempt(Some(SHORT_SEGMENT_BYTES))? {
        // The other end may have been slow the first time.
        Ok(_) if attempt(None)?.is_ok() => Ok(None),
        Ok(_) => Ok(Some(Finding::new(
            "control",
            Severity::Spoils,
            format!(
                "long packets are dropped on the way: {BALLAST_BYTES} B there and back do not pass on the control connection in \
                 packets of full length, but do in packets with {SHORT_SEGMENT_BYTES} B"
            ),
            "something between has a smaller MTU than both interfaces, and no ICMP tells them (`ping -M do -s 1472 HOST` shows \
             whether 1500 B pass): raise its MTU, or lower that of both interfaces",
        ))),
        Err(_) => Err(SessionError::Control(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "it greets, but {BALLAST_BYTES} B there and back do not pass within 2 s, neither in packets of full length nor \
                 in packets with {SHORT_SEGMENT_BYTES} B ({stalled})"
            ),
        ))
        .into()),
    }
}

/// What came of packets of one size.
#[derive(Debug)]
enum Tried {
    /// All came back, in packets with so much payload.
    Through(usize),
    /// None came back.
    Lost(SessionError),
}

/// Sends full packets there and back, from the largest path MTU that both devices have downwards, until some come through.
/// `theirs` is the path MTU in bytes that the other end's device has. `connect` makes a control connection to it.
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

/// The finding, where packets with `used` bytes of payload came through, of two devices with these path MTUs.
fn found([own, other]: [PathMtu; 2], used: usize, lost: &[(PathMtu, SessionError)]) -> Finding {
    const SUBJECT: &str = "path MTU";
    let Some((largest, error)) = lost.first() else {
        return match used {
            used if used < own.bytes() => Finding::new(
                SUBJECT,
                Severity::Shifts,
                format!("{used} B, which the other end has; this end could have {}", own.bytes()),
                "raise the MTU of the other end's interface",
            ),
            _ => Finding::fine(SUBJECT, format!("packets with {used} B of payload come through, both ways")),
        };
    };
    let whose = match own == other {
        true => format!("both ends have a path MTU of {own} B"),
        false => format!("this end has a path MTU of {own} B, the other end one of {other} B"),
    };
    Finding::new(
        SUBJECT,
        Severity::Spoils,
        format!("{whose}, but packets with {largest} B do not come through, those with {used} B do ({error})"),
        format!(
            "raise the MTU of whatever lies between, or lower that of both interfaces; `doorbell bench --mtu {used}` measures \
             without either"
        ),
    )
}

/// The finding, where nothing came through.
fn nothing(device: &Device, error: Option<&SessionError>) -> Finding {
    let port = device.attributes().udp_port;
    let error = error.map_or_else(String::new, |error| format!(" ({error})"));
    Finding::new(
        "path",
        Severity::Spoils,
        format!("the control connection works, but no packet of RoCE v2 comes through{error}"),
        format!("open UDP port {port} in the firewalls of both hosts and of whatever lies between"),
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
        // Small messages: no memory worth mentioning.
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
        // Whatever the connection died of, its packets did not come through; that the other end noticed it first makes
        // no difference.
        Err(error @ (SessionError::Connection { .. } | SessionError::Both { .. })) => Ok(Tried::Lost(error)),
        Err(error @ SessionError::Peer(_)) => Ok(Tried::Lost(error)),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_loses_long_packets_is_told_with_the_path_mtu_of_each_end() {
        let lost = |mtu| [(mtu, SessionError::Peer("nothing came".to_owned()))];
        let said = |ends: [PathMtu; 2], used| found(ends, used, &lost(ends[0].min(ends[1])));
        let same = said([PathMtu::Mtu4096; 2], 1024);
        assert!(same.what.starts_with("both ends have a path MTU of 4096 B, but packets with 4096 B"), "{}", same.what);
        let two = said([PathMtu::Mtu4096, PathMtu::Mtu1024], 512);
        let words = "this end has a path MTU of 4096 B, the other end one of 1024 B, but packets with 1024 B do not";
        assert!(two.what.starts_with(words), "{}", two.what);
        assert!(two.remedy.contains("doorbell bench --mtu 512"), "{}", two.remedy);
    }
}
