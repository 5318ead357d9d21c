//! What lies between two machines, found out by packets.

use std::net::TcpStream;

use doorbell_verbs::{Device, PathMtu};

use super::{Finding, Severity};
use crate::parameters::{Extent, Kind, Operation, Parameters};
use crate::session::{Client, Introduction, SessionError};

/// Round trips of a message of one full packet, each checked.
const ROUND_TRIPS: u64 = 16;

/// ACK timeout of IBTA 9.7.6.1.3, 4.096 us * 2^14 or 67 ms, which a round trip between machines stays far below.
const TIMEOUT_EXPONENT: u8 = 14;

/// With the timeout, a path that carries nothing is given up after a quarter of a second.
const RETRIES: u8 = 3;

/// What came of packets of one size.
#[derive(Debug)]
enum Tried {
    /// All came back, in packets with so much payload.
    Through(usize),
    /// None came back.
    Lost(SessionError),
}

/// Sends full packets there and back, from the largest path MTU that the device has downwards, until some come through.
/// `connect` makes a control connection to the other end.
///
/// # Errors
///
/// The control connection fails, or the other end refuses.
pub fn probe<E: From<SessionError>>(
    device: &Device,
    introduction: &Introduction,
    mut connect: impl FnMut() -> Result<TcpStream, E>,
) -> Result<Finding, E> {
    let own = device.attributes().active_mtu;
    let mut lost = Vec::new();
    for mtu in PathMtu::ALL.into_iter().rev().filter(|mtu| *mtu <= own) {
        match attempt(device, introduction, connect()?, mtu)? {
            Tried::Through(used) => return Ok(found(own, used, &lost)),
            Tried::Lost(error) => lost.push((mtu, error)),
        }
    }
    Ok(nothing(device, lost.last().map(|(_, error)| error)))
}

/// The finding, where packets with `used` bytes of payload came through.
fn found(own: PathMtu, used: usize, lost: &[(PathMtu, SessionError)]) -> Finding {
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
    Finding::new(
        SUBJECT,
        Severity::Spoils,
        format!(
            "both ends have a path MTU of {} B, but such packets do not come through, those with {used} B do ({error})",
            largest.bytes()
        ),
        format!("raise the MTU of whatever lies between, lower that of both interfaces, or measure with --mtu {used}"),
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
