use std::path::Path;

use super::*;
use crate::tests::made_of;

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
    let host = |boot: Option<&str>, cpus: &[usize]| Machine {
        boot: boot.map(str::to_owned),
        cpus: cpus.to_vec(),
        ..Machine::default()
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
