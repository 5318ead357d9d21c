//! Image that the guest boots. It consists of Debian's kernel and an initramfs with kernel modules, busybox, perftest
//! and the RDMA libraries of this machine. Runs reuse the image until the packages or the recipe change. Each run links
//! the files of the image into its own folder, so another run may replace the image.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::place::{self, Lock};
use crate::shell::{command, output_of, run};

const INIT: &str = include_str!("../../guest/init");

/// Kernel modules of the guest. `modules` also adds the modules that these modules need.
const MODULES: &[&str] = &[
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "veth",
    "dummy",
    "vgem",
    "sch_netem",
    "sch_ingress",
    "cls_u32",
    "act_gact",
    "crc32_generic",
    "crc32c_generic",
    "crc32-pclmul",
];

/// Programs of the guest, in addition to busybox. The image also contains the libraries of these programs.
const PROGRAMS: &[&str] = &[
    "ib_send_bw",
    "ib_send_lat",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "ibv_devinfo",
    "ibv_devices",
    "ibv_rc_pingpong",
    "rdma",
    "ip",
    "tc",
    "tcpdump",
    "dash",
];

/// Package that depends on the newest kernel.
const KERNEL: &str = "linux-image-amd64";

/// Files that qemu boots.
pub(super) struct Image {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
}

/// Builds the image below `home`, unless an image with the same recipe exists. Links its files into the folder of this
/// run.
pub(super) fn build(home: &Path) -> Result<Image, String> {
    let _alone = Lock::take(&home.join("lock"), "the guest's image")?;
    let made = make(home)?;
    let own = Image { kernel: place::own().join("linux"), initramfs: place::own().join("initramfs.cpio") };
    place::link(&made.kernel, &own.kernel)?;
    place::link(&made.initramfs, &own.initramfs)?;
    Ok(own)
}

fn make(home: &Path) -> Result<Image, String> {
    let files = home.join("kernel");
    let version = kernel(&files)?;
    let image = Image { kernel: home.join("linux"), initramfs: home.join("initramfs.cpio") };
    let recipe = recipe(&version)?;
    let stamp = home.join("recipe.txt");
    let is_there = image.kernel.exists() && image.initramfs.exists();
    if is_there && fs::read_to_string(&stamp).is_ok_and(|known| known == recipe) {
        return Ok(image);
    }
    // Remove the stamp first. If this run is killed before the image is complete, the next run finds no stamp and
    // builds the image again.
    match fs::remove_file(&stamp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&stamp)(error)),
        _ => {}
    }
    let root = home.join("root");
    let fresh = home.join("initramfs.new");
    kernel_to_boot(&files.join("boot").join(format!("vmlinuz-{version}")), &image.kernel)?;
    fill(&root, &files, &version)?;
    // The emulated processor of each guest would take half a second to unpack a compressed archive.
    let pack =
        format!("cd '{}' && find . | cpio --create --format=newc --quiet > '{}'", root.display(), fresh.display());
    run(command("sh", &["-ec", &pack]))?;
    place::publish(&fresh, &image.initramfs)?;
    fs::write(&stamp, recipe).map_err(at(&stamp))?;
    fs::remove_dir_all(&root).map_err(at(&root))?;
    Ok(image)
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}

/// Downloads the package of the kernel and unpacks it without installing it. Returns the version of the kernel.
fn kernel(files: &Path) -> Result<String, String> {
    let modules = files.join("lib").join("modules");
    if !modules.exists() {
        let fresh = files.with_extension("new");
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir_all(&fresh).map_err(at(&fresh))?;
        let depends = output_of(command("apt-cache", &["depends", KERNEL]))?;
        let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
        let package = package.ok_or_else(|| format!("{KERNEL} names no kernel:\n{depends}"))?;
        let mut download = command("apt-get", &["download", &format!("linux-image-{package}")]);
        download.current_dir(&fresh);
        run(download)?;
        let package = fs::read_dir(&fresh).map_err(at(&fresh))?.filter_map(Result::ok).map(|entry| entry.path());
        let package = package.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb"));
        let package = package.ok_or("the kernel's package was not downloaded")?;
        run(command("dpkg", &["-x", &package.to_string_lossy(), &fresh.to_string_lossy()]))?;
        fs::remove_file(&package).map_err(at(&package))?;
        fs::rename(&fresh, files).map_err(at(files))?;
    }
    let mut versions = fs::read_dir(&modules).map_err(at(&modules))?.filter_map(Result::ok);
    let version = versions.next().ok_or_else(|| format!("{} is empty", modules.display()))?;
    Ok(version.file_name().to_string_lossy().into_owned())
}

/// Writes the kernel that qemu boots. It is unpacked if possible, because the emulated processor of each guest would
/// take five seconds to unpack it.
fn kernel_to_boot(packed: &Path, to: &Path) -> Result<(), String> {
    let image = fs::read(packed).map_err(at(packed))?;
    let unpacked = payload(&image).and_then(unpack).filter(|kernel| has_entry(kernel));
    if unpacked.is_none() {
        eprintln!("{} cannot be unpacked, so each guest boots five seconds later", packed.display());
    }
    let fresh = place::own_file("linux");
    fs::write(&fresh, unpacked.unwrap_or(image)).map_err(at(&fresh))?;
    place::publish(&fresh, to)
}

/// Returns the compressed kernel in a bzImage, if xz has compressed it. The offsets are of Linux's boot protocol
/// (Documentation/arch/x86/boot.rst).
fn payload(image: &[u8]) -> Option<&[u8]> {
    const SECTOR_BYTES: usize = 512;
    let word = |at: usize| Some(u32::from_le_bytes(*image.get(at..)?.first_chunk()?) as usize);
    let setup_sectors = usize::from(*image.get(0x1f1)?);
    let begin = (setup_sectors + 1) * SECTOR_BYTES + word(0x248)?;
    // The last four bytes are the length of the unpacked kernel.
    let payload = image.get(begin..)?.get(..word(0x24c)?.checked_sub(4)?)?;
    payload.starts_with(b"\xfd7zXZ\0").then_some(payload)
}

fn unpack(payload: &[u8]) -> Option<Vec<u8>> {
    let packed = place::own_file("linux.xz");
    fs::write(&packed, payload).ok()?;
    let mut xz = command("xz", &["--decompress", "--stdout"]);
    let output = xz.arg(&packed).output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// Returns whether a kernel has an entry for qemu, which is a note of Xen of the type 18 (PHYS32_ENTRY).
fn has_entry(kernel: &[u8]) -> bool {
    const NOTE: &[u8] = b"\x12\0\0\0Xen\0";
    let (words, _) = kernel.as_chunks::<4>();
    let (kind, name) = NOTE.split_at(4);
    words.windows(2).any(|pair| pair[0] == kind && pair[1] == name)
}

/// Returns a text with versions and names of everything in the image. If this text changes, a new image is built.
fn recipe(version: &str) -> Result<String, String> {
    let packages = output_of(command(
        "dpkg-query",
        &["--show", "busybox-static", "perftest", "ibverbs-providers", "iproute2", "tcpdump", "libc6"],
    ))?;
    Ok(format!("{version}\n{packages}\n{MODULES:?}\n{PROGRAMS:?}\n{INIT}"))
}

fn fill(root: &Path, files: &Path, version: &str) -> Result<(), String> {
    let _ = fs::remove_dir_all(root);
    for folder in
        ["dev", "proc", "sys", "tmp", "run", "opt", "host", "etc", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"]
    {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
    }
    // Create the same links to folders below /usr as Debian.
    for merged in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{merged}"), root.join(merged)).map_err(at(root))?;
    }
    install(&program("busybox")?, root)?;
    symlink("/bin/busybox", root.join("sbin/modprobe")).map_err(at(root))?;
    // Tests of limits on locked memory need the user `nobody`.
    let users = root.join("etc/passwd");
    fs::write(&users, "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n").map_err(at(&users))?;
    modules(root, files, version)?;
    let mut libraries = BTreeSet::new();
    for name in PROGRAMS {
        let program = program(name)?;
        libraries.extend(needed_by(&program)?);
        install(&program, root)?;
    }
    // Rust programs of the guest need the same libraries as this program. The path in `/proc` works even if another
    // build has replaced the file of this program.
    libraries.extend(needed_by(Path::new(&format!("/proc/{}/exe", std::process::id())))?);
    for driver in rxe_driver(&libraries)? {
        libraries.extend(needed_by(&driver)?);
        install(&driver, root)?;
    }
    let registered = Path::new("/etc/libibverbs.d/rxe.driver");
    install(registered, root)?;
    for library in &libraries {
        install(library, root)?;
    }
    let init = root.join("init");
    fs::write(&init, INIT).map_err(at(&init))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).map_err(at(&init))
}

/// Returns the path of a program of this machine.
fn program(name: &str) -> Result<PathBuf, String> {
    let path = output_of(command("sh", &["-c", &format!("PATH=$PATH:/usr/sbin:/sbin command -v {name}")]))
        .map_err(|_| format!("there is no program {name}"))?;
    Ok(PathBuf::from(path.trim()))
}

/// Copies a file to the same path below `root`. Follows symbolic links.
fn install(file: &Path, root: &Path) -> Result<(), String> {
    let place = root.join(file.strip_prefix("/").unwrap_or(file));
    let folder = place.parent().unwrap_or(root);
    fs::create_dir_all(folder).map_err(at(folder))?;
    fs::copy(file, &place).map(drop).map_err(at(file))
}

/// Returns the paths of a program's libraries from the output of ldd. A line is
/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)`, or without an arrow for the dynamic linker.
fn needed_by(file: &Path) -> Result<Vec<PathBuf>, String> {
    let text = output_of(command("ldd", &[&file.to_string_lossy()]))?;
    let paths = text.lines().filter_map(|line| {
        let path = line.split_once("=> ").map_or(line, |(_, path)| path).trim();
        path.starts_with('/').then(|| PathBuf::from(path.split(' ').next().unwrap_or(path)))
    });
    Ok(paths.collect())
}

/// Returns the driver of libibverbs for rxe, from a folder beside the library.
fn rxe_driver(libraries: &BTreeSet<PathBuf>) -> Result<Vec<PathBuf>, String> {
    let library = libraries.iter().find(|path| path.ends_with("libibverbs.so.1"));
    let folder = library.and_then(|path| path.parent()).ok_or("perftest uses no libibverbs")?.join("libibverbs");
    let entries = fs::read_dir(&folder).map_err(at(&folder))?.filter_map(Result::ok).map(|entry| entry.path());
    let is_rxe = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librxe"));
    Ok(entries.filter(is_rxe).collect())
}

/// Copies the modules of [`MODULES`], and the modules that they need.
fn modules(root: &Path, files: &Path, version: &str) -> Result<(), String> {
    let base = files.to_string_lossy().into_owned();
    run(command("depmod", &["-b", &base, version]))?;
    let inside = format!("lib/modules/{version}");
    for name in MODULES {
        // modprobe lists no file for a built-in module. If a module is missing, the guest reports it later.
        let shown = output_of(command("modprobe", &["-d", &base, "-S", version, "--show-depends", name]));
        for line in shown.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let file = Path::new(line.split(' ').next().unwrap_or(line).trim());
            let relative = file.strip_prefix(files).map_err(|_| format!("{} is no module", file.display()))?;
            let place = root.join(relative);
            let folder = place.parent().unwrap_or(root);
            fs::create_dir_all(folder).map_err(at(folder))?;
            fs::copy(file, &place).map_err(at(file))?;
        }
    }
    for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        let from = files.join(&inside).join(name);
        fs::copy(&from, root.join(&inside).join(name)).map_err(at(&from))?;
    }
    run(command("depmod", &["-b", &root.to_string_lossy(), version]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a bzImage with one setup sector, and with the payload 16 bytes after the setup.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 1024 + 16];
        image[0x1f1] = 1;
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        [&image, payload].concat()
    }

    #[test]
    fn a_compressed_kernel_is_found_in_its_image() {
        let found = image(b"\xfd7zXZ\0abc\x09\0\0\0");
        assert_eq!(payload(&found), Some(&b"\xfd7zXZ\0abc"[..]));
        assert_eq!(payload(&image(b"\x28\xb5\x2f\xfdabc\x09\0\0\0")), None, "zstd");
        assert_eq!(payload(&found[..found.len() - 5]), None, "cut off");
        assert_eq!(payload(&image(b"abc")), None);
        assert_eq!(payload(b""), None);
    }

    #[test]
    fn only_a_kernel_with_a_note_of_its_entry_boots_unpacked() {
        assert!(has_entry(b"\x7fELF\x04\0\0\0\x08\0\0\0\x12\0\0\0Xen\0entry\0\0\0"));
        assert!(!has_entry(b"\x7fELF\x04\0\0\0\x08\0\0\0\x11\0\0\0Xen\0entry\0\0\0"));
        assert!(!has_entry(b"ELF"));
    }
}
