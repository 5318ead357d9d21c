//! Checks of the drop-in libraries: their symbols, and programs that open libibverbs themselves.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{PATIENCE, built, compile, on_doorbell, ports, start};
use crate::place;
use crate::shell::{command, output_of, root};

/// Name by which `cargo xtask programs` selects this test.
pub(super) const NAME: &str = "drop-ins";

/// Libraries that the drop-ins replace.
const REPLACED: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Options of `doorbell run`, and arguments of the program `loader` that then finds the device.
const LOADER_RUNS: [(&[&str], &str); 4] =
    [(&[], "shared"), (&[], "old"), (&["--fault", "drop=0.05,seed=3"], "shared"), (&[], "killed")];

/// Program of Python that opens a library.
const OPEN: &str = "import ctypes, sys; ctypes.CDLL(sys.argv[1])";

/// Compares the drop-ins with the system's libraries, and calls each of their functions that must fail. Then runs
/// programs that open libibverbs, with and without the preloaded library, and programs that do not reach it, whose
/// reason the library must explain.
pub(super) fn check() -> Result<(), String> {
    let folder = built().join("lib/doorbell");
    let symbols = compile("cc", "symbols", &[])?;
    for name in REPLACED {
        let (own, replaced) = (folder.join(name), path_of_system(name)?);
        compare_names(&own, &replaced)?;
        let list = root().join("crates/programs/preload/abi").join(name.replace(".so.1", ".txt"));
        let [own, replaced, list] = [&own, &replaced, &list].map(|path| path.to_string_lossy());
        let mut compare = command(&symbols, &[&own, &replaced, &list]);
        // cargo adds its own folders, in which an older library may lie.
        compare.env_remove("LD_LIBRARY_PATH");
        start(compare)?.finish(PATIENCE).map_err(|why| format!("{name}: {why}"))?;
    }
    let loader = compile("cc", "loader", &[])?;
    for (options, kind) in LOADER_RUNS {
        let ended = start(on_doorbell(options, &[&loader, kind]))?.finish(PATIENCE);
        ended.map_err(|why| format!("loader {kind}, options {options:?}: {why}"))?;
    }
    let ends = compile("cc", "ends", &["-libverbs"])?;
    for program in [&loader, &ends] {
        let mut alone = command(program, &["alone"]);
        alone.env("LD_LIBRARY_PATH", &folder).env_remove("LD_PRELOAD");
        start(alone)?.finish(PATIENCE).map_err(|why| format!("{program} without preloading: {why}"))?;
    }
    ports::on_free_port(|port| rping_alone(&folder, port)).map_err(|why| format!("rping without preloading: {why}"))?;
    explanations(&loader)
}

/// Runs both ends of rping, which reach the drop-ins in this folder without the preloaded library.
fn rping_alone(folder: &Path, port: &str) -> Result<(), String> {
    let end = |role: &str| {
        let words = [role, "-a", "127.0.0.1", "-p", port, "-V", "-C", "100", "-S", "5000"];
        let mut end = command("rping", &words);
        end.env("LD_LIBRARY_PATH", folder).env_remove("LD_PRELOAD");
        start(end)
    };
    let mut server = end("-s")?;
    ports::wait_until_listening(port, &mut server)?;
    let client = end("-c")?;
    let (client, server) = (client.finish(PATIENCE), server.finish(PATIENCE));
    client.and(server).map(drop)
}

/// Returns the path of a library of the system.
fn path_of_system(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(output_of(command("cc", &[&format!("-print-file-name={name}")]))?.trim());
    if path.is_absolute() { Ok(path) } else { Err(format!("{name} is not installed")) }
}

/// Checks that the drop-in has each symbol of the library that it replaces, with the same version.
fn compare_names(own: &Path, replaced: &Path) -> Result<(), String> {
    let (own_names, names) = (names(own)?, names(replaced)?);
    let missing: Vec<&str> = names.difference(&own_names).map(String::as_str).collect();
    if names.is_empty() || !missing.is_empty() {
        let all = names.len();
        return Err(format!("{} lacks {} of {all} symbols: {}", own.display(), missing.len(), missing.join(", ")));
    }
    Ok(())
}

/// Returns the defined symbols of a library with their versions, such as `ibv_open_device@@IBVERBS_1.1`.
fn names(library: &Path) -> Result<BTreeSet<String>, String> {
    let listed = output_of(command("nm", &["--dynamic", "--defined-only", &library.to_string_lossy()]))?;
    let symbol = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        // Not each linker lists the version nodes, which have the kind `A`.
        [_, "A", _] => None,
        [_, _, name] => Some(name.to_owned()),
        _ => None,
    };
    Ok(listed.lines().filter_map(symbol).collect())
}

/// Runs programs whose calls do not reach the library, and checks the explanations.
fn explanations(loader: &str) -> Result<(), String> {
    let replaced = path_of_system(REPLACED[0])?;
    let of_connections = path_of_system(REPLACED[1])?.to_string_lossy().into_owned();
    let renamed = place::own().join("libibverbs-3f2a1b0c.so.1");
    fs::copy(&replaced, &renamed).map_err(|error| format!("{} could not be written: {error}", renamed.display()))?;
    let libraries = ["-Wl,-Bstatic", "-libverbs", "-Wl,-Bdynamic", "-lnl-route-3", "-lnl-3"];
    let linked = compile("cc", "linked", &libraries)?;
    // A path in the program itself precedes `LD_LIBRARY_PATH`, so the program begins with the system's library.
    let folder = replaced.parent().unwrap_or(Path::new("/"));
    let path = format!("-Wl,--disable-new-dtags,-rpath,{}", folder.display());
    let of_system = place::own().join("loader-of-system").to_string_lossy().into_owned();
    compile("cc", "loader", &[&path, "-Wl,--no-as-needed", "-libverbs", "-o", &of_system])?;
    for (words, expected) in [
        (
            vec![loader.to_owned(), replaced.display().to_string()],
            format!("{}: another libibverbs", replaced.display()),
        ),
        (vec![loader.to_owned(), renamed.display().to_string()], format!("{}: another libibverbs", renamed.display())),
        (
            vec![loader.to_owned(), replaced.display().to_string()],
            "a driver that another libibverbs has loaded".to_owned(),
        ),
        (
            ["python3", "-c", OPEN, &of_connections].map(str::to_owned).to_vec(),
            format!("{of_connections}: another librdmacm"),
        ),
        (vec![linked], "the program: libibverbs is linked into it".to_owned()),
        (vec![of_system, "none".to_owned()], "libibverbs.so: another libibverbs".to_owned()),
    ] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = start(on_doorbell(&[], &words))?.finish(PATIENCE)?;
        if !said.contains(&expected) {
            return Err(format!("{words:?} is not explained by {expected:?}:\n{said}"));
        }
    }
    Ok(())
}
