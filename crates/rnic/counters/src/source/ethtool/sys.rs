//! The ioctls that `ethtool -S` uses.

use std::ffi::c_void;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

// linux/ethtool.h
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
const ETH_GSTRING_LEN: usize = 32;
// linux/sockios.h
const SIOCETHTOOL: u64 = 0x8946;

/// Maximum number of statistics read from an interface. Large adapters have some thousands.
const MAX_STATISTICS: u32 = 1 << 16;

/// Additional space for statistics that appear between counting and reading. The kernel writes all statistics that the
/// interface has during the read, even beyond the end of the buffer. Each queue of an adapter has some dozens of
/// statistics.
const MORE: usize = 1 << 14;

/// `struct ifreq`, with the members that this ioctl uses.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    data: *mut c_void,
    rest: [u8; 16],
}

const _: () = assert!(size_of::<Request>() >= size_of::<libc::ifreq>());

/// Executes one command on `netdev`. `buffer` begins with the command.
///
/// # Safety
///
/// `buffer` must have space for the kernel's response to this command.
unsafe fn ask<T>(socket: &UnixDatagram, netdev: &str, buffer: &mut [T]) -> io::Result<()> {
    let mut name = [0; libc::IFNAMSIZ];
    // The last byte of the name must stay zero.
    if netdev.len() >= name.len() || netdev.contains('\0') {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name of an interface has 1 to 15 bytes, none of them zero",
        ));
    }
    name[..netdev.len()].copy_from_slice(netdev.as_bytes());
    let mut request = Request { name, data: buffer.as_mut_ptr().cast(), rest: [0; 16] };
    // SAFETY: `request` is at least as long as `struct ifreq`. `data` points to `buffer`, which the caller guarantees
    // to be long enough.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the names and values of all statistics of an interface.
pub(super) fn statistics(netdev: &str) -> io::Result<Vec<(String, u64)>> {
    let socket = UnixDatagram::unbound()?;
    // struct ethtool_sset_info: cmd, reserved, sset_mask (64 bits), then a count per bit set.
    let mask = 1_u64 << ETH_SS_STATS;
    let halves = [mask as u32, (mask >> 32) as u32];
    #[cfg(target_endian = "big")]
    let halves = [halves[1], halves[0]];
    let mut info = [ETHTOOL_GSSET_INFO, 0, halves[0], halves[1], 0, 0];
    // SAFETY: the request selects one set, so the kernel writes one count, for which `info` has space.
    match unsafe { ask(&socket, netdev, &mut info) } {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(Vec::new()),
        result => result?,
    }
    // In the response, the mask holds only the sets that the interface has. An interface without statistics returns an
    // empty mask.
    let count = if info[2] == halves[0] && info[3] == halves[1] { info[4].min(MAX_STATISTICS) as usize } else { 0 };
    if count == 0 {
        return Ok(Vec::new());
    }
    let room = count + MORE;
    // struct ethtool_gstrings: cmd, string_set, len, then the strings.
    let mut names = vec![0_u8; 12 + room * ETH_GSTRING_LEN];
    names[..4].copy_from_slice(&ETHTOOL_GSTRINGS.to_ne_bytes());
    names[4..8].copy_from_slice(&ETH_SS_STATS.to_ne_bytes());
    // SAFETY: the buffer has space for all names and for `MORE` further ones.
    unsafe { ask(&socket, netdev, &mut names)? };
    // struct ethtool_stats: cmd, n_stats, then values of 64 bits. Some kernels write nothing if `n_stats` differs from
    // the actual number of statistics.
    let mut values = vec![0_u64; 1 + room];
    let length = u32::from_ne_bytes([names[8], names[9], names[10], names[11]]);
    let head = [ETHTOOL_GSTATS.to_ne_bytes(), length.to_ne_bytes()].concat();
    values[0] = u64::from_ne_bytes(head.try_into().unwrap_or_default());
    // SAFETY: the buffer has space for all values and for `MORE` further ones.
    unsafe { ask(&socket, netdev, &mut values)? };
    let answered = values[0].to_ne_bytes();
    let written = u32::from_ne_bytes([answered[4], answered[5], answered[6], answered[7]]);
    if written != length || length as usize > room {
        return Err(io::Error::other("the interface's statistics changed while they were read"));
    }
    let names = names[12..].as_chunks::<ETH_GSTRING_LEN>().0.iter().take(length as usize).map(|name| {
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    });
    Ok(names.zip(values[1..].iter().copied()).filter(|(name, _)| !name.is_empty()).collect())
}
