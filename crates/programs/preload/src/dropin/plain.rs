//! Functions of libibverbs and librdmacm that need no device.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use crate::objects::answer::{Refused, number};

pub(super) use super::copies::{
    ibv_copy_ah_attr_from_kern, ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern, ibv_copy_qp_attr_from_kern,
};

/// Defines functions that name the values of an enumeration, from 0. Programs print and compare the names, so they are
/// those of libibverbs.
macro_rules! names {
    ($($name:ident [$($text:literal),*];)*) => {
        $(pub(super) extern "C" fn $name(value: c_int) -> *const c_char {
            const NAMES: &[&CStr] = &[$($text),*];
            usize::try_from(value).ok().and_then(|value| NAMES.get(value)).unwrap_or(&c"unknown").as_ptr()
        })*
    };
}

names! {
    ibv_node_type_str [
        c"unknown", c"InfiniBand channel adapter", c"InfiniBand switch", c"InfiniBand router", c"iWARP NIC", c"usNIC",
        c"usNIC UDP", c"unspecified"
    ];
    ibv_port_state_str [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];
    ibv_event_type_str [
        c"CQ error", c"local work queue catastrophic error", c"invalid request local work queue error",
        c"local access violation work queue error", c"communication established", c"send queue drained",
        c"path migrated", c"path migration request error", c"local catastrophic error", c"port active", c"port error",
        c"LID change", c"P_Key change", c"SM change", c"SRQ catastrophic error", c"SRQ limit reached",
        c"last WQE reached", c"client reregistration", c"GID table change", c"WQ fatal"
    ];
    ibv_wc_status_str [
        c"success", c"local length error", c"local QP operation error", c"local EE context operation error",
        c"local protection error", c"Work Request Flushed Error", c"memory management operation error",
        c"bad response error", c"local access error", c"remote invalid request error", c"remote access error",
        c"remote operation error", c"transport retry counter exceeded", c"RNR retry counter exceeded",
        c"local RDD violation error", c"remote invalid RD request", c"aborted error", c"invalid EE context number",
        c"invalid EE context state", c"fatal error", c"response timeout error", c"general error", c"TM error",
        c"TM software rendezvous"
    ];
}

/// Rates of `enum ibv_rate` (IBTA Vol 1, 15.2.5.16), each with its multiple of 2.5 Gb/s if it has one, and in Mb/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (3, 4, 10_000),
    (4, 12, 30_000),
    (5, 2, 5_000),
    (6, 8, 20_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, NO_MULTIPLE, 14_062),
    (12, NO_MULTIPLE, 56_250),
    (13, NO_MULTIPLE, 112_500),
    (14, NO_MULTIPLE, 168_750),
    (15, NO_MULTIPLE, 25_781),
    (16, NO_MULTIPLE, 103_125),
    (17, NO_MULTIPLE, 206_250),
    (18, NO_MULTIPLE, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// Result for a rate that is unknown or no multiple.
const NO_MULTIPLE: c_int = -1;
/// Rate that stands for the rate of the port.
const RATE_MAX: c_int = 0;

pub(super) extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(NO_MULTIPLE, |(_, multiple, _)| *multiple)
}

pub(super) extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

pub(super) extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_int {
    let found = RATES.iter().find(|(_, other, _)| *other == multiple && multiple != NO_MULTIPLE);
    found.map_or(RATE_MAX, |(code, ..)| *code)
}

pub(super) extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|(.., other)| *other == mbps).map_or(RATE_MAX, |(code, ..)| *code)
}

/// Returns the folder below which the device's files are. Unlike libibverbs, ignores the variable `SYSFS_PATH`.
pub(super) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads the text of a file without its last newline, and returns the length.
///
/// # Safety
///
/// `folder` and `file` are C strings, and `into` has room for `room` bytes.
pub(super) unsafe extern "C" fn ibv_read_sysfs_file(
    folder: *const c_char,
    file: *const c_char,
    into: *mut c_char,
    room: usize,
) -> c_int {
    number("ibv_read_sysfs_file", || {
        // SAFETY: the caller guarantees that both pointers are C strings.
        let [folder, file] = [folder, file].map(|text| OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()));
        let path = Path::new(folder).join(file);
        let failed = |error: std::io::Error| {
            Refused::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{}: {error}", path.display()))
        };
        // SAFETY: the caller provides `room` bytes of memory. Reading does not look at their old content.
        let into = unsafe { slice::from_raw_parts_mut(into.cast::<u8>(), room) };
        let length = File::open(&path).and_then(|mut file| file.read(into)).map_err(failed)?;
        let text = match into[..length].strip_suffix(b"\n") {
            Some(text) => text.len(),
            None => length,
        };
        if length > 0 {
            let end = into.get_mut(text).ok_or_else(|| {
                Refused::invalid(format!("{} has at least {length} B: must be shorter than the buffer", path.display()))
            })?;
            *end = 0;
        }
        Ok(c_int::try_from(text).unwrap_or(c_int::MAX))
    })
}

/// # Safety
///
/// The contract of `poll(2)`. No descriptor is an rsocket.
pub(super) unsafe extern "C" fn rpoll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: the caller follows the contract of `poll`.
    unsafe { libc::poll(fds, count, timeout_ms) }
}

/// # Safety
///
/// The contract of `select(2)`. No descriptor is an rsocket.
pub(super) unsafe extern "C" fn rselect(
    count: c_int,
    readable: *mut libc::fd_set,
    writable: *mut libc::fd_set,
    exceptional: *mut libc::fd_set,
    timeout: *mut libc::timeval,
) -> c_int {
    // SAFETY: the caller follows the contract of `select`.
    unsafe { libc::select(count, readable, writable, exceptional, timeout) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_an_enumeration_have_no_name() {
        for value in [-1, 24, c_int::MAX, c_int::MIN] {
            for name in [ibv_node_type_str, ibv_port_state_str, ibv_event_type_str, ibv_wc_status_str] {
                // SAFETY: the functions return C strings.
                assert_eq!(unsafe { CStr::from_ptr(name(value)) }, c"unknown", "{value}");
            }
        }
        // SAFETY: the function returns a C string.
        assert_eq!(unsafe { CStr::from_ptr(ibv_wc_status_str(12)) }, c"transport retry counter exceeded");
    }

    #[test]
    fn rates_and_their_numbers_agree() {
        for (code, multiple, mbps) in RATES {
            assert_eq!((ibv_rate_to_mult(code), ibv_rate_to_mbps(code)), (multiple, mbps));
            assert_eq!(mbps_to_ibv_rate(mbps), code);
            assert_eq!(mult_to_ibv_rate(multiple), if multiple == NO_MULTIPLE { RATE_MAX } else { code });
        }
        assert_eq!((ibv_rate_to_mult(25), ibv_rate_to_mbps(0), mbps_to_ibv_rate(1)), (-1, -1, 0));
    }

    #[test]
    fn a_file_that_fills_the_buffer_is_refused() {
        // The file has the text "Linux" and a newline.
        let read = |file: &CStr, room: usize| {
            let mut text = [b'x'; 8];
            let folder = c"/proc/sys/kernel";
            // SAFETY: both strings are C strings, and the array has at least `room` bytes.
            let length = unsafe { ibv_read_sysfs_file(folder.as_ptr(), file.as_ptr(), text.as_mut_ptr().cast(), room) };
            (length, text)
        };
        assert_eq!(read(c"ostype", 8), (5, *b"Linux\0xx"));
        assert_eq!(read(c"ostype", 6), (5, *b"Linux\0xx"));
        assert_eq!(read(c"ostype", 5).0, -1);
        assert_eq!(read(c"missing", 8).0, -1);
    }
}
