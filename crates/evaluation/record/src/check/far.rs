//! Validation of points on shared memory.

use doorbell_farmem::{MAX_OUTSTANDING, MAX_VALUE};

use crate::far::{FarPoint, StorePoint};
use crate::settings::{
    ADDRESSES, MESSAGES, MTU, OPERATION, ParametersError, RATE, SECONDS, SIZE, Setting, WINDOW, within,
};
use crate::words::Operation;

/// Maximum number of addresses of a point.
const MAX_ADDRESSES: u64 = 1 << 24;
/// Maximum number of queue pairs or clients of a point.
const MAX_PAIRS: usize = 1024;
/// Maximum number of clients in a point in which each client has its own host.
const MAX_HOSTS: usize = 256;
/// Maximum size of an object in bytes.
const MAX_OBJECT: usize = 1 << 20;
/// Maximum number of operations of a point. With more operations, packet sequence numbers would repeat.
const MAX_OPERATIONS: u64 = 1 << 23;
/// Maximum number of clients of a store.
const MAX_CLIENTS: usize = 1024;
/// Maximum number of keys.
const MAX_KEYS: u64 = 1 << 27;
/// Maximum of all times of a point in microseconds. The value is an hour.
const LONGEST_US: f64 = 3.6e9;

static QUEUE_PAIRS: Setting = Setting::named("the number of queue pairs", "");
static SKEW: Setting = Setting::named("the exponent of Zipf's law", "");
static DISTANCE: Setting = Setting::named("the distance of the words", "");
static CLIENTS: Setting = Setting::named("the number of clients", "");
static HOSTS: Setting = Setting::named("the number of hosts", "");
static KEYS: Setting = Setting::named("the number of keys", "");
static PUTS: Setting = Setting::named("the share of puts", "");

impl FarPoint {
    /// Validates all parameters of the point.
    ///
    /// # Errors
    ///
    /// A number is out of its range. The error states the parameter, its value and the allowed range.
    pub fn check(&self) -> Result<(), ParametersError> {
        let one_word = |operation| match operation {
            Operation::Read | Operation::Write | Operation::CompareSwap => Ok(()),
            other => Err(OPERATION.refuse(format!("{other:?}"), "READ, WRITE or CAS")),
        };
        match self {
            Self::Store(store) => store.check(),
            Self::Order(order) => {
                one_word(order.operation)?;
                within(&QUEUE_PAIRS, order.queue_pairs, 1, MAX_PAIRS, "")?;
                within(&ADDRESSES, order.addresses, 1, MAX_ADDRESSES, "")?;
                within(&SKEW, order.zipf, 0.0, 3.0, "")?;
                within(&RATE, order.rate_per_s, 1.0, 1e9, " requests/s")?;
                within(&WINDOW, order.outstanding, 1, 1024, "")?;
                within(&MESSAGES, order.requests, 1, MAX_OPERATIONS, "")
            }
            Self::Tearing(tearing) => {
                within(&SIZE, tearing.bytes, 8, MAX_OBJECT, " B")?;
                if !tearing.bytes.is_multiple_of(8) {
                    return Err(SIZE.refuse(format!("{} B", tearing.bytes), "a multiple of 8 B"));
                }
                if doorbell_verbs::PathMtu::from_bytes(tearing.mtu).is_none() {
                    return Err(MTU.refuse(format!("{} B", tearing.mtu), MTU.allowed(None)));
                }
                within(&MESSAGES, tearing.reads, 1, MAX_OPERATIONS, "")
            }
            Self::Scope(scope) => {
                one_word(scope.operation)?;
                within(&DISTANCE, scope.distance, 0, MAX_OBJECT as u64, " B")?;
                within(&QUEUE_PAIRS, scope.others, 0, MAX_PAIRS, "")?;
                within(&WINDOW, scope.outstanding, 1, 1024, "")?;
                within(&MESSAGES, scope.operations, 1, MAX_OPERATIONS, "")
            }
            Self::Hot(hot) => {
                within(&CLIENTS, hot.clients, 1, MAX_HOSTS, "")?;
                within(&WINDOW, hot.outstanding, 1, 1024, "")?;
                within(&MESSAGES, hot.operations, 1, MAX_OPERATIONS, "")
            }
        }
    }
}

impl StorePoint {
    /// Validates the workload of the store.
    fn check(&self) -> Result<(), ParametersError> {
        within(&CLIENTS, self.clients, 1, MAX_CLIENTS, "")?;
        within(&HOSTS, self.hosts, 1, self.clients, "")?;
        within(&KEYS, self.keys, 1, MAX_KEYS, "")?;
        within(&SKEW, self.zipf, 0.0, 3.0, "")?;
        within(&PUTS, self.write_percent, 0.0, 100.0, " %")?;
        within(&SIZE, self.value_bytes, 0, MAX_VALUE, " B")?;
        within(&WINDOW, self.outstanding, 1, MAX_OUTSTANDING, "")?;
        within(&RATE, self.rate_per_s.unwrap_or(1.0), 1.0, 1e9, " operations/s")?;
        within(&SECONDS, self.client_us, 0.0, LONGEST_US, " us")?;
        within(&SECONDS, self.shortcut_us, 0.0, LONGEST_US, " us")?;
        within(&SECONDS, self.warm_up_us, 0.0, LONGEST_US, " us")?;
        within(&SECONDS, self.measure_us, 1.0, LONGEST_US, " us")
    }
}
