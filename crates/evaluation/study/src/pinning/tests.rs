use std::path::Path;

use super::*;
use crate::doctor::counters::tests::made_of;
use crate::experiment::tests::environment;
use crate::far::{FarPoint, StorePoint, Strategy};
use crate::parameters::{Kind, Operation};
use crate::serving::Serving;
use doorbell_machine::Machine;

/// Returns a machine with two NUMA nodes of two cores each, each core with two hardware threads. CPUs 0-3 are the
/// first threads of the cores on nodes 0 and 1, CPUs 4-7 the second threads.
fn two_nodes(allowed: &str) -> (impl AsRef<Path> + use<>, Root) {
    let status = format!("Cpus_allowed_list:\t{allowed}\n");
    let mut files = vec![
        ("proc/self/status".to_owned(), status),
        ("sys/devices/system/cpu/online".to_owned(), "0-7\n".to_owned()),
        ("sys/devices/system/node/node0/cpulist".to_owned(), "0-1,4-5\n".to_owned()),
        ("sys/devices/system/node/node0/distance".to_owned(), "10 21\n".to_owned()),
        ("sys/devices/system/node/node1/cpulist".to_owned(), "2-3,6-7\n".to_owned()),
        ("sys/devices/system/node/node1/distance".to_owned(), "21 10\n".to_owned()),
    ];
    for cpu in 0..8 {
        let siblings = format!("{},{}\n", cpu % 4, cpu % 4 + 4);
        files.push((format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"), siblings));
    }
    made_of(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
}

fn chosen(allowed: &str, near: Option<usize>) -> Vec<usize> {
    let (_directory, root) = two_nodes(allowed);
    Pinning::choose(&root, &CpuChoice::Sensible, near).unwrap().cpus
}

#[test]
fn near_cpus_and_first_threads_of_cores_come_first() {
    assert_eq!(chosen("0-7", Some(0)), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(chosen("0-7", Some(1)), [2, 3, 0, 1, 6, 7, 4, 5]);
    // A software RNIC has no NUMA node. The node with most of the allowed CPUs replaces it.
    assert_eq!(chosen("0-7", None), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(chosen("1-3,6", None), [2, 3, 1, 6]);
    // If the first hardware thread of a core is not allowed, the second hardware thread takes its place.
    assert_eq!(chosen("4,6-7", Some(1)), [6, 7, 4]);
    // An unknown node counts as no node.
    assert_eq!(chosen("0-1", Some(7)), [0, 1]);
}

#[test]
fn a_machine_that_shows_nothing_pins_nothing() {
    let (_directory, root) = made_of(&[]);
    let pinning = Pinning::choose(&root, &CpuChoice::Sensible, Some(0)).unwrap();
    assert_eq!((pinning.cpus.len(), pinning.because.as_str()), (0, "the kernel does not list the CPUs"));
    let (_directory, root) = made_of(&[("proc/self/status", "Cpus_allowed_list:\t3,1\n")]);
    let pinning = Pinning::choose(&root, &CpuChoice::Sensible, None).unwrap();
    assert_eq!(pinning.cpus, [1, 3], "without a topology");
}

#[test]
fn cpu_lists_are_parsed_in_order_or_rejected() {
    let parsed = |text: &str| text.parse::<CpuChoice>();
    assert_eq!(parsed("none"), Ok(CpuChoice::Unpinned));
    assert_eq!(parsed("4-6,0,2"), Ok(CpuChoice::Listed(vec![4, 5, 6, 0, 2])));
    assert_eq!(parsed("4-6,0,2").unwrap().to_string(), "4-6,0,2");
    for no_list in ["", ",", "0,", "x", "3-1", "-1", "0-99999999999999", "0-18446744073709551615", "0 1", "1.5", "None"]
    {
        let said = parsed(no_list).unwrap_err().to_string();
        assert!(
            said.contains(&format!("`{no_list}` is not a list of CPUs")) && said.contains("0,2,4-7, or none"),
            "{said}"
        );
    }
    assert_eq!(parsed("0-3,2").unwrap_err().to_string(), "CPU 2 is named twice: name each CPU once");

    let (_directory, root) = two_nodes("0-1,4");
    let refused = |text: &str| Pinning::choose(&root, &parsed(text).unwrap(), None).unwrap_err().to_string();
    assert_eq!(refused("0,9"), "CPU 9 does not exist or is offline: this machine has 0-7");
    assert_eq!(refused("0,5"), "this process may not use CPU 5: use CPUs from 0-1,4");
    let listed = Pinning::choose(&root, &parsed("4,1").unwrap(), Some(0)).unwrap();
    assert_eq!(listed.cpus, [4, 1]);
    let alone = parsed("4").unwrap();
    let both = Pinning::choose(&root, &alone, None).unwrap().for_both_ends(&alone);
    assert_eq!(both, Err(CpuError::TooFew { cpus: 1, processes: 2 }));
}

#[test]
fn processes_of_one_machine_take_cpus_in_turn() {
    let pinning = Pinning { cpus: vec![2, 3, 0, 1, 6], ..Pinning::default() };
    let share = |number, of| pinning.share(ProcessPosition { number, of }).cpus;
    assert_eq!((share(0, 2), share(1, 2)), (vec![2, 0], vec![3, 1]), "equally many");
    assert_eq!((share(0, 1), share(4, 5), share(0, 6)), (pinning.cpus.clone(), vec![6], vec![]));
    // A study does not use these positions, but a peer may send them.
    assert_eq!((share(7, 0), share(usize::MAX, 2)), (pinning.cpus.clone(), vec![3, 1]));
    let too_many =
        Pinning { because: "so".to_owned(), ..pinning }.share(ProcessPosition { number: 0, of: 6 }).to_string();
    assert_eq!(too_many, "threads are not pinned (6 processes, and 5 CPU(s) for them: so)");
}

#[test]
fn processes_share_equal_cpu_sets_of_one_kernel() {
    let host = |boot: Option<&str>, cpus: &[usize]| {
        let machine = Machine { boot: boot.map(str::to_owned), cpus: cpus.to_vec(), ..Machine::default() };
        Environment { machine, ..environment("soft", cpus.len()) }
    };
    let hosts = [
        host(Some("a"), &[0, 1]),
        host(Some("b"), &[0, 1]),
        host(Some("a"), &[0, 1]),
        // The launcher assigned a CPU to this process.
        host(Some("a"), &[1]),
        // Records of earlier releases lack the boot identifier.
        host(None, &[0, 1]),
        host(None, &[0, 1]),
        host(Some("a"), &[0, 1]),
    ];
    let places: Vec<_> = ProcessPosition::among(&hosts.iter().collect::<Vec<_>>())
        .into_iter()
        .map(|place| (place.number, place.of))
        .collect();
    assert_eq!(places, [(0, 3), (0, 1), (1, 3), (0, 1), (0, 1), (0, 1), (2, 3)]);
}

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
        let recorded = all.of_point(&parameters);
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
    assert_eq!(cpus(&here.of_point(&with(Strategy::Lock, 2))), Some(vec![3, 2, 1, 0]));
    assert_eq!(cpus(&here.of_point(&with(Strategy::Lock, 1))), Some(vec![3, 2, 1]));
    assert_eq!(cpus(&here.of_point(&with(Strategy::Steered, 1))), Some(vec![3, 2, 1, 0]));
    let none = here.of_point(&with(Strategy::Steered, 2)).pinning.unwrap().to_string();
    assert_eq!(none, "threads are not pinned (5 thread(s) poll, and 4 CPU(s) for them: so)");
    let one = here.of_point(&with(Strategy::Lock, 1)).pinning.unwrap().to_string();
    assert_eq!(one, "threads are pinned to CPU 3,2,1 (so)");
    // A host has one thread for each client. A host with other parties has one thread for all of them.
    let host = Environment { pinning: pinning(&[0, 1]), ..environment("soft", 2) };
    let others = |count| Environment { hosts: vec![host.clone(); count], ..host.clone() };
    let of = |environment: Environment, strategy, clients| {
        let recorded = environment.of_point(&with(strategy, clients));
        std::iter::once(&recorded).chain(recorded.others()).map(cpus).map(Option::unwrap).collect::<Vec<_>>()
    };
    assert_eq!(of(others(3), Strategy::Steered, 2), [vec![0, 1], vec![0], vec![0], vec![0]]);
    assert_eq!(of(others(3), Strategy::Lock, 3), [vec![], vec![0], vec![], vec![0]]);
    assert_eq!(of(others(4), Strategy::Lock, 3)[4], [0]);
    let with_peer = Environment { peer: Some(Box::new(host.clone())), ..host.clone() };
    assert_eq!(of(with_peer, Strategy::Lock, 2), [vec![0, 1], vec![0]]);
    let idle = others(3).of_point(&with(Strategy::Lock, 1)).hosts[1].pinning.clone().unwrap().to_string();
    assert_eq!(idle, "threads are not pinned (this host has no part in this point)");
}

#[test]
fn point_takes_a_cpu_per_thread_or_none() {
    let with = |threads, shared_receives| Parameters {
        serving: Serving { threads, shared_receives, ..Serving::default() },
        ..Parameters::plain(Kind::Bandwidth, Operation::Send, 8)
    };
    let pinning = Pinning { cpus: vec![4, 5, 6], because: "so".to_owned(), both_ends: false };
    let cpus = |pinning: &Pinning, threads| pinning.of_point(&with(threads, None)).cpus;
    assert_eq!([1, 2, 3, 4].map(|threads| cpus(&pinning, threads)), [vec![4], vec![4, 5], vec![4, 5, 6], vec![]]);
    assert_eq!(pinning.of_point(&with(2, Some(SharedBy::Thread))).cpus, [4, 5, 6], "one posts receives again");
    let both = pinning.for_both_ends(&CpuChoice::Sensible).unwrap();
    assert_eq!([1, 2].map(|threads| cpus(&both, threads)), [vec![4, 5], vec![]]);
    assert_eq!(
        both.of_point(&with(1, None)).to_string(),
        "threads are pinned to CPU 4 at the end that asks, 5 at the other (so)"
    );
    let none = both.of_point(&with(2, None)).to_string();
    assert_eq!(none, "threads are not pinned (4 thread(s) poll, and 3 CPU(s) for them: so)");
    // Each of two processes on one machine decides on its own. Both processes decide to pin no thread.
    let shares = [0, 1].map(|number| both.share(ProcessPosition { number, of: 2 }).of_point(&with(2, None)).cpus);
    assert!(shares.iter().all(Vec::is_empty), "{shares:?}");
}

#[test]
fn a_thread_is_pinned_until_it_is_let_go() {
    let before = sched_getaffinity(THIS_THREAD).unwrap();
    let cpu = (0..CpuSet::count()).find(|&cpu| before.is_set(cpu).unwrap()).unwrap();
    let pinned = Pinned::to(cpu).unwrap();
    let within = sched_getaffinity(THIS_THREAD).unwrap();
    let allowed: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| within.is_set(cpu).unwrap()).collect();
    assert_eq!(allowed, [cpu]);
    drop(pinned);
    assert_eq!(sched_getaffinity(THIS_THREAD).unwrap(), before);
    let refused = Pinned::to(CpuSet::count()).unwrap_err().to_string();
    assert!(refused.contains("cannot be pinned to CPU 1024") && refused.contains("--cpus"), "{refused}");
    assert_eq!(sched_getaffinity(THIS_THREAD).unwrap(), before, "a refusal changes nothing");
}
