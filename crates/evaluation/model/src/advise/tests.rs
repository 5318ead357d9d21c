use proptest::prelude::*;

use super::*;
use crate::workload::MAX_BYTES;

fn names(all: &[Advice]) -> Vec<&str> {
    all.iter().map(|advice| advice.protocol.name()).collect()
}

fn on_t1(need: &Need) -> Vec<Advice> {
    advise(&Parameters::t1(), need).unwrap()
}

#[test]
fn only_large_messages_are_placed_by_the_receiver() {
    let small = on_t1(&Need { receiver_places: true, ..Need::new(16, Goal::Latency) });
    assert!(!places(small[0].protocol), "{small:#?}");
    let direct = small.iter().find(|advice| advice.protocol.name() == "direct-read").unwrap();
    assert!(direct.latency_ns > 2.0 * small[0].latency_ns);
    assert!(direct.reason.contains("times the latency of the first"), "{}", direct.reason);

    let large = on_t1(&Need { receiver_places: true, ..Need::new(1 << 20, Goal::Throughput) });
    assert!(places(large[0].protocol), "{:?}", names(&large));
    assert_eq!(large[0].binding, BoundKind::Link);
    assert!(large[0].reason.contains("lands where it belongs"), "{}", large[0].reason);
    assert!(large[0].receiver_bytes < 1 << 20, "requests only");
    // A receiver that chooses no destinations cannot use Direct-Read.
    assert!(!names(&on_t1(&Need::new(1 << 20, Goal::Throughput))).iter().any(|name| name.starts_with("direct-read")));
}

#[test]
fn throughput_advice_uses_batches_and_latency_advice_none() {
    let of = |goal| {
        let all = on_t1(&Need { receiver_holds: true, receiver_sleeps: true, ..Need::new(64, goal) });
        assert_eq!(names(&all), ["send-receive"]);
        all[0].clone()
    };
    let (fast, quick) = (of(Goal::Throughput), of(Goal::Latency));
    assert!(fast.batch > 1 && fast.window >= 32, "{fast:?}");
    assert_eq!(quick.batch, 1);
    assert!(fast.messages_per_s > 1.5 * quick.messages_per_s);
    // A window of one message suffices for the offered rate, since 100 k messages/s are one message per 10 us.
    let need = Need {
        messages_per_s: Some(1e5),
        receiver_holds: true,
        receiver_sleeps: true,
        ..Need::new(64, Goal::Throughput)
    };
    let slow = &on_t1(&need)[0];
    assert_eq!((slow.window, slow.batch), (1, 1), "{slow:?}");
    assert!(slow.reason.contains("times the rate"), "{}", slow.reason);
}

#[test]
fn protocols_below_the_rate_come_last_with_the_reason() {
    let all =
        on_t1(&Need { messages_per_s: Some(30e6), peers: Peers::many_to_one(16), ..Need::new(64, Goal::Latency) });
    let fails: Vec<bool> = all.iter().map(|advice| advice.messages_per_s < 30e6).collect();
    assert!(fails.is_sorted() && fails.contains(&true) && !fails[0], "{fails:?}");
    let last = all.last().unwrap();
    let binds = answer::binds(last.binding);
    let share = format!("reaches only {:.0} % of the rate: {binds}", last.messages_per_s / 3e5);
    assert!(last.reason.contains(&share), "{}", last.reason);
}

#[test]
fn slow_shared_receive_queues_are_not_advised() {
    let of = |bytes, connections, memory_bytes| {
        let peers = Peers { senders: 16, receivers: 1, connections };
        let need = Need { peers, memory_bytes, receiver_holds: true, ..Need::new(bytes, Goal::Throughput) };
        on_t1(&need).into_iter().find(|advice| advice.protocol == Protocol::SendReceive).unwrap()
    };
    for bytes in [33, 512, 4096] {
        let advice = of(bytes, 16, None);
        assert!(!advice.srq, "{bytes}: {advice:?}");
        assert!(advice.reason.contains("it would hold messages of this size to 2.00 M/s"), "{}", advice.reason);
    }
    for bytes in [16, 32, 6085, 65_536] {
        assert!(!of(bytes, 16, None).reason.contains("messages of this size"), "{bytes}");
    }
    // If the memory suffices only for a shared queue, the reason states the rate limit of the queue.
    let forced = of(4096, 1024, Some(6 << 20));
    assert!(forced.srq && forced.messages_per_s <= 2e6 * 1.001, "{forced:?}");
    assert!(forced.depth >= 1024, "each connection has a buffer of the queue: {forced:?}");
    assert!(forced.reason.contains("the shared receive queue holds messages of this size"), "{}", forced.reason);
}

#[test]
fn small_messages_in_batches_are_bound_by_the_nic() {
    let of = |peers| {
        let need = Need { peers, receiver_holds: true, receiver_sleeps: true, ..Need::new(16, Goal::Throughput) };
        on_t1(&need)[0].clone()
    };
    let one = of(Peers::ONE_TO_ONE);
    assert_eq!((one.protocol, one.binding), (Protocol::SendReceive, BoundKind::SendingUnits), "{one:?}");
    let many = of(Peers::pairs(16));
    assert_eq!((many.protocol, many.binding), (Protocol::SendReceive, BoundKind::SendingCeiling), "{many:?}");
    assert!(many.reason.contains("sending NIC's ceiling binds"), "{}", many.reason);
}

#[test]
fn little_memory_shares_receive_queues_or_shrinks_windows() {
    let need = Need { receiver_holds: true, peers: Peers::many_to_one(64), ..Need::new(16_384, Goal::Throughput) };
    let plenty = on_t1(&need);
    let of = |all: &[Advice]| all.iter().find(|advice| advice.protocol == Protocol::SendReceive).unwrap().clone();
    let largest = plenty.iter().map(|advice| advice.receiver_bytes).max().unwrap();
    // Without a shared queue, 64 receives of 16 KiB for each of 64 senders would need 64 MiB.
    let little = on_t1(&Need { memory_bytes: Some(8 << 20), ..need.clone() });
    assert!(of(&little).srq && of(&little).reason.contains("does not grow with connections"), "{little:#?}");
    assert!(little.iter().all(|advice| advice.sender_bytes.max(advice.receiver_bytes) <= 8 << 20));
    assert!(largest > 4 << 20);
    let none = advise(&Parameters::t1(), &Need { memory_bytes: Some(1 << 10), ..need });
    let text = none.expect_err("1 KiB is too little").to_string();
    assert!(text.starts_with("the memory of a thread is 1024 B, and the least that any protocol needs is "), "{text}");
}

#[test]
fn requests_with_replies_share_no_receive_queue() {
    let one_way = Need { receiver_holds: true, peers: Peers::many_to_one(64), ..Need::new(16_384, Goal::Throughput) };
    let shared = |need: &Need| {
        let candidates = candidates(&Parameters::t1(), need, Receives::Any).unwrap();
        candidates.into_iter().filter(|advice| advice.srq).count()
    };
    assert!(shared(&one_way) > 0);
    let answered = Need { reply_bytes: Some(64), ..one_way };
    assert_eq!(shared(&answered), 0);
    let answer = answer(&Parameters::t1(), &answered).unwrap();
    assert!(answer.changes.iter().all(|change| change.what != "with an SRQ"), "{:#?}", answer.changes);
}

#[test]
fn clients_have_buffers_for_replies_of_their_own() {
    let need = Need {
        reply_bytes: Some(4096),
        peers: Peers::many_to_one(2),
        window: Some(16),
        ..Need::new(4096, Goal::Throughput)
    };
    let of = |protocol: Protocol, shares: bool| {
        candidate(&Parameters::t1(), &need, protocol, 16, 1, shares).unwrap().sender_bytes
    };
    // The shared ring of the server has other sizes than the ring that a client has for its replies.
    assert_eq!(of(Protocol::SharedWrite, true), of(Protocol::SharedWrite, false));
}

#[test]
fn windows_are_those_of_connections() {
    assert_eq!(MOST_WINDOW as usize, doorbell_record::most_queued(1));
    let need = Need { window: Some(MOST_WINDOW), peers: Peers::many_to_one(8), ..Need::new(64, Goal::Throughput) };
    assert!(on_t1(&need).iter().all(|advice| advice.depth <= MOST_WINDOW));
    let more = Need { window: Some(MOST_WINDOW + 1), ..need };
    let error = advise(&Parameters::t1(), &more).expect_err("too many").to_string();
    assert_eq!(error, "the number of outstanding messages is 16385, allowed is 1 to 16384");
}

#[test]
fn a_mix_of_sizes_lies_between_them() {
    let rate = |sizes: Vec<(u64, f64)>| {
        let need = Need { sizes, receiver_holds: true, ..Need::new(0, Goal::Throughput) };
        let advice = on_t1(&need).into_iter().find(|advice| advice.protocol == Protocol::SendReceive).unwrap();
        (advice.latency_ns, advice.messages_per_s)
    };
    let (small, mixed, large) = (rate(vec![(64, 1.0)]), rate(vec![(64, 9.0), (8192, 1.0)]), rate(vec![(8192, 3.0)]));
    assert!(small.0 < mixed.0 && mixed.0 < large.0);
    assert!(small.1 > mixed.1 && mixed.1 > large.1);
    assert!((mixed.0 - (0.9 * small.0 + 0.1 * large.0)).abs() < 1e-6);
}

#[test]
fn zero_copy_protocols_come_first_among_equals() {
    for goal in [Goal::Latency, Goal::Throughput] {
        let all = on_t1(&Need { receiver_places: true, ..Need::new(1 << 20, goal) });
        let copies: Vec<bool> = all.iter().map(|advice| !places(advice.protocol)).collect();
        assert!(copies.is_sorted() && !copies[0], "{:?}", names(&all));
        assert!(all[0].window <= 4, "consecutive READs of 1 MiB need no window: {:?}", all[0]);
    }
}

#[test]
fn the_longest_messages_have_protocols_too() {
    let all = on_t1(&Need { receiver_places: true, ..Need::new(MAX_BYTES, Goal::Throughput) });
    assert!(names(&all).contains(&"buffered-read"));
    // Such a message takes so long that one at a time nearly fills the link.
    let most = all.iter().map(|advice| advice.messages_per_s).fold(0.0, f64::max);
    let fills = |advice: &Advice| {
        (advice.binding == BoundKind::Link || advice.window == 1) && advice.messages_per_s > 0.999 * most
    };
    // The sender of Buffered-Read copies each message, and the receiver of the reverse Buffered-Write clears its
    // memory. Both are slower than the line.
    let copies = |advice: &Advice| match advice.protocol {
        Protocol::BufferedRead => advice.binding == BoundKind::SendingCpu,
        Protocol::BufferedWriteReverseSend | Protocol::BufferedWriteReverseRead => {
            advice.binding == BoundKind::ReceivingCpu
        }
        _ => false,
    };
    assert!(all.iter().all(|advice| copies(advice) || fills(advice)), "{all:#?}");
}

#[test]
fn needs_that_make_no_sense_are_refused() {
    let refused = |need: &Need| advise(&Parameters::t1(), need).expect_err("no sense").to_string();
    let good = Need::new(16, Goal::Latency);
    assert_eq!(
        refused(&Need { sizes: vec![], ..good.clone() }),
        "the number of message sizes is 0, allowed is 1 to 1024"
    );
    assert!(refused(&Need { sizes: vec![(1, f64::NAN)], ..good.clone() }).contains("weight of a message size is NaN"));
    assert!(refused(&Need { messages_per_s: Some(-1.0), ..good.clone() }).contains("the rate is -1 messages/s"));
    assert!(
        refused(&Need { sizes: vec![(1 << 40, 1.0)], ..good.clone() }).contains("the message size is 1099511627776")
    );
    assert!(
        refused(&Need { window: Some(0), ..good.clone() })
            .contains("the number of outstanding messages is 0, allowed is 1 to 16384")
    );
    for reply_bytes in [None, Some(1)] {
        let messages_per_s = reply_bytes.map(|_| 1.0);
        let error = refused(&Need { think_us: 5, reply_bytes, messages_per_s, ..good.clone() });
        let allowed = "0 us for messages without replies, and for requests with a rate";
        assert_eq!(error, format!("the think time is 5 us, allowed is {allowed}"));
    }
    let both = Need { bidirectional: true, reply_bytes: Some(1), ..good.clone() };
    assert!(refused(&both).contains("sending from both sides is on, allowed is off for messages with replies"));
    let peers = Peers { senders: 0, receivers: 0, connections: 0 };
    assert!(refused(&Need { peers, ..good }).contains("the number of senders is 0"));
}

#[test]
fn replies_to_many_clients_are_bound_by_the_link_from_the_server() {
    let need = Need {
        reply_bytes: Some(65_536),
        peers: Peers::many_to_one(24),
        window: Some(16),
        ..Need::new(200, Goal::Throughput)
    };
    let all = on_t1(&need);
    let first = &all[0];
    assert!(all.iter().all(|advice| advice.window == 16), "{all:#?}");
    assert_eq!(first.binding, BoundKind::LinkBackward, "{first:#?}");
    // Little's law for 24 clients with 16 outstanding requests.
    let loaded_ns = first.loaded_ns.expect("full windows");
    assert!((loaded_ns * first.messages_per_s / 1e9 / 384.0 - 1.0).abs() < 1e-9, "{first:#?}");
    assert!(loaded_ns > 10.0 * first.latency_ns);
    // The server has the buffers of all clients, of which each sends its replies from its own.
    let send_receive = all.iter().find(|advice| advice.protocol == Protocol::SendReceive).unwrap();
    assert!(send_receive.receiver_bytes >= 24 * 16 * 65_536, "{send_receive:#?}");
    assert!(send_receive.sender_bytes < send_receive.receiver_bytes);
    // With a rate, the windows are not always full. A rate that is not reached lets ever more requests wait.
    let paced = on_t1(&Need { messages_per_s: Some(1000.0), ..need.clone() });
    for advice in paced.iter().filter(|advice| advice.messages_per_s > 1000.0) {
        let loaded_ns = advice.loaded_ns.expect("the rate is reached");
        assert!(loaded_ns >= advice.latency_ns && loaded_ns < 2.0 * advice.latency_ns, "{advice:#?}");
    }
    let beyond = on_t1(&Need { messages_per_s: Some(1e9), ..need.clone() });
    assert!(beyond.iter().all(|advice| advice.loaded_ns.is_none()), "{beyond:#?}");
    let one_way = on_t1(&Need { reply_bytes: None, messages_per_s: Some(1000.0), ..need });
    assert!(one_way.iter().all(|advice| advice.loaded_ns.is_none()), "{one_way:#?}");
}

#[test]
fn clients_that_think_wait_less_for_their_replies() {
    let need = Need {
        reply_bytes: Some(65_536),
        peers: Peers::many_to_one(24),
        window: Some(1),
        ..Need::new(200, Goal::Latency)
    };
    let [at_once, thinking] = [0, 1000].map(|think_us| on_t1(&Need { think_us, ..need.clone() })[0].clone());
    assert_eq!((at_once.binding, thinking.binding), (BoundKind::LinkBackward, BoundKind::RoundTrip));
    let [saturated_ns, idle_ns] = [&at_once, &thinking].map(|advice| advice.loaded_ns.expect("full windows"));
    assert!(idle_ns < 1.2 * thinking.latency_ns && saturated_ns > 5.0 * idle_ns, "{thinking:#?}");
    // Each of 24 clients sends a request in a little more than a millisecond.
    assert!((23_000.0..24_000.0).contains(&thinking.messages_per_s), "{thinking:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any need has a ranking within its memory, or an error.
    #[test]
    fn any_need_is_answered(
        sizes in prop::collection::vec((0..=MAX_BYTES, 0.01..100.0_f64), 1..4),
        rate in prop::option::of(1.0..1e9_f64),
        reply_bytes in prop::option::of(0..=MAX_BYTES),
        (senders, receivers, more) in (1..300_u32, 1..300_u32, 0..300_u32),
        (both, places, sleeps, holds, throughput) in any::<(bool, bool, bool, bool, bool)>(),
        memory in prop::option::of(0..1_u64 << 34),
    ) {
        let goal = if throughput { Goal::Throughput } else { Goal::Latency };
        let need = Need {
            sizes,
            messages_per_s: rate,
            reply_bytes,
            peers: Peers { senders, receivers, connections: senders.max(receivers) + more },
            bidirectional: both && reply_bytes.is_none(),
            receiver_places: places,
            receiver_sleeps: sleeps,
            receiver_holds: holds,
            memory_bytes: memory,
            ..Need::new(0, goal)
        };
        match advise(&Parameters::t1(), &need) {
            Ok(all) => {
                prop_assert!(!all.is_empty());
                for advice in &all {
                    prop_assert!(memory.is_none_or(|most| advice.memory_bytes() <= most));
                    prop_assert!(advice.latency_ns > 0.0 && advice.messages_per_s > 0.0 && !advice.reason.is_empty());
                    prop_assert!(advice.batch <= advice.window);
                }
            }
            Err(AdviseError::Memory { given, least }) => prop_assert!(given < least),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
