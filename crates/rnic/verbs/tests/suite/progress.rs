//! Progress without calls: posted work requests complete even if the program makes no further call. An idle process
//! uses almost no CPU time.

use doorbell_verbs_conformance::common;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use async_io::Async;
use common::*;
use doorbell_testing::in_own_process;
use doorbell_verbs::soft::SoftOptions;
use doorbell_verbs::{Channel, Completion, Device, Notify, Region, SendFlags, SendOperation, SendRequest};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Opens two devices that reach each other.
type Pair = fn() -> (Device, Device);

// Packets on each link must wake a sleeping thread.
over_each_link! {
    super::soft_pair, super::shm_pair;

    a_program_may_post_and_never_call_again
    a_program_may_post_unsignalled_and_spin_on_memory
    programs_may_poll_for_their_completions_and_then_spin_on_memory
    a_target_may_be_passive
    programs_that_sleep_on_the_channel_are_woken
    edge_and_level_triggered_epoll_both_work
    a_program_may_alternate_between_channel_and_descriptor
    an_async_runtime_waits_for_the_channel
    an_unresponsive_peer_delays_no_other_connection
    a_device_closes_at_any_moment
    idle_devices_cost_nothing
}

/// Creates an end whose completion queue raises notifications on the returned channel.
fn notifying(plan: &Plan, device: &Device) -> (Side, Channel) {
    let channel = device.create_channel().unwrap();
    let cq = device.create_cq_on(64, &channel).unwrap();
    (plan.side_on(&device.create_pd().unwrap(), &cq, None), channel)
}

/// Makes the calls of a program that then makes no further call: no polls for habit 0, empty polls for 1, and polls
/// that find completions for 2.
fn habits(side: &Side, peer: &Side, habit: usize) {
    let mut out = [Completion::default(); 4];
    match habit {
        0 => {}
        1 => (0..1000).for_each(|_| assert_eq!(side.cq.poll(&mut out), Ok(0))),
        _ => {
            peer.post_recv(0, &[]);
            side.post(0, SendOperation::Send, &[]);
            side.expect(0);
            peer.expect(0);
        }
    }
}

fn a_program_may_post_and_never_call_again(pair: Pair) {
    for habit in 0..3 {
        let (a, b) = Plan::rc().connect(&pair());
        let (from, to) = (a.patterned(1 << 20, 1), b.memory(1 << 20));
        habits(&a, &b, habit);
        habits(&b, &a, habit);
        // The test only reads memory, so no call drives the engine of either device.
        a.post(1, write_to(&to, 0), &[from.sge(0, 1 << 20)]);
        let last = pattern(1 << 20, 1)[(1 << 20) - 1];
        eventually("the whole WRITE has arrived", || to.load_acquire_u8((1 << 20) - 1) == last);
        assert_bytes(&to, 0, &pattern(1 << 20, 1), "a WRITE whose program makes no further call");
        // Then post many single requests, which the engine may combine.
        for at in 0..32 {
            a.post(2, write_to(&to, at * 100), &[from.sge(at * 200, 100)]);
        }
        let expected = pattern(1 << 20, 1);
        for at in 0..32 {
            eventually("each arrived", || to.load_acquire_u8(at * 100 + 99) == expected[at * 200 + 99]);
        }
    }
}

fn a_program_may_post_unsignalled_and_spin_on_memory(pair: Pair) {
    let (a, b) = Plan { depth: 1000, ..Plan::rc() }.connect(&pair());
    let (mine, theirs) = (a.memory(4096), b.memory(4096));
    for round in 1..=300_u64 {
        if round % 10 == 0 {
            habits(&a, &b, round as usize / 10 % 3);
        }
        theirs.store_release_u64(8, round);
        let sges = [mine.sge(0, 16)];
        let request = signalled(round, read_from(&theirs, 0), &sges);
        a.qp.post_send(&[SendRequest { flags: SendFlags::empty(), ..request }]).unwrap();
        let start = Instant::now();
        while mine.load_acquire_u64(8) != round {
            assert!(start.elapsed() < PATIENCE, "round {round} did not arrive");
            std::hint::spin_loop();
        }
    }
}

fn programs_may_poll_for_their_completions_and_then_spin_on_memory(pair: Pair) {
    const ROUNDS: u64 = 2000;
    let (a, b) = Plan::rc().connect(&pair());
    let (of_a, of_b) = (a.memory(16), b.memory(16));
    // In each round, each side WRITEs the number of the round to the other side, and waits for the completion of its
    // WRITE. The other side's number appears only in memory, without a completion.
    let play = |side: &Side, mine: &Region, theirs: &Region, begins: bool| {
        for round in 1..=ROUNDS {
            let arrived = || mine.load_acquire_u64(8) >= round;
            let start = Instant::now();
            while !begins && !arrived() {
                assert!(start.elapsed() < PATIENCE, "the WRITE of round {round} did not complete");
                std::thread::yield_now();
            }
            mine.store_release_u64(0, round);
            side.post(round, write_to(theirs, 8), &[mine.sge(0, 8)]);
            side.expect(round);
            while begins && !arrived() {
                assert!(start.elapsed() < PATIENCE, "the answer to round {round} did not arrive");
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| play(&b, &of_b, &of_a, false));
        play(&a, &of_a, &of_b, true);
    });
}

fn a_target_may_be_passive(pair: Pair) {
    let (a, b) = Plan::rc().connect(&pair());
    let (mine, theirs) = (a.patterned(100_000, 1), b.memory(100_000));
    for round in 0..50 {
        a.post(round, write_to(&theirs, 0), &[mine.sge(0, 1 + round as usize * 2000)]);
        a.post(round, fetch_add(&theirs, 99_992, 1), &[mine.sge(99_992, 8)]);
        a.post(round, read_from(&theirs, 0), &[mine.sge(0, 64)]);
        a.reap(3);
    }
    assert_eq!(theirs.load_acquire_u64(99_992), 50);
}

/// Sends each message back until `messages` have arrived. Sleeps on the channel while no message is there.
fn echo(side: &Side, channel: &Channel, messages: u64) {
    let mut out = [Completion::default(); 8];
    let mut received = 0;
    side.cq.arm(Notify::Next);
    while received < messages {
        let count = side.cq.poll(&mut out).unwrap();
        for completion in &out[..count] {
            if completion.wr_id == 1 {
                received += 1;
                side.post_recv(1, &[]);
                side.post(2, SendOperation::Send, &[]);
            }
        }
        if count == 0 {
            assert!(channel.wait(Some(PATIENCE)).unwrap(), "message {received} did not arrive");
            if channel.next().is_some() {
                side.cq.arm(Notify::Next);
            }
        }
    }
}

fn programs_that_sleep_on_the_channel_are_woken(pair: Pair) {
    const MESSAGES: u64 = 500;
    let devices = pair();
    let plan = Plan::rc();
    let (a, channel_a) = notifying(&plan, &devices.0);
    let (b, channel_b) = notifying(&plan, &devices.1);
    plan.join(&a, &b);
    (0..8).for_each(|_| (a.post_recv(1, &[]), b.post_recv(1, &[])).0);
    std::thread::scope(|scope| {
        // The echo thread also answers the last message, so this side receives as many messages as it sends.
        scope.spawn(|| echo(&b, &channel_b, MESSAGES));
        a.post(2, SendOperation::Send, &[]);
        echo(&a, &channel_a, MESSAGES - 1);
    });
}

fn edge_and_level_triggered_epoll_both_work(pair: Pair) {
    for edge in [false, true] {
        let devices = pair();
        let plan = Plan::rc();
        let (a, (b, channel)) = (plan.side(&devices.0), notifying(&plan, &devices.1));
        plan.join(&a, &b);
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let mut flags = EpollFlags::EPOLLIN;
        flags.set(EpollFlags::EPOLLET, edge);
        epoll.add(channel.as_fd(), EpollEvent::new(flags, 7)).unwrap();
        for round in 0..200 {
            b.post_recv(round, &[]);
            b.cq.arm(Notify::Next);
            a.post(round, SendOperation::Send, &[]);
            let mut events = [EpollEvent::empty()];
            let patience = EpollTimeout::try_from(PATIENCE).unwrap();
            assert_eq!(epoll.wait(&mut events, patience).unwrap(), 1, "round {round}, edge {edge}");
            assert_eq!(channel.next(), Some(b.cq.id()));
            assert_eq!(channel.next(), None);
            assert_eq!(b.expect(round).wr_id, round);
            a.expect(round);
            assert_eq!(epoll.wait(&mut events, EpollTimeout::ZERO).unwrap(), 0, "an event remains");
        }
    }
}

fn a_program_may_alternate_between_channel_and_descriptor(pair: Pair) {
    let devices = pair();
    let plan = Plan::rc();
    let (a, (b, channel)) = (plan.side(&devices.0), notifying(&plan, &devices.1));
    plan.join(&a, &b);
    for round in 0..200 {
        b.post_recv(round, &[]);
        b.cq.arm(Notify::Next);
        a.post(round, SendOperation::Send, &[]);
        if round / 10 % 2 == 0 {
            assert!(channel.wait(Some(PATIENCE)).unwrap(), "no notification woke the waiter in round {round}");
        } else {
            let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
            let patience = PollTimeout::try_from(PATIENCE).unwrap();
            assert_eq!(poll(&mut fds, patience), Ok(1), "the descriptor was not readable in round {round}");
        }
        assert_eq!(channel.next(), Some(b.cq.id()));
        assert_eq!(b.expect(round).wr_id, round);
        a.expect(round);
    }
    // A wait ends at its timeout if no notification arrives. A wait with a timeout of zero only checks for a
    // notification.
    b.cq.arm(Notify::Next);
    assert!(!channel.wait(Some(Duration::from_millis(1))).unwrap());
    assert!(!channel.wait(Some(Duration::ZERO)).unwrap());
}

fn an_async_runtime_waits_for_the_channel(pair: Pair) {
    const MESSAGES: u64 = 200;
    let devices = pair();
    let plan = Plan::rc();
    let (a, (b, channel)) = (plan.side(&devices.0), notifying(&plan, &devices.1));
    plan.join(&a, &b);
    (0..8).for_each(|wr_id| b.post_recv(wr_id, &[]));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..MESSAGES {
                a.post(round, SendOperation::Send, &[]);
                a.expect(round);
            }
        });
        async_io::block_on(async {
            let watched = Async::new(channel.as_fd()).unwrap();
            let mut received = 0;
            let mut out = [Completion::default(); 8];
            while received < MESSAGES {
                b.cq.arm(Notify::Next);
                // Poll again after arming, since completions that arrived before arming may raise no notification.
                let mut count = b.cq.poll(&mut out).unwrap();
                if count == 0 {
                    watched.readable().await.unwrap();
                    while channel.next().is_some() {}
                    count = b.cq.poll(&mut out).unwrap();
                }
                (0..count).for_each(|_| b.post_recv(0, &[]));
                received += count as u64;
            }
        });
    });
}

fn an_unresponsive_peer_delays_no_other_connection(pair: Pair) {
    let (one, other) = pair();
    let third = open_soft(SoftOptions::default());
    // The peer's queue pair of the first connection is destroyed, so the device retransmits at growing intervals. The
    // second connection must not wait for these retransmissions.
    let (stuck, gone) = Plan { timeout: 0, ..Plan::rc() }.connect(&(one.clone(), third));
    drop(gone);
    stuck.post(1, SendOperation::Send, &[]);
    let (a, b) = Plan::rc().connect(&(one, other));
    let (from, to) = (a.memory(8), b.memory(8));
    let early = || stuck.device.counters().unwrap().early_retransmit;
    eventually("the stuck connection has retransmitted often", || early() >= 6);
    let before = early();
    for round in 1..=20 {
        from.store_release_u64(0, round);
        a.post(round, write_to(&to, 0), &[from.sge(0, 8)]);
        eventually("the WRITE has arrived", || to.load_acquire_u64(0) == round);
        a.expect(round);
    }
    let tries = early() - before;
    assert!(tries < 10, "the posts left only with {tries} retries of the other connection");
}

/// Even with a long round trip, the engine holds the posts behind the first one back for a short time, and sends them
/// together.
#[test]
fn single_posts_become_runs_despite_a_long_round_trip() {
    let open = || open_soft(SoftOptions { faults: Some("delay=240us".parse().unwrap()), ..SoftOptions::default() });
    let (a, b) = Plan::rc().connect(&(open(), open()));
    let (from, to) = (a.memory(8), b.memory(8));
    let sges = [from.sge(0, 8)];
    let sent = || a.device.counters().unwrap().tx_data_packets;
    let waited_for_company = || {
        a.post(0, write_to(&to, 0), &sges);
        let before = sent();
        (1..20).for_each(|wr_id| a.post(wr_id, write_to(&to, 0), &sges));
        let after = sent();
        (0..20).for_each(|wr_id| _ = a.expect(wr_id));
        before == after
    };
    // The engine first measures the round-trip time.
    (0..10).for_each(|_| _ = waited_for_company());
    // On a busy machine, this process often stops for longer than the engine holds posts back. An engine that sends
    // each post alone succeeds in no round.
    let waited = (0..200).filter(|_| waited_for_company()).count();
    assert!(waited > 20, "only in {waited} of 200 rounds the later posts were held back");
}

fn a_device_closes_at_any_moment(pair: Pair) {
    // The engine's thread may be in any phase when the device closes: driving, watching, sleeping, or changing between
    // these.
    for round in 0..300 {
        let (a, b) = Plan::rc().connect(&pair());
        let (mine, theirs) = (a.memory(8), b.memory(8));
        let mut out = [Completion::default(); 4];
        b.cq.poll(&mut out).unwrap();
        a.post(1, write_to(&theirs, 0), &[mine.sge(0, 8)]);
        (0..round).for_each(|_| _ = b.cq.poll(&mut out).unwrap());
        let closes = std::thread::spawn(move || drop((b, theirs, a, mine)));
        eventually("the devices closed", || closes.is_finished());
    }
}

/// Returns the CPU time of the whole process.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

/// Measures the CPU time of a process whose devices and connections are idle. The measurement runs in a separate
/// process, since other tests keep this process busy.
fn idle_devices_cost_nothing(pair: Pair) {
    let printed = in_own_process(|_| {}, || measure_idle_devices(pair));
    // Print only the measurements, without the summary of the inner test harness.
    if let Some(text) = &printed {
        let measured: Vec<_> = text.lines().filter(|line| line.contains("of a core")).collect();
        measured.iter().for_each(|line| println!("{line}"));
        assert_eq!(measured.len(), 3, "{text}");
    }
}

fn measure_idle_devices(pair: Pair) {
    for habit in 0..3 {
        let (a, b) = Plan::rc().connect(&pair());
        habits(&a, &b, habit);
        habits(&b, &a, habit);
        // Send one more packet, so that the engine begins its wait after the calls of the habit.
        let (mine, theirs) = (a.memory(8), b.memory(8));
        a.post(3, write_to(&theirs, 0), &[mine.sge(0, 8)]);
        std::thread::sleep(Duration::from_millis(50));
        let (start, before) = (Instant::now(), cpu_time());
        std::thread::sleep(Duration::from_secs(1));
        let share = (cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64();
        println!("two idle devices, habit {habit}: {:.3} % of a core", 100.0 * share);
        assert!(share < 0.05, "idle devices take {share} of a core");
    }
}
