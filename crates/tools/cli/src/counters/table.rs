//! One line per device and interval, in the style of vmstat.

use std::io;

use doorbell_counters::{Common, Interval, Look};

use super::{mib, short};
use crate::output::line;

/// Number of lines after which the header is repeated.
const LINES: usize = 20;

/// Columns: title and width.
const COLUMNS: [(&str, usize); 12] = [
    ("tx packets", 11),
    ("tx MiB", 9),
    ("tx ops", 9),
    ("rx packets", 11),
    ("rx MiB", 9),
    ("rx ops", 9),
    ("resent", 8),
    ("tx RNR", 7),
    ("rx RNR", 7),
    ("out-of-seq", 10),
    ("tx CNP", 7),
    ("rx CNP", 7),
];

/// Returns the cells of a device, in the order of the columns.
pub(super) fn cells(device: &Interval) -> [String; COLUMNS.len()] {
    let rate = |common| device.rates.as_ref().and_then(|rates| rates.per_second(common));
    [
        short(rate(Common::TxPackets)),
        mib(rate(Common::TxBytes)),
        short(rate(Common::TxOperations)),
        short(rate(Common::RxPackets)),
        mib(rate(Common::RxBytes)),
        short(rate(Common::RxOperations)),
        short(rate(Common::Retransmissions)),
        short(rate(Common::RnrSent)),
        short(rate(Common::RnrReceived)),
        short(rate(Common::OutOfSequence)),
        short(rate(Common::CnpSent)),
        short(rate(Common::CnpReceived)),
    ]
}

/// State of the printed table.
#[derive(Default)]
pub(super) struct Table {
    since_header: Option<usize>,
    label_width: usize,
}

impl Table {
    /// Returns the lines for one reading of the devices.
    pub(super) fn lines(&mut self, look: &Look) -> Vec<String> {
        let mut lines = Vec::new();
        let widest = look.devices.iter().map(|device| device.sample.identity.label.chars().count()).max();
        let width = widest.unwrap_or(0).max(self.label_width).max("per second".len());
        let is_due = self.since_header.is_none_or(|lines| lines >= LINES) || width > self.label_width;
        if is_due && !look.devices.is_empty() {
            self.label_width = width;
            self.since_header = Some(0);
            let titles: String = COLUMNS.iter().map(|(title, width)| format!(" {title:>width$}")).collect();
            lines.push(format!("{:<width$}{titles}", "per second"));
        }
        for device in &look.devices {
            let cells = cells(device);
            let cells: String =
                cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!(" {cell:>width$}")).collect();
            let end = if device.sample.ended { "  closed" } else { "" };
            lines.push(format!("{:<width$}{cells}{end}", device.sample.identity.label));
            self.since_header = self.since_header.map(|lines| lines + 1);
        }
        lines
    }

    pub(super) fn print(&mut self, look: &Look) -> io::Result<()> {
        self.lines(look).into_iter().try_for_each(line)
    }
}
