//! `cargo xtask dist --wheel`: a wheel of the command, its libraries and the Python modules in `python`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::zig::{self, GLIBC, Machine, Purpose};
use super::{copy, empty, ended, print, publish};
use crate::action::{self, expect_device};
use crate::programs::{self, DROP_INS};
use crate::shell::{Running, command, output_of, root, run, target};
use crate::test::StepEnd;
use crate::{network, peers, place};

/// Maximum size of a wheel.
const MAX_BYTES: u64 = 12 << 20;

/// Packages of PyPI with which the tests in `python/tests` run.
const TESTERS: &[&str] = &["pytest==9.2.0", "pytest-xdist==3.8.0"];

/// Packages of PyPI that the modules use only if they are installed.
const OPTIONAL: &[&str] = &["pandas==3.1.1", "polars==2.1.0"];

/// Package of PyPI that runs the command of a wheel without an installation.
const ONE_SHOT: &[&str] = &["uv==0.13.9"];

/// Interpreter for which Debian installs pyverbs.
const PYTHON_OF_DEBIAN: &str = "/usr/bin/python3";

/// Maximum time of an emulated command.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the tag of a wheel: Python from 3.9, and the version of glibc for which zig links.
fn tag(machine: Machine) -> String {
    let (major, minor) = GLIBC;
    format!("cp39-abi3-manylinux_{major}_{minor}_{}", machine.name())
}

/// Links the programs of a wheel, and makes the wheel in the folder `out`. The release build comes before.
pub(super) fn make(machine: Machine, purpose: Purpose, out: &Path) -> Result<Vec<PathBuf>, String> {
    let programs = place::own().join(format!("wheel-programs-{}", machine.name()));
    zig::link(machine, purpose, &target(), &programs)?;
    let make = |folder: &Path| wheel(machine, purpose, &programs, folder);
    match purpose {
        Purpose::Users => publish("wheel", out, make),
        // The wheel for this machine shows that a repetition has the same bytes.
        Purpose::Tests => {
            empty(out)?;
            make(out)
        }
    }
}

/// Makes the wheel of linked programs in an empty folder.
fn wheel(machine: Machine, purpose: Purpose, programs: &Path, out: &Path) -> Result<Vec<PathBuf>, String> {
    let version = env!("CARGO_PKG_VERSION");
    // Steps of two processors may run at the same time.
    let folder = place::own().join(format!("wheel-{}", machine.name()));
    empty(&folder)?;
    collect(machine, programs, &folder, version)?;
    let name = format!("doorbell_rdma-{version}-{}.whl", tag(machine));
    let packed = out.join(&name);
    pack(&folder, version, &tag(machine), &packed)?;
    let bytes = fs::metadata(&packed).map_err(|error| format!("{}: {error}", packed.display()))?.len();
    if purpose == Purpose::Users && bytes > MAX_BYTES {
        return Err(format!("{name} has {bytes} bytes, must have at most {MAX_BYTES}"));
    }
    Ok(vec![packed])
}

/// Puts the files of the wheel into a folder with the layout of a wheel.
fn collect(machine: Machine, built: &Path, folder: &Path, version: &str) -> Result<(), String> {
    let data = folder.join(format!("doorbell_rdma-{version}.data"));
    // The command of the release build prints the same texts, also where the one of the wheel cannot run.
    print(&programs::doorbell(), &data.join("data"))?;
    let mut files = vec![
        (built.join("doorbell"), data.join("scripts/doorbell")),
        (built.join("libdoorbell_ibverbs.so"), data.join("data/lib/libdoorbell_ibverbs.so")),
        (built.join("libdoorbell_python.so"), folder.join("doorbell/_wire.abi3.so")),
    ];
    files.extend(DROP_INS.map(|path| (built.join(path), data.join("data").join(path))));
    files.iter().try_for_each(|(from, _)| machine.check(from).and_then(|()| check_symbols(from)))?;
    let modules = root().join("python/doorbell");
    let failed = |error| format!("{} could not be read: {error}", modules.display());
    for entry in fs::read_dir(&modules).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // Python may have written a folder of compiled modules.
        if path.is_file() {
            let to = folder.join("doorbell").join(path.file_name().unwrap_or_default());
            files.push((path, to));
        }
    }
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let to = folder.join(format!("doorbell_rdma-{version}.dist-info/licenses")).join(licence);
        files.push((root().join(licence), to));
    }
    files.iter().try_for_each(|(from, to)| copy(from, to))
}

/// Packs a folder with the layout of a wheel.
fn pack(folder: &Path, version: &str, tag: &str, to: &Path) -> Result<(), String> {
    let (script, readme) = (root().join("xtask/src/dist/wheel.py"), root().join("python/README.md"));
    let mut python = command("python3", &[]);
    python.arg(script).arg(folder).arg(readme).args([version, tag]).arg(to);
    run(python)
}

/// Checks that a program needs no symbol that [`GLIBC`] lacks.
fn check_symbols(file: &Path) -> Result<(), String> {
    let listed = output_of(command("nm", &["--dynamic", "--undefined-only", &file.to_string_lossy()]))?;
    let missing: Vec<&str> = listed.lines().filter_map(missing_symbol).collect();
    let (major, minor) = GLIBC;
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("{} needs symbols that glibc {major}.{minor} lacks: {}", file.display(), missing.join(", ")))
}

/// Returns the symbol in a line of `nm`, if [`GLIBC`] lacks it. The linker gives no version to a symbol that it does
/// not know.
fn missing_symbol(line: &str) -> Option<&str> {
    let [kind, symbol, ..] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
    let is_missing = match symbol.split_once("@GLIBC_") {
        Some((_, version)) => {
            let numbers: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
            !matches!(numbers.as_deref(), Some([major, minor, ..]) if (*major, *minor) <= GLIBC)
        }
        // A drop-in needs the table of the library beside it, and the module of Python needs its interpreter.
        None => {
            let is_other = ["doorbell_calls_", "Py", "_Py"].iter().any(|prefix| symbol.starts_with(prefix));
            kind == "U" && !symbol.contains('@') && !is_other
        }
    };
    is_missing.then_some(symbol)
}

/// Builds the wheel twice with the same bytes, installs it, and uses it.
pub(crate) fn step() -> StepEnd {
    if let Err(why) = zig::zig() {
        return StepEnd::LeftOut(format!("packages of PyPI cannot be installed: {why}"));
    }
    match Machine::of_host().and_then(|machine| make(machine, Purpose::Users, &place::own().join("dist"))) {
        Ok(wheels) => network::apart(|| wheels.iter().try_for_each(|wheel| used(wheel)).into()),
        Err(why) => StepEnd::Failed(why),
    }
}

/// Links the programs of wheels for other processors. The folder differs from the one of [`make`], which may run at the
/// same time.
pub(crate) fn link_for_others() -> StepEnd {
    for_each_other(|machine| {
        zig::link(machine, Purpose::Tests, &target(), &place::own_file("linked-for-other")).map(|()| None)
    })
}

/// Makes the wheels for other processors, and runs their command in QEMU.
pub(crate) fn for_others() -> StepEnd {
    for_each_other(|machine| {
        let wheels = make(machine, Purpose::Tests, &place::own_file("wheel-for-other"))?;
        let reasons: Result<Vec<_>, String> = wheels.iter().map(|wheel| emulated(machine, wheel)).collect();
        Ok(reasons?.into_iter().flatten().next())
    })
}

/// Calls `body` with each processor but that of this machine, if this machine can link for it. `body` returns the
/// reason for a part that cannot run on this machine.
fn for_each_other(body: impl Fn(Machine) -> Result<Option<String>, String>) -> StepEnd {
    if let Err(why) = zig::zig() {
        return StepEnd::LeftOut(format!("packages of PyPI cannot be installed: {why}"));
    }
    let reason = |machine: Machine| {
        peers::install_for_emulation(machine.name(), machine.unwinder_package());
        machine.install_library();
        machine.missing().map_or_else(|| body(machine), |why| Ok(Some(why)))
    };
    let reasons = Machine::of_host().and_then(|host| {
        let others = Machine::ALL.into_iter().filter(|machine| *machine != host);
        others.map(reason).collect::<Result<Vec<_>, String>>()
    });
    ended(reasons.map(|reasons| reasons.into_iter().flatten().collect()))
}

/// Unpacks a wheel for another processor, and runs its command in QEMU: a pair of it exchanges messages. Returns the
/// reason if this machine cannot do so.
pub(super) fn emulated(machine: Machine, wheel: &Path) -> Result<Option<String>, String> {
    let emulator = format!("qemu-{}", machine.name());
    let libraries = machine.libraries();
    if !peers::has(&emulator) || !libraries.join("lib/libc.so.6").exists() {
        return Ok(Some(format!("a wheel for {0} runs only with qemu-{0} and the libraries of C", machine.name())));
    }
    let folder = place::own_file("unpacked-wheel");
    run(command("python3", &["-m", "zipfile", "-e", &wheel.to_string_lossy(), &folder.to_string_lossy()]))?;
    let program = folder.join(concat!("doorbell_rdma-", env!("CARGO_PKG_VERSION"), ".data/scripts/doorbell"));
    run(command("chmod", &["+x", &program.to_string_lossy()]))?;
    let doorbell = |words: &[&str]| {
        let mut doorbell = command(&emulator, &["-L", &libraries.to_string_lossy()]);
        doorbell.arg(&program).args(words).env("DOORBELL_TOKEN", "emulated");
        doorbell
    };
    let version = output_of(doorbell(&["--version"]))?;
    if version.trim() != concat!("doorbell ", env!("CARGO_PKG_VERSION")) {
        return Err(format!("`doorbell --version` printed {version:?}"));
    }
    let exchange = || {
        // Without a listener, the command would start itself, and the kernel cannot start files for another processor.
        let mut listener = Running::start(doorbell(&["bench", "lat", "--listen", "127.0.0.1"]))?;
        listener.wait_for("waiting for a client", PATIENCE)?;
        let client = Running::start(doorbell(&["bench", "lat", "127.0.0.1", "-s", "64", "-n", "200", "--verify"]))?;
        client.finish(PATIENCE).map(|(table, _)| table)
    };
    let exchanged = network::apart(|| exchange().and_then(|table| has_row(&table, "64", "200")));
    exchanged.map(|()| None)
}

/// Checks that a table has a row that begins with these two words.
fn has_row(table: &str, first: &str, second: &str) -> Result<(), String> {
    let is_it = |line: &str| line.split_whitespace().take(2).eq([first, second]);
    if table.lines().any(is_it) { Ok(()) } else { Err(format!("no row begins with {first} {second}:\n{table}")) }
}

/// Installs the wheel in new virtual environments, and runs a pair of perftest and the suites of pytest.
fn used(wheel: &Path) -> Result<(), String> {
    let wheel = wheel.to_string_lossy();
    let wheel: &str = &wheel;
    let begun = Instant::now();
    let bin = environment("wheel-environment", "python3", &[])?;
    let python = bin.join("python");
    run(peers::pip(&python, &["--no-index", wheel]))?;
    let doorbell = bin.join("doorbell");
    programs::pair_of(&doorbell, "ib_send_bw -n 500", &[])?;
    let took = begun.elapsed();
    eprintln!("{:.1} s from a new environment to the end of ib_send_bw", took.as_secs_f64());
    installed_by_script(wheel)?;
    action::check_wheel(Path::new(wheel), &place::own_file("action"))?;
    network::outside(|| run(peers::pip(&python, &[TESTERS, &programs::WHEELS, ONE_SHOT].concat())))?;
    one_shot(&bin.join("uv"), wheel)?;
    run(pytest(&python, &python, "python/tests"))?;
    // Without these packages, the tests above have checked the remedy. The same tests now check the frames.
    // A single process imports few of their files, and pip would compile all of them.
    network::outside(|| run(peers::pip(&python, &[&["--no-compile"], OPTIONAL].concat())))?;
    run(pytest(&python, &python, "python/tests/test_records.py"))?;
    run(pytest(&python, &python, "xtask/programs/wheel/test_transfers.py"))?;
    run(pytest(&doorbell, &python, "xtask/programs/wheel/test_rdma4py.py"))?;
    // Debian's Python has pyverbs, and may have no pip. So the other one installs packages for it.
    let of_debian = environment("wheel-environment-debian", PYTHON_OF_DEBIAN, &["--system-site-packages"])?;
    let own = of_debian.join("python").to_string_lossy().into_owned();
    let install = |packages: &[&str]| {
        let mut pip = command(&python, &["-m", "pip", "--python", &own, "install", "--quiet"]);
        pip.arg("--disable-pip-version-check").args(packages);
        run(pip)
    };
    install(&["--no-index", wheel])?;
    network::outside(|| install(TESTERS))?;
    run(pytest(&of_debian.join("doorbell"), Path::new(&own), "xtask/programs/wheel/test_pyverbs.py"))
}

/// Runs the command of the wheel in a temporary environment, as `uvx` does.
fn one_shot(uv: &Path, wheel: &str) -> Result<(), String> {
    let words = ["tool", "run", "--offline", "--no-index", "--from", wheel, "doorbell", "run", "--", "ibv_devices"];
    let mut doorbell = command(uv, &words);
    doorbell.env("UV_CACHE_DIR", place::own_file("uv-cache")).env("UV_TOOL_DIR", place::own_file("uv-tools"));
    expect_device(&output_of(doorbell)?, "uv tool run")
}

/// Installs the wheel as CI does, and lists the devices.
fn installed_by_script(wheel: &str) -> Result<(), String> {
    let folder = place::own_file("installed");
    let mut script = command("sh", &["ci/install.sh", wheel, &folder.to_string_lossy()]);
    script.env_remove("GITHUB_PATH");
    run(script)?;
    expect_device(&output_of(command(folder.join("bin/doorbell"), &["run", "--", "ibv_devices"]))?, "ci/install.sh")?;
    // pip rejects a wheel whose name has another C library, as it does on a system with that library.
    let other = place::own_file("other").join("doorbell_rdma-1-py3-none-musllinux_1_2_x86_64.whl");
    copy(Path::new(wheel), &other)?;
    let folder = place::own_file("not-installed");
    let rejected = output_of(command("sh", &["ci/install.sh", &other.to_string_lossy(), &folder.to_string_lossy()]));
    match rejected {
        Err(why) if why.contains("Wheels need glibc 2.28 or later") => Ok(()),
        other => Err(format!("a wheel for musl was not rejected with a remedy: {other:?}")),
    }
}

/// Creates a virtual environment, and returns the folder of its programs.
fn environment(name: &str, python: &str, options: &[&str]) -> Result<PathBuf, String> {
    let folder = place::own_file(name);
    let mut venv = command(python, &["-m", "venv"]);
    // Debian's Python cannot install pip, which is another package of Debian.
    let pip: &[&str] = if python == PYTHON_OF_DEBIAN { &["--without-pip"] } else { &[] };
    venv.args(options).args(pip).arg(&folder);
    run(venv)?;
    Ok(folder.join("bin"))
}

/// Returns the command that runs tests with pytest. If `program` is `doorbell`, the tests themselves run on the
/// software RNIC.
fn pytest(program: &Path, python: &Path, tests: &str) -> Command {
    let mut pytest = if program == python {
        command(python, &[])
    } else {
        let mut doorbell = command(program, &["run", "--"]);
        doorbell.arg(python);
        doorbell
    };
    pytest.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "--basetemp"]);
    pytest.arg(place::own_file("pytest")).arg(tests).env("PYTHONDONTWRITEBYTECODE", "1");
    for variable in ["DOORBELL_PRELOAD_LIB", "LD_PRELOAD", "LD_LIBRARY_PATH"] {
        pytest.env_remove(variable);
    }
    pytest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_that_the_oldest_glibc_lacks_are_found() {
        for fine in [
            "                 U dlsym@GLIBC_2.2.5",
            "                 U statx@GLIBC_2.28 (3)",
            "                 w gettid",
            "                 U _Unwind_Resume@GCC_3.0",
            "                 U doorbell_calls_0123456789abcdef",
            "                 U PyErr_Print",
            "",
        ] {
            assert_eq!(missing_symbol(fine), None, "{fine}");
        }
        for (line, symbol) in [
            ("                 U gettid", "gettid"),
            ("                 U fstat@GLIBC_2.33", "fstat@GLIBC_2.33"),
            ("                 w later@GLIBC_3.0", "later@GLIBC_3.0"),
            ("                 U _dl_x@GLIBC_PRIVATE", "_dl_x@GLIBC_PRIVATE"),
        ] {
            assert_eq!(missing_symbol(line), Some(symbol), "{line}");
        }
    }

    #[test]
    fn a_row_is_found_by_its_first_words() {
        let table = "   bytes    rounds      min\n      64       200     2.08\n";
        assert_eq!(has_row(table, "64", "200"), Ok(()));
        assert!(has_row(table, "64", "20").expect_err("there is no such row").contains("rounds"));
    }

    #[test]
    fn tags_name_the_processor_and_the_oldest_glibc() {
        assert_eq!(Machine::ALL.map(tag), ["cp39-abi3-manylinux_2_28_x86_64", "cp39-abi3-manylinux_2_28_aarch64"]);
    }
}
