//! Middleboxes of another program, such as `doorbell steer`, for their memory node. They set up queue pairs over TCP,
//! as the crate `doorbell` does.
#![expect(clippy::disallowed_methods, reason = "a listener on TCP has no device, and its deadlines need a clock")]

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use doorbell_exchange::admission::{Client, Clients, Hello, Note};
use doorbell_exchange::setup::{self, EndpointDescription, SetupError, Timed};

use super::carrier::Mailbox;
use super::steered::{DEADLINE, say_ready};
use super::{AssemblyError, Body, Message, Party};
use crate::memory::ClientDescription;

/// Interval at which [`serve_boxes`] checks whether the store has ended.
const OVER_LOOK: Duration = Duration::from_millis(50);

/// Errors of a read after which the connection may still be in use.
const LOOK_AGAIN: [ErrorKind; 3] = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted];

/// Lets one middlebox after another enter the memory node, until the store ends. When the connection of a middlebox
/// ends, the memory node destroys its queue pair before the next middlebox enters. `mailbox` is that of the party
/// [`Party::Middlebox`]. `note` shows middleboxes that were not served.
pub fn serve_boxes(boxes: &mut Clients<Hello>, mailbox: &mut Mailbox, note: Note) {
    while mailbox.next(0).is_ok() {
        let Some(Client { stream, from, opening, .. }) = boxes.next_until(Instant::now() + OVER_LOOK) else { continue };
        let served = opening.first().ok_or_else(|| "its opening describes no queue pair".into());
        if let Err(error) = served.and_then(|lane| serve_box(&stream, *lane, mailbox)) {
            note(&format!("the middlebox at {from} was not served: {error}"));
        }
        mailbox.send(Message { from: Party::Middlebox, to: Party::Memory(0), body: Body::Ended }, 0);
    }
}

/// Serves a middlebox until its connection or the store ends.
fn serve_box(
    mut stream: &TcpStream,
    lane: EndpointDescription,
    mailbox: &mut Mailbox,
) -> Result<(), Box<dyn std::error::Error>> {
    // An answer that an earlier middlebox no longer waited for.
    while mailbox.next(0)?.is_some() {}
    let enter = Body::Enter(ClientDescription { lane, calls: None });
    mailbox.send(Message { from: Party::Middlebox, to: Party::Memory(0), body: enter }, 0);
    let until = Instant::now() + DEADLINE;
    let own = loop {
        match mailbox.wait(0)? {
            Some(Message { body: Body::Entered(ends), .. }) => break ends.lane,
            Some(Message { from: by, to: own, body: Body::Refused(why) }) => {
                return Err(AssemblyError::Refused { by, own, why }.into());
            }
            _ if Instant::now() >= until => {
                let (by, own, seconds) = (Party::Memory(0), Party::Middlebox, DEADLINE.as_secs());
                return Err(AssemblyError::Silent { by, own, seconds }.into());
            }
            _ => {}
        }
    };
    let mut timed = Timed::new(stream, DEADLINE);
    let broke = |error| SetupError::broke("the middlebox", error, DEADLINE);
    timed.write_all(&setup::hello(&[own])).map_err(broke)?;
    say_ready(&mut timed).map_err(broke)?;
    stream.set_read_timeout(Some(OVER_LOOK))?;
    // The middlebox sends no data on this connection any more. Wait for the end of the connection or of the store.
    while mailbox.next(0).is_ok() {
        match stream.read(&mut [0; 64]) {
            Ok(1..) => {}
            Err(error) if LOOK_AGAIN.contains(&error.kind()) => {}
            Ok(0) | Err(_) => break,
        }
    }
    Ok(())
}
