//! The module `doorbell._wire` of Python: packets and bytes of messages, probable operations behind counters, and
//! contents and judgement of captures.
//!
//! `python/doorbell/wire.py` documents the functions for users, and has their defaults. The results are dictionaries
//! with the fields of the command's `--json`. Each error is a `ValueError` with one sentence.

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use doorbell_analyze::check::{self, Limits};
use doorbell_analyze::cost::{CostRecord, OPERATIONS, TRANSPORTS};
use doorbell_analyze::decode::capture::CaptureError;
use doorbell_analyze::decode::{self, MOST_CONVERSATIONS, Options};
use doorbell_analyze::explain::{self, Captured, Hints, Rates};
use doorbell_wire::{IpVersion, OuterKind, PathMtu, ack_timeout_ns};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pythonize::pythonize;

/// Functions of the module.
#[pymodule(name = "_wire")]
mod module {
    #[pymodule_export]
    use super::check_capture;
    #[pymodule_export]
    use super::cost;
    #[pymodule_export]
    use super::decode_capture;
    #[pymodule_export]
    use super::explain_capture;
    #[pymodule_export]
    use super::explain_rates;
}

/// Returns the packets and bytes of a message.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
fn cost(
    py: Python<'_>,
    op: String,
    size: u64,
    mtu: u64,
    transport: String,
    ipv6: bool,
    vlan: bool,
    link_bits_per_s: Option<f64>,
) -> PyResult<Bound<'_, PyAny>> {
    let kind = named("op", &op, &OPERATIONS)?;
    let transport = named("transport", &transport, &TRANSPORTS)?;
    let outer = OuterKind { ip: version(ipv6), vlan };
    if let Some(link) = link_bits_per_s.filter(|link| !(link.is_finite() && *link > 0.0)) {
        return Err(wrong(format!("link_bits_per_s is {link}: must be above 0 and finite")));
    }
    let record = CostRecord::new(kind, transport, size, path_mtu(mtu)?, outer, link_bits_per_s).map_err(wrong)?;
    Ok(pythonize(py, &record)?)
}

/// Returns the probable operations behind the rates of counters.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
fn explain_rates(
    py: Python<'_>,
    rx_bytes: f64,
    rx_packets: f64,
    tx_bytes: f64,
    tx_packets: f64,
    mtu: Option<u64>,
    ipv6: Option<bool>,
    vlan: bool,
    link_bits_per_s: Option<f64>,
    tolerance: f64,
) -> PyResult<Bound<'_, PyAny>> {
    let hints = Hints { ip: ipv6.map(version), ..hints(mtu, vlan, link_bits_per_s, tolerance)? };
    let rates = Rates { rx_bytes, rx_packets, tx_bytes, tx_packets };
    Ok(pythonize(py, &explain::explain(&rates, &hints).map_err(wrong)?)?)
}

/// Returns the probable operations of a host in a capture.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
fn explain_capture(
    py: Python<'_>,
    path: PathBuf,
    host: Option<String>,
    udp_port: u16,
    mtu: Option<u64>,
    vlan: bool,
    link_bits_per_s: Option<f64>,
    tolerance: f64,
) -> PyResult<Bound<'_, PyAny>> {
    let address =
        |text: String| text.parse::<IpAddr>().map_err(|_| wrong(format!("host is {text:?}: must be an IP address")));
    let host = host.map(address).transpose()?;
    let options = options(udp_port, Options::default().max_conversations, false)?;
    let summary = read(py, &path, |file| decode::decode(file, &options))?;
    let captured = Captured::of(&summary, host).map_err(|why| wrong(format!("{} {why}", path.display())))?;
    let hints = captured.hints(&summary, hints(mtu, vlan, link_bits_per_s, tolerance)?);
    Ok(pythonize(py, &explain::explain(&captured.rates, &hints).map_err(wrong)?)?)
}

/// Returns a summary of a capture.
#[pyfunction]
fn decode_capture(
    py: Python<'_>,
    path: PathBuf,
    udp_port: u16,
    max_conversations: usize,
    ignore_icrc: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let options = options(udp_port, max_conversations, ignore_icrc)?;
    Ok(pythonize(py, &read(py, &path, |file| decode::decode(file, &options))?)?)
}

/// Returns the judgement of a capture.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "Python passes them by name")]
fn check_capture(
    py: Python<'_>,
    path: PathBuf,
    udp_port: u16,
    max_conversations: usize,
    ignore_icrc: bool,
    timeout: Option<u8>,
    retry_count: Option<u32>,
    cnp_interval_s: Option<f64>,
    complete: bool,
) -> PyResult<Bound<'_, PyAny>> {
    let options = options(udp_port, max_conversations, ignore_icrc)?;
    if let Some(timeout) = timeout.filter(|timeout| !(1..=31).contains(timeout)) {
        return Err(wrong(format!("timeout is {timeout}, allowed is 1 to 31")));
    }
    if let Some(count) = retry_count.filter(|count| *count > 7) {
        return Err(wrong(format!("retry_count is {count}, allowed is 0 to 7")));
    }
    let limits = Limits {
        timeout_ns: timeout.and_then(ack_timeout_ns),
        retry_count,
        cnp_interval_ns: cnp_interval_s.map(|seconds| (seconds * 1e9) as u64),
        complete,
    };
    Ok(pythonize(py, &read(py, &path, |file| check::check(file, &options, &limits))?)?)
}

/// Reads a capture while other threads of Python run.
fn read<T: Send>(
    py: Python<'_>,
    path: &Path,
    with: impl FnOnce(File) -> Result<T, CaptureError> + Send,
) -> PyResult<T> {
    let read = || -> Result<T, String> {
        let file = File::open(path).map_err(|error| format!("{} cannot be opened: {error}", path.display()))?;
        with(file).map_err(|error| format!("{} {error}", path.display()))
    };
    py.detach(read).map_err(wrong)
}

fn options(udp_port: u16, max_conversations: usize, ignore_icrc: bool) -> PyResult<Options> {
    if udp_port == 0 {
        return Err(wrong("udp_port is 0, allowed is 1 to 65535"));
    }
    if !(1..=MOST_CONVERSATIONS).contains(&max_conversations) {
        return Err(wrong(format!("max_conversations is {max_conversations}, allowed is 1 to {MOST_CONVERSATIONS}")));
    }
    Ok(Options { udp_port, max_conversations, drop_bad_icrc: !ignore_icrc })
}

fn hints(mtu: Option<u64>, vlan: bool, link_bits_per_s: Option<f64>, tolerance: f64) -> PyResult<Hints> {
    let mtu = mtu.map(path_mtu).transpose()?;
    Ok(Hints { mtu, vlan, link_bits_per_s, tolerance, ..Hints::default() })
}

fn path_mtu(bytes: u64) -> PyResult<PathMtu> {
    let found = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() as u64 == bytes);
    found.ok_or_else(|| wrong(format!("mtu is {bytes}: must be 256, 512, 1024, 2048 or 4096")))
}

fn version(ipv6: bool) -> IpVersion {
    if ipv6 { IpVersion::V6 } else { IpVersion::V4 }
}

fn named<T: Copy>(argument: &str, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    let found = known.iter().find(|(other, _)| *other == name);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        wrong(format!("{argument} is {name:?}, must be one of {}", names.join(", ")))
    })
}

/// Returns the exception for an argument or a file that is wrong.
fn wrong(why: impl ToString) -> PyErr {
    PyValueError::new_err(why.to_string())
}
