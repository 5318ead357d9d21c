//! Table of the steps of `cargo xtask test`. Every command that runs steps selects them from this table.

use std::path::Path;

use crate::test::{self, StepEnd};
use crate::{
    bindings, browser, chaos, digests, dist, fuzz, guide, house, instructions, network, packages, packets, peers,
    programs, prose, regressions, site, soak, two_machines, vm,
};

/// A step of a test run.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    pub(crate) body: Body,
    /// Whether a whole run includes the step. Other steps build foreign sources, which takes long, or fail on some
    /// machines. They run only by name or with their group.
    pub(crate) in_whole_run: bool,
}

/// Steps that a command selects together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Tests that need no other program.
    Code,
    /// Builds for the other steps, and checks of the sources. They need no other program.
    Builds,
    /// Checks that mostly compile. They run at a low priority beside the steps after them. Only [`OTHER_WHEELS`] needs
    /// other programs.
    Compiling,
    /// Checks of captured packets by other programs.
    Packets,
    /// Checks of the command on several machines, which are network namespaces.
    Machines,
    /// Check of the report in a browser.
    Report,
    /// Check of the site of all pages.
    Site,
    /// Check of the commands in the guide.
    Guide,
    /// Unmodified verbs programs.
    Programs,
    /// Check of the wheel.
    Wheel,
    /// Checks in virtual machines with rdma_rxe.
    Guests,
    /// Check of the layouts with the C compiler.
    Layouts,
}

impl Group {
    /// Returns the number of steps that run at the same time. Steps with programs or a browser spend much time in
    /// waits, and a guest mostly uses only one processor, so two such steps run together. Two builds run together
    /// because each has phases with a single compiler: its first macros, and its last crates and links. The outputs in
    /// the guide and the counters of cables depend on the timing, so their steps run alone.
    pub(crate) const fn at_a_time(self) -> usize {
        match self {
            Self::Builds | Self::Wheel | Self::Report | Self::Site | Self::Programs | Self::Guests => 2,
            _ => 1,
        }
    }

    /// Returns whether adjacent steps of both groups may run at the same time. Steps of other groups use the builds, so
    /// they start after all builds.
    pub(crate) fn runs_beside(self, other: Self) -> bool {
        self.at_a_time() == other.at_a_time() && (self == Self::Builds) == (other == Self::Builds)
    }

    /// Returns the steps that must pass before a step of this group can run alone.
    pub(crate) const fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Code | Self::Builds | Self::Compiling => &[],
            Self::Packets => &[OTHER_PROGRAMS, TESTS],
            Self::Layouts => &[OTHER_PROGRAMS],
            Self::Guests => &[BUILD],
            Self::Machines | Self::Report | Self::Site | Self::Guide | Self::Programs | Self::Wheel => {
                &[OTHER_PROGRAMS, BUILD]
            }
        }
    }
}

/// Work of a step.
pub(crate) enum Body {
    Plain(fn() -> StepEnd),
    /// The step reads the captures in a folder.
    Captures(fn(&Path) -> StepEnd),
    /// The step runs the programs with the given names, or all its programs without names.
    Named(fn(&[&str]) -> StepEnd),
    /// The step runs in a guest that has not booted yet.
    Guest(fn(vm::Guest) -> StepEnd),
}

/// Step that installs other programs.
pub(crate) const OTHER_PROGRAMS: &str = "other programs";
/// Step that builds the command and the library.
pub(crate) const BUILD: &str = "release build";
/// Step that links the programs of wheels for other processors, after it has installed a linker and libraries.
pub(crate) const OTHER_WHEELS: &str = "wheel for other processors, build";
/// Step that runs all tests, which capture packets.
const TESTS: &str = "tests";
/// Step that runs all or some programs of this repository.
pub(crate) const OWN: &str = "verbs programs, our own";
/// Step that runs all or some programs of docs/programs.md.
pub(crate) const PAGE: &str = "verbs programs, their page";

/// Step that runs programs of Debian with all bytes compared, with loss, and with a killed peer.
pub(crate) const GLOO_AND_MPICH: &str = "verbs programs, gloo and MPICH";
/// Step that runs programs of PyPI in the same way.
pub(crate) const PYPI: &str = "verbs programs, PyPI";
/// Step that runs uDAPL.
pub(crate) const DAPL: &str = "verbs programs, uDAPL";
/// Step that runs iSCSI over RDMA.
pub(crate) const ISER: &str = "verbs programs, iSER";
/// Step that runs programs with two devices, and takes ports down.
pub(crate) const TWO_DEVICES: &str = "verbs programs, two devices";
/// Step that builds and runs the tests of Rust crates.
pub(crate) const CRATES: &str = "verbs programs, Rust crates";

const fn step(group: Group, name: &'static str, body: Body) -> Step {
    Step { name, group, body, in_whole_run: true }
}

const fn plain(group: Group, name: &'static str, body: fn() -> StepEnd) -> Step {
    step(group, name, Body::Plain(body))
}

const fn guest(name: &'static str, body: fn(vm::Guest) -> StepEnd) -> Step {
    step(Group::Guests, name, Body::Guest(body))
}

impl Step {
    /// Leaves the step out of a whole run.
    const fn apart(mut self) -> Self {
        self.in_whole_run = false;
        self
    }
}

/// All steps, in the order in which they run. Among steps that run at the same time, the longest steps come first.
///
/// A step of [`Group::Compiling`] starts when as many other steps have ended as precede it here, and runs beside the
/// others from then on. So all of them follow the steps that run alone.
pub(crate) const STEPS: &[Step] = &[
    // The release build comes first, beside all other steps of its group. The lints and the build of the tests share
    // the lock of one profile.
    plain(Group::Builds, BUILD, || programs::build().into()),
    plain(Group::Builds, "formatting", test::formatting),
    plain(Group::Builds, "prose", || prose::run(&[], false).into()),
    plain(Group::Builds, "house", || house::run(&house::Options::default()).into()),
    plain(Group::Builds, "verbs without the software RNIC", || test::hardware_alone().into()),
    plain(Group::Builds, "packages", || packages::check().into()),
    plain(Group::Builds, "regressions apply", || regressions::check().into()),
    plain(Group::Builds, OTHER_PROGRAMS, || {
        peers::install();
        StepEnd::Passed
    }),
    plain(Group::Builds, "lints", test::lints),
    plain(Group::Builds, "tests, build", || test::build().into()),
    plain(Group::Code, "simulations, in the release build", || digests::compare().into()),
    plain(Group::Machines, "two machines", two_machines::exchange),
    plain(Group::Machines, "two machines, with loss", two_machines::with_loss),
    plain(Group::Machines, "two machines, real frames", two_machines::frames),
    plain(Group::Machines, "two machines, study", two_machines::study),
    plain(Group::Machines, "many machines, study", two_machines::cluster),
    plain(Group::Machines, "many machines, ssh", two_machines::ssh),
    plain(Group::Machines, "many machines, Slurm", || network::apart_with_interface(two_machines::slurm)),
    plain(Group::Guide, "guide, its commands", || guide::check().into()),
    // Short calls of cargo come first, because the tests wait for the call that has the lock of their profile.
    plain(Group::Compiling, "packages, combinations of features", packages::features),
    plain(Group::Compiling, "packages, rehearsal", packages::rehearsal),
    plain(Group::Compiling, OTHER_WHEELS, dist::wheel::link_for_others),
    plain(Group::Compiling, "fuzz targets, build", || fuzz::build().into()),
    plain(Group::Compiling, "instruction counter, check", || instructions::check().into()),
    plain(Group::Compiling, "documentation", || test::documentation().into()),
    plain(Group::Code, TESTS, || network::apart(|| test::tests().into())),
    plain(Group::Code, "tests of root", test::left_out),
    plain(Group::Code, "tests, over UDP", || network::apart(|| test::over_udp().into())),
    step(Group::Packets, "packets, to tshark", Body::Captures(packets::dissect)),
    step(Group::Packets, "packets, to scapy", Body::Captures(packets::recompute_icrc)),
    // It replaces `target/debug/doorbell`, which the tests run, so it follows them.
    plain(Group::Compiling, "packages, built from their files", || packages::install().into()),
    plain(Group::Wheel, "wheel", dist::wheel::step),
    plain(Group::Site, "site", site::step),
    plain(Group::Report, "report, in a browser", browser::report),
    plain(Group::Programs, "verbs programs, archive", || network::apart(dist::check_archive)),
    plain(Group::Programs, "verbs programs, pairs", || network::apart(|| programs::pairs().into())),
    plain(Group::Programs, "verbs programs, UCX", || network::apart(|| programs::ucx().into())),
    plain(Group::Programs, "verbs programs, chaos", || chaos::step().into()),
    step(
        Group::Programs,
        PAGE,
        Body::Named(|only| network::apart_with_interface(|| programs::page::check(only).into())),
    ),
    plain(Group::Programs, CRATES, || network::apart(programs::rust_crates)).apart(),
    plain(Group::Programs, "soak, one minute", || soak::step().into()),
    plain(Group::Programs, PYPI, || network::apart(programs::of_pypi)),
    plain(Group::Programs, "rdma-core's tests", || network::apart(|| programs::pyverbs().into())),
    plain(Group::Programs, "verbs programs, rdma_cm", || network::apart(programs::rdma_cm)),
    plain(Group::Programs, DAPL, || network::apart(programs::dapl)),
    plain(Group::Programs, ISER, || network::apart(programs::iser)),
    plain(Group::Programs, TWO_DEVICES, || network::apart(programs::several_devices)),
    // Far from the archive, because both need a minimal system of Debian, which only one step at a time makes.
    plain(Group::Programs, "verbs programs, Debian packages", || network::apart(dist::check_packages)),
    step(Group::Programs, OWN, Body::Named(|only| network::apart(|| programs::own(only).into()))),
    plain(Group::Programs, GLOO_AND_MPICH, || network::apart(|| programs::of_debian().into())),
    plain(Group::Programs, "verbs programs, through a box", || network::apart(|| programs::middlebox::run().into())),
    plain(Group::Programs, "verbs programs, device", || network::apart(|| programs::show().into())),
    guest("rdma_rxe, on the wire", vm::on_the_wire),
    guest("rdma_rxe, exchange", vm::exchange),
    guest("rdma_rxe, behind a box", vm::middlebox),
    guest("rdma_rxe, loss", vm::loss),
    guest("rdma_rxe, qualify", vm::qualify),
    guest("rdma_rxe, commands", vm::commands),
    guest("rdma_rxe, verbs", vm::verbs),
    // It waits for [`OTHER_WHEELS`], which compiles for long at its low priority.
    plain(Group::Programs, "wheel for other processors", dist::wheel::for_others),
    guest("rdma_rxe, two hosts", vm::two_hosts),
    plain(Group::Layouts, "layouts, to the C compiler", || bindings::check_layout().into()),
];

/// Returns the steps of a whole run.
pub(crate) fn whole_run() -> impl Iterator<Item = &'static Step> {
    STEPS.iter().filter(|step| step.in_whole_run)
}

/// Returns the steps of a group.
pub(crate) fn of(group: Group) -> Vec<&'static Step> {
    STEPS.iter().filter(|step| step.group == group).collect()
}

/// Returns the step with the name `part`. If there is no such step, returns all steps whose names contain `part`, in
/// upper or lower case.
pub(crate) fn named(part: &str) -> Result<Vec<&'static Step>, String> {
    if let Some(step) = STEPS.iter().find(|step| step.name == part) {
        return Ok(vec![step]);
    }
    let part = part.to_lowercase();
    let found: Vec<&Step> = STEPS.iter().filter(|step| step.name.to_lowercase().contains(&part)).collect();
    if found.is_empty() {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("no step's name contains {part:?}; the steps are: {}", names.join("; ")));
    }
    Ok(found)
}

/// Returns the steps that the given steps need, followed by the given steps.
pub(crate) fn with_needs(steps: Vec<&'static Step>) -> Vec<&'static Step> {
    let mut all: Vec<&Step> = Vec::new();
    for name in steps.iter().flat_map(|step| step.group.needs()) {
        let needed = STEPS.iter().filter(|step| step.name == *name);
        needed.for_each(|step| add(&mut all, step));
    }
    steps.into_iter().for_each(|step| add(&mut all, step));
    all
}

fn add(steps: &mut Vec<&'static Step>, step: &'static Step) {
    if steps.iter().all(|other| other.name != step.name) {
        steps.push(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(steps: &[&Step]) -> Vec<&'static str> {
        steps.iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_are_found_by_names_or_parts_of_names() {
        assert_eq!(names(&named("tests").unwrap()), ["tests"]);
        assert_eq!(names(&named("two machines").unwrap()), ["two machines"]);
        assert_eq!(names(&named("ucx").unwrap()), ["verbs programs, UCX"]);
        assert_eq!(names(&named("two machines, ").unwrap()).len(), 3);
        assert!(named("nonsense").err().unwrap().contains("verbs programs, UCX"));
    }

    #[test]
    fn a_single_step_runs_after_its_needs() {
        let steps = with_needs(named("rdma").unwrap());
        assert_eq!(names(&steps)[..3], ["other programs", "release build", "rdma-core's tests"]);
        assert_eq!(names(&with_needs(of(Group::Guests)))[0], "release build");
        assert_eq!(names(&with_needs(named("formatting").unwrap())), ["formatting"]);
    }

    #[test]
    fn steps_apart_run_only_by_name_or_with_their_group() {
        assert!(whole_run().all(|step| step.name != CRATES));
        assert_eq!(whole_run().count(), STEPS.len() - 1);
        assert_eq!(names(&named("rust crates").unwrap()), [CRATES]);
        assert!(names(&of(Group::Programs)).contains(&CRATES));
    }

    #[test]
    fn no_step_runs_beside_the_builds_that_it_uses() {
        assert!(Group::Programs.runs_beside(Group::Guests) && Group::Builds.runs_beside(Group::Builds));
        for group in STEPS.iter().map(|step| step.group).filter(|group| !group.needs().is_empty()) {
            assert!(!group.runs_beside(Group::Builds), "{group:?}");
        }
    }

    #[test]
    fn steps_that_compile_run_beside_none_that_runs_alone() {
        let place = |name: &str| STEPS.iter().position(|step| step.name == name).expect("the step exists");
        let first = STEPS.iter().position(|step| step.group == Group::Compiling).expect("some steps compile");
        assert!(STEPS[first..].iter().all(|step| !matches!(step.group, Group::Machines | Group::Guide)));
        // Both use the file `target/debug/doorbell`.
        assert!(place("packages, built from their files") > place(TESTS));
    }

    /// A whole run would fail if it left out a step that another step needs.
    #[test]
    fn needed_steps_are_in_the_whole_run() {
        assert!(whole_run().all(|step| step.group.needs().iter().all(|name| whole_run().any(|own| own.name == *name))));
    }

    #[test]
    fn step_names_are_unique_and_needs_exist() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..index].iter().all(|other| other.name != step.name), "{}", step.name);
            assert!(step.group.needs().iter().all(|name| STEPS.iter().any(|step| step.name == *name)));
        }
    }
}
