//! Groups of functions, and the attribution of instructions to them.

use std::collections::{BTreeMap, BTreeSet};

use super::callgrind::{Costs, Place};

/// Part of the code, by which instructions are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    StateMachine,
    Driver,
    Link,
    Copies,
    Crc,
    Clock,
    Locks,
    Allocation,
    Verbs,
    Connection,
    Program,
    Other,
}

impl Group {
    pub(super) const ALL: [Self; 12] = [
        Self::StateMachine,
        Self::Driver,
        Self::Link,
        Self::Copies,
        Self::Crc,
        Self::Clock,
        Self::Locks,
        Self::Allocation,
        Self::Verbs,
        Self::Connection,
        Self::Program,
        Self::Other,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::StateMachine => "state machine",
            Self::Driver => "driver",
            Self::Link => "link",
            Self::Copies => "copies",
            Self::Crc => "CRC",
            Self::Clock => "clock",
            Self::Locks => "locks",
            Self::Allocation => "allocation",
            Self::Verbs => "verbs",
            Self::Connection => "connection",
            Self::Program => "program",
            Self::Other => "other",
        }
    }
}

/// Prefixes of functions and of source files, the latter written as paths of modules. The first prefix that fits
/// decides. Code that fits none, such as that of `core`, belongs to the functions that call it.
const PREFIXES: &[(&str, Group)] = &[
    ("doorbell_guarded_copy", Group::Copies),
    ("__memcpy", Group::Copies),
    ("__memmove", Group::Copies),
    ("memcpy", Group::Copies),
    ("memmove", Group::Copies),
    ("doorbell_fabric::guard::", Group::Copies),
    ("doorbell_wire::crc", Group::Crc),
    ("doorbell_wire::icrc", Group::Crc),
    ("crc32fast", Group::Crc),
    ("std::time", Group::Clock),
    ("std::sys::time", Group::Clock),
    ("std::sys::pal::unix::time", Group::Clock),
    ("clock_gettime", Group::Clock),
    ("__vdso_clock_gettime", Group::Clock),
    ("doorbell_sync", Group::Locks),
    ("std::sync", Group::Locks),
    ("std::sys::sync", Group::Locks),
    ("pthread_mutex", Group::Locks),
    ("std::sys::alloc", Group::Allocation),
    ("alloc::alloc", Group::Allocation),
    ("__rust_alloc", Group::Allocation),
    ("__rust_dealloc", Group::Allocation),
    ("__rust_realloc", Group::Allocation),
    ("__rustc", Group::Allocation),
    ("malloc", Group::Allocation),
    ("calloc", Group::Allocation),
    ("realloc", Group::Allocation),
    ("free", Group::Allocation),
    ("_int_", Group::Allocation),
    ("posix_memalign", Group::Allocation),
    ("unlink_chunk", Group::Allocation),
    // The wire in memory takes the place of a link in the counting program.
    ("doorbell_instructions::wire", Group::Link),
    ("doorbell_fabric::shm", Group::Link),
    ("doorbell_fabric::udp", Group::Link),
    ("doorbell_fabric::memory", Group::Link),
    ("doorbell_fabric::link", Group::Link),
    ("doorbell_fabric::faults", Group::Link),
    ("doorbell_fabric::counted", Group::Link),
    ("doorbell_fabric::pcap", Group::Link),
    ("doorbell_fabric", Group::Driver),
    ("doorbell_rnic", Group::StateMachine),
    ("doorbell_wire", Group::StateMachine),
    ("doorbell_verbs_core", Group::StateMachine),
    ("doorbell_verbs", Group::Verbs),
    ("doorbell_exchange", Group::Connection),
    ("doorbell_protocols", Group::Connection),
    ("doorbell_instructions", Group::Program),
    ("doorbell_study", Group::Program),
    ("doorbell_record", Group::Program),
];

fn group_of(path: &str) -> Option<Group> {
    PREFIXES.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|&(_, group)| group)
}

/// Returns the path of the type or module that a function belongs to: `doorbell_fabric::shm::link::SharedMemoryLink as
/// ...` for `<doorbell_fabric::shm::link::SharedMemoryLink as ...>::receive`.
fn path_of_function(function: &str) -> &str {
    let mut path = function;
    loop {
        let shorter = ["<", "&", "mut ", "dyn ", "("].iter().find_map(|prefix| path.strip_prefix(prefix));
        match shorter {
            Some(shorter) => path = shorter,
            None => return path,
        }
    }
}

/// Returns the path of the module in a source file: `doorbell_wire::crc` for `.../crates/rnic/wire/src/crc.rs`. Returns
/// `None` if the file belongs neither to this workspace, nor to Rust's libraries, nor to a registry.
fn path_of_file(file: &str) -> Option<String> {
    let module = |file: &str| {
        let file = file.strip_suffix(".rs").unwrap_or(file).replace('/', "::");
        file.strip_suffix("::mod").or(file.strip_suffix("::lib")).unwrap_or(&file).to_owned()
    };
    if let Some((_, inside)) = file.rsplit_once("/crates/")
        && !file.starts_with("/rustc/")
    {
        let (floor, below) = inside.split_once('/')?;
        // Until 26 November 2026, `crates` had no folders of floors, so the first folder was that of the crate.
        let has_floors = !below.starts_with("src/") && !below.starts_with("benches/");
        let (name, below) = if has_floors { below.split_once('/')? } else { (floor, below) };
        let (folder, rest) = below.split_once('/')?;
        if folder != "src" {
            // The counting program includes files of the crates' benchmarks.
            return Some(format!("doorbell_instructions::{}", module(rest.rsplit('/').next()?)));
        }
        return Some(format!("doorbell_{}::{}", name.replace('-', "_"), module(rest)));
    }
    if let Some((_, rest)) = file.rsplit_once("/benchmarks/instructions/src/") {
        return Some(format!("doorbell_instructions::{}", module(rest)));
    }
    if let Some((_, rest)) = file.split_once("/registry/src/") {
        let mut parts = rest.splitn(4, '/');
        let (_registry, package, _folder, rest) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let (name, _version) = package.rsplit_once('-')?;
        return Some(format!("{}::{}", name.replace('-', "_"), module(rest)));
    }
    let (name, rest) = file.strip_prefix("/rustc/")?.split_once("/library/")?.1.split_once("/src/")?;
    Some(format!("{name}::{}", module(rest)))
}

/// Returns the group of code at a place; `None` for code that belongs to its callers.
fn group(place: &Place) -> Option<Group> {
    let of_file = path_of_file(&place.file).and_then(|path| group_of(&path));
    of_file.or_else(|| group_of(path_of_function(&place.function)))
}

/// Shares of groups in a function.
type Shares = BTreeMap<Group, f64>;

/// Number of steps from a function without a group to its callers. Chains of such functions are shorter.
const STEPS: usize = 32;

/// Sums instructions by group.
///
/// A line belongs to the group of its source file, or else to that of its function. A function of neither is divided
/// among its callers in proportion to the instructions during their calls.
pub(super) fn sums(costs: &Costs) -> BTreeMap<Group, f64> {
    let shared = shares(costs);
    let mut sums = BTreeMap::new();
    for (place, &cost) in &costs.own {
        for (group, share) in of_place(place, &shared) {
            *sums.entry(group).or_default() += share * cost as f64;
        }
    }
    sums
}

/// Returns the shares of groups in the code at a place.
fn of_place(place: &Place, shared: &BTreeMap<&str, Shares>) -> Shares {
    match group(place) {
        Some(group) => Shares::from([(group, 1.0)]),
        None => match shared.get(&*place.function) {
            Some(shares) if !shares.is_empty() => shares.clone(),
            _ => Shares::from([(Group::Other, 1.0)]),
        },
    }
}

/// Returns the shares of groups in each function without a group.
fn shares(costs: &Costs) -> BTreeMap<&str, Shares> {
    let is_shared = |function: &str| group_of(path_of_function(function)).is_none();
    let functions: BTreeSet<&str> =
        costs.own.keys().map(|place| &*place.function).filter(|function| is_shared(function)).collect();
    let calls: Vec<(&Place, &str, f64)> = costs
        .calls
        .iter()
        .filter(|((caller, called), cost)| **cost > 0 && caller.function != **called && functions.contains(&**called))
        .map(|((caller, called), cost)| (caller, &**called, *cost as f64))
        .collect();
    let mut shared: BTreeMap<&str, Shares> = BTreeMap::new();
    for _ in 0..STEPS {
        let mut next: BTreeMap<&str, Shares> = BTreeMap::new();
        for &(caller, called, weight) in &calls {
            let of_caller = of_place(caller, &shared);
            let into = next.entry(called).or_default();
            for (group, share) in of_caller {
                *into.entry(group).or_default() += share * weight;
            }
        }
        for shares in next.values_mut() {
            let whole: f64 = shares.values().sum();
            shares.values_mut().for_each(|share| *share /= whole);
        }
        if next == shared {
            break;
        }
        shared = next;
    }
    shared
}

/// Returns the functions with the most instructions, with the group of each: that of its own code.
pub(super) fn most_expensive(costs: &Costs, count: usize) -> Vec<(&str, Option<Group>, i64)> {
    let mut functions: BTreeMap<&str, i64> = BTreeMap::new();
    for (place, cost) in &costs.own {
        *functions.entry(&place.function).or_default() += cost;
    }
    let mut functions: Vec<_> =
        functions.into_iter().map(|(name, cost)| (name, group_of(path_of_function(name)), cost)).collect();
    functions.sort_by_key(|&(name, _, cost)| (std::cmp::Reverse(cost), name));
    functions.truncate(count);
    functions
}

#[cfg(test)]
mod tests {
    use super::super::callgrind::tests::{SAMPLE, place};
    use super::*;

    #[test]
    fn lines_belong_to_the_group_of_their_file_or_function() {
        let of = |function: &str, file: &str| group(&place(function, file));
        let driver = "doorbell_fabric::driver::Driver<L>::transmit";
        let core = "/rustc/0123/library/core/src/slice/index.rs";
        assert_eq!(of(driver, core), Some(Group::Driver));
        assert_eq!(of(driver, "/a/crates/rnic/wire/src/icrc.rs"), Some(Group::Crc));
        assert_eq!(of(driver, "/a/crates/rnic/verbs-core/src/work.rs"), Some(Group::StateMachine));
        assert_eq!(of(driver, "/rustc/0123/library/std/src/sys/pal/unix/time.rs"), Some(Group::Clock));
        assert_eq!(of("crc32fast::specialized::pclmulqdq::calculate", core), Some(Group::Crc));
        let wire = "/a/benchmarks/instructions/src/../../../crates/messages/exchange/benches/protocols/wire.rs";
        assert_eq!(of("<doorbell_instructions::wire::Wire as T>::receive", wire), Some(Group::Link));
        assert_eq!(of("doorbell_instructions::pair::Pair::round", core), Some(Group::Program));
        // Paths of older revisions.
        assert_eq!(of(driver, "/a/crates/rnic/src/qp/responder.rs"), Some(Group::StateMachine));
        assert_eq!(of(driver, "/a/crates/wire/src/icrc.rs"), Some(Group::Crc));
        let old = "/a/benchmarks/instructions/src/../../../crates/exchange/benches/protocols/wire.rs";
        assert_eq!(of("core::helper", old), Some(Group::Link));
        let queue = "/root/.cargo/registry/src/index-1949/crossbeam-queue-0.3.14/src/array_queue.rs";
        assert_eq!(of("crossbeam_queue::array_queue::ArrayQueue<T>::pop", queue), None);
        assert_eq!(of("<&mut doorbell_verbs::soft::queues::SoftQp as T>::post_send", "???"), Some(Group::Verbs));
        let shm = "<doorbell_fabric::shm::link::SharedMemoryLink as doorbell_fabric::link::Link>::receive";
        assert_eq!(of(shm, "???"), Some(Group::Link));
        assert_eq!(of("main", "???"), None);
    }

    #[test]
    fn functions_without_a_group_belong_to_their_callers() {
        let sums = sums(&Costs::parse(SAMPLE).unwrap());
        let expected = [
            (Group::StateMachine, 64.0), // 40 + 7 + 5 of the function, and 12 of `Vec::insert`, which it calls
            (Group::Copies, 30.0),
            (Group::Crc, 80.0),
            (Group::Program, 3.0),
            (Group::Other, 12.0),
        ];
        assert_eq!(sums, BTreeMap::from(expected));
    }

    #[test]
    fn two_callers_share_a_function_by_the_instructions_of_their_calls() {
        let (a, b) = (place("doorbell_rnic::a", "???"), place("doorbell_exchange::b", "???"));
        let helper = place("core::helper", "???");
        let costs = Costs {
            own: BTreeMap::from([(a.clone(), 10), (b.clone(), 20), (helper, 40)]),
            calls: BTreeMap::from([((a, "core::helper".to_owned()), 10), ((b, "core::helper".to_owned()), 30)]),
        };
        assert_eq!(sums(&costs), BTreeMap::from([(Group::StateMachine, 20.0), (Group::Connection, 50.0)]));
    }

    #[test]
    fn the_most_expensive_functions_come_first() {
        let costs = Costs::parse(SAMPLE).unwrap();
        let first = most_expensive(&costs, 2);
        assert_eq!(first[0], ("crc32fast::specialized::pclmulqdq::calculate", Some(Group::Crc), 80));
        assert_eq!((first[1].1, first[1].2), (Some(Group::StateMachine), 52));
        assert_eq!(first.len(), 2);
    }
}
