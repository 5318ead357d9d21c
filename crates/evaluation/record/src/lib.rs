//! Records of measurements, and the parameters of a measurement.
//!
//! A [`RunRecord`] contains the [`Environment`] and the [`Parameters`] of a run, and one [`PointResult`] for each size.
//! Reading a record needs no device. [`settings`] describes each field of [`Parameters`] once. The crate
//! `doorbell-study` makes the records.
#![forbid(unsafe_code)]

mod check;
mod described;
mod environment;
mod far;
mod fit;
mod link;
mod memory;
mod mix;
mod parameters;
mod point;
pub mod prediction;
mod quantity;
mod result;
mod roles;
mod serving;
pub mod settings;
mod words;

pub use doorbell_analyze::explain::Rates;
pub use environment::{Environment, SimulatedTestbed, adapter_of};
pub use far::{FarPoint, Figure, Figures, HotPoint, OrderPoint, ScopePoint, StorePoint, Strategy, TearingPoint, Way};
pub use link::{Carried, CarriedBy, Link};
pub use memory::{receiving_bytes, stride};
pub use mix::{SizeMix, SizeSequence};
pub use parameters::{Fitted, Parameters, most_queued};
pub use point::{PointRecord, RecordError};
pub use prediction::Predicted;
pub use quantity::{Quantity, Spread, jain};
pub use result::{
    BothEnds, Buckets, Conclusion, Counted, HostResult, Latency, Named, PointResult, RunRecord, counters_by_name,
    link_by_name,
};
pub use roles::{Cast, Part, Role};
pub use serving::{Serving, SharedBy};
pub use settings::{ParametersError, SETTINGS, Setting};
pub use words::{Extent, Kind, Operation, Timed, Transport};
