//! Derivation of published numbers from predicted latencies and rates.

use doorbell_claims::{Amount, Configuration, Quantity, Row, Subject};
use doorbell_protocols::Protocol;

use super::configured::{Swept, count, manner, operation, ordered, posted, stored, workload};
use super::{Binding, Lack, Manner, Predictor, Stored};
use crate::operation::Posted;
use crate::workload::Workload;

/// Minimum share of the highest rate at which a rate counts as the highest.
const HIGHEST: f64 = 0.99;

/// Minimum share of the highest rate at which queue pairs fill the link.
const LINK_FILLED: f64 = 0.95;

/// Returns the prediction for a row in the base unit of its dimension, with the binding resource.
pub(super) fn predict(row: &Row, by: &mut dyn Predictor) -> Result<(f64, Option<Binding>), Lack> {
    match &row.subject {
        Subject::Store(_) => Ok((of_store(row, by)?, None)),
        Subject::Operation(_) => of_operations(row, by),
        Subject::Protocol(_) if row.quantity == Quantity::InlineReceiveSize => {
            Ok((by.inline_receive_bytes()? as f64, None))
        }
        Subject::Protocol(name) => {
            let protocol = Protocol::by_name(name).ok_or_else(|| Lack::Protocol(name.clone()))?;
            let workload = workload(protocol, &row.configuration, Swept::by(row.quantity))?;
            Asked { row, by: &mut *by, manner: manner(&row.configuration) }.found(workload)
        }
    }
}

struct Asked<'a> {
    row: &'a Row,
    by: &'a mut dyn Predictor,
    manner: Manner,
}

impl Asked<'_> {
    fn rate(&mut self, workload: &Workload) -> Result<f64, Lack> {
        self.by.rate(workload, self.manner).map(|rated| rated.messages_per_s)
    }

    /// Returns pairs of value and rate. The values double at each step, as in the published sweeps.
    fn sweep(&mut self, with: impl Fn(u32) -> Workload) -> Result<Vec<(u64, f64)>, Lack> {
        let (least, most) = self.range()?;
        let doubling = std::iter::successors(Some(least.max(1)), |value| value.checked_mul(2));
        let values = doubling.take_while(|value| *value <= most);
        values.map(|value| Ok((value, self.rate(&with(value as u32))?))).collect()
    }

    fn range(&self) -> Result<(u64, u64), Lack> {
        Swept::by(self.row.quantity).ok_or(Lack::Quantity("a quantity of this kind"))?.range(&self.row.configuration)
    }

    /// Returns the prediction for the row, in the unit of its dimension, with the binding resource.
    fn found(&mut self, workload: Workload) -> Result<(f64, Option<Binding>), Lack> {
        let with_window = |window| Workload { window, ..workload };
        let with_batch = |batch| Workload { batch, ..workload };
        let over = |asked: &mut Self, other: Workload| Ok::<f64, Lack>(asked.rate(&workload)? / asked.rate(&other)?);
        let found = match self.row.quantity {
            Quantity::Latency => return Ok((self.by.latency_ns(&workload)?, None)),
            Quantity::LatencyOverUnfenced => {
                let protocol = match workload.protocol {
                    Protocol::DirectReadFenced | Protocol::DirectReadFencedAwaited => Protocol::DirectRead,
                    _ => return Err(Lack::Quantity("a form of the protocol without a fence")),
                };
                let unfenced = self.by.latency_ns(&Workload { protocol, ..workload })?;
                return Ok((self.by.latency_ns(&workload)? - unfenced, None));
            }
            Quantity::LatencyPerSize => {
                let (bytes, most) = self.range()?;
                let least = self.by.latency_ns(&Workload { bytes, ..workload })?;
                return Ok(((self.by.latency_ns(&workload)? - least) / (most - bytes) as f64, None));
            }
            Quantity::MessageRate => self.rate(&workload)?,
            Quantity::Throughput => self.rate(&workload)? * workload.bytes as f64,
            Quantity::LineShare => self.rate(&workload)? / self.by.line_rate(&workload)?,
            Quantity::GapOverSend => 1e9 / self.rate(&with_window(1))? / self.by.posting_ns(&workload)?,
            Quantity::GainOfWindow => {
                let rates = self.sweep(with_window)?;
                highest(&rates) / rates.first().map_or(1.0, |(_, rate)| *rate)
            }
            Quantity::GainOfBatch => over(self, with_batch(1))?,
            Quantity::GainOfPollList => over(self, Workload { receive_batch: 1, ..workload })?,
            Quantity::RateOver512 => over(self, Workload { bytes: 512, ..workload })?,
            Quantity::SharedOverOwn => over(self, Workload { srq: false, ..workload })?,
            Quantity::SaturatingWindow => saturating(&self.sweep(with_window)?),
            Quantity::SaturatingBatch => saturating(&self.sweep(with_batch)?),
            Quantity::LineFillingSize => {
                let range = self.range()?;
                self.by.line_filling_bytes(&workload, self.manner, range)? as f64
            }
            _ => return Err(Lack::Quantity("a quantity of this kind")),
        };
        Ok((found, Some(self.by.rate(&workload, self.manner)?.binding)))
    }
}

fn highest(rates: &[(u64, f64)]) -> f64 {
    rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
}

/// Returns the smallest value whose rate counts as the highest rate.
fn saturating(rates: &[(u64, f64)]) -> f64 {
    let enough = highest(rates) * HIGHEST;
    rates.iter().find(|(_, rate)| *rate >= enough).map_or(0.0, |(value, _)| *value as f64)
}

/// Returns the prediction for a row about a store on passive memory. A middlebox that steers clients to the newest
/// version has the minimum of bytes and time.
fn of_store(row: &Row, by: &mut dyn Predictor) -> Result<f64, Lack> {
    let asked = stored(&row.configuration)?;
    let alone = by.store(&asked)?;
    let mut steered = || by.store(&Stored { is_steered: true, ..asked });
    Ok(match row.quantity {
        Quantity::SuccessOfReads => alone.success_of_reads.ok_or(Lack::Quantity("reads of this workload"))?,
        Quantity::SuccessOfWrites => alone.success_of_writes,
        Quantity::BytesInflation => alone.bytes_per_operation / steered()?.bytes_per_operation,
        Quantity::TailInflation => alone.write_p99_ns / steered()?.write_p99_ns,
        _ => return Err(Lack::Quantity("a quantity of this kind")),
    })
}

/// Returns the least number of queue pairs whose rate counts as the rate of a full link.
fn saturating_connections(posted: &Posted, most: u32, by: &mut dyn Predictor) -> Result<f64, Lack> {
    let rate = |connections| by.operations(&Posted { connections, threads: connections, ..*posted });
    let rates: Vec<f64> = (1..=most).map(rate).map(|rated| Ok(rated?.messages_per_s)).collect::<Result<_, Lack>>()?;
    let enough = LINK_FILLED * rates.iter().copied().fold(0.0, f64::max);
    Ok(rates.iter().position(|rate| *rate >= enough).map_or(0.0, |index| (index + 1) as f64))
}

/// Returns the prediction for a row about single operations.
fn of_operations(row: &Row, by: &mut dyn Predictor) -> Result<(f64, Option<Binding>), Lack> {
    let Subject::Operation(said) = row.subject else { return Err(Lack::Subject("anything else")) };
    let configuration = &row.configuration;
    if row.quantity == Quantity::InFlight {
        let connections = count("connections", configuration.connections)?;
        let per_pair = configuration.window.and_then(|window| window.most()).unwrap_or(f64::INFINITY);
        return Ok((f64::from(connections) * per_pair.min(f64::from(by.reads_in_flight()?)), None));
    }
    if let Quantity::InOrder | Quantity::OutOfOrder | Quantity::Displacement = row.quantity {
        let order = by.order(&ordered(operation(said), configuration, by)?)?;
        let found = match row.quantity {
            Quantity::InOrder => order.in_order,
            Quantity::OutOfOrder => order.same_address_late,
            _ => order.largest_gap,
        };
        return Ok((found, None));
    }
    if row.quantity == Quantity::SaturatingConnections {
        let most = match configuration.connections {
            Some(Amount::Span(_, most)) => most,
            Some(amount) => return Err(Lack::NoRange { field: "connections", amount }),
            None => return Err(Lack::Unstated("connections")),
        };
        let one = Configuration { connections: Some(Amount::Is(1.0)), ..configuration.clone() };
        return Ok((saturating_connections(&posted(operation(said), &one, by)?, most as u32, by)?, None));
    }
    let posted = posted(operation(said), configuration, by)?;
    let found = match row.quantity {
        Quantity::RequestBytesPerPacket => by.packets(&posted)?.frames().0,
        Quantity::ResponseBytesPerPacket => by.packets(&posted)?.frames().1,
        Quantity::RequestPacketsPerOperation => by.packets(&posted)?.packets_in,
        Quantity::ResponsePacketsPerOperation => by.packets(&posted)?.packets_out,
        Quantity::MiddlePacketBytes => middle(&posted, by)?.0,
        Quantity::MiddlePacketEfficiency => middle(&posted, by)?.1,
        _ => {
            let rated = by.operations(&posted)?;
            let each = match row.quantity {
                Quantity::OperationRate => 1.0,
                Quantity::Throughput => posted.bytes as f64,
                Quantity::PacketsIn => by.packets(&posted)?.packets_in,
                Quantity::PacketsOut => by.packets(&posted)?.packets_out,
                Quantity::BytesIn => by.packets(&posted)?.bytes_in,
                _ => return Err(Lack::Quantity("a quantity of this kind")),
            };
            return Ok((rated.messages_per_s * each, Some(rated.binding)));
        }
    };
    Ok((found, None))
}

/// Returns the frame bytes of a packet in the middle of a long message, and the share of payload in its line bytes.
/// Both values are differences between messages that differ by one packet.
fn middle(posted: &Posted, by: &mut dyn Predictor) -> Result<(f64, f64), Lack> {
    let mtu = posted.path_mtu.ok_or(Lack::Unstated("path_mtu"))?.bytes() as u64;
    let longer = Posted { bytes: posted.bytes + mtu, ..*posted };
    let frame = by.packets(&longer)?.bytes_in - by.packets(posted)?.bytes_in;
    let beside = (doorbell_wire::PREAMBLE_LEN + doorbell_wire::FCS_LEN + doorbell_wire::GAP_LEN) as f64;
    Ok((frame, mtu as f64 / (frame + beside)))
}
