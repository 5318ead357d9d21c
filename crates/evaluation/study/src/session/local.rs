//! Peers in one process. The two ends are threads, or tasks of one thread.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use doorbell_exchange::asynchronous::yield_now;
use doorbell_exchange::setup::{EndpointDescription, SetupError};
use doorbell_sync::IgnorePoison;

use super::SessionError;
use super::messages::{FromServer, ToServer};
use super::peer::{Patience, Peer, Presence};

/// Messages that one end has sent and the other end has not received yet.
#[derive(Debug)]
struct Inbox<T> {
    waiting: VecDeque<Item<T>>,
    is_over: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Item<T> {
    Message(T),
    Descriptions(Vec<EndpointDescription>),
}

type SharedInbox<T> = Arc<Mutex<Inbox<T>>>;

fn inbox<T>() -> SharedInbox<T> {
    Arc::new(Mutex::new(Inbox { waiting: VecDeque::new(), is_over: false, waker: None }))
}

/// Runs `body` on the inbox. Every call leaves the inbox consistent, so a poisoned lock is ignored.
fn with<T, R>(shared: &SharedInbox<T>, body: impl FnOnce(&mut Inbox<T>) -> R) -> R {
    body(&mut shared.lock().ignore_poison())
}

/// Peer in the same process. This end sends messages of type `S` and receives messages of type `H`.
///
/// A future that waits for a message lets other tasks run, and fails when the peer has been dropped. The futures have
/// no deadlines, since a peer in the same process either answers or is dropped.
#[derive(Debug)]
pub struct LocalPeer<S, H> {
    to: SharedInbox<S>,
    from: SharedInbox<H>,
}

/// Returns the peers for a session in one process. The asking end uses the first peer, the answering end the second.
pub fn local_pair() -> (LocalPeer<ToServer, FromServer>, LocalPeer<FromServer, ToServer>) {
    let (to_server, from_server) = (inbox(), inbox());
    let client = LocalPeer { to: to_server.clone(), from: from_server.clone() };
    (client, LocalPeer { to: from_server, from: to_server })
}

impl<S, H> LocalPeer<S, H> {
    fn say(&self, said: Item<S>) -> Result<(), SessionError> {
        if with(&self.from, |inbox| inbox.is_over) {
            return Err(gone());
        }
        let waker = with(&self.to, |inbox| {
            inbox.waiting.push_back(said);
            inbox.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    async fn hear(&self) -> Result<Item<H>, SessionError> {
        poll_fn(|context| {
            with(&self.from, |inbox| match inbox.waiting.pop_front() {
                Some(said) => Poll::Ready(Ok(said)),
                None if inbox.is_over => Poll::Ready(Err(gone())),
                None => {
                    inbox.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            })
        })
        .await
    }
}

fn gone() -> SessionError {
    SessionError::Control(io::ErrorKind::UnexpectedEof.into())
}

/// Name of the peer in errors.
const NAME: &str = "the other end of this process";

impl<S: Send, H: Send> Peer for LocalPeer<S, H> {
    type Says = S;
    type Hears = H;

    async fn exchange(&mut self, own: &[EndpointDescription]) -> Result<Vec<EndpointDescription>, SetupError> {
        let broke = |error: io::Error| SetupError::Io { peer: NAME.to_owned(), error };
        let is_gone = |_| broke(io::ErrorKind::UnexpectedEof.into());
        self.say(Item::Descriptions(own.to_vec())).map_err(is_gone)?;
        match self.hear().await.map_err(is_gone)? {
            Item::Descriptions(theirs) if theirs.len() == own.len() => Ok(theirs),
            Item::Descriptions(theirs) => {
                Err(SetupError::Count { peer: NAME.to_owned(), theirs: theirs.len(), ours: own.len() })
            }
            Item::Message(_) => {
                Err(broke(io::Error::new(io::ErrorKind::InvalidData, "a message arrived before the descriptions")))
            }
        }
    }

    async fn send(&mut self, message: S) -> Result<(), SessionError> {
        self.say(Item::Message(message))
    }

    async fn receive(&mut self, _: Patience) -> Result<H, SessionError> {
        match self.hear().await? {
            Item::Message(message) => Ok(message),
            Item::Descriptions(_) => Err(SessionError::Unexpected("descriptions of connections".to_owned())),
        }
    }

    async fn until_heard(&mut self, mut busy: impl FnMut()) -> Result<(), SessionError> {
        while with(&self.from, |inbox| inbox.waiting.is_empty() && !inbox.is_over) {
            busy();
            yield_now().await;
        }
        Ok(())
    }

    async fn watched<T>(&self, body: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
        body.await
    }

    fn look(&self) -> Result<Presence, SessionError> {
        with(&self.from, |inbox| match (inbox.waiting.is_empty(), inbox.is_over) {
            (false, _) => Ok(Presence::Spoke),
            (true, false) => Ok(Presence::Silent),
            (true, true) => Err(SessionError::hung_up()),
        })
    }
}

impl<S, H> Drop for LocalPeer<S, H> {
    fn drop(&mut self) {
        let waker = with(&self.to, |inbox| {
            inbox.is_over = true;
            inbox.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{self, block_on};

    #[test]
    fn messages_arrive_in_order_before_the_end() {
        let (mut client, mut server) = local_pair();
        block_on(async {
            client.send(ToServer::Point { bytes: 1, connections: None }).await.unwrap();
            client.send(ToServer::End).await.unwrap();
            assert_eq!(server.look().unwrap(), Presence::Spoke);
            let first = server.receive(Patience::Endless).await.unwrap();
            assert!(matches!(first, ToServer::Point { bytes: 1, .. }), "{first:?}");
            drop(client);
            assert!(matches!(server.receive(Patience::Endless).await, Ok(ToServer::End)));
            assert!(matches!(server.receive(Patience::Endless).await, Err(SessionError::Control(_))));
            let said = server.look().unwrap_err().to_string();
            assert_eq!(said, "the peer is gone: it hung up while a point ran");
            assert!(matches!(server.send(FromServer::Accepted).await, Err(SessionError::Control(_))));
        });
    }

    #[test]
    fn different_numbers_of_connections_are_an_error() {
        let (mut client, mut server) = local_pair();
        type Task<'a> = std::pin::Pin<Box<dyn Future<Output = Result<usize, SetupError>> + 'a>>;
        let asking: Task<'_> = Box::pin(async { client.exchange(&[]).await.map(|peers| peers.len()) });
        let answering: Task<'_> = Box::pin(async { server.exchange(&[]).await.map(|peers| peers.len()) });
        let ended = executor::run(&executor::Idle::spin(), [asking, answering]);
        assert!(ended.iter().all(|count| matches!(count, Ok(0))), "{ended:?}");
        block_on(async {
            server.send(FromServer::Accepted).await.unwrap();
            assert!(
                matches!(client.exchange(&[]).await, Err(SetupError::Io { .. })),
                "a message instead of descriptions"
            );
            let heard = server.receive(Patience::Answer).await;
            assert!(matches!(heard, Err(SessionError::Unexpected(_))), "{heard:?}");
        });
    }
}
