//! Other programs against which Doorbell is checked, and their installation.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::network;
use crate::place::Lock;
use crate::shell::{cargo, command, output_of, run, succeeds, target};

/// Installs missing packages if possible. If a package is still missing afterwards, the steps that need it report this.
pub(crate) fn install() {
    // Debian packages, each with a check whether its content is present.
    install_missing(|| {
        vec![
            ("tshark", has_tshark()),
            ("python3-scapy", python_with_scapy().is_some()),
            ("iproute2", succeeds(command("ip", &["-V"]))),
            ("ethtool", succeeds(command("ethtool", &["--version"]))),
            ("nftables", succeeds(command("nft", &["--version"]))),
            ("chromium", chromium().is_some()),
            ("gdb", has("gdb")),
            ("gcc", succeeds(command("cc", &["--version"]))),
            ("xz-utils", has("xz")),
            ("libibverbs-dev", has_header("infiniband/verbs.h")),
            ("librdmacm-dev", has_header("rdma/rdma_verbs.h")),
            ("ibverbs-utils", has("ibv_rc_pingpong")),
            ("rdmacm-utils", has("rping")),
            ("perftest", has("ib_send_bw")),
            ("infiniband-diags", has("ibstat")),
            ("rdma-core", Path::new("/usr/share/doc/rdma-core/tests").exists()),
            ("ucx-utils", has("ucx_perftest")),
            ("libucx-dev", has_header("ucp/api/ucp.h")),
            ("openmpi-bin", has("mpirun.openmpi")),
            ("libopenmpi-dev", has("mpicc")),
            ("mpich", has("mpirun.mpich")),
            ("dpkg-dev", has("dpkg-shlibdeps")),
            ("lintian", has("lintian")),
            ("mmdebstrap", has("mmdebstrap")),
            ("munge", has("munged")),
            ("slurmctld", has("slurmctld")),
            ("slurmd", has("slurmd")),
            ("slurm-client", has("srun")),
            ("openssh-client", has("ssh")),
            ("openssh-server", has("sshd")),
            ("python3-pyverbs", succeeds(command("/usr/bin/python3", &["-c", "import pyverbs.device"]))),
        ]
    });
}

/// Installs the packages for generating bindings.
pub(crate) fn install_for_bindings() {
    install_missing(|| {
        vec![
            ("libclang-dev", has_libclang()),
            ("libibverbs-dev", has_header("infiniband/verbs.h")),
            ("librdmacm-dev", has_header("rdma/rdma_verbs.h")),
        ]
    });
}

/// Debian packages for comparisons, each with one of its programs.
const FOR_COMPARISON: &[(&str, &str)] =
    &[("perftest", "ib_send_bw"), ("libfabric-bin", "fi_pingpong"), ("ucx-utils", "ucx_perftest")];

/// Installs the packages for comparisons. An error names the packages that are still missing.
pub(crate) fn install_for_comparison() -> Result<(), String> {
    install_all(FOR_COMPARISON)
}

/// Installs packages whose programs are missing. An error names the packages that are still missing afterwards.
fn install_all(packages: &[(&'static str, &str)]) -> Result<(), String> {
    let packages = || packages.iter().map(|&(package, program)| (package, has(program))).collect::<Vec<_>>();
    install_missing(packages);
    let missing: Vec<&str> = packages().iter().filter(|(_, is_here)| !is_here).map(|(name, _)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("packages are missing: {}", missing.join(", "))) }
}

/// Debian packages for `docs/programs.md`, each with one of its programs.
pub(crate) const FOR_PAGE: &[(&str, &str)] = &[
    ("libfabric-bin", "fi_pingpong"),
    ("openmpi-bin", "mpirun"),
    ("libopenmpi-dev", "mpicc"),
    ("fio", "fio"),
    ("qperf", "qperf"),
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("perftest", "ib_send_bw"),
    ("rdmacm-utils", "rping"),
];

/// Installs the packages for `docs/programs.md`. An error names the packages that are still missing.
pub(crate) fn install_for_page() -> Result<(), String> {
    install_all(FOR_PAGE)
}

/// Installs the packages for programs that transfer bytes. An error names the packages that are still missing.
pub(crate) fn install_for_transfers() -> Result<(), String> {
    let packages = || {
        vec![
            ("g++", has("c++")),
            ("libgloo-dev", has_header("gloo/context.h")),
            ("librpma-dev", has_header("librpma.h")),
            ("mpich", has("mpiexec.mpich")),
            ("libmpich-dev", has_header("x86_64-linux-gnu/mpich/mpi.h")),
        ]
    };
    install_missing(packages);
    let missing: Vec<&str> = packages().iter().filter(|(_, is_here)| !is_here).map(|(name, _)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("packages are missing: {}", missing.join(", "))) }
}

/// Installs the packages that build Rust crates with bindings of verbs. An error names the packages that are still
/// missing.
pub(crate) fn install_for_crates() -> Result<(), String> {
    install_missing(|| vec![("libclang-dev", has_libclang())]);
    install_all(&[("cmake", "cmake")])?;
    if has_libclang() { Ok(()) } else { Err("the package libclang-dev is missing".to_owned()) }
}

/// Installs the packages of uDAPL. An error names the packages that are still missing.
pub(crate) fn install_for_dapl() -> Result<(), String> {
    // The provider is in libdapl2, on which the programs do not depend.
    let has_provider = || succeeds(command("sh", &["-c", "ls /usr/lib/*/libdaplofa.so.2"]));
    install_missing(|| vec![("libdapl2", has_provider())]);
    install_all(&[("dapl2-utils", "dapltest")])?;
    if has_provider() { Ok(()) } else { Err("the package libdapl2 is missing".to_owned()) }
}

/// Installs the packages for iSCSI over RDMA. An error names the packages that are still missing.
pub(crate) fn install_for_iser() -> Result<(), String> {
    install_all(&[("tgt", "tgtd"), ("qemu-utils", "qemu-io")])?;
    let has_iscsi = || succeeds(command("sh", &["-c", "ls /usr/lib/*/qemu/block-iscsi.so"]));
    install_missing(|| vec![("qemu-block-extra", has_iscsi())]);
    if has_iscsi() { Ok(()) } else { Err("the package qemu-block-extra is missing".to_owned()) }
}

/// Installs the packages that link and run programs for another processor, such as aarch64. `unwinder` is the package
/// with its libgcc_s, which depends on its library of C.
pub(crate) fn install_for_emulation(processor: &str, unwinder: &'static str) {
    let has_library = || Path::new("/usr").join(format!("{processor}-linux-gnu/lib/libgcc_s.so.1")).exists();
    install_missing(|| vec![("qemu-user", has(&format!("qemu-{processor}"))), (unwinder, has_library())]);
}

/// Adds Rust's library for a target through rustup, if rustup is installed. If the library is still missing afterwards,
/// the steps that need it report this.
pub(crate) fn add_target(triple: &str) {
    if !has("rustup") {
        return;
    }
    let lock = target().join("xtask").join("rustup.lock");
    let added = Lock::take(&lock, "targets of rustup")
        .and_then(|_alone| network::outside(|| run(command("rustup", &["target", "add", triple]))));
    if let Err(why) = added {
        eprintln!("{why}");
    }
}

/// Installs the C++ compiler, which builds libFuzzer. Fails if the compiler is still missing afterwards.
pub(crate) fn install_for_fuzzing() -> Result<(), String> {
    install_missing(|| vec![("g++", has("c++"))]);
    if has("c++") { Ok(()) } else { Err("a C++ compiler is missing".to_owned()) }
}

/// Installs valgrind, which counts instructions. Fails if valgrind is still missing afterwards.
pub(crate) fn install_for_counting() -> Result<(), String> {
    install_missing(|| vec![("valgrind", has("valgrind"))]);
    if has("valgrind") { Ok(()) } else { Err("valgrind is missing".to_owned()) }
}

/// Installs valgrind and strace, which profiles need. An error names the packages that are still missing.
pub(crate) fn install_for_profiles() -> Result<(), String> {
    install_all(&[("valgrind", "valgrind"), ("strace", "strace")])
}

/// Installs strace and perftest, which profiles of perftest need. An error names the packages that are still missing.
pub(crate) fn install_for_profiles_of_perftest() -> Result<(), String> {
    install_all(&[("strace", "strace"), ("perftest", "ib_send_lat")])
}

/// Debian packages of which virtual machines are built, each with one of its programs.
const FOR_GUESTS: &[(&str, &str)] = &[
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("busybox-static", "busybox"),
    ("cpio", "cpio"),
    ("kmod", "depmod"),
    ("iproute2", "rdma"),
    ("perftest", "ib_send_bw"),
    ("ibverbs-utils", "ibv_devinfo"),
    ("tcpdump", "tcpdump"),
    ("apt", "apt-get"),
];

/// Installs the packages for virtual machines.
pub(crate) fn install_for_guests() {
    install_missing(guest_packages);
}

/// Returns the packages for guests that are missing on this machine.
pub(crate) fn missing_for_guests() -> Vec<&'static str> {
    guest_packages().into_iter().filter(|(_, is_here)| !is_here).map(|(package, _)| package).collect()
}

fn guest_packages() -> Vec<(&'static str, bool)> {
    let mut packages: Vec<_> = FOR_GUESTS.iter().map(|&(package, program)| (package, has(program))).collect();
    packages.push(("ibverbs-providers", Path::new("/etc/libibverbs.d/rxe.driver").exists()));
    packages
}

/// Returns the path of a tool of crates.io: a name, or `NAME@VERSION` if only this version is right. If the tool is
/// missing, builds it, with these further arguments of `cargo install`.
pub(crate) fn tool(tool: &str, arguments: &[&str]) -> Result<PathBuf, String> {
    let (name, version) = tool.split_once('@').unwrap_or((tool, ""));
    if output_of(command(name, &["--version"])).is_ok_and(|about| about.contains(version)) {
        return Ok(PathBuf::from(name));
    }
    let home = target().join("xtask").join("tools").join(tool);
    let program = home.join("bin").join(name);
    if !program.exists() {
        let mut install = cargo(&["install", "--quiet", "--locked", tool, "--root"]);
        install.arg(&home).args(arguments);
        network::outside(|| run(install))?;
    }
    Ok(program)
}

/// Installs packages of PyPI in the virtual environment `target/xtask/NAME`, with one call of pip for each list, and
/// returns the path of its interpreter. Creates the environment if it is missing.
pub(crate) fn python_with(name: &str, lists: &[&[&str]]) -> Result<PathBuf, String> {
    let folder = target().join("xtask").join(name);
    let _alone = Lock::take(&folder.with_extension("lock"), "packages of PyPI")?;
    let python = folder.join("bin/python");
    if !python.exists() {
        run(command("python3", &["-m", "venv", &folder.to_string_lossy()]))?;
    }
    network::outside(|| lists.iter().try_for_each(|packages| run(pip(&python, packages))))?;
    Ok(python)
}

/// Returns a command of pip that installs packages.
pub(crate) fn pip(python: &Path, packages: &[&str]) -> Command {
    let mut pip = command(python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.args(packages);
    pip
}

/// Returns whether a program is installed.
pub(crate) fn has(program: &str) -> bool {
    let find = format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}");
    succeeds(command("sh", &["-c", &find]))
}

/// Returns whether libclang is installed. The library libclang-cpp does not replace it.
fn has_libclang() -> bool {
    let libraries = command("sh", &["-c", "ls /usr/lib/llvm-*/lib/libclang.so*"]);
    succeeds(libraries)
}

/// Returns whether one of rdma-core's public headers is installed.
fn has_header(name: &str) -> bool {
    Path::new("/usr/include").join(name).exists()
}

/// Directory that a run locks (`flock`) while it installs packages. The directory exists on each system with apt-get.
const PACKAGES: &str = "/var/lib/dpkg";

/// Time for which apt-get may wait for another program that installs packages.
const APT_PATIENCE: &str = "DPkg::Lock::Timeout=600";

fn install_missing(packages: impl Fn() -> Vec<(&'static str, bool)>) {
    let missing = || packages().into_iter().filter(|(_, is_here)| !is_here).map(|(name, _)| name).collect::<Vec<_>>();
    if missing().is_empty() {
        return;
    }
    let lock = lock_packages();
    let missing = missing();
    if missing.is_empty() {
        return;
    }
    eprintln!("\n== packages to install: {}", missing.join(", "));
    if !is_root() || !succeeds(command("apt-get", &["--version"])) {
        eprintln!("packages are not installed: only root can install them, and only with apt-get");
        return;
    }
    let apt = |arguments: &[&str]| -> Command {
        let mut apt = command("apt-get", &["-o", APT_PATIENCE]);
        apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    let install = [&["install", "--yes", "--no-install-recommends"][..], &missing].concat();
    // Update the package lists first, because they may be outdated or missing.
    if let Err(error) = network::outside(|| run(apt(&["update", "--quiet"])).and_then(|()| run(apt(&install)))) {
        eprintln!("{error}");
    }
    drop(lock);
}

/// Locks [`PACKAGES`], and waits if another run is installing packages. Returns `None` on a system without apt-get.
fn lock_packages() -> Option<File> {
    let lock = File::open(PACKAGES).ok()?;
    if lock.try_lock().is_err() {
        eprintln!("packages: waiting for another run that installs packages");
        lock.lock().ok()?;
    }
    Some(lock)
}

/// Returns whether tshark is installed.
pub(crate) fn has_tshark() -> bool {
    succeeds(command("tshark", &["--version"]))
}

/// Returns a Python interpreter with scapy's RoCE layer. Debian installs scapy for `/usr/bin/python3`, which may not be
/// the first `python3` in the path.
pub(crate) fn python_with_scapy() -> Option<&'static str> {
    ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|python| succeeds(command(python, &["-c", "import scapy.contrib.roce"])))
}

/// Returns the name of the installed Chromium or Chrome.
pub(crate) fn chromium() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|browser| succeeds(command(browser, &["--version"])))
}

/// Returns whether this process runs as root.
pub(crate) fn is_root() -> bool {
    output_of(command("id", &["-u"])).is_ok_and(|id| id.trim() == "0")
}
