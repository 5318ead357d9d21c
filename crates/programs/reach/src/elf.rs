//! Reader for the start of an ELF file: the header, the program headers, and the name of the dynamic linker.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::Barrier;

/// ELF machine number of the processor for which this library is built.
const MACHINE: Option<u16> = if cfg!(target_arch = "x86_64") {
    Some(62)
} else if cfg!(target_arch = "aarch64") {
    Some(183)
} else {
    None
};

const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const PROGRAM_INTERPRETER: u32 = 3;
/// Size of a 64-bit ELF header.
const HEADER_BYTES: usize = 64;
/// Size of a 64-bit program header.
const PROGRAM_HEADER_BYTES: usize = 56;
/// Maximum number of program headers that [`barrier`] reads. No linker writes more.
const MOST_PROGRAM_HEADERS: u16 = 64;

/// Returns the reason why no library can be preloaded into the program in this file. Returns `None` for a file that is
/// not a valid 64-bit ELF file, since the kernel rejects the file.
pub(crate) fn barrier(file: &File) -> Option<Barrier> {
    let header: [u8; HEADER_BYTES] = bytes(file, 0)?;
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    let is_little = header[5] == LITTLE_ENDIAN;
    if header[4] != CLASS_64 || is_little != cfg!(target_endian = "little") {
        return Some(Barrier::Foreign);
    }
    if MACHINE.is_some_and(|machine| machine != u16::from_ne_bytes([header[18], header[19]])) {
        return Some(Barrier::Foreign);
    }
    let headers_at = u64::from_ne_bytes(*header[32..].first_chunk()?);
    let header_bytes = u16::from_ne_bytes(*header[54..].first_chunk()?);
    let headers = u16::from_ne_bytes(*header[56..].first_chunk()?).min(MOST_PROGRAM_HEADERS);
    if usize::from(header_bytes) < PROGRAM_HEADER_BYTES {
        return None;
    }
    for number in 0..headers {
        let at = headers_at.checked_add(u64::from(number) * u64::from(header_bytes))?;
        let program_header: [u8; PROGRAM_HEADER_BYTES] = bytes(file, at)?;
        if u32::from_ne_bytes(*program_header.first_chunk()?) == PROGRAM_INTERPRETER {
            let name_at = u64::from_ne_bytes(*program_header[8..].first_chunk()?);
            let name_bytes = u64::from_ne_bytes(*program_header[32..].first_chunk()?);
            return linker_barrier(file, name_at, name_bytes);
        }
    }
    Some(Barrier::Static)
}

/// Returns the barrier if the program's dynamic linker is not that of glibc. The dynamic linkers of glibc are files
/// such as `ld-linux-x86-64.so.2`, in any folder.
fn linker_barrier(file: &File, at: u64, bytes: u64) -> Option<Barrier> {
    let mut name = [0; 256];
    let name = name.get_mut(..usize::try_from(bytes).ok()?)?;
    file.read_exact_at(name, at).ok()?;
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    let name = name.rsplit(|&byte| byte == b'/').next()?;
    let is_glibc = name.starts_with(b"ld-linux") || name.starts_with(b"ld64.so") || name.starts_with(b"ld.so");
    if is_glibc { None } else { Some(Barrier::OtherLibc) }
}

fn bytes<const N: usize>(file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}
