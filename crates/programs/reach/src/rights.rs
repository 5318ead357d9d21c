//! Rights that a program gets from its file. A program with any of these rights runs in secure-execution mode
//! (`ld.so(8)`).

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::NixPath;
use nix::sys::prctl::get_no_new_privs;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, getgid, getuid};

use super::Barrier;

const SETUID: u32 = 0o4000;
/// Mode bits of a setgid program. Without the group's execute bit, the setgid bit concerns locks (`inode(7)`).
const SETGID: u32 = 0o2010;

/// Returns the barrier if the file gives the program rights that the starting user lacks.
pub(crate) fn barrier(path: &Path) -> Option<Barrier> {
    let found = path.metadata().ok().filter(|found| found.is_file())?;
    let mode = found.permissions().mode();
    let is_ignored = || {
        get_no_new_privs() == Ok(true) || statvfs(path).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOSUID))
    };
    let right = if mode & SETUID == SETUID && found.uid() != getuid().as_raw() {
        Barrier::Setuid
    } else if mode & SETGID == SETGID && found.gid() != getgid().as_raw() {
        Barrier::Setgid
    } else if !getuid().is_root() && has_capabilities(path) {
        Barrier::Capabilities
    } else {
        return None;
    };
    (!is_ignored()).then_some(right)
}

fn has_capabilities(path: &Path) -> bool {
    let length = path.with_nix_path(|path| {
        // SAFETY: both names are C strings. With a length of 0, the call writes no bytes.
        unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) }
    });
    length.is_ok_and(|length| length > 0)
}

/// Returns whether this process may execute the file.
pub(crate) fn may_execute(path: &Path) -> bool {
    access(path, AccessFlags::X_OK).is_ok() && path.is_file()
}
