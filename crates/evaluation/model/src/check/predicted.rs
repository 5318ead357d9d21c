//! Predictors as sources of the judge of published sentences.

use std::ops::RangeInclusive;

use doorbell_claims::{Amount, Configuration, Gap, Load, Quantity, Receivers, Setting, Source, Subject};
use doorbell_protocols::Protocol;

use super::configured::{manner, operation, stored, workload};
use super::{Lack, Manner, Needed, Predictor};
use crate::operation::{Posted, PostedOperation};
use crate::workload::{Peers, Workload};

/// Source that asks a predictor. Settings that a rule leaves open are those of the published configuration, with the
/// smallest value of each range.
pub(super) struct Predicted<'a> {
    pub(super) by: &'a mut dyn Predictor,
}

/// Number of outstanding operations per queue pair if a sentence gives no number. A queue pair has fewer in flight.
const IN_FLIGHT: f64 = 64.0;
/// Bytes of an operation if a sentence gives no number.
const WORD: f64 = 8.0;

impl From<Lack> for Gap {
    fn from(lack: Lack) -> Self {
        Self::NoValues(lack.to_string())
    }
}

impl Source for Predicted<'_> {
    /// Returns the doublings of the smallest value, as in published sweeps.
    fn places(&mut self, _: &Load<'_>, _: Setting, range: RangeInclusive<f64>) -> Result<Vec<f64>, Gap> {
        let doublings = std::iter::successors(Some(*range.start()), |value| Some(2.0 * value));
        Ok(doublings.take_while(|value| range.contains(value)).collect())
    }

    fn value(&mut self, load: &Load<'_>, quantity: Quantity) -> Result<f64, Gap> {
        let found = match &load.subject {
            Subject::Protocol(name) => {
                let protocol = Protocol::by_name(name).ok_or_else(|| Lack::Protocol(name.clone()))?;
                let (workload, manner) = self.messages(load, protocol)?;
                self.of_messages(load, &workload, manner, quantity)
            }
            Subject::Operation(said) => self.of_operations(&posted(load, operation(*said)), quantity),
            Subject::Store(_) => self.of_store(load, quantity),
        };
        Ok(found?)
    }
}

impl Predicted<'_> {
    /// Returns the workload of a load.
    fn messages(&self, load: &Load<'_>, protocol: Protocol) -> Result<(Workload, Manner), Lack> {
        let published = &load.shape.configuration;
        let mut workload = workload(protocol, &smallest(published), None)?;
        let mut manner = manner(published);
        let is_single = published.receivers == Some(Receivers::Single) || load.is(Setting::OneQueue) == Some(true);
        for (&setting, &value) in &load.fixed {
            let (count, is_so) = (value as u32, value != 0.0);
            match setting {
                Setting::Bytes => workload.bytes = value as u64,
                Setting::Window => workload.window = count,
                Setting::Batch => workload.batch = count,
                Setting::PostsInFlight => workload.window = count * workload.batch,
                Setting::PollList => workload.receive_batch = count,
                Setting::RepostList => workload.repost_batch = count,
                Setting::Connections if is_single => workload.peers = Peers::many_to_one(count),
                Setting::Connections => workload.peers = Peers::pairs(count),
                Setting::SharedReceives => workload.srq = is_so,
                Setting::RepostThread => workload.repost_thread = is_so,
                Setting::Inline => workload.inline_bytes = if is_so { workload.bytes } else { 0 },
                Setting::Credits => workload.credits = is_so,
                Setting::Paced => manner.is_paced = is_so,
                Setting::OneQueue => {
                    if manner.one_queue != is_so {
                        self.by.has(Needed::CompletionQueues)?;
                    }
                    manner.one_queue = is_so;
                }
                Setting::Sleeping => {
                    self.by.has(Needed::Interrupts)?;
                    return Err(Lack::Feature("no predictor covers the CPU time of sleeping ends"));
                }
                _ => return Err(Lack::Feature("no predictor covers this setting of messages")),
            }
        }
        workload.check()?;
        Ok((workload, manner))
    }

    fn of_messages(
        &mut self,
        load: &Load<'_>,
        workload: &Workload,
        manner: Manner,
        quantity: Quantity,
    ) -> Result<f64, Lack> {
        let mut rate = || self.by.rate(workload, manner).map(|rated| rated.messages_per_s);
        match quantity {
            Quantity::Latency => self.by.latency_ns(workload),
            Quantity::MessageRate => rate(),
            Quantity::Throughput => Ok(rate()? * workload.bytes as f64),
            Quantity::LineShare => Ok(rate()? / self.by.line_rate(workload)?),
            Quantity::SendingCpu => {
                if load.is(Setting::Inline).is_some() {
                    self.by.has(Needed::InlineCopies)?;
                }
                self.by.sending_cpu_ns(workload)
            }
            Quantity::RnrNaks => {
                self.by.has(Needed::RnrNaks)?;
                Ok(self.by.rate(workload, manner)?.rnr_naks as f64)
            }
            _ => Err(Lack::Quantity("a quantity of this kind")),
        }
    }

    fn of_store(&mut self, load: &Load<'_>, quantity: Quantity) -> Result<f64, Lack> {
        let mut asked = stored(&load.shape.configuration)?;
        for (&setting, &value) in &load.fixed {
            match setting {
                Setting::Clients => asked.clients = value as u32,
                Setting::WritePercent => asked.write_percent = value,
                Setting::Steered => asked.is_steered = value != 0.0,
                _ => return Err(Lack::Feature("no predictor covers this setting of a store")),
            }
        }
        match quantity {
            Quantity::SuccessOfWrites => Ok(self.by.store(&asked)?.success_of_writes),
            _ => Err(Lack::Quantity("a quantity of this kind")),
        }
    }

    fn of_operations(&mut self, posted: &Posted, quantity: Quantity) -> Result<f64, Lack> {
        match quantity {
            Quantity::OperationRate => self.by.operations(posted).map(|rated| rated.messages_per_s),
            Quantity::RequestPacketsPerOperation => self.by.packets(posted).map(|packets| packets.packets_in),
            Quantity::ResponsePacketsPerOperation => self.by.packets(posted).map(|packets| packets.packets_out),
            Quantity::RequestBytesPerPacket => self.by.packets(posted).map(|packets| packets.frames().0),
            Quantity::ResponseBytesPerPacket => self.by.packets(posted).map(|packets| packets.frames().1),
            Quantity::InOrder => Err(Lack::Quantity("the order in which requests of different queue pairs arrive")),
            Quantity::Torn => Err(Lack::Quantity("contents of memory")),
            _ => Err(Lack::Quantity("a quantity of this kind")),
        }
    }
}

/// Returns a configuration with the smallest value of each range that a rule may vary.
fn smallest(published: &Configuration) -> Configuration {
    let mut configuration = published.clone();
    for amount in [
        &mut configuration.bytes,
        &mut configuration.window,
        &mut configuration.batch,
        &mut configuration.threads,
        &mut configuration.connections,
    ] {
        if let Some(Amount::Span(least, _)) = *amount {
            *amount = Some(Amount::Is(least));
        }
    }
    configuration
}

/// Returns the operations of a load. Each queue pair has its own thread.
fn posted(load: &Load<'_>, operation: PostedOperation) -> Posted {
    let fixed = |setting: Setting| load.fixed.get(&setting).copied();
    let published = &load.shape.configuration;
    let (connections, window) = match fixed(Setting::Outstanding) {
        Some(all) => {
            let pairs = all.min(published.connections.and_then(Amount::most).unwrap_or(1.0)).max(1.0);
            (pairs, all / pairs)
        }
        None => (fixed(Setting::Connections).unwrap_or(1.0), fixed(Setting::Window).unwrap_or(IN_FLIGHT)),
    };
    let connections = connections as u32;
    let plain = Posted::new(operation, fixed(Setting::Bytes).unwrap_or(WORD) as u64, window as u32);
    let inline_bytes = published.inline.and_then(Amount::most).map_or(plain.inline_bytes, |inline| inline as u64);
    Posted {
        inline_bytes,
        in_rounds: published.in_rounds == Some(true),
        batch: if published.in_rounds == Some(true) { window as u32 } else { plain.batch },
        connections,
        threads: connections,
        addresses: if load.is(Setting::OneAddress) == Some(true) { 1 } else { connections },
        ..plain
    }
}
