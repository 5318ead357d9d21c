//! Carriers of messages between the threads and processes of a store.
//!
//! A process carries a message as a line of text. Its stream may have other lines too. A peer can send messages only in
//! the name of its own party. If a receiver does not keep up, messages to it are lost, so no queue grows without bound.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use doorbell_exchange::admission::Note;
use doorbell_sync::IgnorePoison;
use doorbell_verbs::Device;

use super::{
    AssemblyError, Body, BoxEntrance, ClientParty, MAX_BYTES, MemoryParty, Message, MetadataParty, Party, Plan,
};

/// Beginning of a line with a message.
const PREFIX: &str = "store ";
/// Maximum length of a line, in bytes.
const MAX_LINE: usize = PREFIX.len() + 2 * MAX_BYTES + 1;
/// Number of unsuccessful polls before a thread yields its CPU to other threads.
const PATIENCE: u32 = 100;
/// Interval at which a waiting client looks at its middlebox.
const LOOK: Duration = Duration::from_millis(1);

/// Exchange of the messages between the parties of a store.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Way to each party; `None` once the store has ended.
    routes: Arc<Mutex<Option<BTreeMap<Party, Route>>>>,
    /// Maximum number of messages that wait for a party.
    most: usize,
}

#[derive(Clone, Debug)]
enum Route {
    Thread(SyncSender<Message>),
    /// `None` ends the stream.
    Process(SyncSender<Option<String>>),
}

impl Exchange {
    /// Creates the exchange of a store without parties.
    pub fn new(plan: &Plan) -> Self {
        Self { routes: Arc::new(Mutex::new(Some(BTreeMap::new()))), most: most(plan) }
    }

    /// Returns the mailbox of a party in this process. The mailbox gets the messages from now on.
    pub fn mailbox(&self, party: Party) -> Mailbox {
        let (to, inbox) = sync_channel(self.most);
        self.insert(party, Route::Thread(to));
        Mailbox { inbox, outlet: Outlet::Exchange(self.clone()), entrance: None }
    }

    /// Connects a party in another process, whose input is `out`.
    ///
    /// # Errors
    ///
    /// The system starts no thread that writes.
    pub fn connect(&self, party: Party, mut out: impl Write + Send + 'static) -> io::Result<Lines> {
        let (to, lines) = sync_channel::<Option<String>>(self.most);
        std::thread::Builder::new().name("lines".to_owned()).spawn(move || {
            let mut write = |line: String| out.write_all(line.as_bytes()).and_then(|()| out.flush());
            let _ = lines.iter().map_while(|line| line).try_for_each(&mut write);
        })?;
        self.insert(party, Route::Process(to.clone()));
        Ok(Lines { exchange: self.clone(), party, to })
    }

    /// Ends the store: mailboxes get no further message, and the input of other processes ends.
    pub fn close(&self) {
        let routes = self.routes.lock().ignore_poison().take();
        routes.into_iter().flat_map(BTreeMap::into_values).for_each(Route::end);
    }

    fn insert(&self, party: Party, route: Route) {
        match self.routes.lock().ignore_poison().as_mut() {
            Some(routes) => drop(routes.insert(party, route)),
            None => route.end(),
        }
    }

    fn send(&self, message: Message) {
        // A message that finds no room is lost, as on a network.
        match self.routes.lock().ignore_poison().as_ref().and_then(|routes| routes.get(&message.to)) {
            Some(Route::Thread(to)) => drop(to.try_send(message)),
            Some(Route::Process(to)) => drop(to.try_send(Some(line(&message)))),
            None => {}
        }
    }
}

impl Route {
    fn end(self) {
        if let Self::Process(to) = self {
            let _ = to.try_send(None);
        }
    }
}

/// Returns the maximum number of messages that wait for a party. Each client has two.
fn most(plan: &Plan) -> usize {
    2 * plan.clients + 16
}

fn line(message: &Message) -> String {
    format!("{PREFIX}{}\n", message.to_text())
}

/// Reads lines until the stream ends. Passes messages to `carry`, and all other lines to `other`.
fn read_lines(
    mut input: impl BufRead,
    mut carry: impl FnMut(Message) -> io::Result<()>,
    mut other: impl FnMut(&str),
) -> io::Result<()> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut text = String::new();
    loop {
        text.clear();
        if input.by_ref().take(MAX_LINE as u64).read_line(&mut text)? == 0 {
            return Ok(());
        }
        match (text.strip_suffix('\n'), text.strip_prefix(PREFIX)) {
            (None, _) if text.len() == MAX_LINE => return Err(invalid(format!("a line of more than {MAX_LINE} B"))),
            (None, Some(_)) => return Ok(()), // the process has ended within a message
            (Some(_), Some(message)) => {
                let message = Message::from_text(message.trim_end());
                carry(message.map_err(|error| invalid(error.to_string()))?)?;
            }
            (whole, None) => other(whole.unwrap_or(&text)),
        }
    }
}

/// Connection with a party in another process.
#[derive(Debug)]
pub struct Lines {
    exchange: Exchange,
    party: Party,
    to: SyncSender<Option<String>>,
}

impl Lines {
    /// Returns a function that sends a line that is no message to the process.
    pub fn sender(&self) -> impl Fn(&str) + use<> {
        let to = self.to.clone();
        move |line| drop(to.try_send(Some(format!("{line}\n"))))
    }

    /// Carries the messages in the output of the process until the output ends. `may_be` states which party the process
    /// may be. Passes all other lines to `other`.
    ///
    /// # Errors
    ///
    /// A line is too long or no text, or a message is invalid or in the name of another party.
    pub fn listen(
        mut self,
        input: impl BufRead,
        may_be: impl Fn(Party) -> bool,
        other: impl FnMut(&str),
    ) -> io::Result<()> {
        let carry = |message: Message| {
            let from = message.from;
            if !may_be(from) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message in the name of {from}")));
            }
            if from != self.party {
                self.remove();
                self.party = from;
                self.exchange.insert(from, Route::Process(self.to.clone()));
            }
            self.exchange.send(message);
            Ok(())
        };
        let read = read_lines(input, carry, other);
        self.remove();
        if matches!(self.party, Party::Memory(_)) {
            self.exchange.send(Message { from: self.party, to: Party::Metadata, body: Body::Ended });
        }
        read
    }

    fn remove(&self) {
        if let Some(routes) = self.exchange.routes.lock().ignore_poison().as_mut() {
            routes.remove(&self.party);
        }
    }
}

/// Mailbox of a party: the messages to it, and the way of its own messages.
pub struct Mailbox {
    inbox: Receiver<Message>,
    outlet: Outlet,
    entrance: Option<BoxEntrance>,
}

enum Outlet {
    Exchange(Exchange),
    Process(Box<dyn Write + Send>),
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("entrance", &self.entrance).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// Returns the mailbox of the only party of this process. The peer of `input` and `output` has
    /// [connected](Exchange::connect) this process. A thread passes lines that are no messages to `other`.
    ///
    /// # Errors
    ///
    /// The system starts no thread that reads.
    pub fn of_process(
        plan: &Plan,
        input: impl BufRead + Send + 'static,
        output: impl Write + Send + 'static,
        other: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (to, inbox) = sync_channel(most(plan));
        let carry = move |message| to.send(message).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
        // An invalid line ends the store for this process, as the end of the input does.
        let read = move || drop(read_lines(input, carry, other));
        std::thread::Builder::new().name("store".to_owned()).spawn(read)?;
        Ok(Self { inbox, outlet: Outlet::Process(Box::new(output)), entrance: None })
    }

    /// Returns the mailbox with a middlebox through which its party enters the memory.
    #[must_use]
    pub fn through(self, entrance: Option<BoxEntrance>) -> Self {
        Self { entrance, ..self }
    }

    /// Returns whether the middlebox of the mailbox has ended.
    pub fn has_lost_middlebox(&self) -> bool {
        self.entrance.as_ref().is_some_and(BoxEntrance::has_ended)
    }

    /// Sends a message. `now_ns` is the time on the clock of the device.
    pub fn send(&mut self, message: Message, now_ns: u64) {
        match (&mut self.entrance, &mut self.outlet) {
            (Some(entrance), _) if message.to == Party::Middlebox => entrance.receive(message, now_ns),
            (_, Outlet::Exchange(exchange)) => exchange.send(message),
            (_, Outlet::Process(out)) => {
                // Ignore an error: the other process has ended, so the input ends too.
                let _ = out.write_all(line(&message).as_bytes()).and_then(|()| out.flush());
            }
        }
    }

    /// Returns the next message to the party.
    ///
    /// # Errors
    ///
    /// The store has ended.
    pub fn next(&mut self, now_ns: u64) -> Result<Option<Message>, AssemblyError> {
        if let Some(message) = self.entrance.as_mut().and_then(|entrance| entrance.poll(now_ns)) {
            return Ok(Some(message));
        }
        match self.inbox.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(AssemblyError::Ended),
        }
    }

    /// Waits for the next message for a millisecond.
    ///
    /// # Errors
    ///
    /// The store has ended.
    pub fn wait(&mut self, now_ns: u64) -> Result<Option<Message>, AssemblyError> {
        if let Some(message) = self.next(now_ns)? {
            return Ok(Some(message));
        }
        match self.inbox.recv_timeout(LOOK) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(AssemblyError::Ended),
        }
    }

    /// Carries the messages of a client until it is ready.
    ///
    /// # Errors
    ///
    /// A party refuses the client, the middlebox has ended, or the store has ended.
    pub fn admit(&mut self, client: &mut ClientParty, device: &Device) -> Result<(), AssemblyError> {
        loop {
            while let Some(message) = client.next_message() {
                self.send(message, device.now_ns());
            }
            if client.is_ready() {
                return Ok(());
            }
            // Answers to an earlier client of this process may still come.
            if let Some(message) = self.wait(device.now_ns())?
                && message.to == client.party()
            {
                client.receive(message)?;
            }
        }
    }
}

/// Number of consecutive polls without work. After [`PATIENCE`] of them, the polling thread yields its CPU at each
/// poll.
#[derive(Default)]
struct IdlePolls(u32);

impl IdlePolls {
    fn after(&mut self, happened: bool) {
        self.0 = if happened { 0 } else { self.0.saturating_add(1) };
        if self.0 > PATIENCE {
            std::thread::yield_now();
        }
    }
}

impl MemoryParty {
    /// Serves until the store ends. `note` shows messages that the memory node rejects.
    pub fn serve(&mut self, mailbox: &mut Mailbox, device: &Device, note: Note) {
        let mut idle = IdlePolls::default();
        loop {
            let now_ns = device.now_ns();
            let mut happened = self.poll(now_ns);
            match mailbox.next(now_ns) {
                Ok(Some(message)) => {
                    happened = true;
                    self.receive(message).unwrap_or_else(|error| note(&error.to_string()));
                }
                Ok(None) => {}
                Err(_) => return,
            }
            while let Some(message) = self.next_message() {
                mailbox.send(message, now_ns);
            }
            idle.after(happened);
        }
    }
}

impl MetadataParty {
    /// Serves until `is_over` is set and all clients have gone. Then checks the nodes of the store. `note` shows
    /// messages that the service rejects.
    ///
    /// # Errors
    ///
    /// The set-up has failed, nodes were lost, or a node is damaged.
    pub fn serve(
        &mut self,
        mailbox: &mut Mailbox,
        device: &Device,
        is_over: &AtomicBool,
        note: Note,
    ) -> Result<(), AssemblyError> {
        let (mut idle, mut is_checking) = (IdlePolls::default(), false);
        loop {
            let now_ns = device.now_ns();
            let mut happened = self.poll(now_ns);
            while let Some(message) = self.next_message() {
                mailbox.send(message, now_ns);
            }
            if let Some(message) = mailbox.next(now_ns)? {
                happened = true;
                match self.receive(message, now_ns) {
                    Err(error) if self.has_failed() => return Err(error),
                    received => received.unwrap_or_else(|error| note(&error.to_string())),
                }
            }
            if is_checking {
                if self.has_checked()? {
                    return Ok(());
                }
            } else if is_over.load(Ordering::Acquire) && self.is_idle() {
                self.begin_check()?;
                is_checking = true;
            }
            idle.after(happened);
        }
    }
}
