//! Builds before a change, with which profiles are compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::{Build, Options, Profile};
use crate::instructions::Workload;

/// Builds before a change.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// Build for all workloads that `on_links` does not profile.
    build: Option<Build>,
    /// Build for the workloads on links.
    on_links: Option<Build>,
    /// Workloads that a build lacks, by the name of the build.
    lacking: BTreeMap<String, Vec<&'static str>>,
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
        Ok(Self { build, on_links, lacking: BTreeMap::new() })
    }

    /// Profiles a workload. Returns `None` if no build is given for it, or if the build lacks it.
    pub(super) fn take(&mut self, home: &Path, workload: &'static Workload) -> Result<Option<Profile>, String> {
        let Some(Build { program, name }) = self.build_for(workload) else { return Ok(None) };
        let (program, name) = (program.clone(), name.clone());
        let profile = Profile::take_if_known(home, &program, workload)?;
        if profile.is_none() {
            self.lacking.entry(name).or_default().push(workload.name);
        }
        Ok(profile)
    }

    fn build_for(&self, workload: &Workload) -> Option<&Build> {
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

    /// Returns a line for each build that lacks workloads, which have no line in the table of changes.
    pub(super) fn notes(&self) -> String {
        let mut text = String::new();
        for (build, workloads) in &self.lacking {
            let _ = writeln!(text, "\n{build} lacks `{}`, so the table leaves them out.", workloads.join("`, `"));
        }
        text
    }

    pub(super) fn lacking(&self) -> &BTreeMap<String, Vec<&'static str>> {
        &self.lacking
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
        let names = |earlier: &Earlier| {
            let name = |workload| earlier.build_for(workload).map(|build: &Build| build.name.clone());
            (name(in_memory), name(on_link), earlier.names())
        };
        let some = |name: &str| Some(name.to_owned());
        let earlier = |build, on_links| Earlier { build, on_links, lacking: BTreeMap::new() };
        assert_eq!(names(&earlier(None, None)), (None, None, None));
        assert_eq!(names(&earlier(Some(build("a")), None)), (some("a"), some("a"), some("a")));
        let only_links = (None, some("b"), some("b for workloads on links"));
        assert_eq!(names(&earlier(None, Some(build("b")))), only_links);
        let both = (some("a"), some("b"), some("a, b for workloads on links"));
        assert_eq!(names(&earlier(Some(build("a")), Some(build("b")))), both);
    }

    #[test]
    fn a_line_names_the_workloads_that_a_build_lacks() {
        let mut earlier = Earlier { build: Some(build("a")), ..Earlier::default() };
        assert_eq!(earlier.notes(), "");
        earlier.lacking.insert("a".to_owned(), vec!["shm-lat", "shm-bw"]);
        assert_eq!(earlier.notes(), "\na lacks `shm-lat`, `shm-bw`, so the table leaves them out.\n");
    }
}
