//! Tests of the set-up of a store, whose messages the tests carry in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use doorbell_farmem::assembly::{
    AssemblyError, Body, BoxParty, BoxSettings, ClientParty, LocalParties, MAX_BYTES, MemoryParty, Message,
    MetadataParty, Party, Path, Plan,
};
use doorbell_farmem::workload::{self, Load};
use doorbell_farmem::{
    ClientDescription, ClientOptions, HostCache, MetadataOptions, NodeVersion, Outcome, StoreOperation, Strategy,
};
use doorbell_steer::{Config, Steer};
use doorbell_testing::seeds::{self, Tally};
use doorbell_testing::{Rng, seeded_test};
use doorbell_verbs::soft::{SoftOptions, open};
use doorbell_verbs::{Device, PathMtu, Psn, Qpn, RKey};

const CLIENTS: u32 = 3;

fn device() -> Device {
    open(&SoftOptions { publish: false, ..SoftOptions::default() }).expect("a software RNIC")
}

fn plan(strategy: Strategy, replicas: usize) -> Plan {
    let load = Load { keys: 16, value_bytes: 24, ..Load::default() };
    Plan { replicas, ..Plan::new(strategy, &load, CLIENTS as usize) }
}

/// Returns a plan of each strategy, with each number of memory nodes that the strategy supports.
fn plans() -> Vec<Plan> {
    let replicas = |strategy: Strategy| 1..=1 + usize::from(strategy.is_replicable());
    Strategy::ALL.into_iter().flat_map(|strategy| replicas(strategy).map(move |n| plan(strategy, n))).collect()
}

fn settings(device: &Device, rkey: u32) -> BoxSettings {
    let udp_port = device.attributes().udp_port;
    let (rkey, path_mtu) = (RKey::new(rkey), PathMtu::Mtu1024);
    BoxSettings { rkey, is_exclusive: true, steers_reads: true, path_mtu, udp_port, patience: None }
}

fn steer(seed: u64) -> Steer {
    Steer::new(Config { seed, ..Config::at(std::net::Ipv4Addr::new(127, 0, 0, 77).into()) })
}

/// All parties of a store, and the messages that are under way between them.
struct Rig {
    memories: Vec<MemoryParty>,
    metadata: MetadataParty,
    middlebox: Option<(BoxParty, Steer)>,
    clients: Vec<ClientParty>,
    under_way: Vec<Message>,
}

impl Rig {
    fn new(device: &Device, plan: &Plan) -> Self {
        let pd = device.create_pd().expect("a protection domain");
        let memory = |index| MemoryParty::new(&pd, plan, index as u8).expect("a memory node");
        let client = |number| ClientParty::new(&pd, plan, number, ClientOptions::default()).expect("a client");
        let steer = steer(1);
        Self {
            memories: (0..plan.replicas).map(memory).collect(),
            metadata: MetadataParty::new(&pd, plan, MetadataOptions::default()).expect("a metadata service"),
            middlebox: plan.is_boxed.then(|| (BoxParty::new(&steer, plan, settings(device, 7)), steer)),
            clients: (1..=CLIENTS).map(client).collect(),
            under_way: Vec::new(),
        }
    }

    /// Collects the messages that parties have to send. Returns whether any message is under way.
    fn collect(&mut self) -> bool {
        let Self { memories, metadata, middlebox, clients, under_way } = self;
        memories.iter_mut().for_each(|memory| under_way.extend(std::iter::from_fn(|| memory.next_message())));
        under_way.extend(std::iter::from_fn(|| metadata.next_message()));
        clients.iter_mut().for_each(|client| under_way.extend(std::iter::from_fn(|| client.next_message())));
        if let Some((middlebox, _)) = middlebox {
            under_way.extend(std::iter::from_fn(|| middlebox.next_message()));
        }
        !under_way.is_empty()
    }

    fn deliver(&mut self, message: Message) -> Result<(), AssemblyError> {
        match message.to {
            Party::Memory(index) => match self.memories.get_mut(usize::from(index)) {
                Some(memory) => memory.receive(message),
                None => Ok(()),
            },
            Party::Metadata => self.metadata.receive(message, 0),
            Party::Middlebox => match &mut self.middlebox {
                Some((middlebox, steer)) => middlebox.receive(steer, message),
                None => Ok(()),
            },
            Party::Client(number) => match self.clients.get_mut(number as usize - 1) {
                Some(client) => client.receive(message),
                None => Ok(()),
            },
        }
    }

    fn take_any(&mut self, rng: &mut Rng) -> Message {
        self.under_way.swap_remove(rng.below(self.under_way.len() as u64) as usize)
    }

    fn assert_ready(self) {
        let metadata = self.metadata.metadata().expect("the service is connected");
        assert_eq!(metadata.clients(), CLIENTS as usize);
        let cache = Arc::new(HostCache::new(64));
        for client in self.clients {
            assert!(client.is_ready(), "{client:?}");
            client.connect(&cache).expect("connected");
        }
    }
}

/// Counts of events of all seeds.
#[derive(Debug, Default)]
struct Met(BTreeMap<&'static str, u64>);

impl Met {
    fn hit(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

impl Tally for Met {
    fn plus(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, count)| *self.0.entry(what).or_default() += count);
    }
}

/// Returns a damaged copy of a message, if the damage leaves a message.
fn damaged(message: &Message, rng: &mut Rng) -> Option<Message> {
    let mut bytes = message.encode();
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(8) {
            0 => bytes.truncate(at.max(1)),
            1 => bytes.extend(rng.bytes32()),
            2 => bytes[at] = rng.next() as u8,
            _ => bytes[at] ^= 1 << rng.below(8),
        }
    }
    Message::decode(&bytes).ok()
}

/// Sets up a store while messages are delivered in a random order, repeated, lost or damaged.
fn assemble(seed: u64) -> Met {
    let (mut met, mut rng) = (Met::default(), Rng::new(seed));
    let (device, plans) = (device(), plans());
    let plan = &plans[(seed % plans.len() as u64) as usize];
    let mut rig = Rig::new(&device, plan);
    let (loses, is_hostile) = (rng.chance(200), rng.chance(300));
    let mut delivered: Vec<Message> = Vec::new();
    let mut is_lost = false;
    // Some set-ups are given up after some messages.
    let most = if rng.chance(200) { rng.below(12) } else { u64::MAX };
    let mut count = 0;
    while count < most && rig.collect() {
        count += 1;
        if is_hostile && rng.chance(300) {
            let message = rng.pick(&rig.under_way).clone();
            let changed = match rng.below(3) {
                0 => Some(Message { from: Party::Client(1 + rng.below(5) as u32), ..message }),
                1 => Some(Message { to: Party::Metadata, ..message }),
                _ => damaged(&message, &mut rng),
            };
            if let Some(changed) = changed {
                met.hit(if rig.deliver(changed).is_err() { "hostile rejected" } else { "hostile taken" });
            }
        }
        if !delivered.is_empty() && rng.chance(200) {
            let again = rng.pick(&delivered).clone();
            let result = rig.deliver(again.clone());
            met.hit("repeated");
            assert!(is_hostile || matches!(result, Err(AssemblyError::Unexpected { .. })), "{again:?}: {result:?}");
        }
        rig.collect();
        let message = rig.take_any(&mut rng);
        if loses && !is_lost && rng.chance(150) {
            is_lost = true;
            continue;
        }
        let result = rig.deliver(message.clone());
        assert!(is_hostile || result.is_ok(), "{message:?}: {result:?}");
        delivered.push(message);
    }
    if count == most || is_lost || is_hostile {
        met.hit(if is_lost { "lost" } else { "given up" });
        let is_ready = rig.clients.iter().all(ClientParty::is_ready);
        assert!(!is_ready || !is_lost || is_hostile, "a lost message is missed by no client");
        let Rig { memories, metadata, middlebox, clients, .. } = rig;
        let lacks = clients.into_iter().find(|client| !client.is_ready());
        if let Some(client) = lacks {
            let error = client.connect(&Arc::new(HostCache::new(64))).expect_err("an answer is missing");
            assert!(error.to_string().contains("not set up yet"), "{error}");
        }
        match rng.below(3) {
            0 => drop((memories, metadata, middlebox)),
            1 => drop((metadata, middlebox, memories)),
            _ => drop((middlebox, memories, metadata)),
        }
        // Parties that were given up leave the device as it was.
        let mut rig = Rig::new(&device, plan);
        while rig.collect() {
            let message = rig.under_way.remove(0);
            rig.deliver(message).expect("delivered");
        }
        rig.assert_ready();
    } else {
        met.hit("ready");
        rig.assert_ready();
    }
    met
}

#[test]
fn parties_are_ready_after_messages_in_any_order() {
    let plan = seeds::Plan { fixed: 200, fresh: 40, stored: &[] };
    let name = seeded_test!("parties_are_ready_after_messages_in_any_order");
    if let Some(met) = seeds::for_seeds(name, plan, assemble) {
        for what in ["ready", "repeated", "lost", "given up", "hostile rejected", "hostile taken"] {
            assert!(met.0.contains_key(what), "{what} never happened: {met:?}");
        }
    }
}

#[test]
fn a_store_of_each_strategy_works_until_its_clients_leave() {
    for plan in plans().into_iter().filter(|plan| !plan.is_boxed) {
        let device = device();
        let pd = device.create_pd().expect("a protection domain");
        let mut parties = LocalParties::default();
        for index in 0..plan.replicas {
            let memory = MemoryParty::new(&pd, &plan, index as u8).expect("a memory node");
            parties.memories[index] = Some(memory);
        }
        let metadata = MetadataParty::new(&pd, &plan, MetadataOptions::default()).expect("a metadata service");
        parties.metadata = Some(metadata);
        parties.settle(None, 0).expect("no party refuses");
        let cache = Arc::new(HostCache::new(64));
        let connect = |number| {
            let mut client = ClientParty::new(&pd, &plan, number, ClientOptions::default()).expect("a client");
            parties.admit(&mut client, None, 0).expect("admitted");
            client.connect(&cache).expect("connected")
        };
        let mut clients: Vec<_> = (1..=CLIENTS).map(connect).collect();
        assert!(parties.next_message().is_none(), "all messages have found their party");
        let mut turn = |clients: &mut [doorbell_farmem::Client]| {
            for client in clients {
                client.poll();
            }
            for memory in parties.memories.iter_mut().flatten() {
                memory.poll(device.now_ns());
            }
            parties.poll(device.now_ns()).expect("no party rejects a message");
            std::thread::yield_now();
            parties.metadata.as_ref().is_some_and(MetadataParty::is_idle)
        };
        let mut value = Vec::new();
        for number in 0..clients.len() {
            let key = workload::key(number as u64);
            clients[number].submit(StoreOperation::Get { key: &key }).expect("a get").expect("no other one runs");
            let (_, result) = loop {
                turn(&mut clients);
                if let Some(done) = clients[number].finished(&mut value) {
                    break done;
                }
            };
            assert_eq!((result, value.len()), (Ok(Outcome::Done), plan.value_bytes), "{}", plan.strategy.name());
        }
        clients.iter_mut().for_each(doorbell_farmem::Client::close);
        // The service is idle after the memory nodes have shut out each client.
        while !turn(&mut clients) {}
        let metadata = parties.metadata.as_ref().and_then(MetadataParty::metadata).expect("connected");
        assert_eq!((metadata.clients(), metadata.nodes().granted), (0, 0));
    }
}

/// Returns the report to the metadata service that a party has ended.
fn ended(from: Party) -> Message {
    Message { from, to: Party::Metadata, body: Body::Ended }
}

/// Returns a store of two memory nodes that is set up, with a lease of one millisecond.
fn leased(device: &Device) -> (Rig, u64) {
    let lease_ns = 1_000_000;
    let plan = Plan { lease_ns: Some(lease_ns), ..plan(Strategy::Optimistic, 2) };
    let mut rig = Rig::new(device, &plan);
    while rig.collect() {
        let message = rig.under_way.remove(0);
        rig.deliver(message).expect("delivered");
    }
    (rig, lease_ns)
}

#[test]
fn a_lost_memory_node_is_replaced_only_after_its_lease() {
    let device = device();
    let (mut rig, lease_ns) = leased(&device);
    let now_ns = device.now_ns();
    // A lease is extended when the node asks, and only then.
    assert!(!rig.memories[1].node().is_stopped());
    rig.memories[1].poll(now_ns + lease_ns);
    let asked = rig.memories[1].next_message().expect("the node asks");
    assert_eq!((asked.to, &asked.body), (Party::Metadata, &Body::AskLease));
    rig.metadata.receive(asked.clone(), now_ns).expect("a question");
    let answer = rig.metadata.next_message().expect("an answer");
    assert_eq!((answer.to, &answer.body), (Party::Memory(1), &Body::Lease));
    rig.memories[1].receive(answer.clone()).expect("the node has asked");
    assert!(rig.memories[1].receive(answer).is_err(), "a node took a lease for which it had not asked");
    // The service loses the node, and the message that tells the node to stop is lost too.
    rig.metadata.receive(ended(Party::Memory(1)), now_ns).expect("the node has ended");
    rig.metadata.poll(now_ns);
    let stop = rig.metadata.next_message().expect("the node must stop");
    assert_eq!((stop.to, &stop.body), (Party::Memory(1), &Body::Stop));
    rig.metadata.receive(asked, now_ns).expect("a question");
    assert_eq!(rig.metadata.next_message(), None, "a node that was given up got a lease");
    let at_ns = rig.metadata.deadline_ns().expect("the end of the lease");
    assert!(at_ns >= now_ns + lease_ns, "{at_ns}");
    let alone = |rig: &Rig| rig.metadata.metadata().and_then(doorbell_farmem::Metadata::alone);
    rig.metadata.poll(at_ns - 1);
    assert_eq!(alone(&rig), None);
    assert!(rig.metadata.poll(at_ns));
    assert_eq!(alone(&rig), Some(0));
    while !rig.memories[1].node().is_stopped() {
        rig.memories[1].poll(device.now_ns());
    }
}

#[test]
fn an_answer_of_a_stopped_node_ends_the_wait() {
    let device = device();
    let (mut rig, _) = leased(&device);
    rig.metadata.receive(ended(Party::Memory(0)), 0).expect("the node has ended");
    rig.metadata.poll(0);
    while rig.collect() {
        let message = rig.under_way.remove(0);
        rig.deliver(message).expect("delivered");
    }
    assert_eq!(rig.metadata.metadata().and_then(doorbell_farmem::Metadata::alone), Some(1));
    assert!(rig.memories[0].node().is_stopped() && !rig.memories[1].node().is_stopped());
    let stopped = Message { from: Party::Memory(0), to: Party::Metadata, body: Body::Stopped };
    assert!(rig.metadata.receive(stopped, 0).is_err(), "a node stopped twice");
}

#[test]
fn clients_of_an_earlier_middlebox_connect_again() {
    let (device, plan) = (device(), plan(Strategy::Steered, 1));
    let mut rig = Rig::new(&device, &plan);
    let mut late = None;
    let carry = |rig: &mut Rig, late: &mut Option<Message>| {
        while rig.collect() {
            let message = rig.under_way.remove(0);
            match message.body {
                Body::Join { .. } if message.from == Party::Client(CLIENTS) && late.is_none() => *late = Some(message),
                _ => rig.deliver(message).expect("delivered"),
            }
        }
    };
    carry(&mut rig, &mut late);
    let next = steer(2);
    rig.middlebox = Some((BoxParty::new(&next, &plan, settings(&device, 8)), next));
    rig.metadata.receive(ended(Party::Middlebox), 0).expect("another queue pair");
    rig.metadata.receive(ended(Party::Middlebox), 0).expect("the service enters the next middlebox already");
    carry(&mut rig, &mut late);
    let refused = {
        rig.deliver(late.clone().expect("the last client joins")).expect("a request");
        rig.metadata.next_message().expect("an answer")
    };
    let error = rig.deliver(refused).expect_err("the path has ended").to_string();
    assert_eq!(
        error,
        "the metadata service refuses client 3: the path leads through another middlebox: connect through the present \
         one"
    );
    let pd = device.create_pd().expect("a protection domain");
    let last = rig.clients.len() - 1;
    rig.clients[last] = ClientParty::new(&pd, &plan, CLIENTS, ClientOptions::default()).expect("a client");
    carry(&mut rig, &mut late);
    assert!(rig.clients[last].is_ready());
}

/// A fence that the middlebox has not received is repeated, unless another middlebox has taken its place.
#[test]
fn a_service_that_enters_the_same_middlebox_again_repeats_its_fences() {
    let (device, plan) = (device(), plan(Strategy::Steered, 1));
    let mut rig = Rig::new(&device, &plan);
    let mut entered = None;
    while rig.collect() {
        let message = rig.under_way.remove(0);
        if message.to == Party::Metadata && matches!(message.body, Body::Entered(_)) {
            entered = Some(message.clone());
        }
        rig.deliver(message).expect("delivered");
    }
    let cache = Arc::new(HostCache::new(64));
    let mut clients: Vec<_> = rig.clients.drain(..).map(|client| client.connect(&cache).expect("connected")).collect();
    clients[0].close();
    let fence = loop {
        for client in &mut clients {
            client.poll();
        }
        rig.metadata.poll(0);
        if let Some(message) = rig.metadata.next_message() {
            break message;
        }
        std::thread::yield_now();
    };
    assert!(matches!(fence, Message { to: Party::Middlebox, body: Body::Fence { client: 1, path: Some(_) }, .. }));
    rig.metadata.receive(ended(Party::Middlebox), 0).expect("the connection of the middlebox has ended");
    let enter = rig.metadata.next_message().expect("a request");
    assert!(matches!(enter, Message { to: Party::Middlebox, body: Body::Enter(_), .. }));
    // Until the middlebox answers, its clients are unknown.
    clients[1].close();
    while rig.metadata.metadata().expect("connected").clients() > 1 {
        clients[1].poll();
        rig.metadata.poll(0);
        std::thread::yield_now();
    }
    rig.metadata.poll(0);
    assert_eq!(rig.metadata.next_message(), None);
    rig.metadata.receive(entered.expect("the service has entered"), 0).expect("the same middlebox");
    rig.metadata.poll(0);
    assert_eq!(rig.metadata.next_message(), Some(fence));
    let other = rig.metadata.next_message().expect("another fence");
    assert!(matches!(other, Message { to: Party::Middlebox, body: Body::Fence { client: 2, path: Some(_) }, .. }));
    let fenced = Message { from: Party::Middlebox, to: Party::Metadata, body: Body::Fenced { client: 1 } };
    rig.metadata.receive(fenced.clone(), 0).expect("an answer");
    assert!(rig.metadata.receive(fenced, 0).is_err(), "a client was shut out twice");
    // Without another middlebox, the store has failed.
    let refused = Message { from: Party::Middlebox, to: Party::Metadata, body: Body::Refused("no box".to_owned()) };
    assert!(rig.metadata.receive(refused.clone(), 0).is_err() && !rig.metadata.has_failed());
    rig.metadata.receive(ended(Party::Middlebox), 0).expect("the connection of the middlebox has ended");
    assert!(rig.metadata.receive(refused, 0).is_err() && rig.metadata.has_failed());
}

#[test]
fn a_check_finds_a_damaged_node() {
    let device = device();
    let (mut rig, _) = leased(&device);
    rig.metadata.begin_check().expect("no node is lost");
    let mut asked = 0;
    while !rig.metadata.has_checked().expect("no node is damaged") {
        rig.metadata.poll(0);
        while rig.collect() {
            let message = rig.under_way.remove(0);
            asked += u32::from(matches!(message.body, Body::Check { .. }));
            rig.deliver(message).expect("delivered");
        }
    }
    assert_eq!(asked, 2 * 16, "each memory node is asked for each key");
    rig.metadata.begin_check().expect("no node is lost");
    rig.metadata.poll(0);
    let check = rig.metadata.next_message().expect("a question");
    let checked = Message { from: check.to, to: check.from, body: Body::Checked { is_intact: false } };
    rig.metadata.receive(checked.clone(), 0).expect("an answer");
    let Body::Check { key, .. } = check.body else { panic!("{check:?}") };
    let error = rig.metadata.has_checked().expect_err("a damaged node").to_string();
    assert_eq!(error, format!("the node of key {key:02x?} is damaged"));
    assert!(rig.metadata.receive(checked, 0).is_err(), "a memory node answered twice");
}

#[test]
fn a_memory_node_that_ends_during_the_set_up_ends_it() {
    let (device, plan) = (device(), plan(Strategy::Lock, 1));
    let mut rig = Rig::new(&device, &plan);
    let error = rig.metadata.receive(ended(Party::Memory(0)), 0).expect_err("no memory").to_string();
    assert_eq!(error, "memory node 0 refuses the metadata service: it has ended");
    assert!(rig.metadata.has_failed());
}

#[test]
fn a_client_cannot_refuse_a_request_of_another_party() {
    let (device, plan) = (device(), plan(Strategy::Lock, 1));
    let mut rig = Rig::new(&device, &plan);
    let refusal = |from, to| Message { from, to, body: Body::Refused("no room".to_owned()) };
    let is_unexpected = |result| matches!(result, Err(AssemblyError::Unexpected { .. }));
    assert!(is_unexpected(rig.metadata.receive(refusal(Party::Client(1), Party::Metadata), 0)));
    assert!(!rig.metadata.has_failed());
    assert!(is_unexpected(rig.clients[0].receive(refusal(Party::Client(2), Party::Client(1)))));
    while rig.collect() {
        let message = rig.under_way.remove(0);
        rig.deliver(message).expect("delivered");
    }
    assert!(rig.clients.iter().all(ClientParty::is_ready));
    // A party that was asked can refuse.
    let mut rig = Rig::new(&device, &plan);
    let refused = rig.metadata.receive(refusal(Party::Memory(0), Party::Metadata), 0);
    assert!(matches!(refused, Err(AssemblyError::Refused { .. })) && rig.metadata.has_failed());
}

#[test]
fn messages_round_trip_and_other_bytes_are_rejected() {
    let lane = doorbell_exchange::setup::EndpointDescription::one_sided(
        std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped(),
        Qpn::new(77),
        Psn::new(5),
        PathMtu::Mtu1024,
        4791,
    );
    let (both, one) = (ClientDescription { lane, calls: Some(lane) }, ClientDescription { lane, calls: None });
    let path = Some(Path { qpn: Qpn::new(3), rkey: RKey::new(9) });
    let place = NodeVersion::from_bits(4 << 34 | 2).expect("a place");
    let bodies = [
        Body::Enter(both),
        Body::Enter(one),
        Body::Entered(both),
        Body::Join { end: lane, path },
        Body::Join { end: lane, path: None },
        Body::Joined(lane),
        Body::Fence { client: 4, path },
        Body::Fenced { client: 4 },
        Body::Stop,
        Body::Stopped,
        Body::AskLease,
        Body::Lease,
        Body::Check { place, key: vec![7; 1024] },
        Body::Checked { is_intact: true },
        Body::Refused("no room".to_owned()),
        Body::Ended,
    ];
    let parties = [Party::Memory(1), Party::Middlebox, Party::Metadata, Party::Client(6)];
    for (index, body) in bodies.into_iter().enumerate() {
        let message = Message { from: parties[index % 4], to: parties[(index + 1) % 4], body };
        let bytes = message.encode();
        assert!(bytes.len() <= MAX_BYTES);
        assert_eq!(Message::decode(&bytes).expect("a message"), message);
        assert_eq!(Message::from_text(&message.to_text()).expect("a message"), message);
        let is_text = matches!(message.body, Body::Check { .. } | Body::Refused(_));
        for length in (0..bytes.len()).filter(|&length| !is_text || length < 12) {
            assert!(Message::decode(&bytes[..length]).is_err(), "{message:?} in {length} bytes");
        }
    }
    let long = Message { from: parties[0], to: parties[1], body: Body::Refused("\u{e9}".repeat(MAX_BYTES)) };
    assert!(
        matches!(Message::decode(&long.encode()), Ok(Message { body: Body::Refused(why), .. }) if why.len() == 512)
    );
    let sentence = |bytes: &[u8]| Message::decode(bytes).expect_err("no message").to_string();
    let stop = Message { from: parties[2], to: parties[0], body: Body::Stop }.encode();
    let with = |at: usize, value: u8| {
        let mut bytes = stop.clone();
        bytes[at] = value;
        sentence(&bytes)
    };
    assert_eq!(with(0, 9), "a message of the store's set-up has another format: use the same release for all parties");
    assert_eq!(with(1, 9), "a message of the store's set-up has a party that does not exist");
    assert_eq!(with(11, 99), "a message of the store's set-up has a kind that does not exist");
    assert_eq!(sentence(&vec![1; MAX_BYTES + 1]), "a message of the store's set-up has too many bytes");
    for text in ["0", "zz", "\u{e9}\u{e9}", "+1"] {
        assert!(Message::from_text(text).is_err(), "{text}");
    }
}
