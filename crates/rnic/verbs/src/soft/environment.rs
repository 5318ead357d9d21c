//! Options of software RNICs that the environment of the process sets.

use std::io;
use std::thread;

use doorbell_fabric::LinkChoice;
use doorbell_rnic::ENGINES_MAX;

use crate::error::Error;

/// Environment variable that chooses the link if the options do not: `auto`, `udp` or `shm`.
pub const LINK_VARIABLE: &str = "DOORBELL_LINK";

/// Environment variable that sets the number of engines if the options do not.
pub const ENGINES_VARIABLE: &str = "DOORBELL_ENGINES";

/// Maximum number of engines of a device without [`ENGINES_VARIABLE`] and without the option.
const DEFAULT_ENGINES_MAX: usize = 4;

fn value_of(variable: &'static str) -> Option<String> {
    let text = std::env::var_os(variable).filter(|text| !text.is_empty())?;
    Some(text.to_string_lossy().into_owned())
}

fn invalid(what: &'static str, why: String) -> Error {
    Error::os(what)(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Returns the link that the environment requests.
pub(super) fn link_of_environment() -> Result<LinkChoice, Error> {
    let Some(text) = value_of(LINK_VARIABLE) else { return Ok(LinkChoice::default()) };
    text.parse().map_err(|why| invalid(LINK_VARIABLE, why))
}

/// Returns the number of engines if neither the options nor the environment request one: one for each processor that
/// this thread may use.
pub(super) fn default_engines() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(DEFAULT_ENGINES_MAX)
}

/// Returns the number of engines that the options or the environment request.
pub(super) fn engines(wanted: Option<usize>) -> Result<Option<usize>, Error> {
    let check = |what, text: &str| match text.parse() {
        Ok(engines @ 1..=ENGINES_MAX) => Ok(engines),
        _ => Err(invalid(what, format!("{text}: must be from 1 to {ENGINES_MAX}"))),
    };
    match wanted {
        Some(engines) => check("the number of engines", &engines.to_string()).map(Some),
        None => value_of(ENGINES_VARIABLE).map(|text| check(ENGINES_VARIABLE, &text)).transpose(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_engines_outside_of_the_range_is_an_error_with_the_range() {
        assert_eq!(engines(Some(1)).unwrap(), Some(1));
        assert_eq!(engines(Some(16)).unwrap(), Some(16));
        for wanted in [0, 17] {
            let error = engines(Some(wanted)).unwrap_err().to_string();
            assert_eq!(error, format!("the number of engines: {wanted}: must be from 1 to 16"));
        }
    }
}
