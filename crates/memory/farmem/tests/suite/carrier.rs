//! Tests of the carriers of messages between threads and processes. The two ends of a Unix socket stand for the pipes
//! of a process.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_exchange::admission::{Clients, Hello};
use doorbell_exchange::setup::{self, EndpointDescription, READY};
use doorbell_farmem::assembly::{
    AssemblyError, Body, ClientParty, Exchange, MAX_BYTES, Mailbox, MemoryParty, Message, MetadataParty, Party, Plan,
    serve_boxes,
};
use doorbell_farmem::workload::{self, Load};
use doorbell_farmem::{
    ClientDescription, ClientOptions, HostCache, MetadataOptions, Outcome, StoreOperation, Strategy,
};
use doorbell_verbs::soft::{SoftOptions, open};
use doorbell_verbs::{Device, Psn, Qpn};

fn device() -> Device {
    open(&SoftOptions { publish: false, ..SoftOptions::default() }).expect("a software RNIC")
}

fn plan(replicas: usize) -> Plan {
    let load = Load { keys: 16, value_bytes: 24, ..Load::default() };
    let lease_ns = (replicas > 1).then_some(1_000_000_000);
    Plan { replicas, lease_ns, ..Plan::new(Strategy::Optimistic, &load, 2) }
}

fn ignore(_: &str) {}

/// Starts memory node `index` as if it were a process whose input is a stream from `here` to `there`.
fn start_memory(exchange: &Exchange, plan: Plan, index: u8, (here, there): (UnixStream, UnixStream)) -> JoinHandle<()> {
    let lines = exchange.connect(Party::Memory(index), here).expect("connected");
    let (output, of_process) = UnixStream::pair().expect("a pair");
    std::thread::spawn(move || lines.listen(BufReader::new(output), |from| from == Party::Memory(index), |_| ()));
    std::thread::spawn(move || {
        let device = device();
        let mut memory = MemoryParty::new(&device.create_pd().expect("a domain"), &plan, index).expect("a memory node");
        let mailbox = Mailbox::of_process(&plan, BufReader::new(there), of_process, |_| ());
        memory.serve(&mut mailbox.expect("a mailbox"), &device, ignore);
    })
}

/// Gets and puts a key.
fn work(client: &mut doorbell_farmem::Client, number: u64) {
    let mut value = Vec::new();
    let key = workload::key(number);
    for operation in [StoreOperation::Get { key: &key }, StoreOperation::Put { key: &key, value: &[7; 24] }] {
        client.submit(operation).expect("an operation").expect("no other one runs");
        let (_, result) = loop {
            client.poll();
            match client.finished(&mut value) {
                Some(done) => break done,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(result, Ok(Outcome::Done));
    }
}

/// A client works, another one too after the first memory node has ended, and the store passes its check at the end.
#[test]
fn a_store_of_processes_outlives_a_memory_node() {
    let plan = plan(2);
    let exchange = Exchange::new(&plan);
    let mut mailbox = exchange.mailbox(Party::Metadata);
    let pairs = [(); 2].map(|()| UnixStream::pair().expect("a pair"));
    let first = pairs[0].0.try_clone().expect("another handle");
    let mut memories = Vec::new();
    for (index, pair) in (0..).zip(pairs) {
        memories.push(start_memory(&exchange, plan, index, pair));
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let (over, ended) = (Arc::clone(&is_over), exchange.clone());
    let metadata = std::thread::spawn(move || {
        let device = device();
        let pd = device.create_pd().expect("a domain");
        let mut party = MetadataParty::new(&pd, &plan, MetadataOptions::default()).expect("a metadata service");
        let served = party.serve(&mut mailbox, &device, &over, ignore);
        ended.close();
        served.map(|()| party.metadata().and_then(doorbell_farmem::Metadata::alone))
    });
    let device = device();
    let pd = device.create_pd().expect("a domain");
    let cache = Arc::new(HostCache::new(64));
    let connect = |number| {
        let mut mailbox = exchange.mailbox(Party::Client(number));
        let mut party = ClientParty::new(&pd, &plan, number, ClientOptions::default()).expect("a client");
        mailbox.admit(&mut party, &device).expect("admitted");
        party.connect(&cache).expect("connected")
    };
    let mut clients = [1, 2].map(connect);
    work(&mut clients[0], 3);
    first.shutdown(Shutdown::Both).expect("shut down");
    work(&mut clients[1], 3);
    for client in &mut clients {
        client.close();
        while !client.is_closed() && !client.is_over() {
            client.poll();
            std::thread::yield_now();
        }
    }
    is_over.store(true, Ordering::Release);
    let alone = metadata.join().expect("no panic").expect("no node is lost or damaged");
    assert_eq!(alone, Some(1));
    // The memory nodes end since the store has ended.
    memories.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let mut late = exchange.mailbox(Party::Client(3));
    assert!(matches!(late.next(0), Err(AssemblyError::Ended)));
}

/// Returns the result of listening to these bytes, the number of messages to the metadata service, and other lines.
fn listen(bytes: &[u8]) -> (Result<(), String>, usize, Vec<String>) {
    let exchange = Exchange::new(&plan(1));
    let mut inbox = exchange.mailbox(Party::Metadata);
    let mut others = Vec::new();
    let lines = exchange.connect(Party::Client(1), std::io::sink()).expect("connected");
    let may_be = |party| matches!(party, Party::Client(1 | 3));
    let result = lines.listen(bytes, may_be, |line| others.push(line.to_owned()));
    let carried = std::iter::from_fn(|| inbox.next(0).expect("the store has not ended")).count();
    (result.map_err(|error| error.to_string()), carried, others)
}

#[test]
fn hostile_lines_end_a_connection() {
    let text = |from| Message { from, to: Party::Metadata, body: Body::Ended }.to_text();
    let (own, next, other) = (text(Party::Client(1)), text(Party::Client(3)), text(Party::Client(2)));
    let (result, carried, others) = listen(format!("b 1 2\nstore {own}\nstore {next}\ne 3 4").as_bytes());
    assert_eq!((result, carried, others), (Ok(()), 2, vec!["b 1 2".to_owned(), "e 3 4".to_owned()]));
    // A process that was killed may leave a part of a message.
    assert_eq!(listen(format!("store {}", &own[..9]).as_bytes()), (Ok(()), 0, Vec::new()));
    let sentence = |bytes: &[u8]| listen(bytes).0.expect_err("an invalid line");
    assert_eq!(sentence(format!("store {other}\n").as_bytes()), "a message in the name of client 2");
    assert!(sentence(b"store zz\n").contains("no pairs of hexadecimal digits"));
    assert!(sentence(&vec![b'x'; 4 * MAX_BYTES]).contains("a line of more than"));
    assert!(sentence(b"\xff\xfe\n").contains("UTF-8"));
}

#[test]
fn a_party_that_does_not_read_loses_messages() {
    let plan = plan(1);
    let exchange = Exchange::new(&plan);
    let (mut silent, mut sender) = (exchange.mailbox(Party::Metadata), exchange.mailbox(Party::Client(1)));
    let message = Message { from: Party::Client(1), to: Party::Metadata, body: Body::Ended };
    (0..1000).for_each(|_| sender.send(message.clone(), 0));
    let kept = std::iter::from_fn(|| silent.next(0).expect("the store has not ended")).count();
    assert_eq!(kept, 2 * plan.clients + 16);
    // A process that does not read either.
    let (here, mut there) = UnixStream::pair().expect("a pair");
    let _lines = exchange.connect(Party::Memory(0), here).expect("connected");
    let check = Message { to: Party::Memory(0), ..message };
    (0..10_000).for_each(|_| sender.send(check.clone(), 0));
    exchange.close();
    let mut bytes = Vec::new();
    // The end of the store may be lost too. Then the process is ended by its owner.
    there.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let _ = there.read_to_end(&mut bytes);
    assert!(bytes.len() < 10_000 * check.to_text().len(), "{}", bytes.len());
}

#[test]
fn lines_reach_the_process_beside_messages() {
    let plan = plan(1);
    let exchange = Exchange::new(&plan);
    let (here, there) = UnixStream::pair().expect("a pair");
    let lines = exchange.connect(Party::Client(1), here.try_clone().expect("a handle")).expect("connected");
    let heard = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heard);
    let other = move |line: &str| {
        count.fetch_add(usize::from(line == "begin"), Ordering::AcqRel);
    };
    let input = BufReader::new(there.try_clone().expect("a handle"));
    let mut mailbox = Mailbox::of_process(&plan, input, there, other).expect("a mailbox");
    lines.sender()("begin");
    let message = Message { from: Party::Metadata, to: Party::Client(1), body: Body::Ended };
    exchange.mailbox(Party::Metadata).send(message.clone(), 0);
    let received = loop {
        if let Some(message) = mailbox.wait(0).expect("the store has not ended") {
            break message;
        }
    };
    assert_eq!((received, heard.load(Ordering::Acquire)), (message, 1));
    exchange.close();
    drop((here, lines));
    while mailbox.wait(0).is_ok() {}
}

/// The memory node has admitted a middlebox, whose connection stays open. The thread ends with the store all the same.
#[test]
fn the_end_of_a_store_does_not_wait_for_a_middlebox() {
    let exchange = Exchange::new(&plan(1));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let mut boxes = Clients::new(listener, Hello::new(1), ignore).expect("a lobby");
    let (mut of_box, mut of_memory) = (exchange.mailbox(Party::Middlebox), exchange.mailbox(Party::Memory(0)));
    let (ended, has_ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        serve_boxes(&mut boxes, &mut of_box, ignore);
        ended.send(()).expect("the test waits");
    });
    let attributes = device().attributes();
    let (qpn, psn) = (Qpn::new(7), Psn::new(9));
    let lane = EndpointDescription::one_sided(attributes.gid, qpn, psn, attributes.active_mtu, attributes.udp_port);
    let middlebox = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).expect("a connection");
        setup::exchange(&stream, &[lane], Duration::from_secs(60)).expect("the memory node's description");
        stream.write_all(&[READY]).expect("sent");
        stream.read_exact(&mut [0]).expect("the memory node is ready");
        stream
    });
    let ends = loop {
        if let Some(Message { body: Body::Enter(ends), .. }) = of_memory.wait(0).expect("the store has not ended") {
            break ends;
        }
    };
    assert_eq!(ends, ClientDescription { lane, calls: None });
    of_memory.send(Message { from: Party::Memory(0), to: Party::Middlebox, body: Body::Entered(ends) }, 0);
    let _open = middlebox.join().expect("no panic");
    exchange.close();
    has_ended.recv_timeout(Duration::from_secs(60)).expect("the thread has ended");
}
