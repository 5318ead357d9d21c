//! Who does what in a point: roles, as data.
//!
//! What is to be measured names its roles ([`Parameters::cast`]), a session deals them to its ends, and each end
//! performs its own. Nothing here says what an end is: a process joined by TCP, a thread, or a task of one thread.

use std::fmt;

use crate::parameters::{Kind, Operation, Parameters};
use crate::serving::SharedBy;

/// What one end does with each of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends messages by a plan, and receives what comes.
    Sender,
    /// Receives messages.
    Receiver,
    /// Sends requests and waits for their answers; a ping-pong is that with one request at a time.
    Requester,
    /// Answers each message with one of the same size.
    Responder,
    /// Posts one-sided operations.
    Initiator,
    /// Has the memory that one-sided operations are about.
    Target,
    /// Offers each message to all connections from one place.
    Source,
    /// Receives what a source offers.
    Reader,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
            Self::Requester => "requester",
            Self::Responder => "responder",
            Self::Initiator => "initiator",
            Self::Target => "target",
            Self::Source => "source",
            Self::Reader => "reader",
        })
    }
}

/// A role, and how it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What is done with each connection.
    pub role: Role,
    /// It is the part of the end that did not ask for the point.
    pub answers: bool,
    /// How many connections.
    pub connections: usize,
    /// The threads that the connections are dealt out to.
    pub threads: usize,
    /// One completion queue serves all connections, and one thread.
    pub single_receiver: bool,
    /// The connections share their receive buffers.
    pub shared_receives: Option<SharedBy>,
    /// Pause before a message is freed.
    pub pause_ns: u64,
}

impl Part {
    /// The part of one host of several, which has so many of the connections.
    pub(crate) fn share(self, connections: usize) -> Self {
        Self { connections, threads: self.threads.min(connections).max(1), ..self }
    }
}

/// The parts of a point: the end that asks for it has one, the other end the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cast {
    /// Of the end that asks, and whose time is measured.
    pub asking: Part,
    /// Of the other end.
    pub answering: Part,
}

impl Parameters {
    /// The roles that these parameters name.
    pub fn cast(&self) -> Cast {
        let serving = &self.serving;
        let (asking, answering) = match (self.operation, self.kind) {
            (operation, _) if operation.is_one_sided() => (Role::Initiator, Role::Target),
            _ if self.replicate => (Role::Source, Role::Reader),
            (Operation::RequestResponse, _) | (_, Kind::Latency) => (Role::Requester, Role::Responder),
            _ if self.bidirectional => (Role::Sender, Role::Sender),
            _ => (Role::Sender, Role::Receiver),
        };
        let part = |role| Part {
            role,
            answers: false,
            connections: self.connections,
            threads: serving.threads,
            single_receiver: false,
            shared_receives: None,
            pause_ns: 0,
        };
        // Who only answers a ping does it at once.
        let pause_ns = if self.kind == Kind::Latency { 0 } else { self.slow_receiver_us * 1000 };
        Cast {
            asking: part(asking),
            answering: Part {
                answers: true,
                threads: if serving.single_receiver { 1 } else { serving.threads },
                single_receiver: serving.single_receiver,
                shared_receives: serving.shared_receives,
                pause_ns,
                ..part(answering)
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Effort, all};
    use crate::serving::Serving;

    #[test]
    fn parameters_name_their_roles() {
        let roles = |parameters: &Parameters| {
            let cast = parameters.cast();
            (cast.asking.role, cast.answering.role)
        };
        let plain = |kind, operation| Parameters::plain(kind, operation, 8);
        for (operation, streaming, timed) in [
            (Operation::Send, (Role::Sender, Role::Receiver), (Role::Requester, Role::Responder)),
            (Operation::RequestResponse, (Role::Requester, Role::Responder), (Role::Requester, Role::Responder)),
            (Operation::Write, (Role::Initiator, Role::Target), (Role::Initiator, Role::Target)),
            (Operation::CompareSwap, (Role::Initiator, Role::Target), (Role::Initiator, Role::Target)),
        ] {
            assert_eq!(roles(&plain(Kind::Bandwidth, operation)), streaming);
            assert_eq!(roles(&plain(Kind::Latency, operation)), timed);
        }
        let stream = plain(Kind::Bandwidth, Operation::Send);
        assert_eq!(roles(&Parameters { bidirectional: true, ..stream.clone() }), (Role::Sender, Role::Sender));
        assert_eq!(roles(&Parameters { replicate: true, ..stream.clone() }), (Role::Source, Role::Reader));
    }

    #[test]
    fn how_connections_are_served_is_the_business_of_the_end_that_receives() {
        let serving = Serving {
            threads: 3,
            single_receiver: true,
            shared_receives: Some(SharedBy::Thread),
            ..Serving::default()
        };
        let parameters = Parameters {
            serving,
            connections: 5,
            slow_receiver_us: 2,
            ..Parameters::plain(Kind::Bandwidth, Operation::Send, 16)
        };
        let Cast { asking, answering } = parameters.cast();
        assert_eq!((asking.connections, asking.threads, asking.pause_ns), (5, 3, 0));
        assert_eq!((asking.single_receiver, asking.shared_receives), (false, None));
        assert_eq!((answering.connections, answering.threads, answering.pause_ns), (5, 1, 2000));
        assert_eq!((answering.single_receiver, answering.shared_receives), (true, Some(SharedBy::Thread)));
    }

    #[test]
    fn every_role_is_named_by_an_experiment_but_those_of_one_source_and_of_both_ways() {
        let mut named = Vec::new();
        for point in all(Effort::Usual).iter().flat_map(|experiment| &experiment.points) {
            let Cast { asking, answering } = point.parameters.cast();
            named.extend([asking.role, answering.role]);
        }
        for role in [Role::Sender, Role::Receiver, Role::Requester, Role::Responder] {
            assert!(named.contains(&role), "no experiment has a {role}");
        }
    }
}
