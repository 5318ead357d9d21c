use std::io;

/// Why a device of the machine cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// There is no libibverbs.
    #[error(
        "libibverbs cannot be loaded ({why}): install it with a driver for the RNIC (Debian's packages libibverbs1 \
         and ibverbs-providers)"
    )]
    Absent {
        /// What was to be loaded.
        library: String,
        /// What the dynamic linker says.
        why: String,
    },
    /// libibverbs lacks something.
    #[error("{library} is too old: it has no {symbol}; rdma-core 34 or later has it")]
    TooOld {
        /// What was loaded.
        library: String,
        /// What it lacks.
        symbol: String,
    },
    /// The device list could not be read.
    #[error("libibverbs gives no list of devices: {0}; is the kernel's module ib_uverbs loaded?")]
    NoList(io::Error),
    /// There are no devices.
    #[error(
        "libibverbs knows no RDMA device: `rdma link` shows those of the kernel, and libibverbs needs a driver of its \
         own for each (Debian's package ibverbs-providers)"
    )]
    NoDevices,
    /// There is none of that name.
    #[error("there is no RDMA device {name}; there are: {known}")]
    NoSuchDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The device does not open.
    #[error(
        "the device {name} does not open: {error}; are /dev/infiniband/uverbs* readable and writable for this user?"
    )]
    DoesNotOpen {
        /// Its name.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// There is no such port.
    #[error("the device {name} has no port {port}, but ports 1 to {ports}")]
    NoSuchPort {
        /// Its name.
        name: String,
        /// What was asked for.
        port: u8,
        /// How many it has.
        ports: u8,
    },
    /// The port is not active.
    #[error(
        "port {port} of the device {name} is {state}, not active: `ip link` shows whether its network interface is up \
         and has a carrier"
    )]
    Down {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// What it is.
        state: &'static str,
    },
    /// The port is not Ethernet.
    #[error("port {port} of the device {name} is {link_layer}, but Doorbell speaks RoCE v2, which needs Ethernet")]
    NotEthernet {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// What it is.
        link_layer: &'static str,
    },
    /// None of the GIDs can be used.
    #[error("port {port} of the device {name} has no {wanted}; it has: {gids}")]
    NoGid {
        /// The device.
        name: String,
        /// The port.
        port: u8,
        /// What was asked for.
        wanted: String,
        /// What there is.
        gids: String,
    },
    /// The limit on locked memory is too small.
    #[error(
        "{what}: {error}; this process may lock {limit_bytes} B of memory, and RNICs lock what they use: `ulimit -l \
         unlimited`, or memlock in /etc/security/limits.conf, raises it"
    )]
    LockedMemory {
        /// What was to be done.
        what: &'static str,
        /// What the kernel says.
        error: io::Error,
        /// The limit.
        limit_bytes: u64,
    },
    /// The device refused something.
    #[error("the RNIC does not take this: {what}: {error}")]
    Refused {
        /// What was to be done.
        what: &'static str,
        /// What the kernel or the driver says.
        error: io::Error,
    },
}

impl SystemError {
    /// What a call that just failed has left in `errno`.
    pub(super) fn last(what: &'static str) -> Self {
        Self::refused(what, io::Error::last_os_error())
    }

    pub(super) fn refused(what: &'static str, error: io::Error) -> Self {
        use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
        // The kernel says ENOMEM, whether memory or the right to lock it is missing.
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
        if error.raw_os_error() == Some(nix::libc::ENOMEM) && limit != RLIM_INFINITY {
            return Self::LockedMemory { what, error, limit_bytes: limit };
        }
        Self::Refused { what, error }
    }

    /// The result of a call that returns an error number, or 0.
    pub(super) fn check(what: &'static str, result: i32) -> Result<(), Self> {
        match result {
            0 => Ok(()),
            // Some calls of some drivers return -1 and set errno.
            -1 => Err(Self::last(what)),
            number => Err(Self::refused(what, io::Error::from_raw_os_error(number.abs()))),
        }
    }
}
