//! Reports of simulations that cannot continue, and of turns that took too long.

use crate::common::{completion, connect, destination, end, post, t1};
use doorbell_exchange::asynchronous::Waiter;
use doorbell_sim::{Ps, Simulation, SimulationError, Summary, Topology};
use doorbell_verbs::{Payload, QpAttributes, QpKind, QpState, RKey, SendOperation};

/// Timeout exponent of a requester that waits forever.
const NEVER: u8 = 0;

/// Runs into a deadlock in which all threads wait, and returns the error text.
#[track_caller]
fn deadlock(simulation: &mut Simulation<'_>, all: usize) -> String {
    let error = simulation.run().expect_err("a deadlock");
    assert!(
        matches!(error, SimulationError::Deadlock { waiting, threads, .. } if (waiting, threads) == (all, all)),
        "{error}"
    );
    error.to_string()
}

#[track_caller]
fn says(text: &str, all: &[&str]) {
    for needed in all {
        assert!(text.contains(needed), "{needed:?} is missing:\n{text}");
    }
}

#[test]
fn a_deadlock_over_datagrams_names_each_thread_and_queue_pair() {
    let mut simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0), QpKind::Ud), end(simulation.device(1), QpKind::Ud));
    connect(&a, &b, NEVER);
    connect(&b, &a, NEVER);
    let (of_a, of_b) = (a.qp.qpn().get(), b.qp.qpn().get());
    let (waiter, receiving, to) = (simulation.polling(), b.cq.clone(), destination(&b));
    let asking = waiter.clone();
    // The receiver drops the datagram, since it has no receive, and sends no answer.
    let _ = simulation.spawn(0, "asking", async move {
        post(&a, SendOperation::Send, Payload::Inline(&[5; 16]), Some(to));
        completion(a.cq.clone(), asking.clone()).await;
        completion(a.cq.clone(), asking).await
    });
    let _ = simulation.spawn(1, "answering", completion(receiving, waiter));
    let text = deadlock(&mut simulation, 2);
    says(&text, &["thread asking on node 0 at ", "thread answering on node 1 at "]);
    says(&text, &[&format!("UD queue pair {of_a} of node 0: ReadyToSend, 0 sends outstanding")]);
    says(&text, &[&format!("UD queue pair {of_b} of node 1: ReadyToSend, 0 sends outstanding")]);
    says(&text, &["node 1 dropped 1 messages of UC and UD"]);
}

#[test]
fn a_one_sided_deadlock_names_outstanding_operations() {
    let mut simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0), QpKind::Rc), end(simulation.device(1), QpKind::Rc));
    connect(&a, &b, NEVER);
    connect(&b, &a, NEVER);
    // The target answers no requests, and the requester has no timeout.
    b.qp.modify(&QpAttributes { state: Some(QpState::Error), ..QpAttributes::default() }).expect("a transition");
    let (of_a, of_b, waiter) = (a.qp.qpn().get(), b.qp.qpn().get(), simulation.polling());
    let _ = simulation.spawn(0, "reader", async move {
        let sges = [a.memory.sge(0, 16)];
        let read = SendOperation::Read { remote_address: 0, rkey: RKey::new(1) };
        post(&a, read, Payload::Sges(&sges), None);
        post(&a, SendOperation::Write { remote_address: 0, rkey: RKey::new(1) }, Payload::Sges(&sges), None);
        completion(a.cq.clone(), waiter).await
    });
    let text = deadlock(&mut simulation, 1);
    says(&text, &["thread reader on node 0 at ", "polls and finds nothing, without a deadline"]);
    says(&text, &[&format!("RC queue pair {of_a} of node 0: ReadyToSend, 2 sends outstanding, 0 of them not sent")]);
    says(&text, &[&format!("RC queue pair {of_b} of node 1: Error, 0 sends outstanding")]);
}

/// Runs a thread that sends eight messages over UC. The thread lets virtual time pass only after each `lists` messages.
fn lists(lists: usize) -> Summary {
    let mut simulation = Simulation::new(&t1(), Topology::Pair, 1).expect("a simulation");
    let (a, b) = (end(simulation.device(0), QpKind::Uc), end(simulation.device(1), QpKind::Uc));
    connect(&a, &b, NEVER);
    connect(&b, &a, NEVER);
    let waiter = simulation.polling();
    let _ = simulation.spawn(0, "sender", async move {
        for _ in 0..8 / lists {
            for _ in 0..lists {
                a.memory.copy_in(0, &[1; 4000]);
                post(&a, SendOperation::Send, Payload::Inline(&[5; 16]), None);
            }
            waiter.breathe().await;
        }
    });
    simulation.run().expect("the simulation ends")
}

#[test]
fn turns_longer_than_the_least_latency_are_reported() {
    let breathing = lists(1);
    assert_eq!((breathing.counts.long_turns, breathing.long_turns()), (0, None), "{breathing:?}");
    let breathless = lists(8);
    assert_eq!(breathless.counts.long_turns, 1, "{breathless:?}");
    assert!(Ps(breathless.counts.longest_turn_ps) > breathless.least_latency, "{breathless:?}");
    let sentence = breathless.long_turns().expect("a sentence");
    says(&sentence, &["less exact", "in 1 of ", &breathless.least_latency.to_string(), "the longest took "]);
}
