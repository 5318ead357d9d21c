//! The admitted clients of a listener, one after another, and notes about all other visitors.
#![expect(clippy::disallowed_methods, reason = "TCP has no device, and its deadlines need a clock")]

use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::{Event, Limits, Lobby, Opening};

/// Function that shows a note to the user of a program.
pub type Note = fn(&str);

/// Maximum number of notes about refused visitors within [`NOTES_TIME`]. Without this limit, strangers could fill a
/// log.
const NOTES_MAX: usize = 10;

/// Period in which at most [`NOTES_MAX`] notes are shown.
const NOTES_TIME: Duration = Duration::from_secs(10);

/// Maximum number of characters of a note.
const NOTE_CHARS: usize = 500;

/// Source of the clients of a listener. It returns a client after the client has completed the opening `O`.
#[derive(Debug)]
pub struct Clients<O> {
    lobby: Lobby<O>,
    notes: Notes,
}

/// A client that has been admitted and is to be served.
#[derive(Debug)]
pub struct Client<T> {
    /// Connection of the client.
    pub stream: TcpStream,
    /// Address of the client.
    pub from: SocketAddr,
    /// Contents of the client's opening.
    pub opening: T,
    /// Deadline of the client's set-up, which includes the opening.
    pub until: Instant,
}

impl<O: Opening<Refusal: Display>> Clients<O> {
    /// Returns the clients of a listener. `note` shows which visitors were refused.
    ///
    /// # Errors
    ///
    /// The system refuses a descriptor for the lobby.
    pub fn new(listener: TcpListener, opening: O, note: Note) -> io::Result<Self> {
        Self::with_limits(listener, opening, Limits::default(), note)
    }

    /// Returns the clients of a listener like [`new`](Self::new), but with these bounds on visitors.
    ///
    /// # Errors
    ///
    /// The system refuses a descriptor for the lobby.
    pub fn with_limits(listener: TcpListener, opening: O, limits: Limits, note: Note) -> io::Result<Self> {
        let lobby = Lobby::new(listener, opening, limits)?;
        Ok(Self { lobby, notes: Notes::new(note) })
    }

    /// Waits for the next client.
    pub fn wait(&mut self) -> Client<O::Admitted> {
        loop {
            if let Some(client) = self.handle(None) {
                return client;
            }
        }
    }

    /// Waits for the next client, but no longer than until `until`.
    pub fn next_until(&mut self, until: Instant) -> Option<Client<O::Admitted>> {
        loop {
            match self.handle(Some(until)) {
                None if Instant::now() < until => {}
                client => return client,
            }
        }
    }

    /// Handles visitors until one visitor is admitted or refused, or until `until`. Shows a note about a refused
    /// visitor.
    fn handle(&mut self, until: Option<Instant>) -> Option<Client<O::Admitted>> {
        let said = match self.lobby.next(until) {
            Ok(Some(Event::Admitted { stream, from, until, opening })) => {
                return Some(Client { stream, from, opening, until });
            }
            Ok(None) => return None,
            Ok(Some(Event::Refused { from, why })) => format!("{from} was not served: {why}"),
            Err(error) => format!("a client could not be accepted: {error}"),
        };
        self.notes.say(&said);
        None
    }
}

/// Notes about visitors and clients that were not served. The number of notes is limited, and each one is a short
/// line: its text may contain words of a stranger.
#[derive(Debug)]
pub struct Notes {
    note: Note,
    begun: Instant,
    since: Duration,
    count: usize,
    unsaid: usize,
}

impl Notes {
    /// Makes notes that `note` shows.
    pub fn new(note: Note) -> Self {
        Self { note, begun: Instant::now(), since: Duration::ZERO, count: 0, unsaid: 0 }
    }

    /// Shows a text, unless too many texts were shown in the last seconds.
    pub fn say(&mut self, text: &str) {
        match self.allow(self.begun.elapsed()) {
            Some(0) => (self.note)(&one_line(text)),
            Some(unsaid) => (self.note)(&format!("{unsaid} more visitors were not served\n{}", one_line(text))),
            None => {}
        }
    }

    /// Returns the number of notes that were suppressed since the last shown note. Returns `None` if the next note
    /// must be suppressed too.
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

/// Returns the beginning of a text without newlines. All other controls are escaped at the output.
fn one_line(text: &str) -> String {
    text.replace('\n', "\\u000a").chars().take(NOTE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_about_visitors_are_few_and_count_the_others() {
        let mut notes = Notes::new(|_| {});
        let second = Duration::from_secs(1);
        assert!((0..NOTES_MAX).all(|_| notes.allow(second) == Some(0)));
        assert!((0..1000).all(|_| notes.allow(second).is_none()));
        assert_eq!(notes.allow(11 * second), Some(1000));
        assert_eq!(notes.allow(11 * second), Some(0));
    }

    /// A stranger cannot write a note of its own, nor fill a log.
    #[test]
    fn a_note_about_a_stranger_is_one_short_line() {
        assert_eq!(one_line("release 1\n127.0.0.1 was served"), r"release 1\u000a127.0.0.1 was served");
        assert_eq!(one_line(&"\n".repeat(5000)).chars().count(), NOTE_CHARS);
    }
}
