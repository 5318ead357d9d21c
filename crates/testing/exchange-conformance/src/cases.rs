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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::cases;

    #[test]
    fn each_case_has_a_name_of_its_own() {
        let cases = cases();
        let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), cases.len());
        assert_eq!(cases.iter().filter(|case| case.requires_loss()).count(), 17, "one per variant");
        assert!(names.contains("grants/a_peer_with_too_small_buffers_is_rejected"));
    }
}
