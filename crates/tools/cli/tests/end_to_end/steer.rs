//! `doorbell steer`. The memory node and the clients are threads of the test, over the crate `doorbell`. The box
//! between them is a process of the command.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use doorbell::verbs::{Access, QpCapacities, Region, SendOperation};
use doorbell::{Device, Options, QueuePair, QueuePairError, SendReceive};
use doorbell_data::FAULT_PLANS;
use doorbell_fabric::FaultPlan;
use doorbell_wire::{Flow, Psn, ROCE_UDP_PORT};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::captures::Scratch;
use crate::command::{Finished, PATIENCE, Running, doorbell, number, run};

const CAPACITIES: QpCapacities =
    QpCapacities { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline: 0 };
const SOON: Duration = Duration::from_secs(60);
/// Size of the memory node, and of the memory of a client.
const BYTES: usize = 16 << 10;
/// Size of a message of three packets: loopback has a path MTU of 4096 B.
const MESSAGE_BYTES: usize = 3 * 4096;

/// Starts a memory node that serves one box after another. The memory node destroys its queue pair with a box when the
/// connection of the box ends.
pub(crate) fn memory_node() -> SocketAddr {
    mortal_node().0
}

/// Starts the memory node of [`memory_node`]. The returned receiver gets the connection of the memory node with each
/// box.
fn mortal_node() -> (SocketAddr, Receiver<TcpStream>) {
    let (serving, streams) = channel();
    let address = node_that(move |mut stream, pair| {
        // Most tests do not receive these connections.
        let _ = serving.send(stream.try_clone().expect("another handle"));
        wait_for_end(&mut stream);
        drop(pair);
    });
    (address, streams)
}

/// Starts a memory node that calls `serve` with its connection and its queue pair with each peer.
fn node_that(mut serve: impl FnMut(TcpStream, Result<QueuePair, QueuePairError>) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    std::thread::spawn(move || {
        let device = Device::open().expect("a device");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let memory = device.allocate(BYTES, access).expect("memory");
        while let Ok((stream, _)) = listener.accept() {
            let pair = device.queue_pair(&stream, Some(&memory), CAPACITIES, SOON);
            serve(stream, pair);
        }
    });
    address
}

/// Waits until the peer ends a connection.
fn wait_for_end(stream: &mut TcpStream) {
    let _ = stream.set_read_timeout(None);
    while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
}

/// A client of a box or of a memory node, which the client cannot tell apart.
struct Client {
    pair: QueuePair,
    memory: Region,
    _stream: TcpStream,
}

impl Client {
    fn connect(address: &str) -> Result<Self, String> {
        let device = Device::open().expect("a device");
        let psn = device.verbs().random_psn();
        Self::connect_from(&device, psn, address)
    }

    /// Connects with this PSN of the first request.
    fn connect_from(device: &Device, psn: Psn, address: &str) -> Result<Self, String> {
        let memory = device.allocate(BYTES, Access::LOCAL_WRITE).expect("memory");
        let stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
        let pair = device.queue_pair_from(psn, &stream, None, CAPACITIES, SOON).map_err(|error| error.to_string())?;
        Ok(Self { pair, memory, _stream: stream })
    }

    fn remote(&self, offset: u64) -> (u64, doorbell::verbs::RKey) {
        (self.pair.peer.address + offset, self.pair.peer.rkey)
    }

    /// Performs an operation on the first bytes of the client's own memory.
    fn perform(&self, operation: SendOperation, bytes: usize) {
        self.pair.perform(operation, self.memory.sge(0, bytes)).expect("the operation succeeds");
    }

    fn add(&self, offset: u64, add: u64) -> u64 {
        let (remote_address, rkey) = self.remote(offset);
        self.perform(SendOperation::FetchAdd { remote_address, rkey, add }, 8);
        self.memory.load_acquire_u64(0)
    }

    fn swap(&self, offset: u64, compare: u64, swap: u64) -> u64 {
        let (remote_address, rkey) = self.remote(offset);
        self.perform(SendOperation::CompareSwap { remote_address, rkey, compare, swap }, 8);
        self.memory.load_acquire_u64(0)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let (remote_address, rkey) = self.remote(offset);
        self.memory.copy_in(0, bytes);
        self.perform(SendOperation::Write { remote_address, rkey }, bytes.len());
    }

    fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let (remote_address, rkey) = self.remote(offset);
        self.perform(SendOperation::Read { remote_address, rkey }, bytes);
        let mut out = vec![0; bytes];
        self.memory.copy_out(0, &mut out);
        out
    }
}

/// Adds one to a word of the memory node, as a client of the box at this address.
pub(crate) fn add_one(address: &str) {
    Client::connect(address).expect("the box serves").add(0, 1);
}

/// Starts a box. Returns the box, and the address at which clients set up their queue pairs.
fn start(node: SocketAddr, arguments: &str) -> (Running, String) {
    let mut running = Running::start(doorbell(&format!("steer {node} -p 0 {arguments}")));
    let address = running.text_after("serving clients at ");
    (running, address)
}

/// Ends the box with SIGINT.
fn interrupt(running: Running) -> Finished {
    kill(Pid::from_raw(running.id() as i32), Signal::SIGINT).expect("the process can be sent a signal");
    let finished = running.finish();
    assert_eq!(finished.status.signal(), Some(Signal::SIGINT as i32), "{finished:?}");
    finished
}

fn counter(record: &Value, name: &str) -> u64 {
    number(record, &format!("/counters/{name}"))
}

/// Returns the path of the capture. With `DOORBELL_PCAP_DIR`, the capture stays in this directory for checks by other
/// programs. Otherwise, the file is removed at the end of the test.
fn capture(name: &str) -> (PathBuf, Option<Scratch>) {
    match std::env::var_os("DOORBELL_PCAP_DIR") {
        Some(directory) => {
            std::fs::create_dir_all(&directory).expect("a writable directory");
            (PathBuf::from(directory).join(name), None)
        }
        None => {
            let scratch = Scratch::new(name);
            (PathBuf::from(scratch.path()), Some(scratch))
        }
    }
}

#[test]
fn the_box_serves_a_client_and_captures_both_sides() {
    let node = memory_node();
    let (path, scratch) = capture("steer-command.pcap");
    let (running, address) = start(node, &format!("--exclusive --json --pcap {}", path.display()));
    let client = Client::connect(&address).expect("the box serves it");
    let text = b"written through the box, and read back";
    client.write(64, text);
    assert_eq!(client.read(64, text.len()), text);
    // After the first answer, the box knows the value of the word, and converts CASes to WRITEs.
    assert_eq!(
        [client.swap(0, 0, 70), client.swap(0, 70, 80), client.swap(0, 70, 90), client.add(0, 0)],
        [0, 70, 80, 80]
    );
    let requester = client.pair.qp.pd().device().attributes().gid.to_canonical();
    drop(client);
    let record = interrupt(running).json();
    assert_eq!(record["schema"], "doorbell-steer/1");
    assert_eq!((number(&record, "/clients/served"), number(&record, "/clients/refused")), (1, 0), "{record:#}");
    assert_eq!((counter(&record, "cas_converted"), counter(&record, "requests")), (2, 6), "{record:#}");
    assert_eq!(number(&record, "/driver/damaged"), 0, "{record:#}");

    let found = run(&format!("wire decode --json {}", path.display())).expect_status(0).json();
    assert_eq!(number(&found, "/icrc/right"), number(&found, "/packets"), "{found:#}");
    assert_eq!(number(&found, "/packets"), counter(&record, "received") + counter(&record, "sent"));
    if scratch.is_none() {
        // List the requests of the client, then the packets from the box to the node, from the node to the box, and
        // from the box to the client.
        let mut expected = format!("requester {requester}\n");
        for opcode in [10, 12, 19, 19, 19, 20] {
            expected += &format!("> opcode={opcode}\n");
        }
        for opcodes in [&[10][..], &[12, 16, 16], &[19, 18, 18], &[10, 18], &[10, 18], &[20, 18, 18]] {
            opcodes.iter().for_each(|opcode| expected += &format!("< opcode={opcode}\n"));
        }
        // The numbers of acknowledgements of WRITEs, and of CASes that the box sent as WRITEs.
        expected += "acks 4 12\nrenumbered\n";
        std::fs::write(path.with_extension("expected"), expected).expect("a writable directory");
    }
}

#[test]
fn clients_share_words_and_a_lost_one_makes_room() {
    let node = memory_node();
    let (mut running, address) = start(node, "--clients 3");
    let clients: Vec<_> = (0..3).map(|_| Client::connect(&address).expect("there is room")).collect();
    for round in 0..30 {
        for (index, client) in clients.iter().enumerate() {
            assert_eq!(client.add(8, 1), round * 3 + index as u64, "one order for all");
        }
    }
    Client::connect(&address).map(drop).expect_err("the table of clients is full");
    running.wait_for("the box has no room for another client (maximum 3)");
    let mut clients = clients.into_iter();
    drop(clients.next());
    // The box soon notices the end of the client.
    let until = Instant::now() + PATIENCE;
    let another = loop {
        match Client::connect(&address) {
            Ok(client) => break client,
            Err(error) => assert!(Instant::now() < until, "the box forgets a client that is gone: {error}"),
        }
        sleep(Duration::from_millis(5));
    };
    assert_eq!(another.add(8, 1), 90);
    let finished = interrupt(running);
    for words in [": 4 clients served in", "clients refused", "requests of clients that were accepted"] {
        assert!(finished.stdout.contains(words), "{words:?} is missing in:\n{}", finished.stdout);
    }
}

#[test]
fn a_killed_box_is_replaced_and_memory_is_preserved() {
    let node = memory_node();
    let (running, address) = start(node, "--exclusive");
    let client = Client::connect(&address).expect("the box serves it");
    assert_eq!(client.swap(0, 0, 5), 0);
    running.kill();
    let (running, address) = start(node, "--exclusive --json");
    let client = Client::connect(&address).expect("the second box serves it");
    assert_eq!([client.swap(0, 4, 6), client.swap(0, 5, 6), client.swap(0, 6, 7)], [5, 5, 6]);
    let record = interrupt(running).json();
    // Only two CASes were converted: the first CAS through the second box went to the node.
    assert_eq!(counter(&record, "cas_converted"), 2, "{record:#}");
}

#[test]
fn the_box_reconnects_to_a_returned_memory_node() {
    let (node, streams) = mortal_node();
    let (mut running, address) = start(node, "--json");
    let first = streams.recv_timeout(PATIENCE).expect("the box has come");
    let client = Client::connect(&address).expect("the box serves it");
    client.write(0, b"before");
    first.shutdown(std::net::Shutdown::Both).expect("the connection is open");
    running.wait_for("has ended its connection; trying again");
    // The client notices the end of its queue pair, and connects again.
    let (remote_address, rkey) = client.remote(0);
    let result = client.pair.perform(SendOperation::Write { remote_address, rkey }, client.memory.sge(0, 8));
    assert!(result.is_err(), "the queue pair with the node is gone");
    running.wait_for("is there again");
    Client::connect(&address).expect("the box serves it").write(0, b"after");
    let record = interrupt(running).json();
    assert_eq!(number(&record, "/attached"), 2, "{record:#}");
    assert_eq!(counter(&record, "node_failures"), 1, "{record:#}");
}

/// The RNIC of the memory node does not answer, while its TCP connection with the box stays open.
#[test]
fn the_box_reconnects_to_a_silent_memory_node() {
    let (giving, pairs) = channel();
    let node = node_that(move |mut stream, pair| {
        let _ = giving.send(pair);
        wait_for_end(&mut stream);
    });
    let (mut running, address) = start(node, "--patience 2s --json");
    let pair = pairs.recv_timeout(PATIENCE).expect("the box has come");
    let client = Client::connect(&address).expect("the box serves it");
    client.write(0, b"before");
    drop(pair);
    let (remote_address, rkey) = client.remote(0);
    let result = client.pair.perform(SendOperation::Write { remote_address, rkey }, client.memory.sge(0, 8));
    assert!(result.is_err(), "the client notices the silent node");
    running.wait_for("does not answer any more; trying again");
    running.wait_for("is there again");
    let _pair = pairs.recv_timeout(PATIENCE).expect("the box has come again");
    Client::connect(&address).expect("the box serves it").write(0, b"after");
    let record = interrupt(running).json();
    assert_eq!((number(&record, "/attached"), counter(&record, "node_failures")), (2, 1), "{record:#}");
    assert!(counter(&record, "node_timeouts") > 3, "{record:#}");
}

/// Each client has a queue pair of its own at the node, and the box numbers requests.
#[test]
fn a_relaying_box_reports_the_order_of_answers() {
    let mut kept = Vec::new();
    let node = node_that(move |stream, pair| kept.push((stream, pair)));
    let (running, address) = start(node, "--relay --json");
    let clients: Vec<_> = (0..2).map(|_| Client::connect(&address).expect("the box serves it")).collect();
    for round in 0..20 {
        for (index, client) in clients.iter().enumerate() {
            assert_eq!(client.add(8, 1), round * 2 + index as u64);
            client.write(64, b"some bytes");
        }
    }
    drop(clients);
    let record = interrupt(running).json();
    assert_eq!((number(&record, "/order/answered"), number(&record, "/clients/served")), (80, 2), "{record:#}");
    // Each client has one request at a time, so answers are in order. An answer may be repeated.
    assert!(number(&record, "/order/in_order") >= 79, "{record:#}");
    assert!(number(&record, "/order/largest_gap") == 1, "{record:#}");
    assert_eq!((counter(&record, "requests"), counter(&record, "node_failures")), (0, 0), "{record:#}");
}

#[test]
fn unreadable_packets_are_forwarded_and_counted() {
    let node = memory_node();
    let (running, address) = start(node, "--json");
    let address: SocketAddr = address.parse().expect("an address and a port");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let own = socket.local_addr().expect("a bound socket has an address");
    // Send a packet without an opcode of RoCE, a packet without headers, and a packet too short for a header and an
    // ICRC.
    for bytes in [&[0xff; 20][..], &[0x0a; 12], &[0x0a; 4]] {
        let flow = Flow::new(own.ip(), address.ip(), own.port(), ROCE_UDP_PORT);
        let mut packet = bytes.to_vec();
        packet.extend(flow.icrc(0, true, bytes).to_le_bytes());
        socket.send_to(&packet, (address.ip(), ROCE_UDP_PORT)).expect("sent");
    }
    socket.send_to(b"not even an ICRC", (address.ip(), ROCE_UDP_PORT)).expect("sent");
    // A client uses the same socket of the box afterwards.
    let client = Client::connect(&address.to_string()).expect("the box serves it");
    client.write(0, b"as ever");
    let record = interrupt(running).json();
    assert_eq!((counter(&record, "unparsed"), counter(&record, "passed")), (2, 2), "{record:#}");
    assert_eq!(number(&record, "/driver/damaged"), 2, "{record:#}");
}

#[test]
fn losses_on_both_sides_are_repaired() {
    let node = memory_node();
    let (running, address) = start(node, "--json --fault drop=0.05,duplicate=0.05,seed=7");
    let client = Client::connect(&address).expect("the box serves it");
    for round in 0..100 {
        assert_eq!(client.add(0, 1), round);
    }
    let record = interrupt(running).json();
    assert!(counter(&record, "to_node_again") + counter(&record, "duplicates") > 0, "{record:#}");
}

/// A relaying box passes on the packets of both ends, so each plan of packets strikes as on a cable.
#[test]
fn built_in_plans_strike_a_relayed_connection() {
    let bytes: Vec<u8> = (0..MESSAGE_BYTES).map(|at| (at * 7 + 3) as u8).collect();
    let folder = tempfile::tempdir().expect("a folder");
    for file in FAULT_PLANS {
        let plan = FaultPlan::from_toml(file.path, file.text).expect("built-in plans are valid");
        if plan.strikes_calls() || plan.orders_port() {
            continue; // a middlebox has neither calls nor a port
        }
        let journal = folder.path().join(file.name);
        let capture = journal.with_extension("pcap");
        let files = format!("--fault-journal {} --pcap {}", journal.display(), capture.display());
        let options = format!("--relay --json --fault-plan {} {files}", file.name);
        let (running, address) = start(memory_node(), &options);
        // The PSN wraps within the first message, as the plan psn-wrap needs.
        let device = Device::open().expect("a device");
        let client = Client::connect_from(&device, Psn::new(Psn::MASK - 1), &address).expect("the box serves it");
        client.write(0, &bytes);
        assert_eq!(client.read(0, MESSAGE_BYTES), bytes, "{}", file.name);
        for round in 0..4 {
            assert_eq!(client.add(MESSAGE_BYTES as u64, 1), round, "{}: an operation ran twice", file.name);
        }
        let finished = interrupt(running);
        assert!(!finished.stderr.contains("never fired"), "{}: {}", file.name, finished.stderr);
        let fired = std::fs::read_to_string(journal).expect("the box writes its journal");
        assert!(fired.starts_with("{\"rule\":"), "{}: {fired:?}", file.name);
        let bytes = std::fs::read(capture).expect("the box writes its capture");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(&format!("doorbell fault plan: {plan}")), "{}", file.name);
        let is_dropped = text.contains("doorbell fault: dropped, rule 1 ");
        assert!(is_dropped || !file.name.starts_with("lost-"), "{}: no frame names the rule", file.name);
        assert_eq!(number(&finished.json(), "/clients/served"), 1, "{}", file.name);
    }
}

#[test]
fn a_box_ends_after_its_duration() {
    let (running, _) = start(memory_node(), "--json -D 0.1");
    let record = running.finish().expect_status(0).json();
    assert_eq!(number(&record, "/clients/served"), 0, "{record:#}");
}

/// Returns perftest's line about a queue pair.
fn line(qpn: u32, psn: u32, rkey: u32, host: u8) -> Vec<u8> {
    let gid: String =
        [&[0; 10][..], &[0xff, 0xff, 127, 0, 0, host]].concat().iter().map(|b| format!("{b:02x}:")).collect();
    format!("0000:0010:{qpn:06x}:{psn:06x}:{rkey:08x}:000055e95926c000:{gid}00000000:\0").into_bytes()
}

/// Returns the client's and the server's connection with the box, after all bytes that perftest sends before its lines.
pub(crate) fn perftest(servers: &TcpListener, address: &str, mtus: [&[u8]; 2]) -> [TcpStream; 2] {
    const VERSION: &[u8] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut client = TcpStream::connect(address).expect("the box listens");
    client.write_all(VERSION).expect("the connection is open"); // the box connects to the server after the version
    let ends = [client, accept(servers)];
    for end in &ends {
        end.set_read_timeout(Some(PATIENCE)).expect("a time");
    }
    assert_eq!(hear(&ends[1], VERSION.len()), VERSION);
    pass(&ends[0], &ends[1], mtus[0], mtus[0]);
    pass(&ends[1], &ends[0], mtus[1], mtus[1]);
    ends
}

/// Accepts the connection of the box, which must come soon.
fn accept(servers: &TcpListener) -> TcpStream {
    servers.set_nonblocking(true).expect("the mode can be set");
    let until = Instant::now() + SOON;
    loop {
        match servers.accept() {
            Ok((stream, _)) => return stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => {
                sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("the box does not come: {error}"),
        }
    }
}

fn pass(mut from: &TcpStream, to: &TcpStream, said: &[u8], expected: &[u8]) {
    from.write_all(said).expect("the connection is open");
    assert_eq!(hear(to, expected.len()), expected);
}

fn hear(mut at: &TcpStream, bytes: usize) -> Vec<u8> {
    let mut heard = vec![0; bytes];
    at.read_exact(&mut heard).expect("the box forwards the bytes");
    heard
}

/// The test sends the messages of perftest. `cargo xtask programs box` runs the programs of perftest.
#[test]
fn perftest_gets_the_boxs_queue_pairs_in_place_of_its_own() {
    let servers = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let node = servers.local_addr().expect("a bound socket has an address");
    let mut running = Running::start(doorbell(&format!("steer {node} --perftest -p 0 --json")));
    let address = running.text_after("serving clients at ");
    let host: u8 = address.split(['.', ':']).nth(3).and_then(|host| host.parse().ok()).expect("an address of loopback");

    let [client, server] = perftest(&servers, &address, [b"3\0", b"5\0"]);
    let (of_client, of_server) = (line(0x02_007a, 0x88_b8d5, 0x4b46_8481, 201), line(0x02_2dea, 7, 0x1234_5678, 202));
    (&client).write_all(&of_client).expect("the connection is open");
    let to_server = hear(&server, of_client.len());
    (&server).write_all(&of_server).expect("the connection is open");
    let to_client = hear(&client, of_server.len());
    let box_line = line(0, 0, 0, host);
    for (told, own) in [(&to_server, &of_client), (&to_client, &of_server)] {
        assert_ne!(told[10..16], own[10..16], "the number is the box's");
        assert_eq!(
            (&told[50..97], &told[33..49]),
            (&box_line[50..97], &own[33..49]),
            "the GID of the box, and the memory address of the program"
        );
    }
    assert_ne!(to_server[17..23], of_client[17..23], "the PSN is the box's");
    assert_ne!(to_client[24..32], of_server[24..32], "the key is the box's");
    // A program repeats its line to wait for the other program. Bytes outside of lines pass unchanged, even if they
    // look like the start of a line.
    pass(&client, &server, &of_client, &to_server);
    pass(&server, &client, &of_server, &to_client);
    pass(&client, &server, b"\x01\x02\x030", b"\x01\x02\x030");
    drop((client, server));

    let [_client, server] = perftest(&servers, &address, [b"3\0", b"3\0"]);
    (&server).write_all(&of_server).expect("the connection is open");
    running.wait_for("perftest's server names a queue pair out of turn");
    let [client, _server] = perftest(&servers, &address, [b"9\0", b"3\0"]);
    (&client).write_all(&of_client).expect("the connection is open");
    running.wait_for("perftest does not send its path MTU");
    let [client, _server] = perftest(&servers, &address, [b"3\0", b"3\0"]);
    (&client).write_all(&line(1, 0, 0, host)).expect("the connection is open");
    running.wait_for("cannot send to this address");
    let record = interrupt(running).json();
    assert_eq!((number(&record, "/clients/served"), number(&record, "/clients/refused")), (1, 3), "{record:#}");
    assert_eq!(counter(&record, "node_failures"), 0, "{record:#}");
}

#[test]
fn unservable_requests_are_rejected_with_an_error() {
    run("steer").expect_complaint(2, &["<NODE>"]);
    run("steer 127.0.0.1 --clients 0").expect_complaint(2, &["--clients is 0, allowed is 1 to 32768"]);
    run("steer 127.0.0.1 --reads 0").expect_complaint(2, &["--reads is 0, allowed is 1 to 255"]);
    run("steer 127.0.0.1 --patience 0").expect_complaint(2, &["--patience is 0 s, allowed is 10ms to an hour"]);
    run("steer 127.0.0.1 --perftest --exclusive").expect_complaint(2, &["--perftest", "--exclusive"]);
    run("steer 127.0.0.1 --store nodes").expect_complaint(2, &["nodes=N, keys=N"]);
    let (deaf, _streams) = crate::command::address_without_a_listener();
    run(&format!("steer {deaf}")).expect_complaint(1, &["cannot connect to", "does a memory node set up queue pairs"]);
    // Another service listens at the address of the node.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the box comes");
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").expect("the connection is open");
        let _ = stream.read(&mut [0; 256]);
    });
    run(&format!("steer {address}")).expect_complaint(1, &["does not speak Doorbell's set-up"]);
    other.join().expect("the thread does not panic");
    let node = memory_node();
    run(&format!("steer {node} --store nodes=1M"))
        .expect_complaint(1, &[&format!("has {BYTES} bytes, a store of these sizes needs")]);

    let (mut running, address) = start(node, "");
    let device = Device::open().expect("a device");
    let address: SocketAddr = address.parse().expect("an address and a port");
    device
        .connect(address, Options::of(SendReceive), SOON)
        .map(drop)
        .expect_err("a box accepts no connection of messages");
    running.wait_for("sets up a connection of messages; a box takes queue pairs for READ, WRITE and atomics");
    // A second box in front of a box fails only if both have the same address.
    let own: IpAddr = address.ip();
    let second = run(&format!("steer {address} --bind {own}"));
    second.expect_complaint(1, &[&format!("UDP port 4791 of {own} is taken")]);
    let finished = interrupt(running);
    // The first box may have refused the second box, which connects before it finds the UDP port taken.
    assert!(finished.stdout.contains("  clients refused"), "{}", finished.stdout);
}
