//! Tests of served paths. The test program contains the library's functions, which replace those of the C library. So
//! the calls of the standard library in these tests reach the library's functions.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::route::{Buffer, End, Lead, lead, may_concern};

const CLASS: &str = "/sys/class/infiniband";

/// Returns the destination of a path in words.
fn led_to(path: &str, end: End) -> String {
    let c = std::ffi::CString::new(path).unwrap();
    let mut buffer = Buffer::new();
    // SAFETY: the path is a C string.
    unsafe {
        if !may_concern(libc::AT_FDCWD, c.as_ptr()) {
            return "through".to_owned();
        }
        match lead(libc::AT_FDCWD, c.as_ptr(), end, &mut buffer) {
            Lead::Through => "through".to_owned(),
            Lead::Elsewhere => format!("elsewhere {}", String::from_utf8_lossy(buffer.path())),
            Lead::Node(_) => format!("node {}", String::from_utf8_lossy(buffer.path())),
            Lead::Refused(errno) => nix::errno::Errno::from_raw(errno).to_string(),
        }
    }
}

#[test]
fn paths_resolve_as_in_the_kernel() {
    let device = "/sys/devices/platform/doorbell.0/infiniband/doorbell0";
    let to = |path: &str| led_to(path, End::Followed);
    for through in [
        "/",
        "",
        "a",
        "/etc/passwd",
        "/sys",
        "/sys/class",
        "/sys/class/net",
        "/sys/class/infiniband2",
        "/sys/class/infiniban",
        "/dev/infinibandit",
        "/dev/null",
        "/proc/self/root/sys/class/infiniband",
        "/sys/devices/platform/doorbell",
        "/sys/devices/system/cpu",
        "class",
    ] {
        assert_eq!(to(through), "through", "{through:?}");
    }
    for class in [
        "/sys/class/infiniband",
        "/sys/class/infiniband/",
        "//sys///class/./infiniband",
        "/./sys/class/infiniband/.",
        "/sys/class/infiniband/../infiniband",
        "/sys/class/infiniband/../../../../../sys/class/infiniband",
    ] {
        assert_eq!(to(class), "node /sys/class/infiniband", "{class:?}");
    }
    assert_eq!(to("/sys/class/infiniband/doorbell0"), format!("node {device}"));
    assert_eq!(led_to("/sys/class/infiniband/doorbell0", End::Itself), "node /sys/class/infiniband/doorbell0");
    assert_eq!(led_to("/sys/class/infiniband/doorbell0/", End::Itself), format!("node {device}"));
    assert_eq!(
        to("/sys/class/infiniband/doorbell0/device/infiniband/doorbell0/ports/1/state"),
        format!("node {device}/ports/1/state")
    );
    assert_eq!(to("/sys/class/infiniband/doorbell0/.."), "node /sys/devices/platform/doorbell.0/infiniband");
    assert_eq!(to("/sys/class/infiniband/doorbell0/subsystem"), "node /sys/class/infiniband");
    assert_eq!(to("/sys/class/infiniband/doorbell0/device/subsystem/x"), "elsewhere /sys/bus/platform/x");
    assert_eq!(to("/sys/class/infiniband/mlx5_0/../x"), "elsewhere /sys/class/infiniband/mlx5_0/../x");
    assert_eq!(to("/sys/class/infiniband/.."), "elsewhere /sys/class");
    assert_eq!(to("/sys/class/infiniband/../../.."), "elsewhere /");
    // Devices of the machine stay as they are. Only their first letters are those of served folders.
    for machine in ["/sys/devices/pci0000:00/0000:00:01.0/subsystem/../x", "/sys/devices/platform/doorbell.1/x"] {
        assert_eq!(to(machine), format!("elsewhere {machine}"));
    }
    assert_eq!(to("/sys/class/infiniband/../../../etc/passwd"), "elsewhere /etc/passwd");
    let node_type = format!("{CLASS}/doorbell0/node_type");
    for (path, errno) in [
        (format!("{node_type}/"), "ENOTDIR"),
        (format!("{node_type}/."), "ENOTDIR"),
        (format!("{node_type}/.."), "ENOTDIR"),
        (format!("{node_type}/x"), "ENOTDIR"),
        (format!("{CLASS}/doorbell0/x"), "ENOENT"),
        (format!("{CLASS}/doorbell0/x/.."), "ENOENT"),
        (format!("{CLASS}/{}", "x".repeat(256)), "ENAMETOOLONG"),
        (format!("{CLASS}/doorbell0/{}", "x".repeat(256)), "ENAMETOOLONG"),
        (format!("{CLASS}/{}", "./".repeat(2100)), "ENAMETOOLONG"),
    ] {
        assert!(to(&path).starts_with(errno), "{path}: {}", to(&path));
    }
    let made = End::Made { followed: true };
    assert!(led_to(&format!("{CLASS}/doorbell0/x"), made).starts_with("EACCES"));
    assert!(led_to(&format!("{CLASS}/doorbell0/x/y"), made).starts_with("ENOENT"));
}

#[test]
fn invalid_addresses_are_passed_to_the_kernel() {
    for number in [0, 1, 4095] {
        // SAFETY: the function reads no memory at this address.
        assert!(!unsafe { may_concern(libc::AT_FDCWD, std::ptr::without_provenance(number)) });
    }
    // SAFETY: the kernel rejects the address.
    assert_eq!(unsafe { libc::open(std::ptr::without_provenance(7), libc::O_RDONLY) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
}

#[test]
fn served_files_are_read_only() {
    let port = Path::new(CLASS).join("doorbell0/ports/1");
    assert_eq!(fs::read_to_string(port.join("state")).unwrap(), "4: ACTIVE\n");
    let names: Vec<_> = fs::read_dir(CLASS).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.contains(&"doorbell0".into()), "{names:?}");
    let status = fs::metadata(port.join("rate")).unwrap();
    assert_eq!((status.mode(), status.uid(), status.len()), (0o100_444, 0, 4096));
    let node = fs::symlink_metadata(format!("/dev/infiniband/{}", super::dev_name(0).to_str().unwrap())).unwrap();
    assert!(node.file_type().is_char_device());
    assert_eq!(libc::major(node.rdev()), 231);
    assert_eq!(
        fs::canonicalize(format!("{CLASS}/doorbell0/device")).unwrap(),
        PathBuf::from("/sys/devices/platform/doorbell.0")
    );
    let open = |options: &mut fs::OpenOptions, path: &Path| options.open(path).map(drop).unwrap_err().raw_os_error();
    assert_eq!(open(fs::OpenOptions::new().write(true), &port.join("state")), Some(libc::EACCES));
    assert_eq!(open(fs::OpenOptions::new().append(true).create(true), &port.join("new")), Some(libc::EACCES));
    assert_eq!(open(fs::OpenOptions::new().write(true).create_new(true), &port.join("state")), Some(libc::EEXIST));
    assert_eq!(open(fs::OpenOptions::new().write(true), &port), Some(libc::EISDIR));
    assert_eq!(
        open(fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY), &port.join("state")),
        Some(libc::ENOTDIR)
    );
    assert_eq!(fs::read_link(port.join("state")).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert_eq!(fs::read(port.join("states")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_descriptor_has_no_name_and_the_status_of_its_path() {
    let port = Path::new(CLASS).join("doorbell0/ports/1");
    for (path, links) in [(port.join("state"), 1), (port.clone(), 7), (port.join("pkeys"), 2)] {
        let opened = fs::File::open(&path).unwrap();
        let shown = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
        assert!(shown.to_str().unwrap().ends_with(" (deleted)"), "{shown:?}");
        let (by_path, by_descriptor) = (fs::metadata(&path).unwrap(), opened.metadata().unwrap());
        let facts = |status: &fs::Metadata| (status.dev(), status.ino(), status.mode(), status.nlink());
        assert_eq!(facts(&by_path), facts(&by_descriptor));
        assert_eq!(by_path.nlink(), links, "{}", path.display());
        let bytes = if links == 1 { (4096, 10) } else { (0, 0) };
        assert_eq!((by_path.len(), by_descriptor.len()), bytes);
    }
}

#[test]
fn the_content_of_an_open_file_cannot_be_changed() {
    use std::io::Write as _;
    let path = Path::new(CLASS).join("doorbell0/ports/1/state");
    let opened = fs::File::open(&path).unwrap();
    assert_eq!((&opened).write(b"x").unwrap_err().raw_os_error(), Some(libc::EBADF));
    // Root may open the file again for writing. Writing must fail nevertheless.
    let again = format!("/proc/self/fd/{}", opened.as_raw_fd());
    if let Ok(mut writable) = fs::OpenOptions::new().write(true).open(again) {
        assert_eq!(writable.write(b"x").unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
    assert_eq!(fs::read_to_string(path).unwrap(), "4: ACTIVE\n");
}
