//! Workloads with messages in one direction, or independent messages in both directions.

use doorbell_exchange::asynchronous::{Async, Waiter, yield_now};
use doorbell_exchange::send_receive::{self, Hub, Key};
use doorbell_exchange::{ConnectionError, MessageConnection, Replication};
use doorbell_verbs::Device;

use super::buffers::{Receiver, Source};
use super::{Pace, Plan, Progress, Reception, SendMemory, Tally};

/// Sends messages if `plan` is given, and receives messages until both sides have closed.
///
/// # Errors
///
/// The connection ended before every message was delivered and both sides had closed.
pub async fn stream<C: MessageConnection, W: Waiter + Clone>(
    connection: C,
    waiter: W,
    device: Device,
    plan: Option<(Plan, SendMemory)>,
    reception: Reception,
    progress: Progress<'_>,
) -> Result<Tally, ConnectionError> {
    let mut connection = Async::new(connection, waiter.clone());
    let mut tally = Tally { began_ns: device.now_ns(), ..Tally::default() };
    let mut receiver = Receiver::new(&device, reception);
    if let Some(source) = plan {
        send_all(&mut connection, &waiter, &device, source, &mut receiver, &mut tally, progress).await?;
    }
    close(&mut connection, &waiter, &mut receiver, &mut tally, progress).await?;
    Ok(tally)
}

/// Receives messages on all connections of a hub until every peer has closed. Returns one tally for each connection.
///
/// # Errors
///
/// One of the connections ended before its peer had closed, or completions were lost.
pub(crate) async fn gather<W: Waiter>(
    mut hub: Hub,
    waiter: W,
    device: Device,
    reception: Reception,
) -> Result<Vec<Tally>, ConnectionError> {
    let mut keys: Vec<Key> = hub.keys().collect();
    keys.sort_unstable();
    let mut tallies = vec![Tally::default(); keys.len()];
    keys.iter().filter_map(|&key| hub.get_mut(key).map(send_receive::Connection::close)).count();
    let mut receiver = Receiver::new(&device, reception);
    loop {
        let mut moved = hub.poll().map_err(ConnectionError::Overrun)?;
        while let Some((key, message)) = hub.take() {
            if let Ok(index) = keys.binary_search(&key) {
                receiver.receive(message, &mut tallies[index]);
            }
            waiter.breathe().await;
            if receiver.is_slow() {
                moved = true;
                break;
            }
        }
        if let Some((_, error)) = hub.next_ended() {
            return Err(error);
        }
        if moved {
            yield_now().await;
            continue;
        }
        let is_over = |connection: &send_receive::Connection| connection.is_peer_closed() && connection.is_closed();
        if keys.iter().all(|&key| hub.get(key).is_none_or(is_over)) {
            break;
        }
        waiter.wait(None, None).await;
    }
    for (key, tally) in keys.into_iter().zip(&mut tallies) {
        if let Some(connection) = hub.get(key) {
            tally.close(connection);
        }
    }
    Ok(tallies)
}

/// Closes this side, and receives messages until the peer has closed its side.
pub(super) async fn close<C: MessageConnection, W: Waiter>(
    connection: &mut Async<W, C>,
    waiter: &W,
    receiver: &mut Receiver<'_>,
    tally: &mut Tally,
    progress: Progress<'_>,
) -> Result<(), ConnectionError> {
    connection.get_mut().close();
    while !(connection.get().is_peer_closed() && connection.get().is_closed()) {
        connection.progress().await?;
        if receiver.take_in_turns(connection.get_mut(), waiter, tally).await > 0 {
            progress(tally.received);
        }
    }
    while receiver.take_in_turns(connection.get_mut(), waiter, tally).await > 0 {}
    tally.close(connection.get());
    Ok(())
}

async fn send_all<C: MessageConnection, W: Waiter>(
    connection: &mut Async<W, C>,
    waiter: &W,
    device: &Device,
    (plan, memory): (Plan, SendMemory),
    receiver: &mut Receiver<'_>,
    tally: &mut Tally,
    progress: Progress<'_>,
) -> Result<(), ConnectionError> {
    let mut pace = Pace::start(device, &plan);
    let mut source = Source::new(plan, memory);
    (tally.first_ns, tally.began_ns) = (pace.began_ns(), pace.began_ns());
    while pace.left(source.sent) > 0 {
        let early_until_ns = pace.early_until_ns(source.sent);
        if early_until_ns.is_some() {
            connection.get_mut().flush()?; // post deferred messages
        } else if source.offer(connection.get_mut())? {
            waiter.breathe().await;
            continue;
        }
        let moved = connection.get_mut().poll()?;
        let taken = receiver.take_all(connection.get_mut(), waiter, tally).await;
        if moved || taken > 0 {
            progress(source.sent);
            yield_now().await;
        } else if early_until_ns.is_some() {
            waiter.wait(None, early_until_ns).await;
        } else {
            connection.progress().await?;
        }
    }
    connection.get_mut().flush()?;
    while connection.get().last_done() < source.sent {
        connection.progress().await?;
        receiver.take_in_turns(connection.get_mut(), waiter, tally).await;
    }
    tally.ended_ns = device.now_ns();
    source.close(tally);
    Ok(())
}

/// Publishes messages by a plan from one memory to all readers. Returns one tally for each reader.
///
/// # Errors
///
/// A connection ended before its reader had confirmed every message, or [`Replication::publish`] rejected a message.
pub(crate) async fn publish<C: MessageConnection, W: Waiter>(
    mut readers: Replication<C>,
    count: usize,
    waiter: W,
    device: Device,
    (plan, memory): (Plan, SendMemory),
    progress: Progress<'_>,
) -> Result<Vec<Tally>, ConnectionError> {
    let mut pace = Pace::start(&device, &plan);
    let mut source = Source::new(plan, memory);
    let mut waits_for_last = false;
    while !waits_for_last || readers.last_done() < source.sent {
        waits_for_last = pace.left(source.sent) == 0;
        let early_until_ns = pace.early_until_ns(source.sent).filter(|_| !waits_for_last);
        if !waits_for_last && early_until_ns.is_none() {
            // There is one buffer for each message of the window, so a buffer is free while the window is not full.
            if source.sent - readers.last_done() < plan.window as u64 {
                source.write();
                let submit = readers.publish(&source.memory.region, source.offset(), plan.bytes)?;
                if source.note(submit) {
                    waiter.breathe().await;
                    continue;
                }
            }
        }
        let moved = readers.poll();
        if let Some((_, error, _)) = readers.next_ended() {
            return Err(error);
        }
        if moved {
            progress(source.sent);
            yield_now().await;
        } else {
            waiter.wait(None, early_until_ns).await;
        }
    }
    let mut tally = Tally { first_ns: pace.began_ns(), began_ns: pace.began_ns(), ..Tally::default() };
    tally.ended_ns = device.now_ns();
    source.close(&mut tally);
    let mut tallies = vec![tally; count];
    for (number, tally) in tallies.iter_mut().enumerate() {
        let Some(connection) = readers.connection_mut(number) else { continue };
        connection.close();
        while !(connection.is_closed() && connection.is_peer_closed()) {
            if !connection.poll()? {
                waiter.wait(None, None).await;
            }
        }
        tally.close(connection);
    }
    Ok(tallies)
}
