//! The port of a driver. While the port is down, the driver loses all packets in both directions, as an RNIC whose
//! cable was pulled out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use doorbell_verbs_core::{LinkCounters, PortError, PortOrder, PortState};

use crate::link::{ReceivedRun, SharedRun, Sink};

/// Time between two looks at the link while the port is down, if the link has a deadline that only a send would change.
const LOOK_NS: u64 = 1_000_000;

/// Number of the only port.
pub(crate) const PORT: u8 = 1;

/// State of a port that other threads read without the lock of its driver.
#[derive(Clone, Debug, Default)]
pub(crate) struct PortView(Arc<AtomicU8>);

const ACTIVE: u8 = 0;
const DOWN: u8 = 1;
const FAILED: u8 = 2;

impl PortView {
    /// Returns the state of the port.
    ///
    /// # Errors
    ///
    /// The device has failed.
    pub(crate) fn state(&self) -> Result<PortState, PortError> {
        match self.0.load(Ordering::Relaxed) {
            ACTIVE => Ok(PortState::Active),
            DOWN => Ok(PortState::Down),
            _ => Err(PortError::DeviceFatal),
        }
    }
}

/// Port of a driver.
#[derive(Debug, Default)]
pub(crate) struct Port {
    view: PortView,
    /// Time at which a port comes up again that a fault plan took down.
    pub(crate) up_at_ns: Option<u64>,
    /// Time of the last receive while the port was down.
    looked_ns: u64,
    /// Number of packets that the port lost instead of sending them.
    pub(crate) lost_sent: u64,
    /// Number of arrived packets that the port lost.
    lost_received: u64,
}

impl Port {
    pub(crate) fn view(&self) -> &PortView {
        &self.view
    }

    /// Uses the state of another engine's port.
    pub(crate) fn share(&mut self, view: PortView) {
        self.view = view;
    }

    /// Returns whether packets pass.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.view.0.load(Ordering::Relaxed) == ACTIVE
    }

    /// Changes the state as `order` says.
    ///
    /// # Errors
    ///
    /// The port has the ordered state already, or the device has failed.
    pub(crate) fn obey(&mut self, order: PortOrder) -> Result<(), PortError> {
        let next = match (self.view.state()?, order) {
            (PortState::Active, PortOrder::Up) => return Err(PortError::AlreadyUp),
            (PortState::Down, PortOrder::Down) => return Err(PortError::AlreadyDown),
            (_, PortOrder::Up) => ACTIVE,
            (_, PortOrder::Down) => DOWN,
            (_, PortOrder::DeviceFatal) => FAILED,
        };
        self.view.0.store(next, Ordering::Relaxed);
        self.up_at_ns = None;
        Ok(())
    }

    /// Records that packets were received while the port was down.
    pub(crate) fn note_lost(&mut self, now_ns: u64, lost: &Lost) {
        self.looked_ns = now_ns;
        self.lost_received += lost.packets;
    }

    /// Returns the time at which the driver must look at its link, which has the deadline `at_ns`. While the port is
    /// down, the driver sends nothing. A deadline that only a send changes, such as that of a route, would then stay in
    /// the past, and the driver would not sleep.
    #[inline]
    pub(crate) fn paced(&self, at_ns: u64) -> u64 {
        if self.is_up() || at_ns > self.looked_ns { at_ns } else { self.looked_ns + LOOK_NS }
    }

    /// Returns the counters of a link with those of the port.
    pub(crate) fn counters(&self, link: &LinkCounters) -> LinkCounters {
        let own = LinkCounters { tx_port_down: self.lost_sent, rx_port_down: self.lost_received, ..Default::default() };
        link.plus(&own)
    }
}

/// Sink of a port that is down. Counts the packets and drops them.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    pub(crate) packets: u64,
}

impl Sink for Lost {
    fn receive(&mut self, run: ReceivedRun<'_>) {
        self.packets += run.segments().len() as u64;
    }

    fn receive_shared(&mut self, run: &SharedRun<'_>) -> bool {
        self.packets += run.packets().count() as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_deadline_is_looked_at_from_time_to_time_while_the_port_is_down() {
        let mut port = Port::default();
        assert_eq!(port.paced(0), 0);
        port.obey(PortOrder::Down).unwrap();
        port.note_lost(50, &Lost { packets: 3 });
        assert_eq!((port.paced(20), port.paced(51)), (50 + LOOK_NS, 51));
        assert_eq!(port.counters(&LinkCounters::default()).rx_port_down, 3);
        port.obey(PortOrder::Up).unwrap();
        assert_eq!(port.paced(20), 20);
    }

    #[test]
    fn each_order_without_effect_has_its_error() {
        let mut port = Port::default();
        let errors = [(PortOrder::Up, PortError::AlreadyUp), (PortOrder::Down, PortError::AlreadyDown)];
        assert_eq!(port.obey(errors[0].0), Err(errors[0].1));
        port.obey(PortOrder::Down).unwrap();
        assert_eq!(port.obey(errors[1].0), Err(errors[1].1));
        port.obey(PortOrder::DeviceFatal).unwrap();
        assert_eq!(port.view().state(), Err(PortError::DeviceFatal));
        for order in [PortOrder::Down, PortOrder::Up, PortOrder::DeviceFatal] {
            assert_eq!(port.obey(order), Err(PortError::DeviceFatal));
        }
    }
}
