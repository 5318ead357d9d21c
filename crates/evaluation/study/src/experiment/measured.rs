//! Records of a run as a source of the judge of published sentences.

use std::ops::RangeInclusive;

use doorbell_claims::{
    Cause, Gap, Load, Noise, PublishedOperation, Quantity as Published, Setting, Source, Subject, Unit, Value,
};

use super::view::{View, best};
use doorbell_record::{FarPoint, Figure, Operation, PointRecord, Quantity, SharedBy};

/// Source whose values are those of the best repetitions. A load is measured by the records of its experiment that have
/// its subject and all settings that the rule fixes.
pub(super) struct Measured<'a> {
    pub(super) view: View<'a>,
}

/// Noise of measured values. Times of equal runs on a quiet machine differ by up to a tenth. The interval between two
/// reads of counters does not begin and end exactly with a message.
pub(super) const NOISE: Noise = Noise { timed: 0.1, counted: 0.002 };

/// Returns the operation in published files.
fn published(operation: Operation) -> Option<PublishedOperation> {
    Some(match operation {
        Operation::Send => PublishedOperation::Send,
        Operation::Write => PublishedOperation::Write,
        Operation::Read => PublishedOperation::Read,
        Operation::CompareSwap => PublishedOperation::Cas,
        Operation::RequestResponse => PublishedOperation::RequestResponse,
        Operation::FetchAdd => return None,
    })
}

/// Returns whether a record was measured with this subject.
pub(super) fn is_of(record: &PointRecord, subject: &Subject) -> bool {
    let parameters = &record.parameters;
    match (parameters.far.as_deref(), subject) {
        (None, Subject::Protocol(name)) => parameters.protocol.name() == name,
        (None, Subject::Operation(operation)) => published(parameters.operation) == Some(*operation),
        (Some(FarPoint::Order(order)), Subject::Operation(operation)) => published(order.operation) == Some(*operation),
        (Some(FarPoint::Tearing(_)), Subject::Operation(_)) | (Some(FarPoint::Store(_)), Subject::Store(_)) => true,
        _ => false,
    }
}

/// Returns the value of a setting with which a record was measured.
pub(super) fn setting_of(record: &PointRecord, setting: Setting) -> Option<f64> {
    let (parameters, serving) = (&record.parameters, &record.parameters.serving);
    let choice = |is_so: bool| f64::from(u8::from(is_so));
    let far = parameters.far.as_deref();
    let store = || match far {
        Some(FarPoint::Store(store)) => Some(store),
        _ => None,
    };
    Some(match setting {
        Setting::Bytes => record.bytes() as f64,
        Setting::Batch => parameters.batch as f64,
        Setting::Window => parameters.window as f64,
        Setting::PostsInFlight => parameters.window as f64 / parameters.batch as f64,
        Setting::Connections => match far {
            Some(FarPoint::Order(order)) => order.queue_pairs as f64,
            _ => parameters.connections as f64,
        },
        Setting::Outstanding => (parameters.connections * parameters.window) as f64,
        Setting::PollList => serving.poll_list as f64,
        Setting::RepostList => serving.repost_list as f64,
        Setting::OneQueue => choice(serving.single_receiver),
        Setting::SharedReceives => choice(serving.shared_receives.is_some()),
        Setting::RepostThread => choice(serving.shared_receives == Some(SharedBy::Thread)),
        Setting::Inline => choice(parameters.inline >= record.bytes()),
        Setting::Credits => choice(parameters.credits),
        Setting::Paced => choice(false),
        Setting::Sleeping => choice(parameters.events),
        Setting::RatePerS => parameters.rate?,
        Setting::OneAddress => choice(parameters.addresses == Some(1)),
        Setting::PathMtu => far?.path_mtu()? as f64,
        Setting::WritePercent => store()?.write_percent,
        Setting::Clients => store()?.clients as f64,
        Setting::Steered => choice(store()?.strategy.is_steered()),
    })
}

/// Returns the measured quantity for a published quantity, and its unit.
pub(super) fn quantity_of(quantity: Published) -> Option<(Quantity, Unit)> {
    Some(match quantity {
        Published::Latency => (Quantity::MedianLatency, Unit::Us),
        Published::MessageRate | Published::OperationRate => (Quantity::MessageRate, Unit::Millions),
        Published::Throughput | Published::LineShare => (Quantity::Throughput, Unit::Gb),
        Published::SendingCpu => (Quantity::AskingWork, Unit::Us),
        Published::ReceivingCpu => (Quantity::AnsweringCpu, Unit::Us),
        Published::RnrNaks => (Quantity::RnrNaks, Unit::PerSecond),
        Published::RequestPacketsPerOperation => (Quantity::RequestPackets, Unit::PacketsPerOperation),
        Published::ResponsePacketsPerOperation => (Quantity::ResponsePackets, Unit::PacketsPerOperation),
        Published::RequestBytesPerPacket => (Quantity::RequestFrame, Unit::Bytes),
        Published::ResponseBytesPerPacket => (Quantity::ResponseFrame, Unit::Bytes),
        Published::InOrder => (Quantity::Far(Figure::InOrder), Unit::Percent),
        Published::OutOfOrder => (Quantity::Far(Figure::SameAddressOutOfOrder), Unit::Percent),
        Published::Displacement => (Quantity::Far(Figure::LargestGap), Unit::Messages),
        Published::Torn => (Quantity::Far(Figure::Torn), Unit::Percent),
        Published::SuccessOfWrites => (Quantity::Far(Figure::PutSuccess), Unit::Percent),
        Published::SuccessOfReads => (Quantity::Far(Figure::GetSuccess), Unit::Percent),
        _ => return None,
    })
}

impl<'a> Measured<'a> {
    fn records(&self, load: &Load<'_>) -> impl Iterator<Item = &'a PointRecord> {
        let is_meant = |record: &&PointRecord| {
            is_of(record, &load.subject)
                && load.fixed.iter().all(|(setting, value)| setting_of(record, *setting) == Some(*value))
        };
        self.view.of(load.experiment).filter(is_meant)
    }

    /// Returns the rate that stands for the line rate, in Gb/s: that of the link, or the highest throughput of any
    /// configuration of the protocol.
    fn line_rate(&self, experiment: &str) -> Option<f64> {
        let family = experiment.split('/').next()?;
        let ceiling = || {
            let names = ["bandwidth", "threads", "n-to-1"].map(|name| format!("{family}/{name}"));
            let records = names.iter().flat_map(|name| self.view.of(name));
            records.filter_map(|record| best(record, Quantity::Throughput)).reduce(f64::max)
        };
        self.view.line_rate().or_else(ceiling)
    }
}

fn missing(load: &Load<'_>) -> Gap {
    Gap::NoValues(format!("{} has no such point", load.experiment))
}

impl Source for Measured<'_> {
    fn places(&mut self, load: &Load<'_>, axis: Setting, range: RangeInclusive<f64>) -> Result<Vec<f64>, Gap> {
        let places = self.records(load).filter_map(|record| setting_of(record, axis));
        let mut places: Vec<f64> = places.filter(|place| range.contains(place)).collect();
        places.sort_unstable_by(f64::total_cmp);
        places.dedup();
        Ok(places)
    }

    /// Returns the value of the record with the highest offered rate.
    fn value(&mut self, load: &Load<'_>, quantity: Published) -> Result<f64, Gap> {
        let rate = |record: &PointRecord| record.parameters.rate.unwrap_or(0.0);
        let record = self.records(load).max_by(|one, other| rate(one).total_cmp(&rate(other)));
        let found = || {
            let (record, (of, unit)) = (record?, quantity_of(quantity)?);
            let number = match of {
                // A single RNR NAK in any repetition is one.
                Quantity::RnrNaks => record.spread(of)?.most,
                _ => best(record, of)?,
            };
            match quantity {
                Published::LineShare => Some(number / self.line_rate(load.experiment)?),
                _ => Some(Value { number, unit }.in_base()),
            }
        };
        found().ok_or_else(|| missing(load))
    }

    fn noise(&self) -> Noise {
        if self.view.is_simulated() { Noise::default() } else { NOISE }
    }

    fn lack_of(&self, cause: Cause) -> Option<&'static str> {
        self.view.is_soft().then_some(match cause {
            Cause::Line => "the software RNIC has no line rate, and the CPUs copy every byte",
            Cause::FullLine => {
                "on the testbed 512 B fill the line (594 line bytes each, 21 million per second); the software RNIC has \
                 no line rate"
            }
            Cause::Doorbell => "a post to the software RNIC writes no doorbell register over PCIe, which a list would save",
            Cause::PayloadFetch => "inline data save a read over PCIe, and the software RNIC never reads over PCIe",
            Cause::InlineCopy => "the software RNIC copies every payload by the CPU, inline or not",
            Cause::DataInCompletions => "the software RNIC puts no data into completions",
            Cause::SharedReceiveLimit => "the limit belongs to an RNIC's hardware",
            Cause::Units => "the software RNIC has no units that work side by side, and no PCIe",
            Cause::Reordering => "the software RNIC does not reorder requests",
            Cause::Acknowledgements => "the RNIC decides how many packets one ACK covers",
        })
    }

    fn cpus(&self) -> Option<usize> {
        Some(self.view.cpus())
    }

    fn line(&self) -> String {
        match self.view.line_rate() {
            Some(rate) => format!("the link's {rate:.0} Gb/s"),
            None => "the highest throughput of any configuration".to_owned(),
        }
    }
}
