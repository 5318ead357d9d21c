//! Log events of dead queue pairs.

use doorbell_verbs_core::{QP_DEATHS, QpDeath};

/// Logs the deaths that [`Rnic::take_deaths`](doorbell_rnic::Rnic::take_deaths) has returned, and the number of
/// further deaths that the RNIC only counted.
pub fn log_deaths(deaths: &[QpDeath], omitted: u64) {
    for death in deaths {
        tracing::info!(target: QP_DEATHS, "{death}");
    }
    if omitted > 0 {
        tracing::info!(target: QP_DEATHS, "{omitted} further queue pairs died, and are not listed");
    }
}
