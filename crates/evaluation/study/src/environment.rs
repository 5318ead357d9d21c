//! Pinning of the hosts of a point.

use doorbell_machine::pinning::Pinning;
use doorbell_record::{Environment, Parameters};

use crate::session::Parties;

/// Returns the environment with the pinning that applies while a point is measured.
pub(crate) fn of_point(environment: &Environment, parameters: &Parameters) -> Environment {
    let hosts = 1 + environment.others().count();
    let pinned = |number: usize, all: &Pinning| match &parameters.far {
        Some(point) if hosts > 1 => {
            let duties = Parties::deal(hosts).duties(point);
            let part = duties.iter().find(|(host, _)| *host == number);
            part.map_or_else(
                || Pinning::none("this host has no part in this point"),
                |(_, duties)| all.of_threads(duties.threads(point)),
            )
        }
        _ => parameters.pinning(all),
    };
    let of = |number, host: &Environment| Environment {
        pinning: host.pinning.as_ref().map(|all| pinned(number, all)),
        ..host.clone()
    };
    Environment {
        peer: environment.peer.as_ref().map(|peer| Box::new(of(1, peer))),
        hosts: environment.hosts.iter().enumerate().map(|(index, host)| of(index + 1, host)).collect(),
        ..of(0, environment)
    }
}

#[cfg(test)]
mod tests;
