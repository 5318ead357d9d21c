//! Tests of a store with one client or a few: round trips, limits, deaths of clients, and damaged memory.

use std::cell::Cell;
use std::rc::Rc;

use super::common::{
    self, Boxed, FIRST_HOST, MEMORY, METADATA, Store, Through, attach, close, run, serve_behind, steer, t3,
};
use doorbell_exchange::asynchronous::Waiter;
use doorbell_exchange::setup::RemoteRegion;
use doorbell_farmem::{
    Client, ClientCounts, ClientEnd, ClientOptions, Geometry, HostCache, Metadata, Outcome, StoreError, StoreOperation,
    Strategy,
};
use doorbell_sim::{Ps, VirtualWaiter};
use doorbell_verbs::{RKey, Status};

const KEY: &[u8] = b"a key";

fn geometry() -> Geometry {
    Geometry { nodes: 256, keys: 64, max_key: 16, max_value: 100 }
}

fn with(strategy: Strategy) -> ClientOptions {
    ClientOptions { strategy, lease_ns: 1_000_000, ..ClientOptions::default() }
}

async fn insert(client: &mut Client, waiter: &VirtualWaiter, key: &[u8], value: &[u8]) -> Result<Outcome, StoreError> {
    run(client, waiter, StoreOperation::Insert { key, value }, &mut Vec::new()).await
}

async fn put(client: &mut Client, waiter: &VirtualWaiter, key: &[u8], value: &[u8]) -> Result<Outcome, StoreError> {
    run(client, waiter, StoreOperation::Put { key, value }, &mut Vec::new()).await
}

async fn delete(client: &mut Client, waiter: &VirtualWaiter, key: &[u8]) -> Result<Outcome, StoreError> {
    run(client, waiter, StoreOperation::Delete { key }, &mut Vec::new()).await
}

async fn get(client: &mut Client, waiter: &VirtualWaiter, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    let mut value = Vec::new();
    let outcome = run(client, waiter, StoreOperation::Get { key }, &mut value).await?;
    Ok((outcome == Outcome::Done).then_some(value))
}

/// Runs a test body with one client as a thread of the first host.
fn one(geometry: Geometry, options: ClientOptions, body: impl AsyncFnOnce(Client, VirtualWaiter) -> Client) {
    let mut store = Store::new(&t3(), 2, geometry, 1);
    let client = store.client(0, options);
    let (waiter, working) = (store.simulation.polling(), Rc::clone(&store.working));
    store.simulation.spawn(common::FIRST_HOST, "client", async move {
        let client = body(client, waiter.clone()).await;
        close(client, &waiter, &working).await;
    });
    let rest = store.serve();
    store.simulation.run().expect("the simulation ends");
    rest.take().expect("the service has ended").check(&store.memory.borrow());
}

#[test]
fn keys_come_and_go_and_have_values_of_any_length() {
    for strategy in Strategy::ALL {
        one(geometry(), with(strategy), async |mut client, waiter| {
            let (own, waiter) = (&mut client, &waiter);
            assert_eq!(get(own, waiter, KEY).await, Ok(None));
            assert_eq!(put(own, waiter, KEY, b"1").await, Ok(Outcome::Absent));
            assert_eq!(delete(own, waiter, KEY).await, Ok(Outcome::Absent));
            for round in 0..3_u8 {
                assert_eq!(insert(own, waiter, KEY, &[round]).await, Ok(Outcome::Done));
                assert_eq!(insert(own, waiter, KEY, b"other").await, Ok(Outcome::Exists));
                assert_eq!(get(own, waiter, KEY).await, Ok(Some(vec![round])));
                for length in [0, 1, 100, 7] {
                    assert_eq!(put(own, waiter, KEY, &vec![round; length]).await, Ok(Outcome::Done));
                    assert_eq!(get(own, waiter, KEY).await, Ok(Some(vec![round; length])));
                }
                assert_eq!(delete(own, waiter, KEY).await, Ok(Outcome::Done));
                assert_eq!(get(own, waiter, KEY).await, Ok(None));
                assert_eq!(put(own, waiter, KEY, b"1").await, Ok(Outcome::Absent));
            }
            client
        });
    }
}

/// A program sleeps after a poll that reports no event. So a poll that brings a result, the end of the client or the
/// acknowledged close message must report an event ([`common::poll`] checks this).
#[test]
fn a_sleeping_client_is_woken_for_results_and_its_goodbye() {
    for strategy in Strategy::ALL {
        for round in 0..4_u8 {
            one(geometry(), with(strategy), async move |mut client, waiter| {
                for key in 0..round {
                    assert_eq!(insert(&mut client, &waiter, &[key], b"value").await, Ok(Outcome::Done));
                }
                client
            });
        }
    }
}

#[test]
fn a_hit_takes_one_round_trip_and_a_write_two_or_one_post() {
    for (strategy, posts) in [(Strategy::Optimistic, 2), (Strategy::Chained, 1)] {
        one(geometry(), with(strategy), async move |mut client, waiter| {
            insert(&mut client, &waiter, KEY, &[1; 50]).await.expect("inserted");
            let before = client.counts().verbs;
            get(&mut client, &waiter, KEY).await.expect("read");
            let after = client.counts().verbs;
            // The two READs fetch the whole node and the shortcut.
            let read = (after.reads - before.reads, after.read_bytes - before.read_bytes);
            assert_eq!(read, (2, 32 + 8 + 50 + 8));
            assert_eq!((after.writes, after.compare_swaps), (before.writes, before.compare_swaps));
            put(&mut client, &waiter, KEY, &[2; 50]).await.expect("written");
            let counts = client.counts();
            let written = (counts.verbs.writes - after.writes, counts.verbs.written_bytes - after.written_bytes);
            assert_eq!(written, (2, 32 + 8 + 50 + 8), "expected WRITEs of the node and of the shortcut after it");
            assert_eq!(counts.verbs.compare_swaps - after.compare_swaps, 1);
            assert_eq!((counts.verbs.reads, counts.hops), (after.reads, 0));
            assert_eq!(counts.verbs.awaited_posts - after.awaited_posts, posts);
            client
        });
    }
}

#[test]
fn too_long_keys_and_values_are_refused_with_the_limit() {
    one(geometry(), ClientOptions::default(), async |mut client, waiter| {
        let refused = insert(&mut client, &waiter, &[1; 17], b"").await.unwrap_err();
        assert_eq!(refused.to_string(), "the key has 17 B: must have 1 to 16 B");
        assert!(matches!(get(&mut client, &waiter, b"").await, Err(StoreError::KeyLength { given: 0, .. })));
        let refused = put(&mut client, &waiter, KEY, &[0; 101]).await.unwrap_err();
        assert_eq!(refused.to_string(), "the value has 101 B: must have at most 100 B");
        assert_eq!(insert(&mut client, &waiter, &[1; 16], &[0; 100]).await, Ok(Outcome::Done));
        client
    });
}

#[test]
fn a_full_store_reports_it_and_keeps_working() {
    let nodes = Geometry { nodes: 40, ..geometry() };
    one(nodes, ClientOptions::default(), async |mut client, waiter| {
        let mut made = 0_u8;
        let error = loop {
            match insert(&mut client, &waiter, &[made], &[made; 9]).await {
                Ok(outcome) => assert_eq!(outcome, Outcome::Done),
                Err(error) => break error,
            }
            made += 1;
        };
        // The service reserves one of 16 nodes for deletes.
        assert_eq!((error, made), (StoreError::Full, 38));
        for key in 0..made {
            assert_eq!(get(&mut client, &waiter, &[key]).await, Ok(Some(vec![key; 9])));
        }
        let (own, waiter) = (&mut client, &waiter);
        assert_eq!(put(own, waiter, &[3], b"more").await, Err(StoreError::Full));
        // A delete of a key that does not exist soon returns its node.
        for _ in 0..5 {
            assert_eq!(delete(own, waiter, &[200]).await, Ok(Outcome::Absent));
        }
        // Each delete frees a node.
        for key in 0..made {
            assert_eq!(delete(own, waiter, &[key]).await, Ok(Outcome::Done), "key {key}");
            assert_eq!(get(own, waiter, &[key]).await, Ok(None));
        }
        for key in 0..made {
            assert_eq!(insert(own, waiter, &[key], b"again").await, Ok(Outcome::Done), "key {key}");
        }
        client
    });
    let keys = Geometry { keys: 3, ..geometry() };
    one(keys, ClientOptions::default(), async |mut client, waiter| {
        for key in 0..3_u8 {
            assert_eq!(insert(&mut client, &waiter, &[key], b"").await, Ok(Outcome::Done));
        }
        assert_eq!(insert(&mut client, &waiter, &[3], b"").await, Err(StoreError::TooManyKeys));
        assert_eq!(put(&mut client, &waiter, &[2], b"more").await, Ok(Outcome::Done));
        client
    });
}

#[test]
fn nodes_are_recycled_as_long_as_a_store_lives() {
    let tight = Geometry { nodes: 40, keys: 4, ..geometry() };
    one(tight, ClientOptions::default(), async |mut client, waiter| {
        insert(&mut client, &waiter, KEY, b"0").await.expect("inserted");
        for round in 0..2000_u32 {
            assert_eq!(put(&mut client, &waiter, KEY, &round.to_le_bytes()).await, Ok(Outcome::Done));
        }
        assert_eq!(get(&mut client, &waiter, KEY).await, Ok(Some(1999_u32.to_le_bytes().to_vec())));
        client
    });
}

#[test]
fn known_keys_work_without_metadata_until_nodes_run_out() {
    let mut store = Store::new(&t3(), 1, geometry(), 1);
    let mut client = store.client(0, ClientOptions::default());
    let (waiter, is_served) = (store.simulation.polling(), Rc::new(Cell::new(true)));
    let (mut metadata, memory) = (store.metadata.take().expect("a service"), Rc::clone(&store.memory));
    let serves = Rc::clone(&is_served);
    let clock = waiter.clone();
    store.simulation.spawn(METADATA, "metadata", async move {
        while serves.get() {
            common::serve_once(&mut metadata, &memory);
            clock.wait(None, Some(clock.now().as_ns() + 10_000)).await;
        }
    });
    let ended = store.simulation.spawn(common::FIRST_HOST, "client", async move {
        insert(&mut client, &waiter, KEY, b"1").await.expect("inserted");
        is_served.set(false);
        // The client needs less than this time to detect that the connection has failed.
        let later = waiter.now().as_ns() + 100_000_000;
        while waiter.now().as_ns() < later {
            client.poll();
            waiter.wait(None, Some(later)).await;
        }
        let nodes = client.spare_nodes().len() as u32;
        assert!(nodes > 0);
        for round in 0..nodes {
            assert_eq!(put(&mut client, &waiter, KEY, &round.to_le_bytes()).await, Ok(Outcome::Done));
            assert_eq!(get(&mut client, &waiter, KEY).await, Ok(Some(round.to_le_bytes().to_vec())));
        }
        let refused = put(&mut client, &waiter, KEY, b"more").await.unwrap_err();
        assert!(matches!(refused, StoreError::MetadataGone(_)), "{refused}");
        let refused = get(&mut client, &waiter, b"unknown").await.unwrap_err();
        assert!(matches!(refused, StoreError::MetadataGone(_)), "{refused}");
        assert_eq!(get(&mut client, &waiter, KEY).await, Ok(Some((nodes - 1).to_le_bytes().to_vec())));
    });
    store.simulation.run().expect("the simulation ends");
    assert!(ended.take().is_some());
}

#[test]
fn a_guessed_rkey_is_refused_and_disturbs_no_client() {
    let mut store = Store::new(&t3(), 1, geometry(), 1);
    let mut client = store.client(0, ClientOptions::default());
    let pd = store.simulation.device(common::FIRST_HOST).create_pd().expect("a protection domain");
    let end = ClientEnd::new(&pd, geometry(), ClientOptions { rpc: common::rpc(), ..ClientOptions::default() })
        .expect("an end");
    let mut description = store.memory.borrow_mut().accept(99, &end.to_memory()).expect("accepted");
    let service = store.metadata.as_mut().expect("a service").accept(99, &end.to_metadata()).expect("accepted");
    let guess = RKey::new(description.region.rkey.get() ^ 0x0010_0000);
    description.region = RemoteRegion { rkey: guess, ..description.region };
    let mut foreign = end.connect(99, &description, &service, &HostCache::new(1).into()).expect("connected");
    store.working.set(2);
    let (waiter, working) = (store.simulation.polling(), Rc::clone(&store.working));
    let ended = store.simulation.spawn(common::FIRST_HOST, "both", async move {
        insert(&mut client, &waiter, KEY, b"1").await.expect("inserted");
        let refused = get(&mut foreign, &waiter, KEY).await.unwrap_err();
        assert_eq!(refused, StoreError::Memory(Status::RemoteAccess));
        let again = get(&mut foreign, &waiter, KEY).await.unwrap_err();
        assert_eq!(again, refused, "another submission must fail with the same error");
        drop(foreign);
        working.set(1);
        assert_eq!(put(&mut client, &waiter, KEY, b"2").await, Ok(Outcome::Done));
        close(client, &waiter, &working).await;
    });
    let rest = store.serve();
    store.simulation.run().expect("the simulation ends");
    assert!(ended.take().is_some());
    rest.take().expect("the service has ended").check(&store.memory.borrow());
}

#[test]
fn a_corrupted_node_is_an_error_and_never_a_value() {
    let mut store = Store::new(&t3(), 1, geometry(), 1);
    let mut client = store.client(0, ClientOptions::default());
    let (waiter, memory) = (store.simulation.polling(), Rc::clone(&store.memory));
    let working = Rc::clone(&store.working);
    let ended = store.simulation.spawn(common::FIRST_HOST, "client", async move {
        insert(&mut client, &waiter, KEY, &[0xa5; 64]).await.expect("inserted");
        let region = memory.borrow().region().clone();
        let mut bytes = vec![0; region.len()];
        region.copy_out(0, &mut bytes);
        let at = bytes.windows(64).position(|window| window == [0xa5; 64]).expect("the value lies somewhere");
        region.copy_in(at + 10, &[0xa4]);
        let refused = get(&mut client, &waiter, KEY).await.unwrap_err();
        assert!(matches!(refused, StoreError::Corrupted { .. }), "{refused}");
        // A put of another value makes the key readable again.
        assert_eq!(put(&mut client, &waiter, KEY, b"2").await, Ok(Outcome::Done));
        assert_eq!(get(&mut client, &waiter, KEY).await, Ok(Some(b"2".to_vec())));
        close(client, &waiter, &working).await;
    });
    let rest = store.serve();
    store.simulation.run().expect("the simulation ends");
    assert!(ended.take().is_some());
    rest.take().expect("the service has ended").check(&store.memory.borrow());
}

/// A client takes the lock of a key, and then stops polling or dies.
#[test]
fn an_expired_lock_is_broken_after_its_holder_is_fenced() {
    // An insert posts two verbs: the WRITE of the node and the WRITE of the shortcut. The third verb of the client is
    // the CAS on the lock.
    for death in [None, Some(3)] {
        let mut store = Store::new(&t3(), 2, geometry(), 1);
        let mut holder = store.client(0, ClientOptions { verbs_until_death: death, ..with(Strategy::Lock) });
        let mut other = store.client(1, with(Strategy::Lock));
        let (waiter, working) = (store.simulation.polling(), Rc::clone(&store.working));
        let (is_locked, is_broken) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (locked, broken) = (Rc::clone(&is_locked), Rc::clone(&is_broken));
        let (clock, at_work) = (waiter.clone(), Rc::clone(&working));
        let stopped = store.simulation.spawn(common::FIRST_HOST, "holder", async move {
            insert(&mut holder, &clock, KEY, b"1").await.expect("inserted");
            holder.submit(StoreOperation::Put { key: KEY, value: b"2" }).expect("allowed").expect("room");
            // The CAS on the lock is posted. It arrives while this thread sleeps, and this client posts no further
            // verb.
            let until = |ns| clock.now().as_ns() + ns;
            clock.wait(None, Some(until(50_000))).await;
            locked.set(true);
            while !broken.get() {
                clock.wait(None, Some(until(50_000))).await;
            }
            let mut value = Vec::new();
            let result = loop {
                if let Some((_, result)) = holder.finished(&mut value) {
                    break result;
                }
                common::progress(&mut holder, &clock).await;
            };
            at_work.set(at_work.get() - 1);
            result
        });
        let took = store.simulation.spawn(common::FIRST_HOST + 1, "other", async move {
            while !is_locked.get() {
                waiter.wait(None, Some(waiter.now().as_ns() + 10_000)).await;
            }
            let from = waiter.now();
            assert_eq!(put(&mut other, &waiter, KEY, b"3").await, Ok(Outcome::Done));
            let took = Ps(waiter.now().0 - from.0);
            assert_eq!(get(&mut other, &waiter, KEY).await, Ok(Some(b"3".to_vec())));
            assert_eq!(other.counts().suspects, 1);
            is_broken.set(true);
            close(other, &waiter, &working).await;
            took
        });
        let rest = store.serve();
        store.simulation.run().expect("the simulation ends");
        let result = stopped.take().expect("the holder has ended");
        let is_shut_out = matches!(result, Err(StoreError::Memory(_) | StoreError::Dead));
        assert!(is_shut_out, "a holder whose lock was broken was not fenced: {result:?}");
        let took = took.take().expect("the other client has ended").as_ns();
        assert!((1_000_000..1_500_000).contains(&took), "the lease is 1 ms, but the other client waited {took} ns");
        rest.take().expect("the service has ended").check(&store.memory.borrow());
    }
}

/// Runs several clients in threads that repeatedly put the same key. Returns the sum of their counters, and the time of
/// the last end.
fn crowd(strategy: Strategy, clients: usize, puts: u32) -> (ClientCounts, u64) {
    let mut store = Store::new(&t3(), 2, geometry(), 1);
    let total = Rc::new(Cell::new(ClientCounts::default()));
    let ready = Rc::new(Cell::new(false));
    let mut ended = Vec::new();
    for index in 0..clients {
        let options = ClientOptions { lease_ns: 10_000_000, ..with(strategy) };
        let mut client = store.client(index % 2, options);
        let (waiter, working) = (store.simulation.polling(), Rc::clone(&store.working));
        let (total, ready) = (Rc::clone(&total), Rc::clone(&ready));
        ended.push(store.simulation.spawn(common::FIRST_HOST + index % 2, "client", async move {
            if index == 0 {
                insert(&mut client, &waiter, KEY, b"first").await.expect("inserted");
                ready.set(true);
            }
            while !ready.get() {
                waiter.wait(None, Some(waiter.now().as_ns() + 1_000)).await;
            }
            for round in 0..puts {
                let value = round.to_le_bytes();
                assert_eq!(put(&mut client, &waiter, KEY, &value).await, Ok(Outcome::Done));
                let value = get(&mut client, &waiter, KEY).await.expect("read");
                assert!(value.is_some_and(|value| value.len() == 4), "the value of a put has 4 bytes");
            }
            total.set(total.get().and(&client.counts()));
            close(client, &waiter, &working).await;
            waiter.now().as_ns()
        }));
    }
    let rest = store.serve();
    store.simulation.run().expect("the simulation ends");
    rest.take().expect("the service has ended").check(&store.memory.borrow());
    (total.get(), ended.iter().filter_map(doorbell_sim::Returned::take).max().expect("all clients have ended"))
}

#[test]
fn lock_handover_reduces_load_on_the_memory_node() {
    let (spun, _) = crowd(Strategy::Lock, 8, 50);
    let (queued, _) = crowd(Strategy::QueueLock, 8, 50);
    assert_eq!((spun.suspects, queued.suspects), (0, 0));
    let writes = queued.writes.operations;
    assert_eq!(writes, 8 * 50 + 1);
    // Joining the queue takes several CASes if other clients join at the same time. Waiting in the queue takes no CAS.
    assert!(queued.lock_attempts < 4 * writes, "{queued:?}");
    assert!(queued.lock_attempts < spun.lock_attempts, "{queued:?}, {spun:?}");
    assert!(queued.handovers > writes / 2 && queued.messages > writes / 2, "{queued:?}");
    // The client that gets the lock also gets the place of the newest node.
    assert!(queued.writes.attempts < writes + writes / 10, "{queued:?}");
}

#[test]
fn operations_of_one_host_on_one_key_share_verbs() {
    let (combined, _) = crowd(Strategy::Combine, 8, 50);
    assert_eq!(combined.writes.operations, 8 * 50 + 1);
    assert!(combined.shared > 200, "{combined:?}");
}

/// Clients behind a middlebox that take turns, and the metadata service, all in one thread.
struct Turns {
    metadata: Metadata,
    through: Through,
    fencing: Vec<u32>,
    waiter: VirtualWaiter,
}

impl Turns {
    /// Polls a client and the service once. If neither made progress, waits until either has work.
    async fn progress(&mut self, client: &mut Client) {
        let happened =
            common::poll(client, &self.waiter) | serve_behind(&mut self.metadata, &self.through, &mut self.fencing);
        if happened {
            self.waiter.breathe().await;
        } else {
            let deadlines = client.deadline_ns().into_iter().chain(self.metadata.deadline_ns());
            self.waiter.wait(None, deadlines.min()).await;
        }
    }

    /// Runs one operation to its end. Returns the value in the result.
    async fn run(&mut self, client: &mut Client, operation: StoreOperation<'_>) -> Vec<u8> {
        let mut value = Vec::new();
        client.submit(operation).expect("sizes are allowed").expect("no other operation runs");
        loop {
            if let Some((_, result)) = client.finished(&mut value) {
                assert_eq!(result, Ok(Outcome::Done), "{operation:?}");
                return value;
            }
            self.progress(client).await;
        }
    }

    /// Puts and gets a key with both clients in turn. In each round, the second put and the get name an outdated node.
    async fn alternate(&mut self, clients: &mut [Client; 2], rounds: u32) {
        let [one, other] = clients;
        for round in 0..rounds {
            let [first, second] = [2 * round, 2 * round + 1].map(u32::to_le_bytes);
            self.run(one, StoreOperation::Put { key: KEY, value: &first }).await;
            self.run(other, StoreOperation::Put { key: KEY, value: &second }).await;
            assert_eq!(self.run(one, StoreOperation::Get { key: KEY }).await, second, "a get missed the put before it");
        }
    }

    async fn close(&mut self, clients: [Client; 2]) {
        for mut client in clients {
            client.close();
            while !client.is_closed() {
                self.progress(&mut client).await;
            }
        }
    }
}

/// A new box without knowledge of the store replaces the old box. The clients connect to the new box, keep their
/// caches, and take turns on one key. Each node that a client names is outdated, since the other client has put a newer
/// value. So once the new box has seen the key, it must steer, and must turn CASes into WRITEs.
#[test]
fn a_box_that_took_anothers_place_steers_and_converts_again() {
    const ROUNDS: u32 = 8;
    for strategy in Strategy::ALL.into_iter().filter(|strategy| strategy.is_steered()) {
        let steers_reads = strategy.steers_reads();
        let boxed = Boxed { is_exclusive: true, steers_reads, keys: 64 };
        let mut store = Store::behind(Some(boxed), &t3(), 2, geometry(), 1);
        let options = ClientOptions { rpc: common::rpc(), ..with(strategy) };
        let mut clients = [0, 1].map(|host| store.client(host, options.clone()));
        let caches = store.caches.clone();
        let pds =
            [0, 1].map(|host| store.simulation.device(FIRST_HOST + host).create_pd().expect("a protection domain"));
        let (memory, device) = (Rc::clone(&store.memory), store.simulation.device(MEMORY).attributes());
        let metadata = store.metadata.take().expect("the service does not run yet");
        let through = store.through.clone().expect("there is a box");
        let mut turns = Turns { metadata, through, fencing: Vec::new(), waiter: store.simulation.polling() };
        let counted = store.simulation.spawn(METADATA, "all", async move {
            turns.run(&mut clients[0], StoreOperation::Insert { key: KEY, value: b"first" }).await;
            turns.alternate(&mut clients, ROUNDS).await;
            drop(clients);
            let (switch_box, behind) = &*turns.through;
            let end = turns.metadata.renew().expect("room for another end");
            let of_service = switch_box.with(|in_place| {
                *in_place = steer(in_place.config().address, boxed, 2);
                let mut memory = memory.borrow_mut();
                let mut other = attach(in_place, &mut memory, &device, (boxed, 0x99));
                let of_service = other.accept(in_place, 0, &end.to_memory()).expect("accepted");
                *behind.borrow_mut() = other;
                of_service
            });
            turns.metadata.reconnect(end, &of_service).expect("connected");
            let mut clients = [0, 1].map(|host| {
                let end = ClientEnd::new(&pds[host], geometry(), options.clone()).expect("an end");
                let number = 10 + host as u32;
                let accept = |in_place: &mut _| behind.borrow_mut().accept(in_place, number, &end.to_memory());
                let of_memory = switch_box.with(accept).expect("accepted");
                let of_service = turns.metadata.accept(number, &end.to_metadata()).expect("accepted");
                end.connect(number, &of_memory, &of_service, &caches[host]).expect("connected")
            });
            turns.alternate(&mut clients, ROUNDS).await;
            turns.close(clients).await;
            turns.through.0.with(|steer| *steer.counters())
        });
        store.simulation.run().expect("the simulation ends");
        let counters = counted.take().expect("the thread has ended");
        let least = u64::from(ROUNDS) - 2; // the box learns the key from the first operations
        assert!(counters.cas_steered >= least, "{strategy:?}: {counters:?}");
        assert!(counters.cas_converted >= least, "{strategy:?}: {counters:?}");
        match steers_reads {
            true => assert!(counters.reads_steered >= least, "{strategy:?}: {counters:?}"),
            false => assert_eq!(counters.reads_steered, 0, "{strategy:?}: {counters:?}"),
        }
    }
}

#[test]
fn strategies_have_names() {
    for strategy in Strategy::ALL {
        assert_eq!(Strategy::by_name(strategy.name()), Some(strategy));
    }
    assert_eq!(Strategy::by_name("hope"), None);
}
