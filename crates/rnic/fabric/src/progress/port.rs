//! The port of a driven RNIC: its state, and orders to it.

use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{PortError, PortOrder, PortState};

use super::{DrivenRnic, ThreadState};

/// Callback that carries out the orders of other processes to the port of an RNIC.
pub type PortService = Box<dyn FnMut(&PortHandle<'_>) + Send>;

/// Port of an RNIC, as a [`PortService`] gets it.
pub struct PortHandle<'a>(&'a ThreadState);

impl std::fmt::Debug for PortHandle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PortHandle").field(&self.0.port).finish()
    }
}

impl PortHandle<'_> {
    /// Returns the state of the port.
    ///
    /// # Errors
    ///
    /// The device has failed.
    pub fn state(&self) -> Result<PortState, PortError> {
        self.0.port.state()
    }

    /// Changes the state of the port, as [`Driver::order_port`](crate::Driver::order_port) does.
    ///
    /// # Errors
    ///
    /// As [`Driver::order_port`](crate::Driver::order_port).
    pub fn order(&self, order: PortOrder) -> Result<(), PortError> {
        self.0.order_port(order)
    }
}

impl DrivenRnic {
    /// Returns the state of the port, without a lock.
    ///
    /// # Errors
    ///
    /// The device has failed.
    pub fn port_state(&self) -> Result<PortState, PortError> {
        self.shared.port.state()
    }

    /// Changes the state of the port, as [`Driver::order_port`](crate::Driver::order_port) does.
    ///
    /// # Errors
    ///
    /// As [`Driver::order_port`](crate::Driver::order_port).
    pub fn order_port(&self, order: PortOrder) -> Result<(), PortError> {
        self.shared.order_port(order)
    }

    /// Calls `service` from now on each time that the thread wakes up. The thread sleeps for at most 3 ms while callers
    /// poll, and otherwise until a packet or another datagram arrives, but at most for 5 s.
    pub fn serve_port(&self, service: PortService) {
        *self.shared.port_service.lock().ignore_poison() = Some(service);
    }
}

impl ThreadState {
    fn order_port(&self, order: PortOrder) -> Result<(), PortError> {
        let mut driver = self.lock();
        let done = driver.order_port(self.now_ns(), order);
        self.leave(driver);
        done
    }

    /// Lets the callback of the port look for orders.
    pub(super) fn serve_port(&self) {
        if let Some(service) = &mut *self.port_service.lock().ignore_poison() {
            service(&PortHandle(self));
        }
    }
}
