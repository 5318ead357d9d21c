//! Interface of the sources by which sentences are judged.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::tolerance::Noise;
use crate::{Gap, PublishedOperation, Quantity, Shape, Subject};

/// Setting of a load that a rule fixes or varies. Its value is a number; of a choice, 1 means yes and 0 no.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// Bytes of payload per message or operation.
    Bytes,
    /// Messages per post.
    Batch,
    /// Maximum number of unacknowledged messages or outstanding operations per connection.
    Window,
    /// Window divided by the messages per post.
    PostsInFlight,
    /// Connections or queue pairs. Each has a sending thread.
    Connections,
    /// Outstanding operations over all queue pairs, of which there are at most as many as published.
    Outstanding,
    /// Maximum number of completions per poll.
    PollList,
    /// Receives per posted list.
    RepostList,
    /// Whether one thread receives from one completion queue for all connections.
    OneQueue,
    /// Whether the connections share receives.
    SharedReceives,
    /// Whether one thread reposts the shared receives.
    RepostThread,
    /// Whether the payload is inline.
    Inline,
    /// Whether the connections have flow control by credits.
    Credits,
    /// Whether senders hold to the highest rate without RNR NAKs.
    Paced,
    /// Whether the ends sleep until an interrupt.
    Sleeping,
    /// Offered messages per second.
    RatePerS,
    /// Whether all operations go to one address.
    OneAddress,
    /// Path MTU in bytes.
    PathMtu,
    /// Share of puts, in percent.
    WritePercent,
    /// Clients of a store.
    Clients,
    /// Whether a middlebox steers the clients of a store to the newest version.
    Steered,
}

/// Load about which a rule asks: that of a sentence, with the settings that the rule fixes. A source chooses the other
/// settings: a predictor takes them from the published configuration, and a study has them from its sweep.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// The sentence.
    pub shape: &'a Shape,
    /// Experiment with the values.
    pub experiment: &'a str,
    /// The subject of the measurement.
    pub subject: Subject,
    /// Settings that the rule fixes.
    pub fixed: BTreeMap<Setting, f64>,
}

impl<'a> Load<'a> {
    /// Creates the load of a sentence, without fixed settings.
    pub fn of(shape: &'a Shape) -> Self {
        Self { shape, experiment: &shape.experiment, subject: shape.subject.clone(), fixed: BTreeMap::new() }
    }

    /// Returns the load with another value of a setting.
    pub fn with(&self, setting: Setting, value: f64) -> Self {
        let mut load = self.clone();
        load.fixed.insert(setting, value);
        load
    }

    /// Returns the load with values of another experiment.
    pub fn in_experiment(&self, experiment: &'a str) -> Self {
        Self { experiment, ..self.clone() }
    }

    /// Returns the load with another protocol.
    pub fn with_protocol(&self, protocol: &str) -> Self {
        Self { subject: Subject::Protocol(protocol.to_owned()), ..self.clone() }
    }

    /// Returns the load with another operation.
    pub fn with_operation(&self, operation: PublishedOperation) -> Self {
        Self { subject: Subject::Operation(operation), ..self.clone() }
    }

    /// Returns the value of a choice, if the rule fixes it.
    pub fn is(&self, setting: Setting) -> Option<bool> {
        self.fixed.get(&setting).map(|value| *value != 0.0)
    }
}

/// Cause of a shape that a source may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// A line with a rate.
    Line,
    /// Long messages that fill the line.
    FullLine,
    /// A doorbell register that a post writes over PCIe.
    Doorbell,
    /// A payload that the NIC reads over PCIe.
    PayloadFetch,
    /// Inline data that cost the CPU a copy, while other data cost none.
    InlineCopy,
    /// Data that the NIC puts into completions.
    DataInCompletions,
    /// A limit of the NIC on shared receives.
    SharedReceiveLimit,
    /// Units of a NIC that work side by side.
    Units,
    /// Requests that are reordered.
    Reordering,
    /// A fixed number of packets for one acknowledgement.
    Acknowledgements,
}

/// Source of the values by which sentences are judged: records of measurements, or a predictor.
///
/// Values are in the base unit of the quantity's dimension, for example nanoseconds or messages per second.
pub trait Source {
    /// Returns the values of `axis` in a range at which the source has values of the load, in ascending order.
    ///
    /// # Errors
    ///
    /// The source has no such values.
    fn places(&mut self, load: &Load<'_>, axis: Setting, range: RangeInclusive<f64>) -> Result<Vec<f64>, Gap>;

    /// Returns the value of a quantity.
    ///
    /// # Errors
    ///
    /// The source has no such value.
    fn value(&mut self, load: &Load<'_>, quantity: Quantity) -> Result<f64, Gap>;

    /// Returns the noise of the values.
    fn noise(&self) -> Noise {
        Noise::default()
    }

    /// Returns the reason if the source lacks a cause.
    fn lack_of(&self, _: Cause) -> Option<&'static str> {
        None
    }

    /// Returns the number of CPUs of each end, if CPUs may be too few.
    fn cpus(&self) -> Option<usize> {
        None
    }

    /// Returns the name of the rate to which [`Quantity::LineShare`] relates.
    fn line(&self) -> String {
        "line rate".to_owned()
    }
}
