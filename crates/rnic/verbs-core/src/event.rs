//! Asynchronous events (IBTA Vol 1, 11.6.3).

use std::collections::VecDeque;
use std::sync::Mutex;

use doorbell_sync::IgnorePoison;
use doorbell_wire::Qpn;

use crate::completion::Notifier;
use crate::object::{CqId, SrqId};

/// Event that belongs to an object, a port or the device, but to no single work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The first packet arrived on a queue pair in RTR.
    CommunicationEstablished(Qpn),
    /// After a move to SQD, the queue pair has finished all sends that it had started.
    SqDrained(Qpn),
    /// A local error made the queue pair unusable.
    QpFatal(Qpn),
    /// A peer's request was invalid.
    QpRequestError(Qpn),
    /// A peer's request was denied access.
    QpAccessError(Qpn),
    /// A queue pair in the error state will take no more receives from its shared receive queue.
    QpLastWqeReached(Qpn),
    /// A completion queue overran and lost completions.
    CqError(u32),
    /// A shared receive queue has fewer receives than its limit.
    SrqLimitReached(u32),
    /// The port with this number went down.
    PortError(u8),
    /// The port with this number came up.
    PortActive(u8),
    /// The table of GIDs of the port with this number changed.
    GidChange(u8),
    /// The device failed. All queue pairs are in the error state, and further calls fail.
    DeviceFatal,
}

/// Object that an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSource {
    /// A queue pair.
    Qp(Qpn),
    /// A completion queue.
    Cq(CqId),
    /// A shared receive queue.
    Srq(SrqId),
    /// A port, by its number.
    Port(u8),
    /// The device.
    Device,
}

impl AsyncEvent {
    /// Returns the object of the event.
    pub fn source(self) -> EventSource {
        match self {
            Self::CommunicationEstablished(qpn)
            | Self::SqDrained(qpn)
            | Self::QpFatal(qpn)
            | Self::QpRequestError(qpn)
            | Self::QpAccessError(qpn)
            | Self::QpLastWqeReached(qpn) => EventSource::Qp(qpn),
            Self::CqError(cq) => EventSource::Cq(CqId(cq)),
            Self::SrqLimitReached(srq) => EventSource::Srq(SrqId(srq)),
            Self::PortError(port) | Self::PortActive(port) | Self::GidChange(port) => EventSource::Port(port),
            Self::DeviceFatal => EventSource::Device,
        }
    }
}

/// Queue of events that the program has not taken yet. The queue has no maximum length. It stays short, because each
/// object raises only a few events until the program acts on the object again.
pub struct EventQueue {
    events: Mutex<VecDeque<AsyncEvent>>,
    notifier: Option<Notifier>,
}

impl std::fmt::Debug for EventQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").finish_non_exhaustive()
    }
}

impl EventQueue {
    /// Creates a queue that calls `notifier` for each event.
    pub fn new(notifier: Option<Notifier>) -> Self {
        Self { events: Mutex::new(VecDeque::new()), notifier }
    }

    /// Adds an event.
    pub fn push(&self, event: AsyncEvent) {
        self.events.lock().ignore_poison().push_back(event);
        if let Some(notifier) = &self.notifier {
            notifier();
        }
    }

    /// Returns the number of events in the queue.
    pub fn waiting(&self) -> usize {
        self.events.lock().ignore_poison().len()
    }

    /// Takes the oldest event.
    pub fn pop(&self) -> Option<AsyncEvent> {
        self.events.lock().ignore_poison().pop_front()
    }

    /// Drops the events of a destroyed object, since the device may give the number of the object to a new object.
    pub fn purge(&self, gone: EventSource) {
        self.events.lock().ignore_poison().retain(|event| event.source() != gone);
    }
}
