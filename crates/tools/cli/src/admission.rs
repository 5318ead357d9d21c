//! Admission of clients to the listeners of this program.

use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use doorbell_exchange::admission::{Event, Limits, Lobby, Opening};

use crate::output::note;

/// Maximum number of notes about refused visitors within [`NOTES_TIME`]. Without it, strangers could fill a log.
const NOTES_MAX: usize = 10;

/// See [`NOTES_MAX`].
const NOTES_TIME: Duration = Duration::from_secs(10);

/// Clients of a listener, of which each has completed its opening `O`.
#[derive(Debug)]
pub(crate) struct Clients<O> {
    lobby: Lobby<O>,
    notes: Notes,
    begun: Instant,
}

/// A client that is next to be served.
#[derive(Debug)]
pub(crate) struct Client<T> {
    pub(crate) stream: TcpStream,
    pub(crate) from: SocketAddr,
    /// Contents of its opening.
    pub(crate) opening: T,
    /// Deadline of its set-up. Its opening has used a part of this time.
    pub(crate) until: Instant,
}

impl<O: Opening<Refusal: Display>> Clients<O> {
    pub(crate) fn new(listener: TcpListener, opening: O) -> io::Result<Self> {
        Self::with_limits(listener, opening, Limits::default())
    }

    pub(crate) fn with_limits(listener: TcpListener, opening: O, limits: Limits) -> io::Result<Self> {
        let lobby = Lobby::new(listener, opening, limits)?;
        Ok(Self { lobby, notes: Notes::default(), begun: Instant::now() })
    }

    /// Waits for the next client.
    pub(crate) fn next(&mut self) -> Client<O::Admitted> {
        loop {
            if let Some(client) = self.handle(None) {
                return client;
            }
        }
    }

    /// Waits for the next client until an instant.
    pub(crate) fn next_until(&mut self, until: Instant) -> Option<Client<O::Admitted>> {
        loop {
            match self.handle(Some(until)) {
                None if Instant::now() < until => {}
                client => return client,
            }
        }
    }

    /// Handles visitors until one is admitted or refused. Notes why one is refused.
    fn handle(&mut self, until: Option<Instant>) -> Option<Client<O::Admitted>> {
        let said = match self.lobby.next(until) {
            Ok(Some(Event::Admitted { stream, from, until, opening })) => {
                return Some(Client { stream, from, opening, until });
            }
            Ok(None) => return None,
            Ok(Some(Event::Refused { from, why })) => format!("{from} was not served: {why}"),
            Err(error) => format!("a client could not be accepted: {error}"),
        };
        match self.notes.allow(self.begun.elapsed()) {
            Some(0) => note!("{said}"),
            Some(unsaid) => note!("{unsaid} more visitors were not served\n{said}"),
            None => {}
        }
        None
    }
}

/// Limit on notes.
#[derive(Debug, Default)]
struct Notes {
    since: Duration,
    count: usize,
    unsaid: usize,
}

impl Notes {
    /// Returns the number of notes suppressed since the last one, or `None` if another note may not be written.
    fn allow(&mut self, now: Duration) -> Option<usize> {
        if now - self.since >= NOTES_TIME {
            (self.since, self.count) = (now, 0);
        }
        if self.count == NOTES_MAX {
            self.unsaid += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_about_visitors_are_few_and_count_the_others() {
        let mut notes = Notes::default();
        let second = Duration::from_secs(1);
        assert!((0..NOTES_MAX).all(|_| notes.allow(second) == Some(0)));
        assert!((0..1000).all(|_| notes.allow(second).is_none()));
        assert_eq!(notes.allow(11 * second), Some(1000));
        assert_eq!(notes.allow(11 * second), Some(0));
    }
}
