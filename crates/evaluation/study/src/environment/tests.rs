use super::*;
use crate::experiment::tests::environment;
use doorbell_machine::pinning::{CpuChoice, ProcessPosition};
use doorbell_record::{FarPoint, Kind, Operation, Serving, SharedBy, StorePoint, Strategy};

#[test]
fn record_lists_the_pinned_cpus_of_each_host() {
    let pinned = |cpus: &[usize]| Some(Pinning { cpus: cpus.to_vec(), ..Pinning::default() });
    let other = Environment { pinning: pinned(&[4]), ..environment("soft", 2) };
    let all = Environment {
        pinning: pinned(&[0, 1, 2]),
        peer: Some(Box::new(other.clone())),
        hosts: vec![other, environment("soft", 2)],
        ..environment("soft", 4)
    };
    let cpus = |threads: usize| {
        let parameters = Parameters {
            connections: threads,
            serving: Serving { threads, ..Serving::default() },
            ..Parameters::plain(Kind::Bandwidth, Operation::Send, 8)
        };
        let recorded = of_point(&all, &parameters);
        let all: Vec<_> = std::iter::once(&recorded).chain(recorded.others()).map(|it| it.pinning.clone()).collect();
        all.into_iter().map(|pinning| pinning.map(|pinning| pinning.cpus)).collect::<Vec<_>>()
    };
    assert_eq!(cpus(1), [Some(vec![0]), Some(vec![4]), Some(vec![4]), None]);
    assert_eq!(cpus(2), [Some(vec![0, 1]), Some(vec![]), Some(vec![]), None]);
}

#[test]
fn shared_memory_point_takes_a_cpu_per_polling_thread() {
    let with = |strategy, clients| {
        let store = StorePoint { strategy, clients, ..StorePoint::default() };
        let far = Some(Box::new(FarPoint::Store(store)));
        Parameters { far, ..Parameters::plain(Kind::Bandwidth, Operation::Write, 8) }
    };
    let cpus = |environment: &Environment| environment.pinning.as_ref().map(|pinning| pinning.cpus.clone());
    let pinning = |cpus: &[usize]| Some(Pinning { cpus: cpus.to_vec(), both_ends: true, because: "so".to_owned() });
    // If one process has all parties, memory node, metadata service and middlebox need a CPU each, in addition to the
    // clients.
    let here = Environment { pinning: pinning(&[3, 2, 1, 0]), ..environment("soft", 4) };
    assert_eq!(cpus(&of_point(&here, &with(Strategy::Lock, 2))), Some(vec![3, 2, 1, 0]));
    assert_eq!(cpus(&of_point(&here, &with(Strategy::Lock, 1))), Some(vec![3, 2, 1]));
    assert_eq!(cpus(&of_point(&here, &with(Strategy::Steered, 1))), Some(vec![3, 2, 1, 0]));
    let none = of_point(&here, &with(Strategy::Steered, 2)).pinning.unwrap().to_string();
    assert_eq!(none, "threads are not pinned (5 thread(s) poll, and 4 CPU(s) for them: so)");
    let one = of_point(&here, &with(Strategy::Lock, 1)).pinning.unwrap().to_string();
    assert_eq!(one, "threads are pinned to CPU 3,2,1 (so)");
    // A host has one thread for each client. A host with other parties has one thread for all of them.
    let host = Environment { pinning: pinning(&[0, 1]), ..environment("soft", 2) };
    let others = |count| Environment { hosts: vec![host.clone(); count], ..host.clone() };
    let of = |environment: Environment, strategy, clients| {
        let recorded = of_point(&environment, &with(strategy, clients));
        std::iter::once(&recorded).chain(recorded.others()).map(cpus).map(Option::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(of(others(3), Strategy::Steered, 2), [vec![0, 1], vec![0], vec![0], vec![0]]);
    assert_eq!(of(others(3), Strategy::Lock, 3), [vec![], vec![0], vec![], vec![0]]);
    assert_eq!(of(others(4), Strategy::Lock, 3)[4], [0]);
    let with_peer = Environment { peer: Some(Box::new(host.clone())), ..host.clone() };
    assert_eq!(of(with_peer, Strategy::Lock, 2), [vec![0, 1], vec![0]]);
    let idle = of_point(&others(3), &with(Strategy::Lock, 1)).hosts[1].pinning.clone().unwrap().to_string();
    assert_eq!(idle, "threads are not pinned (this host has no part in this point)");
}

#[test]
fn point_takes_a_cpu_per_thread_or_none() {
    let with = |threads, shared_receives| Parameters {
        serving: Serving { threads, shared_receives, ..Serving::default() },
        ..Parameters::plain(Kind::Bandwidth, Operation::Send, 8)
    };
    let pinning = Pinning { cpus: vec![4, 5, 6], because: "so".to_owned(), both_ends: false };
    let cpus = |pinning: &Pinning, threads| with(threads, None).pinning(pinning).cpus;
    assert_eq!([1, 2, 3, 4].map(|threads| cpus(&pinning, threads)), [vec![4], vec![4, 5], vec![4, 5, 6], vec![]]);
    assert_eq!(with(2, Some(SharedBy::Thread)).pinning(&pinning).cpus, [4, 5, 6], "one posts receives again");
    let both = pinning.for_both_ends(&CpuChoice::Sensible).unwrap();
    assert_eq!([1, 2].map(|threads| cpus(&both, threads)), [vec![4, 5], vec![]]);
    assert_eq!(
        with(1, None).pinning(&both).to_string(),
        "threads are pinned to CPU 4 at the end that asks, 5 at the other (so)"
    );
    let none = with(2, None).pinning(&both).to_string();
    assert_eq!(none, "threads are not pinned (4 thread(s) poll, and 3 CPU(s) for them: so)");
    // Each of two processes on one machine decides on its own. Both processes decide to pin no thread.
    let shares = [0, 1].map(|number| with(2, None).pinning(&both.share(ProcessPosition { number, of: 2 })).cpus);
    assert!(shares.iter().all(Vec::is_empty), "{shares:?}");
}
