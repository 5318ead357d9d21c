//! Simulations of a program and of a thread that follows the policy, on a virtual clock. A closure defines the
//! program's actions in each microsecond.

use std::collections::VecDeque;

use super::*;

const TICK_NS: u64 = 1_000;
const MS: u64 = 1_000_000;
const NEVER: u64 = u64::MAX;

/// State of a simulation.
#[derive(Debug)]
struct World {
    now_ns: u64,
    seen: Glance,
    /// Arrival times of packets that have not been received.
    waiting: VecDeque<u64>,
    kicked: bool,
    /// Time at which the thread wakes up. A post with an earlier deadline must kick the thread.
    must_be_kicked_before: u64,
    /// Waiting times of the packets that callers received. `waits_of_thread_ns` contains those of the packets that the
    /// thread received.
    waits_of_callers_ns: Vec<u64>,
    waits_of_thread_ns: Vec<u64>,
    /// Values of [`Acks`] with which the thread received packets.
    acks: Vec<Acks>,
    /// Time between the engine's deadline and the pump after it, for each deadline.
    lateness_ns: Vec<u64>,
    /// Number of wake-ups of the thread.
    wake_ups: u64,
}

impl World {
    fn take_all(&mut self) -> Vec<u64> {
        if self.seen.deadline_ns <= self.now_ns {
            self.lateness_ns.push(self.now_ns - self.seen.deadline_ns);
            self.seen.deadline_ns = NEVER;
        }
        let now_ns = self.now_ns;
        self.waiting.drain(..).map(|arrived_ns| now_ns - arrived_ns).collect()
    }

    /// Simulates a poll of a completion queue. Returns true if a packet had arrived.
    fn poll(&mut self) -> bool {
        let waits = self.take_all();
        self.seen.polls += 1 + waits.len() as u64;
        self.seen.found_nothing = waits.is_empty();
        self.waits_of_callers_ns.extend(&waits);
        !waits.is_empty()
    }

    /// Simulates a post that is deferred, and sets the engine's deadline.
    fn post(&mut self) {
        self.seen.posts += 1;
        self.seen.deadline_ns = self.seen.deadline_ns.min(self.now_ns + HABITS.longest_deferral_ns);
        self.kicked |= self.seen.deadline_ns < self.must_be_kicked_before;
    }

    /// Simulates a program that arms a notification and sleeps.
    fn sleep_until_notified(&mut self) {
        self.seen.is_armed = true;
        self.seen.armed_at = self.seen.polls;
        self.kicked = true;
    }
}

/// Simulates a program and the thread for `for_ns`. A packet arrives every `packet_every_ns`.
fn run(for_ns: u64, packet_every_ns: u64, mut program: impl FnMut(&mut World)) -> World {
    let mut world = World {
        now_ns: 0,
        seen: Glance { deadline_ns: NEVER, ..Glance::default() },
        waiting: VecDeque::new(),
        kicked: false,
        must_be_kicked_before: 0,
        waits_of_callers_ns: Vec::new(),
        waits_of_thread_ns: Vec::new(),
        acks: Vec::new(),
        lateness_ns: Vec::new(),
        wake_ups: 0,
    };
    let mut policy = Policy::new();
    let mut action = policy.on(Event::Started, &world.seen, 0);
    while world.now_ns < for_ns {
        if world.now_ns.is_multiple_of(packet_every_ns) {
            world.waiting.push_back(world.now_ns);
        }
        program(&mut world);
        // The simulated pump takes no time, so the next action follows at the same time.
        for step in 0.. {
            assert!(step < 10, "the thread loops at {} ns: {action:?} {policy:?}", world.now_ns);
            let event = match action {
                Action::Pump(acks) => {
                    let waits = world.take_all();
                    world.acks.extend(waits.iter().map(|_| acks));
                    world.waits_of_thread_ns.extend(&waits);
                    Event::Pumped { packets: waits.len() }
                }
                Action::Nap { until_ns, .. } if world.now_ns >= until_ns || world.kicked => {
                    Event::Napped { kicked: world.now_ns < until_ns }
                }
                Action::Watch { until_ns, .. }
                    if world.now_ns >= until_ns || world.kicked || !world.waiting.is_empty() =>
                {
                    Event::Watched { ready: !world.waiting.is_empty() }
                }
                Action::Linger { polls, .. } if world.seen.polls != polls => Event::Lingered { in_vain: false },
                Action::Linger { .. } if !world.waiting.is_empty() => {
                    let waits = world.take_all();
                    world.acks.extend(waits.iter().map(|_| Acks::Now));
                    world.waits_of_thread_ns.extend(&waits);
                    Event::Lingered { in_vain: false }
                }
                Action::Linger { until_ns, .. } if world.now_ns >= until_ns => Event::Lingered { in_vain: true },
                _ => break,
            };
            if matches!(action, Action::Nap { .. } | Action::Watch { .. }) {
                world.wake_ups += 1;
                world.kicked = false;
            }
            action = policy.on(event, &world.seen, world.now_ns);
            world.must_be_kicked_before = match action {
                Action::Watch { until_ns, briefly: false } => until_ns,
                _ => 0,
            };
            // Like the real thread, check the deadline once more before sleeping.
            if let Action::Watch { until_ns, .. } = action
                && world.seen.deadline_ns < until_ns
            {
                world.kicked = true;
            }
        }
        world.now_ns += TICK_NS;
    }
    world
}

fn longest(waits: &[u64]) -> u64 {
    waits.iter().copied().max().unwrap_or(0)
}

#[test]
fn the_thread_serves_a_memory_spinning_program_at_once() {
    let world = run(100 * MS, 10_000, |_| {});
    assert_eq!(world.waits_of_thread_ns.len(), 10_000);
    assert_eq!(longest(&world.waits_of_thread_ns), 0);
    assert!(world.acks.iter().all(|&acks| acks == Acks::Now), "acknowledgements waited although no program answers");
}

#[test]
fn the_thread_sleeps_while_a_program_polls_constantly() {
    let world = run(100 * MS, 10_000, |world| {
        world.poll();
    });
    assert!(world.waits_of_thread_ns.len() <= 1, "{} packets", world.waits_of_thread_ns.len());
    assert!(world.wake_ups < 100 * MS / HABITS.longest_nap_ns + 20, "{} times", world.wake_ups);
}

#[test]
fn a_program_that_polled_and_then_spins_on_memory_waits_for_few_naps() {
    // In this WRITE ping-pong, the program polls for send completions at first, and then only reads memory.
    let world = run(1000 * MS, 10_000, |world| {
        if world.now_ns < 10 * MS {
            world.poll();
        }
    });
    assert!(longest(&world.waits_of_thread_ns) <= HABITS.longest_nap_ns);
    let late = world.waits_of_thread_ns.iter().filter(|&&wait_ns| wait_ns > 0).count();
    assert!(late > 0, "no packet waited, although the thread cannot know the habit at first");
    assert!(late as u64 <= HABITS.longest_nap_ns / 10_000, "{late} packets waited");
}

#[test]
fn a_program_that_mixes_polls_and_memory_loses_few_packets_to_naps() {
    // In each millisecond, the program polls for a while, and then only reads memory. Naps are mistakes here, and must
    // become rare.
    let world = run(1000 * MS, 10_000, |world| {
        if world.now_ns % MS < 50_000 {
            world.poll();
        }
    });
    let waits = &world.waits_of_thread_ns;
    let late = waits.iter().filter(|&&wait_ns| wait_ns > 0).count();
    assert!(late * 3 < waits.len(), "{late} of {} packets waited for the end of a nap", waits.len());
}

#[test]
fn a_program_that_sleeps_until_notified_is_woken_at_once() {
    // The program handles a packet that its own poll or the thread has received. In the second case, the thread
    // notifies the program.
    let mut taken = 0;
    let world = run(100 * MS, MS, |world| {
        let by_thread = world.waits_of_thread_ns.len();
        if !world.seen.is_armed || by_thread > taken {
            taken = by_thread;
            world.seen.is_armed = false;
            while world.poll() {}
            world.sleep_until_notified();
        }
    });
    assert_eq!(longest(&world.waits_of_thread_ns), 0);
    assert_eq!(longest(&world.waits_of_callers_ns), 0);
    assert!(world.waits_of_thread_ns.len() >= 99);
}

#[test]
fn a_program_that_arms_and_polls_receives_its_own_packets() {
    let world = run(100 * MS, 10_000, |world| {
        if world.now_ns == 5 * MS {
            world.sleep_until_notified();
        }
        world.poll();
    });
    let (thread, callers) = (world.waits_of_thread_ns.len(), world.waits_of_callers_ns.len());
    assert!(thread * 100 < callers, "the thread took {thread} packets, callers {callers}");
}

#[test]
fn posts_of_a_program_that_never_returns_leave_in_time() {
    for every_ns in [3 * MS, 7 * MS, 500 * MS] {
        let mut posts = 0;
        let world = run(2000 * MS, NEVER - 1, |world| {
            if world.now_ns % every_ns == 500_000 {
                posts += 1;
                world.post();
            }
        });
        assert_eq!(world.lateness_ns.len(), posts, "every {every_ns} ns");
        assert_eq!(longest(&world.lateness_ns), 0, "every {every_ns} ns");
    }
}

#[test]
fn answers_of_a_memory_spinning_program_carry_acks() {
    // The program polls so seldom that the thread learns not to nap. It posts an answer 5 us after each packet.
    let world = run(1000 * MS, 20_000, |world| {
        if world.now_ns % MS < 40_000 {
            world.poll();
        }
        if world.now_ns % 20_000 == 5_000 {
            world.post();
        }
    });
    let waited = world.acks.iter().filter(|&&acks| acks == Acks::Wait).count();
    assert!(waited > 0, "none of {} acknowledgements could leave with an answer", world.acks.len());
}

#[test]
fn programs_on_one_processor_receive_their_own_packets() {
    // Two programs share the device. Each program in turn runs and polls for 2 ms. Then no program runs for 2 ms.
    let world = run(1000 * MS, 5_000, |world| {
        if world.now_ns % (4 * MS) < 2 * MS {
            world.poll();
        }
    });
    let longest_ns = longest(&world.waits_of_thread_ns).max(longest(&world.waits_of_callers_ns));
    assert!(longest_ns <= HABITS.longest_nap_ns, "a packet waited {longest_ns} ns");
    let of_callers = world.waits_of_callers_ns.len();
    let all = of_callers + world.waits_of_thread_ns.len();
    assert!(of_callers * 3 > all, "{of_callers} of {all} packets were received by the program that polled for them");
}

#[test]
fn an_unused_device_causes_no_wake_ups() {
    let world = run(10_000 * MS, NEVER - 1, |_| {});
    assert!(world.wake_ups <= 1, "the thread woke up {} times", world.wake_ups);
}
