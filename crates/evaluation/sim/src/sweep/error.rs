//! Errors of sweeps.

use crate::testbed::TestbedError;
use crate::topology::TopologyError;
use crate::traffic::TrafficError;

/// Maximum number of points of a sweep.
pub const MAX_POINTS: usize = 1000;

/// Error of an invalid sweep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// Unknown parameter name.
    #[error("{name}: there is no such parameter; {known}")]
    Unknown {
        /// Name given.
        name: String,
        /// The nearest known name, or all known names.
        known: String,
    },
    /// Value that is not allowed.
    #[error("{name}: the value is {value}, allowed is {allowed}")]
    Value {
        /// Name of the parameter.
        name: String,
        /// Value given.
        value: String,
        /// Description of the allowed values.
        allowed: String,
    },
    /// Testbed value that is not allowed.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// Axis without a name or without values.
    #[error("{0}: give a parameter and its values, as in link.rate_gbps=25,100,400")]
    Axis(String),
    /// Two axes that vary the same parameter.
    #[error("{0} is varied twice: give all values of it in one list")]
    Twice(String),
    /// Too many points.
    #[error("the sweep has {points} points, allowed are {MAX_POINTS}")]
    Points {
        /// Number of points.
        points: usize,
    },
    /// Several senders without a pattern.
    #[error("senders: the value is {0}, allowed is 1 without a pattern; give a pattern too, as in pattern=N:1")]
    Senders(usize),
    /// A point that cannot be simulated.
    #[error("at {at}: {error}")]
    Point {
        /// Values of the point.
        at: String,
        /// Reason.
        error: TrafficError,
    },
    /// A point with an impossible topology.
    #[error("at {at}: {error}")]
    Topology {
        /// Values of the point.
        at: String,
        /// Reason.
        error: TopologyError,
    },
}
