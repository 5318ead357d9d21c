//! The cases as a table, for programs that run them on a device.

use doorbell_exchange::buffered_write::{
    Acknowledge::{Read, Send},
    Notification::{Immediate, Reverse, TailOffset},
};
use doorbell_exchange::direct_read::{Acknowledge, DirectRead, Fence};
use doorbell_exchange::direct_write::Grants;
use doorbell_exchange::shared_write::Reserves;
use doorbell_exchange::{BufferedRead, BufferedWrite, DirectWrite, SendReceive, SharedWrite};

/// A case of the suite for one variant of a protocol, or for one protocol.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Variant and case, as in `send_receive/uneven_ends`.
    pub name: &'static str,
    /// Runs the case on the devices of [`set_provider`](crate::set_provider). It panics if the protocol does not work
    /// there.
    pub run: fn(),
}

impl Case {
    /// Returns whether the case requires a network that loses packets ([`Provider::lossy`](crate::Provider::lossy)).
    pub fn requires_loss(&self) -> bool {
        self.name.ends_with("/loss_is_not_seen")
    }
}

macro_rules! push {
    (@of $cases:ident, $name:ident, $protocol:expr; { $($case:ident),+; $($known:ident),+ }) => {
        $($cases.push(Case {
            name: concat!(stringify!($name), "/", stringify!($case)),
            run: || crate::$case($protocol),
        });)+
        $($cases.push(Case {
            name: concat!(stringify!($name), "/", stringify!($known)),
            run: || crate::known_failures::$known($protocol),
        });)+
    };
    ($cases:ident; { $($name:ident: $protocol:expr;)+ } $each:tt { $($module:ident: $($case:ident),+);+ }) => {
        $(push! { @of $cases, $name, $protocol; $each })+
        $($($cases.push(Case {
            name: concat!(stringify!($module), "/", stringify!($case)),
            run: crate::$module::$case,
        });)+)+
    };
}

/// Returns all cases, in the order of the suite.
#[allow(clippy::vec_init_then_push, reason = "a macro writes the pushes")]
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    crate::exchange_cases! { [push] cases; }
    cases
}

/// Runs the case with this name. Panics if there is no such case, or if the case fails.
pub fn run(name: &str) {
    let case = cases().into_iter().find(|case| case.name == name);
    (case.unwrap_or_else(|| panic!("there is no case {name}")).run)();
}
