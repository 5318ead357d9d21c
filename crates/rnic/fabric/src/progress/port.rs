//! The port of a driven RNIC: its state, and orders to it.

use std::cell::{Cell, RefCell};

use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{PortError, PortOrder, PortState};

use super::lock::Deaths;
use super::{DrivenRnic, ThreadState};

/// Callback that carries out the orders of other processes to the port of an RNIC.
pub type PortService = Box<dyn FnMut(&PortHandle<'_>) + Send>;

/// Port of an RNIC, as a [`PortService`] gets it.
pub struct PortHandle<'a> {
    state: &'a ThreadState,
    /// Deaths of queue pairs that the orders found. They are logged when the handle is dropped, after the lock of the
    /// callback is released.
    deaths: RefCell<Vec<Deaths<'a>>>,
    has_ordered: Cell<bool>,
}

impl std::fmt::Debug for PortHandle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PortHandle").field(&self.state.port).finish()
    }
}

impl PortHandle<'_> {
    /// Returns the state of the port.
    ///
    /// # Errors
    ///
    /// The device has failed.
    pub fn state(&self) -> Result<PortState, PortError> {
        self.state.port.state()
    }

    /// Changes the state of the port, as [`Driver::order_port`](crate::Driver::order_port) does.
    ///
    /// # Errors
    ///
    /// As [`Driver::order_port`](crate::Driver::order_port).
    pub fn order(&self, order: PortOrder) -> Result<(), PortError> {
        let (done, deaths) = self.state.order_port(order);
        self.has_ordered.set(true);
        self.deaths.borrow_mut().extend(deaths.map(|deaths| *deaths));
        done
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
        let done = self.shared.order_port(order).0;
        self.shared.let_others_follow();
        done
    }

    /// Calls `service` from now on each time that the thread wakes up. The thread sleeps for at most 3 ms while callers
    /// poll, and otherwise until a packet or another datagram arrives, but at most for 5 s.
    pub fn serve_port(&self, service: PortService) {
        *self.shared.port_service.lock().ignore_poison() = Some(service);
    }
}

impl ThreadState {
    /// Changes the state of the port. Also returns the deaths of queue pairs that the caller logs.
    fn order_port(&self, order: PortOrder) -> (Result<(), PortError>, Option<Box<Deaths<'_>>>) {
        let mut driver = self.lock();
        let done = driver.order_port(self.now_ns(), order);
        (done, self.leave(driver))
    }

    /// Lets the callback of the port look for orders.
    pub(super) fn serve_port(&self) {
        let port = PortHandle { state: self, deaths: RefCell::default(), has_ordered: Cell::new(false) };
        let mut service = self.port_service.lock().ignore_poison();
        if let Some(service) = &mut *service {
            service(&port);
        }
        drop(service);
        if port.has_ordered.get() {
            self.let_others_follow();
        }
        drop(port); // logs the deaths
    }
}
