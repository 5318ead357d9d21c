//! `doorbell wire`: the arithmetic of packets, forwards and backwards, and what captures hold.

mod cost;
mod decode;
mod explain;

use std::process::ExitCode;

use clap::Subcommand;
use doorbell_wire::PathMtu;

use crate::Failure;

#[derive(Subcommand)]
pub(crate) enum Wire {
    /// What a message costs in packets and bytes, and what a link allows
    Cost(cost::Cost),
    /// What an application probably does, from counters of packets and bytes
    Explain(explain::Explain),
    /// What a capture holds of RoCE v2: conversations, operations, retransmissions, times
    Decode(decode::Decode),
}

pub(crate) fn run(wire: Wire) -> Result<ExitCode, Failure> {
    match wire {
        Wire::Cost(cost) => cost::run(&cost),
        Wire::Explain(explain) => explain::run(&explain),
        Wire::Decode(decode) => decode::run(&decode),
    }
}

/// Parses a path MTU.
pub(crate) fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    text.parse()
        .ok()
        .and_then(PathMtu::from_bytes)
        .ok_or_else(|| "a path MTU is 256, 512, 1024, 2048 or 4096 bytes".to_owned())
}

/// Parses a number per second, with a decimal unit or without: `481k`, `3.13M`, `100G`.
fn parse_rate(text: &str) -> Result<f64, String> {
    let units = [('k', 1e3), ('K', 1e3), ('M', 1e6), ('G', 1e9), ('T', 1e12)];
    let (digits, factor) =
        units.into_iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor))).unwrap_or((text, 1.0));
    let wrong = || format!("{text:?} is no number; k, M, G and T may follow one, as in 100G");
    digits.trim().parse().map(|number: f64| number * factor).map_err(|_| wrong())
}

/// Parses the rate of a link.
fn parse_link(text: &str) -> Result<f64, String> {
    match parse_rate(text)? {
        rate if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!("{text:?} is no rate of a link: bits per second above 0, as in 100G")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_decimal_units() {
        for (text, rate) in [("481000", 481e3), ("481k", 481e3), ("3.13M", 3.13e6), ("100G", 100e9), ("-2", -2.0)] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for text in ["", "k", "1x", "G1"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
        for text in ["0", "-1G", "inf", "nan"] {
            assert!(parse_link(text).is_err(), "{text}");
        }
    }
}
