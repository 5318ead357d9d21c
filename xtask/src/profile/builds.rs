//! Builds of the counting program: the profiled one, and those before a change.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::{Options, Profile};
use crate::instructions::{self, Workload};
use crate::versus::Revision;

/// A build of the counting program.
#[derive(Debug)]
pub(super) struct Build {
    pub(super) program: PathBuf,
    /// Name in the output, such as the short hash of the revision.
    pub(super) name: String,
}

impl Build {
    /// Builds the counting program of a revision. `name` distinguishes the file from those of other builds.
    pub(super) fn of_revision(home: &Path, revision: &str, name: &str) -> Result<Self, String> {
        let Revision { tree, id } = Revision::check_out(home, revision)?;
        Ok(Self { program: instructions::build(home, &tree, name)?, name: id.chars().take(8).collect() })
    }

    /// Returns the build that an option names.
    pub(super) fn given(option: &str, program: &Path) -> Result<Self, String> {
        let path = program.canonicalize().map_err(|error| format!("{option} {}: {error}", program.display()))?;
        Ok(Self { program: path, name: program.display().to_string() })
    }
}

/// Builds before a change.
#[derive(Debug)]
pub(super) struct Earlier {
    /// Build for all workloads that `on_links` does not profile.
    build: Option<Build>,
    /// Build for the workloads on links.
    on_links: Option<Build>,
}

impl Earlier {
    /// Builds the revisions that the options name.
    pub(super) fn build(home: &Path, options: &Options) -> Result<Self, String> {
        let build = match (&options.before_program, &options.before) {
            (Some(program), _) => Some(Build::given("--before-program", program)?),
            (None, Some(revision)) => Some(Build::of_revision(home, revision, "before")?),
            (None, None) => None,
        };
        let on_links = options.links_before.as_deref();
        let on_links = on_links.map(|revision| Build::of_revision(home, revision, "links-before")).transpose()?;
        Ok(Self { build, on_links })
    }

    /// Returns the build with which a workload is profiled before the change.
    pub(super) fn build_for(&self, workload: &Workload) -> Option<&Build> {
        self.on_links.as_ref().filter(|_| workload.is_on_link()).or(self.build.as_ref())
    }

    /// Returns the names of the builds; `None` without a build.
    pub(super) fn names(&self) -> Option<String> {
        match (&self.build, &self.on_links) {
            (None, None) => None,
            (Some(build), None) => Some(build.name.clone()),
            (None, Some(on_links)) => Some(format!("{} for workloads on links", on_links.name)),
            (Some(build), Some(on_links)) => Some(format!("{}, {} for workloads on links", build.name, on_links.name)),
        }
    }
}

/// Workloads that builds lack, by the name of the build.
#[derive(Debug, Default)]
pub(super) struct Lacking(BTreeMap<String, Vec<&'static str>>);

impl Lacking {
    /// Profiles a workload. Returns `None` and remembers the workload if the build lacks it.
    pub(super) fn profile(
        &mut self,
        home: &Path,
        build: &Build,
        workload: &'static Workload,
    ) -> Result<Option<Profile>, String> {
        self.or_remember(build, workload, Profile::take(home, &build.program, workload))
    }

    fn or_remember<P>(
        &mut self,
        build: &Build,
        workload: &'static Workload,
        taken: Result<P, String>,
    ) -> Result<Option<P>, String> {
        match taken {
            Err(why) if instructions::is_unknown(&why) => {
                self.0.entry(build.name.clone()).or_default().push(workload.name);
                Ok(None)
            }
            taken => taken.map(Some),
        }
    }

    /// Returns an error if the profiled build lacks all workloads.
    pub(super) fn check(&self, profiled: usize) -> Result<(), String> {
        if profiled > 0 { Ok(()) } else { Err(format!("no workload was profiled: {}", self.notes().trim())) }
    }

    /// Returns a line for each build that lacks workloads.
    pub(super) fn notes(&self) -> String {
        let mut text = String::new();
        for (build, workloads) in &self.0 {
            let _ = writeln!(text, "\n{build} lacks `{}`.", workloads.join("`, `"));
        }
        text
    }

    /// Returns the names of workloads by the name of the build.
    pub(super) fn by_build(&self) -> &BTreeMap<String, Vec<&'static str>> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instructions::{IN_MEMORY, ON_LINKS};

    fn build(name: &str) -> Build {
        Build { program: format!("/builds/{name}").into(), name: name.to_owned() }
    }

    #[test]
    fn workloads_on_links_may_have_a_build_of_their_own() {
        let [in_memory, on_link] = [&IN_MEMORY[0], &ON_LINKS[0]];
        let names = |build, on_links| {
            let earlier = Earlier { build, on_links };
            let name = |workload| earlier.build_for(workload).map(|build| build.name.clone());
            (name(in_memory), name(on_link), earlier.names())
        };
        let some = |name: &str| Some(name.to_owned());
        assert_eq!(names(None, None), (None, None, None));
        assert_eq!(names(Some(build("a")), None), (some("a"), some("a"), some("a")));
        assert_eq!(names(None, Some(build("b"))), (None, some("b"), some("b for workloads on links")));
        let both = (some("a"), some("b"), some("a, b for workloads on links"));
        assert_eq!(names(Some(build("a")), Some(build("b"))), both);
    }

    #[test]
    fn a_line_names_the_workloads_that_a_build_lacks() {
        let mut lacking = Lacking::default();
        assert_eq!(lacking.or_remember(&build("b"), &ON_LINKS[0], Ok(7)), Ok(Some(7)));
        let failed = "shm-lat failed under valgrind: signal: 11".to_owned();
        assert_eq!(lacking.or_remember::<()>(&build("a"), &ON_LINKS[0], Err(failed.clone())), Err(failed));
        assert_eq!(lacking.notes(), "");
        for workload in &ON_LINKS[..2] {
            let unknown = format!("there is no workload {:?}", workload.name);
            assert_eq!(lacking.or_remember::<()>(&build("a"), workload, Err(unknown)), Ok(None));
        }
        assert_eq!(lacking.notes(), "\na lacks `shm-lat`, `shm-bw`.\n");
        assert_eq!(lacking.check(1), Ok(()));
        assert_eq!(lacking.check(0), Err("no workload was profiled: a lacks `shm-lat`, `shm-bw`.".to_owned()));
    }

    #[test]
    fn a_program_that_does_not_exist_is_an_error_of_its_option() {
        let why = Build::given("--before-program", Path::new("/there/is/none")).unwrap_err();
        assert!(why.starts_with("--before-program /there/is/none: "), "{why}");
    }
}
