//! Effects of single packets and calls: refusals, error texts, and the fields of rewritten packets.

use crate::common::world::{KEY, NODE, Patience, World, address_of, address_of_box};
use doorbell_steer::{ClientEnd, Config, Limits, NodeEnd, Region, SetupError, Steer};
use doorbell_verbs_core::{Access, SendOperation, Status};
use doorbell_wire::{
    AETH_LEN, AethPacket, AtomicAckEthPacket, BTH_LEN, BthPacket, Opcode, Outer, PathMtu, Psn, Qpn, RKey, RethPacket,
};

const PATIENT: Patience = Patience { timeout: 14, retry_count: 7 };

fn world(clients: usize, exclusive: bool) -> World {
    let steer = Steer::new(Config { seed: 3, ..Config::at(address_of_box()) });
    let mut world = World::new(1, clients, 8192, 4096, steer, PathMtu::Mtu1024);
    world.exclusive = exclusive;
    world.attach();
    world
}

fn run(world: &mut World, index: usize) -> Vec<Status> {
    let mut statuses = Vec::new();
    for _ in 0..10_000 {
        statuses.extend(world.devices[index].reap().iter().map(|completion| completion.status));
        if !statuses.is_empty() || !world.step() {
            break;
        }
    }
    statuses
}

#[test]
fn a_refused_request_ends_only_its_clients_connection() {
    let cas = |remote_address| SendOperation::CompareSwap { remote_address, rkey: KEY, compare: 0, swap: 1 };
    let write = |remote_address, rkey| SendOperation::Write { remote_address, rkey };
    let mut world = world(6, false);
    let base = world.node_address(0);
    let node_key = world.devices[NODE].region.rkey();
    let (other, _) = world.connect(6, PATIENT);
    let wrong = [
        (write(base, RKey::new(KEY.get() + 1)), 8, Status::RemoteAccess),
        (write(base + 8190, KEY), 8, Status::RemoteAccess),
        // A client must not use the node's own remote key.
        (write(base, node_key), 8, Status::RemoteAccess),
        (cas(base + 4), 8, Status::RemoteInvalidRequest),
        (SendOperation::Send, 8, Status::RemoteInvalidRequest),
    ];
    for (at, (operation, length, status)) in wrong.into_iter().enumerate() {
        let (qpn, _) = world.connect(at + 1, PATIENT);
        world.post(at + 1, qpn, 1, operation, 0, length);
        world.post(6, other, 1, write(base + 64, KEY), 0, 8);
        assert_eq!(run(&mut world, at + 1), [status], "{operation:?}");
        assert_eq!(run(&mut world, 6), [Status::Success], "{operation:?} of one client affected the other");
    }
    let counters = world.steer.counters();
    assert_eq!((counters.refused_access, counters.refused_invalid, counters.node_failures), (3, 2, 0));
}

#[test]
fn clients_get_errors_when_their_node_is_gone() {
    let mut world = world(2, false);
    let (qpn, _) = world.connect(1, PATIENT);
    let (idle, _) = world.connect(2, PATIENT);
    world.devices[NODE].alive = false;
    let (remote_address, rkey) = (world.node_address(0), KEY);
    world.post(1, qpn, 1, SendOperation::Write { remote_address, rkey }, 0, 8);
    assert_eq!(run(&mut world, 1), [Status::RemoteOperation]);
    world.post(2, idle, 1, SendOperation::Read { remote_address, rkey }, 0, 8);
    assert_eq!(run(&mut world, 2), [Status::RemoteOperation]);
    assert!(!world.steer.is_attached());
    let end =
        ClientEnd { address: address_of(2), qpn: Qpn::new(5), first_psn: Psn::new(0), path_mtu: PathMtu::Mtu1024 };
    assert_eq!(world.steer.connect(end), Err(SetupError::NoNode));
}

fn outer(src: std::net::IpAddr, traffic_class: u8) -> Outer {
    let dst = address_of_box();
    Outer { src, dst, traffic_class, hop_limit: 64, identification: None, dont_fragment: None }
}

fn sent(steer: &mut Steer) -> Vec<(u8, Vec<u8>)> {
    let mut packets = Vec::new();
    steer.poll_transmit(|path, bytes| packets.push((path.traffic_class, bytes.to_vec())));
    packets
}

#[test]
fn a_cas_to_a_known_word_is_converted_to_a_write() {
    let mut world = world(1, true);
    let (qpn, at_box) = world.connect(1, PATIENT);
    let (remote_address, rkey) = (world.node_address(8), KEY);
    let cas = |compare, swap| SendOperation::CompareSwap { remote_address, rkey, compare, swap };
    world.post(1, qpn, 1, cas(0, 5), 0, 8);
    assert_eq!(run(&mut world, 1), [Status::Success]);
    assert_eq!(world.steer.counters().cas_converted, 0, "a CAS was converted before its value was known");
    // The first CAS must fail, the second must succeed.
    for (compare, swap, found, left) in [(9, 7, 5, 5), (5, 6, 5, 6)] {
        world.post(1, qpn, 1, cas(compare, swap), 0, 8);
        assert_eq!(run(&mut world, 1), [Status::Success]);
        assert_eq!(world.devices[1].memory.word(0), found, "the old value in the client's answer");
        assert_eq!(world.devices[NODE].memory.word(8), left, "the value in the node's memory");
    }
    assert_eq!(world.steer.counters().cas_converted, 2);
    // Build the packet of a further CAS by hand, with a congestion mark.
    let node_qpn = world.node_qpn;
    let mut packet = vec![0; BTH_LEN + 28];
    let psn = world.next_psn.add(3);
    let mut bth = BthPacket::new_unchecked(&mut packet[..]);
    bth.set_opcode(Opcode::RC_COMPARE_SWAP);
    bth.set_dest_qpn(at_box);
    bth.set_psn(psn);
    packet[12..20].copy_from_slice(&remote_address.to_be_bytes());
    packet[20..24].copy_from_slice(&KEY.get().to_be_bytes());
    packet[24..32].copy_from_slice(&77_u64.to_be_bytes());
    packet[32..40].copy_from_slice(&6_u64.to_be_bytes());
    world.steer.handle_packet(world.now_ns, &outer(address_of(1), 0x2b), &packet);
    let to_node = sent(&mut world.steer);
    let [(traffic_class, write)] = &to_node[..] else { panic!("expected one packet for the node: {to_node:x?}") };
    let bth = BthPacket::new_checked(&write[..]).expect("a whole packet");
    assert_eq!((bth.opcode(), bth.dest_qpn(), write.len()), (Opcode::RC_WRITE_ONLY, node_qpn, packet.len() - 4));
    assert_eq!(*traffic_class, 0x2b, "the congestion mark was lost");
    let reth = RethPacket::new_checked(&write[BTH_LEN..]).expect("a whole header");
    let region = &world.devices[NODE].region;
    assert_eq!((reth.virtual_address(), reth.rkey(), reth.dma_length()), (remote_address, region.rkey(), 8));
    assert_eq!(write[28..], 77_u64.to_le_bytes());
    // The node's ACK becomes the answer to an atomic.
    let mut ack = vec![0; BTH_LEN + AETH_LEN];
    let mut head = BthPacket::new_unchecked(&mut ack[..]);
    head.set_opcode(Opcode::XRC_ACKNOWLEDGE);
    head.set_dest_qpn(world.box_qpn);
    head.set_psn(bth.psn());
    ack[12] = 0x1f;
    world.steer.handle_packet(world.now_ns, &outer(address_of(NODE), 0), &ack);
    assert_eq!(sent(&mut world.steer), [], "an acknowledgement of another transport caused an answer");
    BthPacket::new_unchecked(&mut ack[..]).set_opcode(Opcode::RC_ACKNOWLEDGE);
    world.steer.handle_packet(world.now_ns, &outer(address_of(NODE), 0), &ack);
    let answers = sent(&mut world.steer);
    let [(_, answer)] = &answers[..] else { panic!("expected one packet for the client: {answers:x?}") };
    let bth = BthPacket::new_checked(&answer[..]).expect("a whole packet");
    assert_eq!((bth.opcode(), bth.dest_qpn(), bth.psn()), (Opcode::RC_ATOMIC_ACKNOWLEDGE, qpn, psn));
    assert_eq!(AethPacket::new_unchecked(&answer[BTH_LEN..]).msn().get(), 4, "MSN of the client's fourth request");
    assert_eq!(AtomicAckEthPacket::new_unchecked(&answer[BTH_LEN + AETH_LEN..]).original(), 6);
}

#[test]
fn unreadable_packets_are_passed_on_and_counted() {
    let mut world = world(1, false);
    let junk = [0xff; 9];
    world.steer.handle_packet(1, &outer(address_of(1), 0), &junk);
    let mut packets = Vec::new();
    world.steer.poll_transmit(|path, bytes| packets.push((path.source, path.destination, bytes.to_vec())));
    assert_eq!(packets, [(address_of_box(), address_of(NODE), junk.to_vec())]);
    // If the box is only on the path of a packet, the packet keeps its addresses.
    let through = Outer { dst: address_of(9), ..outer(address_of(1), 0) };
    world.steer.handle_packet(2, &through, &junk);
    world.steer.poll_transmit(|path, bytes| {
        assert_eq!((path.source, path.destination, bytes), (address_of(1), address_of(9), &junk[..]));
    });
    let sentences: Vec<_> = world.steer.counters().sentences().collect();
    assert!(sentences.contains(&(2, "packets that the box cannot read as RoCE v2 packets")), "{sentences:?}");
    assert!(sentences.contains(&(2, "packets passed through unchanged")), "{sentences:?}");
    // The packet belongs to a connection that the box relays after a call of `relay`.
    let (client_qpn, node_qpn) = (Qpn::new(0x51), Qpn::new(0x52));
    let mut packet = [0; 28];
    BthPacket::new_unchecked(&mut packet[..]).set_opcode(Opcode::RC_SEND_ONLY);
    for (from, to, dest_qpn) in [(1, NODE, node_qpn), (NODE, 1, client_qpn)] {
        BthPacket::new_unchecked(&mut packet[..]).set_dest_qpn(dest_qpn);
        world.steer.handle_packet(3, &outer(address_of(from), 0), &packet);
        assert_eq!(world.steer.poll_transmit(|_, _| ()), 0, "the packet passed before the connection was relayed");
        let (client, node) = ((address_of(1), client_qpn), (address_of(NODE), node_qpn));
        world.steer.relay(client, node).expect("there is room");
        world.steer.handle_packet(3, &outer(address_of(from), 0), &packet);
        let mut seen = Vec::new();
        world.steer.poll_transmit(|path, bytes| seen.push((path.destination, bytes.to_vec())));
        assert_eq!(seen, [(address_of(to), packet.to_vec())]);
        world.steer = Steer::new(Config { seed: 4, ..Config::at(address_of_box()) });
        world.attach();
    }
}

#[test]
fn an_incomplete_message_ends_its_clients_connection() {
    let mut world = world(1, false);
    let (_, at_box) = world.connect(1, PATIENT);
    let mut packet = vec![0; BTH_LEN + 16 + 1024];
    let mut bth = BthPacket::new_unchecked(&mut packet[..]);
    bth.set_opcode(Opcode::RC_WRITE_FIRST);
    bth.set_dest_qpn(at_box);
    bth.set_psn(world.next_psn);
    let mut reth = RethPacket::new_unchecked(&mut packet[BTH_LEN..]);
    reth.set_virtual_address(world.node_address(0));
    reth.set_rkey(KEY);
    reth.set_dma_length(2000);
    world.steer.handle_packet(1, &outer(address_of(1), 0), &packet);
    assert_eq!((sent(&mut world.steer).len(), world.steer.held().incomplete), (0, 1));
    let due_ns = world.steer.poll_timeout().expect("the box waits for the remaining packets");
    world.steer.handle_timeout(due_ns);
    assert_eq!(world.steer.held().bytes, 0);
    let answers = sent(&mut world.steer);
    assert_eq!(answers.len(), 1, "a NAK");
    assert_eq!(world.steer.poll_timeout(), None);
}

#[test]
fn full_tables_and_invalid_set_ups_are_refused() {
    let limits = Limits { clients: 1, regions: 1, ..Limits::default() };
    let mut steer = Steer::new(Config { limits, ..Config::at(address_of_box()) });
    let end =
        ClientEnd { address: address_of(1), qpn: Qpn::new(9), first_psn: Psn::new(0), path_mtu: PathMtu::Mtu1024 };
    let says = |result: Result<Qpn, SetupError>| result.expect_err("the call must fail").to_string();
    assert_eq!(says(steer.connect(end)), "the box has no queue pair with a memory node: attach one first");
    let node = NodeEnd::at(address_of(NODE), PathMtu::Mtu1024);
    steer.attach(node).expect("the node takes READs");
    let other = ClientEnd { path_mtu: PathMtu::Mtu4096, ..end };
    assert_eq!(
        says(steer.connect(other)),
        "the client's path MTU is 4096 bytes, the memory node's 1024 bytes: both must be equal"
    );
    let qpn = steer.connect(end).expect("there is room for one");
    assert_eq!(says(steer.connect(end)), "queue pair 0x9 of this client is connected already");
    let second = ClientEnd { qpn: Qpn::new(10), ..end };
    assert_eq!(says(steer.connect(second)), "the box has no room for another client (maximum 1)");
    assert!(steer.disconnect(qpn) && !steer.disconnect(qpn));
    assert_ne!(steer.connect(second), Ok(qpn), "the queue pair number was reused at once");
    let region = Region { rkey: KEY, node_rkey: KEY, address: 8, length: 8, access: Access::all(), exclusive: false };
    let says = |result: Result<(), SetupError>| result.expect_err("the call must fail").to_string();
    let beyond = Region { length: u64::MAX, ..region };
    assert_eq!(
        says(steer.add_region(beyond)),
        "a region of 18446744073709551615 bytes at 0x8 ends beyond the address space"
    );
    steer.add_region(region).expect("there is room for one");
    assert_eq!(says(steer.add_region(region)), "another region of the box has the key 0x77");
    let second = Region { rkey: RKey::new(1), ..region };
    assert_eq!(says(steer.add_region(second)), "the box has no room for another region (maximum 1)");
    assert_eq!(
        says(steer.attach(NodeEnd { max_rd_atomic: 0, ..node })),
        "the memory node must take at least one READ or atomic at a time (max_dest_rd_atomic is 0)"
    );
}
