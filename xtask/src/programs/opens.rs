//! Files of an RDMA device that a program opens and the library does not serve. `--explain` names each of them.

/// End of the line in which the library names such a file.
const UNSERVED: &str = ": the software RNIC has no file of this name";

/// Ends of paths that a program may open although they do not exist. Hwloc counts ports and GIDs up to the first one
/// that is missing. Open MPI asks for a driver in the kernel, which the device does not have.
const ALLOWED: [&str; 3] = ["/ports/2/state", "/ports/1/gids/1", "/device/driver"];

/// Returns the output of a program, unless the program has opened a file that the library should serve.
pub(super) fn check(said: String) -> Result<String, String> {
    let mut paths = said.lines().filter_map(|line| line.strip_suffix(UNSERVED));
    let unserved = paths.find(|path| !ALLOWED.iter().any(|end| path.ends_with(end)));
    let why = unserved.map(|path| format!("the library does not serve a file that a program opens: {path}"));
    why.map_or(Ok(said), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_end_a_count_may_be_missing() {
        let line = |path: &str| format!("doorbell: mpi[7]: /sys/class/infiniband/doorbell0/{path}{UNSERVED}\n");
        let counted = format!("{}{}all bytes are right\n", line("ports/2/state"), line("ports/1/gids/1"));
        assert_eq!(check(counted.clone()), Ok(counted.clone()));
        let why = check(counted + &line("device/max_link_speed")).unwrap_err();
        assert!(why.ends_with("doorbell0/device/max_link_speed"), "{why}");
    }
}
