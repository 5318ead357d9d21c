//! Names of anonymous files and removed folders. The name identifies the node for which a descriptor or the working
//! folder stands.
//!
//! The kernel shows these names below `/proc`. So a name survives forks, exec and a transfer of the descriptor through
//! a Unix socket. The library needs no table of descriptors.

use std::ffi::c_int;

use super::plan::{Node, plan};
use super::sys;

/// Maximum length of a name in a path. The kernel has the same limit.
pub(super) const NAME_MAX: usize = 255;
/// Suffix that the kernel appends to the path of a removed file.
const REMOVED: &[u8] = b" (deleted)";
const FOLDER: &[u8] = b"doorbell-folder.";
const FILE: &[u8] = b"doorbell-file.";
/// Prefix that the kernel shows before the name of an anonymous file.
const ANONYMOUS: &[u8] = b"/memfd:";
/// Number of hexadecimal digits that make the name of a folder unique.
const DIGITS: usize = 16;
/// Character that replaces each slash of a node's path.
const SLASH: u8 = b'!';

/// A name that needs no heap memory.
pub(super) struct Name {
    bytes: [u8; NAME_MAX + 1],
    length: usize,
}

impl Name {
    /// Returns a new, unique name for a folder that stands for a node.
    pub(super) fn of_folder(node: &Node) -> Self {
        let mut digits = [0; DIGITS];
        let random = sys::random();
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(random >> (4 * at)) as usize & 0xf];
        }
        Self::of(&[FOLDER, &digits, b"."], node)
    }

    /// Returns the name for the anonymous file of a node.
    pub(super) fn of_file(node: &Node) -> Self {
        Self::of(&[FILE], node)
    }

    fn of(parts: &[&[u8]], node: &Node) -> Self {
        let mut name = Self { bytes: [0; NAME_MAX + 1], length: 0 };
        let path = node.path.iter().map(|&byte| if byte == b'/' { SLASH } else { byte });
        // The last byte stays zero. A test checks that the name of each node fits.
        for byte in parts.iter().flat_map(|part| part.iter().copied()).chain(path).take(NAME_MAX) {
            name.bytes[name.length] = byte;
            name.length += 1;
        }
        name
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(super) fn with_zero(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}

/// Returns the node's path from the name of a folder, with [`SLASH`] in place of each slash.
fn behind_digits(name: &[u8]) -> Option<&[u8]> {
    let (digits, path) = name.strip_prefix(FOLDER)?.split_at_checked(DIGITS)?;
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    path.strip_prefix(b".").filter(|path| path.first() == Some(&SLASH) && digits.iter().all(is_digit))
}

/// Returns whether a folder of this name may be a leftover of a process that used this library.
pub(super) fn is_folder_of_ours(name: &[u8]) -> bool {
    behind_digits(name).is_some()
}

/// Returns the node whose file or folder the kernel shows as this path below `/proc`.
pub(super) fn node_of_path(path: &[u8]) -> Option<&'static Node> {
    let path = path.strip_suffix(REMOVED)?;
    let encoded = match path.strip_prefix(ANONYMOUS) {
        Some(name) => name.strip_prefix(FILE)?,
        None => behind_digits(path.rsplit(|&byte| byte == b'/').next()?)?,
    };
    let mut decoded = [0; NAME_MAX];
    let decoded = decoded.get_mut(..encoded.len())?;
    for (to, &byte) in decoded.iter_mut().zip(encoded) {
        *to = if byte == SLASH { b'/' } else { byte };
    }
    plan().find(decoded)
}

/// Returns the node for which a descriptor stands.
pub(super) fn node_of(fd: c_int) -> Option<&'static Node> {
    // The file of a node's descriptor has no links, so a file with links stands for no node.
    sys::fstat(fd).ok().filter(|found| found.st_nlink == 0)?;
    node_of_unlinked(fd)
}

/// Returns the node for which a descriptor stands. The caller knows that the file of the descriptor has no links.
pub(super) fn node_of_unlinked(fd: c_int) -> Option<&'static Node> {
    node_at(sys::DescriptorPath::new(fd).with_zero())
}

/// Returns the node for which the working folder stands.
pub(super) fn node_of_working_folder() -> Option<&'static Node> {
    node_at(WORKING_FOLDER)
}

/// Link that shows the name of the working folder, even if the folder is removed and `getcwd` fails.
pub(super) const WORKING_FOLDER: &[u8] = b"/proc/self/cwd\0";

fn node_at(link: &[u8]) -> Option<&'static Node> {
    let mut target = [0; libc::PATH_MAX as usize];
    let length = sys::readlink(link, &mut target).ok()?;
    node_of_path(&target[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_found_by_its_names() {
        let text = |name: &Name| String::from_utf8(name.bytes().to_vec()).unwrap();
        for node in plan().nodes() {
            let (folder, file) = (text(&Name::of_folder(node)), text(&Name::of_file(node)));
            // The kernel allows 249 bytes in the name of an anonymous file.
            assert!(folder.len() <= NAME_MAX && file.len() <= 249, "{folder}");
            assert!(is_folder_of_ours(folder.as_bytes()) && !is_folder_of_ours(file.as_bytes()));
            for path in [format!("/dev/shm/{folder} (deleted)"), format!("/memfd:{file} (deleted)")] {
                let found = node_of_path(path.as_bytes()).unwrap();
                assert_eq!(found.path, node.path, "{path}");
            }
        }
        let one = plan().find(b"/sys/class/infiniband").unwrap();
        assert_ne!(text(&Name::of_folder(one)), text(&Name::of_folder(one)));
    }

    #[test]
    fn other_names_have_no_node() {
        let known = "doorbell-folder.0123456789abcdef.!sys!class!infiniband";
        assert!(node_of_path(format!("/tmp/{known} (deleted)").as_bytes()).is_some());
        for other in [
            format!("/tmp/{known}"),
            format!("/tmp/{known}!none (deleted)"),
            format!("/tmp/{known}/x (deleted)"),
            format!("/tmp/x{known} (deleted)"),
            "/tmp/doorbell-folder.0123456789abcde.!sys!class!infiniband (deleted)".to_owned(),
            "/tmp/doorbell-folder.0123456789abcdeg.!sys!class!infiniband (deleted)".to_owned(),
            "/tmp/doorbell-folder.!sys!class!infiniband (deleted)".to_owned(),
            "/tmp/doorbell-file.!sys!class!infiniband (deleted)".to_owned(),
            format!("/tmp/{known}{} (deleted)", "x".repeat(4000)),
        ] {
            assert!(node_of_path(other.as_bytes()).is_none(), "{other}");
        }
        for name in ["doorbell-folder.", "doorbell-folder.0123456789abcdef.x", "doorbell-trees", ""] {
            assert!(!is_folder_of_ours(name.as_bytes()), "{name}");
        }
    }
}
