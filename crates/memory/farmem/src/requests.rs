//! A client's end of the connection with the metadata service: requests and answers, grants of nodes in advance,
//! reports of replaced nodes, and epochs. Gets and puts rarely wait for it.

use std::collections::VecDeque;

use doorbell_exchange::{ConnectionError, MessageConnection, Received, Submit, send_receive};

use crate::error::StoreError;
use crate::layout::NodeVersion;
use crate::rpc::{GRANT, MAX_MESSAGE, MAX_REPORTS, Reply, Report, Request};
use crate::slots::Slot;

/// Number of unused nodes below which the client requests more.
const LOW: usize = GRANT / 2;
/// Number of reports that the client sends in one message without waiting for an idle moment.
const FULL_REPORT: usize = 16;

#[derive(Debug)]
pub(crate) struct Requests {
    connection: send_receive::Connection,
    outbox: VecDeque<Request>,
    reports: Vec<Report>,
    spare: Vec<NodeVersion>,
    /// Number of requested grants that have not arrived.
    grants: usize,
    /// Whether the last grant was empty.
    is_full: bool,
    over: Option<StoreError>,
    /// Whether the connection has failed without a notification to the operations that wait for an answer.
    is_news: bool,
    /// An epoch that the client must acknowledge, and a bit set of the slots whose operations began before the epoch.
    epoch: Option<(u64, u64)>,
    /// The memory node that serves alone, if the service has announced it since the last `take_alone`.
    alone: Option<usize>,
    scratch: Vec<u8>,
    is_closing: bool,
    /// Whether the client has closed the connection, which then sends its close message.
    has_closed: bool,
}

impl Requests {
    pub(crate) fn new(connection: send_receive::Connection) -> Self {
        let mut own = Self {
            connection,
            outbox: VecDeque::new(),
            reports: Vec::with_capacity(MAX_REPORTS),
            spare: Vec::with_capacity(2 * GRANT),
            grants: 0,
            is_full: false,
            over: None,
            is_news: false,
            epoch: None,
            alone: None,
            scratch: Vec::with_capacity(MAX_MESSAGE),
            is_closing: false,
            has_closed: false,
        };
        own.ask_for_nodes();
        own
    }

    pub(crate) fn failed(&self) -> Option<StoreError> {
        self.over
    }

    /// Takes the memory node that serves alone, if the service has announced it since the last call.
    pub(crate) fn take_alone(&mut self) -> Option<usize> {
        self.alone.take()
    }

    pub(crate) fn spare(&self) -> &[NodeVersion] {
        &self.spare
    }

    /// Sends the service the address at which this client receives datagrams.
    pub(crate) fn hello(&mut self, gid: std::net::Ipv6Addr, qpn: doorbell_verbs::Qpn) {
        self.outbox.push_front(Request::Hello { gid, qpn });
        self.flush();
    }

    fn ask_for_nodes(&mut self) {
        self.flush_reports(); // the service can only hand out replaced nodes that it knows
        self.grants += 1;
        self.outbox.push_back(Request::Grant);
    }

    /// Takes an unused node for a new value. Returns `None` if the client has to wait for a requested grant, and an
    /// error if no grant will come.
    pub(crate) fn take_node(&mut self) -> Result<Option<NodeVersion>, StoreError> {
        let node = self.spare.pop();
        if node.is_none() && self.grants == 0 && std::mem::take(&mut self.is_full) {
            return Err(StoreError::Full);
        }
        if self.spare.len() < LOW && self.grants == 0 && self.over.is_none() {
            self.ask_for_nodes();
        }
        match (node, self.over) {
            (None, Some(error)) => Err(error),
            (node, _) => Ok(node),
        }
    }

    /// Keeps a node that an operation took and did not use.
    pub(crate) fn put_back(&mut self, place: NodeVersion) {
        self.spare.push(place);
    }

    /// Returns a node that an operation took and did not use to the service.
    pub(crate) fn give_back(&mut self, place: NodeVersion) {
        // If the connection with the service is over, the node is lost, but no service hands out nodes any more either.
        let _ = self.send(Request::Return(vec![place]));
    }

    /// Queues a request and sends it if the connection has room.
    pub(crate) fn send(&mut self, request: Request) -> Result<(), StoreError> {
        match self.over {
            Some(error) => Err(error),
            None => {
                self.flush_reports(); // the service must know all replaced nodes before it handles the request
                self.outbox.push_back(request);
                self.flush();
                Ok(())
            }
        }
    }

    /// Records that a node was replaced, for the next report to the service.
    pub(crate) fn report(&mut self, report: Report) {
        if self.over.is_some() {
            return; // no service will recycle nodes any more
        }
        self.reports.push(report);
        if self.reports.len() >= FULL_REPORT {
            self.flush_reports();
        }
    }

    pub(crate) fn flush_reports(&mut self) {
        if !self.reports.is_empty() {
            let reports = std::mem::replace(&mut self.reports, Vec::with_capacity(MAX_REPORTS));
            self.outbox.push_back(Request::Reports(reports));
        }
    }

    /// Handles an idle moment. While operations run, reports wait for further reports, so that a message contains
    /// several. The report of a tombstone does not wait, since the service should soon remove the deleted key.
    pub(crate) fn idle(&mut self, is_working: bool) {
        if !is_working || self.reports.last().is_some_and(|report| report.is_tombstone) {
            self.flush_reports();
        }
        self.flush();
    }

    /// Records that the operation of a slot has ended.
    pub(crate) fn ended(&mut self, slot: usize) {
        if let Some((epoch, old)) = &mut self.epoch {
            *old &= !(1 << slot);
            if *old == 0 {
                let epoch = *epoch;
                self.epoch = None;
                self.flush_reports(); // the service must know all replaced nodes before the acknowledgement
                self.outbox.push_back(Request::Quiet { epoch });
            }
        }
    }

    /// Sends the queued requests for which the connection has room.
    fn flush(&mut self) {
        while let Some(request) = self.outbox.front() {
            request.encode(&mut self.scratch);
            match self.connection.send(&self.scratch) {
                Ok(Submit::Accepted(_)) => drop(self.outbox.pop_front()),
                Ok(Submit::Full(_)) => break,
                Err(error) => return self.fail(StoreError::MetadataGone(error)),
            }
        }
    }

    fn fail(&mut self, error: StoreError) {
        self.over.get_or_insert(error);
        self.is_news = true;
        self.outbox.clear();
        self.reports.clear();
        self.epoch = None;
    }

    /// Processes received messages and passes answers to the slots that wait for them. Returns whether anything
    /// changed.
    pub(crate) fn poll(&mut self, slots: &[Slot]) -> bool {
        if self.over.is_some() {
            return std::mem::take(&mut self.is_news);
        }
        self.flush();
        let mut happened = false;
        loop {
            match self.connection.receive_noting(&mut happened) {
                Ok(Some(message)) => {
                    let reply = Reply::decode(&message.to_vec());
                    drop(message);
                    match reply {
                        Some(reply) => self.take(reply, slots),
                        None => self.fail(StoreError::Protocol("the metadata service sent an unknown message")),
                    }
                }
                Ok(None) => break,
                Err(ConnectionError::PeerClosed) if self.is_closing => break,
                Err(error) => {
                    self.fail(StoreError::MetadataGone(error));
                    break;
                }
            }
            if self.over.is_some() {
                break;
            }
        }
        happened |= self.finish_closing();
        happened | std::mem::take(&mut self.is_news)
    }

    /// Returns whether the next [`poll`](Self::poll) will report a failed connection to waiting operations.
    pub(crate) fn has_news(&self) -> bool {
        self.is_news
    }

    fn take(&mut self, reply: Reply, slots: &[Slot]) {
        let tag = reply.tag();
        match reply {
            Reply::Granted(places) => {
                self.grants = self.grants.saturating_sub(1);
                self.is_full = places.is_empty();
                if self.is_closing {
                    self.outbox.push_back(Request::Return(places));
                } else if self.spare.len() + places.len() <= 4 * GRANT {
                    self.spare.extend(places);
                } else {
                    self.fail(StoreError::Protocol("the metadata service sent nodes that the client did not request"));
                }
            }
            Reply::Alone { node } => self.alone = Some(node.into()),
            Reply::Epoch { epoch } => {
                self.flush_reports(); // other clients may wait for the replaced nodes
                let bits =
                    slots.iter().enumerate().filter(|(_, slot)| slot.holds.get()).map(|(index, _)| 1_u64 << index);
                match bits.sum::<u64>() {
                    0 => {
                        self.outbox.push_back(Request::Quiet { epoch });
                    }
                    old => self.epoch = Some((epoch, old)),
                }
                self.flush();
            }
            reply => match tag.and_then(|tag| slots.get(tag as usize)) {
                Some(slot) => *slot.reply.borrow_mut() = Some(reply),
                None => self.fail(StoreError::Protocol("the metadata service sent an answer without a request")),
            },
        }
    }

    /// Returns the unused nodes of this client to the service, and starts to close the connection.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        if self.over.is_none() {
            self.flush_reports();
            let spare = std::mem::take(&mut self.spare);
            spare.chunks(MAX_REPORTS).for_each(|places| self.outbox.push_back(Request::Return(places.to_vec())));
            self.flush();
        }
    }

    /// Returns the time at which the connection needs a poll without an event.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.over.is_none().then(|| self.connection.poll_timeout_ns()).flatten()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.over.is_some() || self.connection.is_closed()
    }

    /// Closes the connection once all queued messages have been sent. Returns whether this call closed it; then the
    /// next poll sends the close message.
    fn finish_closing(&mut self) -> bool {
        let is_due = self.is_closing && self.outbox.is_empty() && self.grants == 0 && self.over.is_none();
        if is_due {
            self.connection.close();
        }
        is_due && !std::mem::replace(&mut self.has_closed, true)
    }
}
