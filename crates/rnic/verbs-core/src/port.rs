//! The port of a device: its state, and orders that change it.

/// State of a port (IBTA Vol 1, 14.2.5.6, PortState). A port of Ethernet is active or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// Packets pass.
    Active,
    /// The port loses all packets in both directions.
    Down,
}

/// Order to a device that can change its port, such as a software RNIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortOrder {
    /// The port goes down.
    Down,
    /// The port comes up again.
    Up,
    /// The device fails, as after a fatal error of its hardware. It never works again.
    DeviceFatal,
}

/// Error of an order to a port, or of a query of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The port is down.
    #[error("the port is down already: only a port that is up can go down")]
    AlreadyDown,
    /// The port is up.
    #[error("the port is up already: only a port that is down can come up")]
    AlreadyUp,
    /// The device has failed.
    #[error("the device has failed, and its port stays down: open the device again")]
    DeviceFatal,
}
