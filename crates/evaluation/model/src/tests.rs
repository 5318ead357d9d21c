//! Tests of the predictions: the rows of testbed T1, and general properties.

use doorbell_protocols::Protocol;
use doorbell_wire::{OuterKind, PathMtu};
use proptest::prelude::*;

use crate::check::observations;
use crate::cost::{TERMS, Term};
use crate::explain::{explain, millions};
use crate::observation::{Quantity, Residual, residuals, srq_slow_sizes};
use crate::parameters::{Limits, Parameters, RnicKind};
use crate::predict::{Bound, BoundKind, Prediction, forms, predict};
use crate::setting::Setting;
use crate::workload::{MAX_BYTES, Peers, Workload};

/// Predicts a workload without credits, as on T1.
fn on_t1(workload: Workload) -> Prediction {
    predict(&Parameters::t1(), &Workload { credits: false, ..workload }).unwrap()
}

#[track_caller]
fn assert_near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found} is not within {share} of {expected}");
}

#[test]
fn base_latency_is_2_us_and_grows_by_200_ns_per_kb() {
    let small = on_t1(Workload::sequential(16)).latency_ns;
    // The sum of 0.12 + 0.02 + 1.9 + 0.02 + 0.052 us, 0.002 us for the payload in the completion, and the line time of
    // 97 bytes after the first.
    assert_near(small, 2114.0 + 97.0 * 0.1953125, 1e-9);
    let per_kb = (on_t1(Workload::sequential(4096)).latency_ns - on_t1(Workload::sequential(1024)).latency_ns) / 3.0;
    assert_near(per_kb, 200.0, 0.001);
}

/// The published slopes hold up to 8 KiB. Each further byte on the line takes the time of the line.
#[test]
fn long_messages_follow_the_line() {
    const MOST: u64 = 8192;
    // Each packet of 4096 B has 4178 bytes on the line, and the line carries 100 Gb/s.
    let line = |bytes: u64| bytes as f64 / 4096.0 * 4178.0 * 0.08;
    let latency = |bytes| on_t1(Workload::sequential(bytes)).latency_ns;
    for bytes in [64 << 10, 1 << 20] {
        assert_near(latency(bytes), latency(MOST) + line(bytes) - line(MOST), 1e-9);
    }
    assert_near(latency(1 << 20), latency(16) + line(1 << 20), 0.02);
    // The slope of the published range is unchanged, and no step follows it.
    assert_near((latency(MOST) - latency(4096)) / 4178.0, 0.1953125, 1e-9);
    assert_near(latency(MOST + 1), latency(MOST), 0.005);
    // The acknowledgement follows the last byte, so `g` has the same range.
    let gap = |bytes| on_t1(Workload::sequential(bytes)).bound(BoundKind::RoundTrip).unwrap().ns_per_message;
    assert_near(gap(MOST), 120.0 + 3400.0 + MOST as f64 * 0.1953125, 1e-9);
    assert_near(gap(1 << 20), gap(MOST) + line(1 << 20) - line(MOST), 1e-9);
    // The response of a READ has the payload.
    let read = |bytes| direct_read(Protocol::DirectRead, bytes, 1).latency_ns;
    assert_near(read(1 << 20), read(MOST) + line(1 << 20) - line(MOST), 1e-6);

    let t1 = Parameters::t1();
    let limits = Limits { slopes_up_to_bytes: None, ..t1.limits };
    let unlimited = predict(&Parameters { limits, ..t1 }, &Workload::sequential(1 << 20)).unwrap();
    assert!(unlimited.latency_ns > 200e3, "{}", unlimited.latency_ns);
}

#[test]
fn a_window_of_one_is_bound_by_the_round_trip() {
    let workload = Workload { credits: false, ..Workload::sequential(16) };
    let explanation = explain(&Parameters::t1(), &workload).unwrap();
    assert_eq!(explanation.bottleneck.binding.kind, BoundKind::RoundTrip);
    assert_eq!(explanation.bottleneck.next.unwrap().kind, BoundKind::SendingCpu);
    assert_near(explanation.bottleneck.factor, (0.12 + 3.4) / 0.12, 0.002);
    assert_eq!(
        explanation.sentence,
        "16 B, window 1: round trip (0.284 M messages/s); a window of 30 would reach the bound of the sending CPU"
    );
    // Throughput grows linearly with the window up to the next bound, and then stays constant.
    let rate = |window| on_t1(Workload::new(16, window, 1)).messages_per_s;
    assert_near(rate(29), 29.0 * rate(1), 1e-9);
    assert_eq!(on_t1(Workload::new(16, 30, 1)).bottleneck().binding.kind, BoundKind::SendingCpu);
    assert_eq!(rate(32), rate(256));
    assert_near(rate(32), 1e9 / 120.0, 1e-9);
}

#[test]
fn batches_gain_up_to_eight_per_post() {
    let cpu = |batch| on_t1(Workload::new(16, 256, batch)).bound(BoundKind::SendingCpu).unwrap().messages_per_s();
    assert_near(cpu(8), 1e9 / 16.0, 1e-9);
    assert!(cpu(1) < cpu(2) && cpu(2) < cpu(4) && cpu(4) < cpu(8));
    assert_eq!(cpu(8), cpu(64));
    assert_near(cpu(8) / cpu(1), 7.5, 1e-9); // about linear
}

/// The residuals of published testbed T1 are those of measurements. T1 carried about 14 M messages/s of 16 B in batches
/// of eight without a busy receiver. In the model, polls of one message each would limit the receiver to 14.7 M/s.
#[test]
fn published_latencies_and_rates_are_measurements() {
    let measured = observations(doorbell_claims::testbed("t1").unwrap());
    let all = residuals(&Parameters::t1(), &measured).unwrap();
    assert_eq!(all.len(), 20, "{all:?}");
    let is_explained = |name: &str| name.split_once(": ").is_some_and(|(id, _)| crate::check::lack_of(id).is_some());
    for residual in all.iter().filter(|residual| !is_explained(&residual.name)) {
        let most = if residual.quantity == Quantity::LatencyNs { 0.15 } else { 0.20 };
        assert!(residual.relative_error().abs() <= most, "{residual:?}");
    }
    let batched = all.iter().find(|residual| residual.name.starts_with("send-receive/batch-ceiling: ")).unwrap();
    assert_near(batched.measured, 14.26e6, 0.001);

    let one_by_one = on_t1(Workload { receive_batch: 1, repost_batch: 1, ..Workload::batched(16) });
    assert_eq!(one_by_one.bottleneck().binding.kind, BoundKind::SendingUnits);
    let receiver = one_by_one.bound(BoundKind::ReceivingCpu).unwrap();
    assert_near(receiver.ns_per_message, 52.0 + 16.0 + 2.0, 1e-9);
}

/// Connections share the few units of a NIC, and all units together have a ceiling.
#[test]
fn a_nic_has_a_few_units_and_a_ceiling() {
    let batched = |count| on_t1(Workload { peers: Peers::pairs(count), ..Workload::batched(16) });
    let kind = |count| batched(count).bottleneck().binding.kind;
    assert_near(batched(1).messages_per_s, 1e9 / 71.0, 1e-9);
    assert_near(batched(3).messages_per_s, 3e9 / 71.0, 1e-9);
    assert_eq!((kind(1), kind(3)), (BoundKind::SendingUnits, BoundKind::SendingUnits));
    for count in [4, 16, 1000] {
        assert_near(batched(count).messages_per_s, 50e6, 1e-9);
        assert_eq!(kind(count), BoundKind::SendingCeiling);
        let units = batched(count).bound(BoundKind::SendingUnits).unwrap();
        assert_near(units.ns_per_message, 71.0 / 4.0, 1e-9);
    }
    // Threads that post single requests also reach the ceiling.
    let threads = on_t1(Workload { peers: Peers::pairs(16), ..Workload::unbatched(16) });
    assert_eq!(threads.bottleneck().binding.kind, BoundKind::SendingCeiling);
}

/// A receiver needs more CPU time with many queue pairs and for messages in completions. A shared queue avoids the CPU
/// time of many queue pairs.
#[test]
fn a_receiver_slows_down_with_its_queue_pairs() {
    let many = |count, bytes, srq| {
        let peers = Peers::many_to_one(count);
        let prediction =
            on_t1(Workload { peers, srq, receive_batch: 1, repost_batch: 1, ..Workload::unbatched(bytes) });
        prediction.bound(BoundKind::ReceivingCpu).unwrap().ns_per_message
    };
    assert_near(many(1, 512, false), 68.0, 1e-9);
    assert_near(many(16, 512, false), 68.0 + 4.0 * 3.0, 1e-9);
    assert_near(many(16, 16, false), 70.0 + 4.0 * 3.0, 1e-9);
    assert_near(many(16, 16, true), 70.0, 1e-9);
    let pairs = on_t1(Workload { peers: Peers::pairs(16), ..Workload::unbatched(16) });
    assert_near(pairs.bound(BoundKind::ReceivingCpu).unwrap().ns_per_message, (17.0 + 7.0 + 2.0) / 16.0, 1e-9);
}

/// A READ occupies both NICs in both directions, and its latency includes two crossings of the link.
#[test]
fn a_read_occupies_both_nics_twice() {
    let prediction = direct_read(Protocol::DirectRead, 16, 32);
    // The sender sends the request and the READ response, and receives the READ request and the signal byte.
    for kind in [BoundKind::SendingUnits, BoundKind::ReceivingUnits] {
        assert_near(prediction.bound(kind).unwrap().ns_per_message, 2.0 * 71.0, 1e-9);
    }
    let crossings = prediction.latency_parts.iter().find(|part| part.name == "L").unwrap().ns;
    assert_near(crossings, 3.0 * 1900.0, 1e-9);
}

/// Each parameter, if large enough, makes its own resource the bottleneck.
#[test]
fn each_parameter_moves_its_own_bottleneck() {
    let t1 = Parameters::t1();
    let plain = Workload { credits: false, ..Workload::batched(16) };
    let threads = Workload { peers: Peers::pairs(16), ..plain };
    let many = Workload { peers: Peers::many_to_one(16), srq: true, bytes: 512, ..plain };
    let shared = Workload { protocol: Protocol::SharedWrite, ..plain };
    let reads = Workload { protocol: Protocol::DirectRead, ..plain };
    for (term, workload, kinds) in [
        (Term::SendEach, plain, &[BoundKind::SendingCpu][..]),
        (Term::ReceiveEach, plain, &[BoundKind::ReceivingCpu]),
        (Term::RepostEach, plain, &[BoundKind::ReceivingCpu]),
        (Term::InlineReceive, plain, &[BoundKind::ReceivingCpu]),
        (Term::ManyPairs, Workload { srq: false, ..many }, &[BoundKind::ReceivingCpu]),
        (Term::NicSend, plain, &[BoundKind::SendingNic]),
        (Term::NicReceive, plain, &[BoundKind::ReceivingNic]),
        (Term::NicUnit, threads, &[BoundKind::SendingUnits, BoundKind::ReceivingUnits]),
        (Term::NicWhole, threads, &[BoundKind::SendingCeiling, BoundKind::ReceivingCeiling]),
        (Term::GapFixed, plain, &[BoundKind::RoundTrip]),
        (Term::BandwidthPerByte, Workload { bytes: 8192, ..threads }, &[BoundKind::Link]),
        (Term::SharedQueue, many, &[BoundKind::Srq]),
        (Term::RepostThread, Workload { repost_thread: true, ..many }, &[BoundKind::RepostThread]),
        (Term::AtomicPair, shared, &[BoundKind::Atomics]),
        (Term::AtomicAddress, shared, &[BoundKind::AtomicsOnAddress]),
        (Term::Latency, reads, &[BoundKind::ReadsInFlight, BoundKind::RoundTrip]),
    ] {
        let mut values = t1.values();
        values[term as usize] *= 1e4;
        let perturbed = predict(&t1.with_values(&values), &workload).unwrap();
        let found = perturbed.bottleneck().binding.kind;
        assert!(kinds.contains(&found), "{term:?}: {found}");
    }
}

#[test]
fn latency_parts_add_up_for_every_protocol() {
    for parameters in [Parameters::t1(), Parameters::starting_point(RnicKind::Software)] {
        for protocol in Protocol::ALL {
            for bytes in [0, 16, 8192] {
                let workload = Workload { protocol, ..Workload::unbatched(bytes) };
                let Prediction { latency_ns, latency_parts, .. } = predict(&parameters, &workload).unwrap();
                assert_near(latency_parts.iter().map(|part| part.ns).sum(), latency_ns, 1e-9);
                assert!(latency_parts.iter().all(|part| part.ns > 0.0), "{protocol}: {latency_parts:?}");
                let mut names: Vec<&str> = latency_parts.iter().map(|part| part.name).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), latency_parts.len(), "{protocol}: {latency_parts:?}");
                assert!(names.contains(&"L") && names.contains(&"o_snd"), "{protocol}: {names:?}");
            }
        }
    }
}

#[test]
fn only_large_windowed_messages_reach_line_rate() {
    let gbit_per_s = |workload: Workload| on_t1(workload).bytes_per_s * 8.0 / 1e9;
    assert!(gbit_per_s(Workload::sequential(8192)) < 20.0);
    assert!(gbit_per_s(Workload::unbatched(8192)) > 95.0);
    assert!(gbit_per_s(Workload::unbatched(1 << 20)) > 97.9);
    assert_eq!(on_t1(Workload::unbatched(1 << 20)).bottleneck().binding.kind, BoundKind::Link);
    // Throughput is linear in size while the sending CPU is the bottleneck.
    assert_near(gbit_per_s(Workload::unbatched(512)), 32.0 * gbit_per_s(Workload::unbatched(16)), 1e-9);
    // One larger message is faster than several small ones in a batch.
    assert!(gbit_per_s(Workload::batched(128)) > 4.0 * gbit_per_s(Workload::batched(16)));
}

#[test]
fn many_threads_reach_line_rate() {
    let threads = |bytes| on_t1(Workload { peers: Peers::pairs(64), ..Workload::unbatched(bytes) });
    // 512 payload bytes, 58 header bytes and 24 bytes of preamble, FCS and gap are 594 line bytes.
    let half_kb = threads(512);
    assert_eq!(half_kb.bottleneck().binding.kind, BoundKind::Link);
    assert_near(half_kb.messages_per_s, 1e11 / 8.0 / 594.0, 1e-9);
    assert_near(half_kb.messages_per_s, 21.0e6, 0.003);
    assert!(threads(16).messages_per_s > 2.0 * half_kb.messages_per_s);
    assert_near(threads(8192).bytes_per_s * 8.0, 98.0e9, 0.001);
    assert_eq!(threads(8192).bottleneck().binding.kind, BoundKind::Link);
    // Throughput is linear at first.
    let few = |count| on_t1(Workload { peers: Peers::pairs(count), ..Workload::unbatched(16) }).messages_per_s;
    assert_near(few(2), 2.0 * few(1), 1e-9);
}

#[test]
fn a_shared_receive_queue_is_slow_between_32_b_and_6_kb() {
    let t1 = Parameters::t1();
    let shared = |bytes, peers| on_t1(Workload { srq: true, peers, ..Workload::unbatched(bytes) });
    assert_eq!(shared(33, Peers::pairs(8)).bottleneck().binding.kind, BoundKind::Srq);
    // One of eight messages follows a message of its own queue pair.
    assert_near(shared(33, Peers::pairs(8)).messages_per_s, 2e6 * 8.0 / 7.0, 1e-9);
    assert_eq!(shared(32, Peers::pairs(8)).bound(BoundKind::Srq), None);
    assert_eq!(shared(512, Peers::ONE_TO_ONE).bound(BoundKind::Srq), None, "one queue pair has no such limit");
    assert_eq!(shared(8192, Peers::pairs(8)).bottleneck().binding.kind, BoundKind::Link);
    let (above, below) = srq_slow_sizes(&t1).unwrap();
    assert_eq!(above, 32);
    // In 500 ns the line carries 6250 bytes, of which 164 are headers of two packets.
    assert_eq!(below, 6085, "6085 B are padded to 6088 B, and 6084 B stay as they are");
    let peers = Peers::pairs(8);
    let thread = on_t1(Workload { srq: true, repost_thread: true, peers, ..Workload::unbatched(16) });
    assert_eq!(thread.bottleneck().binding.kind, BoundKind::RepostThread);
    assert_near(thread.messages_per_s, 1.8e6, 0.002);
}

#[test]
fn many_to_one_is_bound_by_the_receiving_cpu_or_the_link() {
    let many = |bytes| on_t1(Workload { peers: Peers::many_to_one(16), ..Workload::unbatched(bytes) });
    assert_eq!(many(16).bottleneck().binding.kind, BoundKind::ReceivingCpu);
    assert_eq!(many(8192).bottleneck().binding.kind, BoundKind::Link);
}

fn direct_read(protocol: Protocol, bytes: u64, window: u32) -> Prediction {
    on_t1(Workload { protocol, ..Workload::new(bytes, window, 1) })
}

#[test]
fn direct_read_pays_three_crossings_and_a_fence_serialises_it() {
    use Protocol::{DirectRead as Unfenced, DirectReadFenced as Early, DirectReadFencedAwaited as Fenced};
    let small = direct_read(Unfenced, 16, 1);
    assert!((5900.0..6300.0).contains(&small.latency_ns), "{}", small.latency_ns);
    assert!(direct_read(Unfenced, 1024, 1).latency_ns < small.latency_ns * 1.05, "about flat up to 1 KiB");
    let slower = direct_read(Fenced, 16, 1).latency_ns - small.latency_ns;
    assert!((2500.0..4000.0).contains(&slower), "{slower}");
    // A receiver that waits only for the READ gets the message as early as without a fence. The fence still lets only
    // one READ run at a time.
    assert_near(direct_read(Early, 16, 1).latency_ns, small.latency_ns, 1e-9);
    assert_eq!(direct_read(Early, 4096, 32).bottleneck().binding.kind, BoundKind::Fence);

    let (one, other) = (direct_read(Unfenced, 4096, 32), direct_read(Fenced, 4096, 32));
    assert_eq!(other.bottleneck().binding.kind, BoundKind::Fence);
    assert!(one.messages_per_s > 5.0 * other.messages_per_s);
    assert_eq!(
        direct_read(Fenced, 4096, 64).messages_per_s,
        other.messages_per_s,
        "a larger window changed the rate of fenced READs"
    );
    // A window above 32 does not raise the rate.
    assert_eq!(direct_read(Unfenced, 16, 32).messages_per_s, direct_read(Unfenced, 16, 64).messages_per_s);
    // Large messages reach line rate.
    let large = direct_read(Unfenced, 1 << 16, 32);
    assert_eq!(large.bottleneck().binding.kind, BoundKind::Link);
    assert!(large.bytes_per_s * 8.0 > 97e9);
    // The rate of small messages does not grow with the number of senders.
    let protocol = Unfenced;
    let many = on_t1(Workload { protocol, peers: Peers::many_to_one(8), ..Workload::unbatched(16) });
    assert_eq!(many.bottleneck().binding.kind, BoundKind::ReceivingCpu);
}

/// A fence serialises READs in each variant of reporting. Messages occupy the receiver's space until the sender learns
/// that the receiver freed the space.
#[test]
fn variants_are_charged_for_their_own_steps() {
    let report = direct_read(Protocol::DirectReadFencedSend, 4096, 32);
    assert_eq!(report.bottleneck().binding.kind, BoundKind::Fence);
    assert_near(report.messages_per_s, direct_read(Protocol::DirectReadFenced, 4096, 32).messages_per_s, 1e-9);

    let space = |protocol| {
        let prediction = on_t1(Workload { protocol, depth: 64, ..Workload::unbatched(256) });
        prediction.bound(BoundKind::ReceiverSpace).map(|bound| bound.ns_per_message)
    };
    let (ahead, late) = (space(Protocol::BufferedWriteReverseRead), space(Protocol::SharedWrite));
    assert!(ahead.is_some() && late.is_some());
    assert_eq!(space(Protocol::BufferedRead), None, "the sender's window is its ring");
}

#[test]
fn protocols_differ_as_their_operations_do() {
    let of = |protocol| on_t1(Workload { protocol, ..Workload::unbatched(256) });
    let immediate = of(Protocol::BufferedWriteImmediateSend);
    // Each variant crosses the link once, since the second WRITE follows directly after the first WRITE.
    assert_near(immediate.latency_ns, of(Protocol::SendReceive).latency_ns, 0.02);
    let tail = of(Protocol::BufferedWriteTailSend);
    // The NIC fetches both WRITEs from memory, and a single one comes with its doorbell.
    let fetched = tail.latency_ns - of(Protocol::BufferedWriteReverseSend).latency_ns;
    assert!((500.0..600.0).contains(&fetched), "{fetched}");
    // Reserving space takes a round trip, and atomics are slow. One atomic reserves space for all messages that
    // wait, and up to eight of a sender are in flight.
    assert!(of(Protocol::SharedWrite).latency_ns > 3.0 * 1900.0);
    let shared = |window, peers| {
        let prediction = on_t1(Workload { protocol: Protocol::SharedWrite, peers, ..Workload::new(64, window, 1) });
        let bound = |kind| prediction.bound(kind).unwrap().messages_per_s();
        (bound(BoundKind::Atomics), bound(BoundKind::AtomicsOnAddress))
    };
    for window in [1, 15] {
        let (atomics, on_address) = shared(window, Peers::many_to_one(20));
        assert_near(atomics, 20.0 * 2.7e6, 0.002);
        assert_near(on_address, 2.9e6, 0.002);
    }
    let (atomics, on_address) = shared(64, Peers::many_to_one(20));
    assert_near(atomics, 20.0 * 2.7e6 * 64.0 / 8.0, 0.002);
    // Of 64 messages, most wait for an atomic on the address, and the others for the acknowledgement of their WRITE.
    assert_near(on_address, 2.9e6 * 64.0 / 8.5, 0.1);
    assert!(on_address < 2.9e6 * 64.0 / 8.5);
    assert_eq!(of(Protocol::SharedWrite).bottleneck().binding.kind, BoundKind::SendingCpu);
    // One READ of many messages costs little CPU time.
    let pulled = |batch| {
        on_t1(Workload { protocol: Protocol::BufferedRead, batch, ..Workload::new(64, 256, 1) })
            .bound(BoundKind::ReceivingCpu)
            .unwrap()
            .messages_per_s()
    };
    assert!(pulled(64) > 10.0 * pulled(1));
}

#[test]
fn credits_cost_little_and_piggyback_on_two_way_traffic() {
    let t1 = Parameters::t1();
    let with = predict(&t1, &Workload::batched(16)).unwrap();
    let without = on_t1(Workload::batched(16));
    assert!(with.messages_per_s <= without.messages_per_s && with.messages_per_s > 0.9 * without.messages_per_s);
    let sending = |prediction: &Prediction| prediction.bound(BoundKind::SendingCpu).unwrap().ns_per_message;
    assert!(sending(&with) > sending(&without));
    assert!(with.bound(BoundKind::ReceiverSpace).is_some() && without.bound(BoundKind::ReceiverSpace).is_none());
    let both = predict(&t1, &Workload { bidirectional: true, ..Workload::batched(16) }).unwrap();
    assert_eq!(both.bound(BoundKind::ReceiverSpace), None);
    // Each CPU has both roles, and each NIC and each direction of the link carries both kinds of traffic.
    let cpu = both.bound(BoundKind::SendingCpu).unwrap();
    assert_near(cpu.ns_per_message, (16.0 + 17.0 + 7.0 + 2.0) / 2.0, 1e-9);
    assert_eq!(Some(cpu.ns_per_message), both.bound(BoundKind::ReceivingCpu).map(|bound| bound.ns_per_message));
}

#[test]
fn a_software_rnic_works_on_the_cpu() {
    let software = Parameters { rnic: RnicKind::Software, ..Parameters::t1() };
    let workload = Workload { credits: false, ..Workload::batched(16) };
    let prediction = predict(&software, &workload).unwrap();
    let kinds: Vec<BoundKind> = prediction.bounds.iter().map(|bound: &Bound| bound.kind).collect();
    assert_eq!(kinds, [BoundKind::ReceivingCpu, BoundKind::SendingCpu, BoundKind::RoundTrip]);
    assert_near(prediction.bound(BoundKind::SendingCpu).unwrap().ns_per_message, 16.0 + 20.0 + 97.0 * 0.08, 1e-9);
}

#[test]
fn every_remedy_is_better() {
    let t1 = Parameters::t1();
    for protocol in Protocol::ALL {
        for bytes in [0, 16, 512, 8192, 1 << 20] {
            for (window, batch) in [(1, 1), (64, 1), (256, 8)] {
                let peers = Peers::many_to_one(4);
                let workload = Workload {
                    protocol,
                    peers,
                    srq: true,
                    receive_batch: 1,
                    repost_batch: 1,
                    ..Workload::new(bytes, window, batch)
                };
                let explanation = explain(&t1, &workload).unwrap();
                assert!(explanation.sentence.starts_with(&format!("{bytes} B, window {window}: ")));
                for remedy in explanation.remedies {
                    assert!(
                        remedy.messages_per_s > explanation.prediction.messages_per_s,
                        "{protocol} {bytes} {remedy:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn invalid_loads_are_refused() {
    let t1 = Parameters::t1();
    let refused = |workload: Workload| predict(&t1, &workload).expect_err("the load is impossible").to_string();
    assert_eq!(refused(Workload::new(16, 0, 1)), "the window is 0, allowed is 1 to 1048576");
    assert_eq!(refused(Workload::new(16, 4, 5)), "the batch is 5, allowed is 1 to 4");
    assert_eq!(
        refused(Workload::new(MAX_BYTES + 1, 1, 1)),
        "the message size is 1073741825, allowed is 0 to 1073741824"
    );
    let peers = Peers { senders: 3, receivers: 1, connections: 2 };
    assert_eq!(
        refused(Workload { peers, ..Workload::new(1, 1, 1) }),
        "the number of connections is 2, allowed is 3 to 1048576"
    );
    let buffered = Workload { protocol: Protocol::BufferedRead, ..Workload::new(1 << 20, 1 << 12, 1 << 12) };
    assert!(refused(buffered).starts_with("the batch that one READ fetches is 4096"));
}

#[test]
fn a_residual_is_relative_to_the_measurement() {
    let residual = Residual { name: String::new(), quantity: Quantity::LatencyNs, measured: 100.0, predicted: 110.0 };
    assert_near(residual.relative_error(), 0.1, 1e-9);
}

fn any_workload() -> impl Strategy<Value = Workload> {
    let count = 1..=1_u32 << 20;
    let shape = (0..Protocol::ALL.len(), 0..=MAX_BYTES, count.clone(), count.clone(), count.clone(), count.clone());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), 0..5_usize, any::<bool>());
    (shape, flags, (1..1000_u32, 1..1000_u32, 1..1000_u32)).prop_map(
        |((protocol, bytes, window, batch, receive_batch, depth), (credits, srq, both, mtu, v6), (s, r, c))| Workload {
            protocol: Protocol::ALL[protocol],
            bytes,
            window,
            batch,
            receive_batch,
            repost_batch: receive_batch,
            depth,
            inline_bytes: 64,
            credits,
            srq,
            repost_thread: s % 2 == 0,
            bidirectional: both,
            path_mtu: Some(PathMtu::ALL[mtu]),
            outer: if v6 { OuterKind::IPV6.with_vlan() } else { OuterKind::IPV4 },
            peers: Peers { senders: s, receivers: r, connections: c },
        },
    )
}

#[test]
fn small_rates_are_not_shown_as_zero() {
    for (rate, shown) in [
        (0.0, "0.000"),
        (0.001, "0.00000000100"),
        (24.0, "0.0000240"),
        (999.0, "0.000999"),
        (1e3, "0.001"),
        (2.5e6, "2.50"),
    ] {
        assert_eq!(millions(rate), shown);
    }
}

proptest! {
    /// Every workload gets an error or a finite prediction whose rate is the smallest bound.
    #[test]
    fn predictions_are_finite_or_refused(workload in any_workload(), software in any::<bool>()) {
        let rnic = if software { RnicKind::Software } else { RnicKind::Hardware };
        let parameters = Parameters { rnic, ..Parameters::t1() };
        match explain(&parameters, &workload) {
            Err(error) => prop_assert!(error.to_string().contains("allowed is")),
            Ok(explanation) => {
                let prediction = explanation.prediction;
                prop_assert!(prediction.latency_ns.is_finite() && prediction.latency_ns > 0.0);
                prop_assert!(prediction.messages_per_s.is_finite() && prediction.messages_per_s > 0.0);
                for bound in &prediction.bounds {
                    prop_assert!(bound.messages_per_s() >= prediction.messages_per_s);
                }
            }
        }
    }

    /// If a parameter grows, no latency and no bound shrinks.
    #[test]
    fn bounds_grow_with_every_parameter(workload in any_workload(), which in 0..TERMS, factor in 1.0..10.0_f64) {
        let t1 = Parameters::t1();
        let setting = Setting::of(&t1);
        if let Ok(forms) = forms(&setting, &workload) {
            let before = t1.values();
            let mut after = before;
            after[which] *= factor;
            prop_assert!(forms.latency.ns(&after) >= forms.latency.ns(&before));
            for form in &forms.bounds {
                prop_assert!(form.cost.ns(&after) >= form.cost.ns(&before), "{:?}", form.kind);
            }
        }
    }

    /// A longer message is never faster, and a wider window is never slower.
    #[test]
    fn predictions_are_monotonic(workload in any_workload(), more in 1..1000_u32) {
        // Copying a short message out of its completion costs CPU time that a longer message does not cost.
        let t1 = Parameters { o_inline_ns: 0.0, ..Parameters::t1() };
        let (longer, wider) = (
            Workload { bytes: workload.bytes + u64::from(more), ..workload },
            Workload { window: workload.window + more, ..workload },
        );
        if let (Ok(one), Ok(longer)) = (predict(&t1, &workload), predict(&t1, &longer)) {
            prop_assert!(longer.latency_ns >= one.latency_ns * (1.0 - 1e-12));
            // A limit of shared receive queues begins above 32 B.
            prop_assert!(longer.messages_per_s <= one.messages_per_s * (1.0 + 1e-12));
        }
        if let (Ok(one), Ok(wider)) = (predict(&t1, &workload), predict(&t1, &wider)) {
            prop_assert!(wider.messages_per_s >= one.messages_per_s * (1.0 - 1e-12));
        }
    }
}
