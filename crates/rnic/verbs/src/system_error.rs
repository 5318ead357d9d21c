use std::io;

/// Errors of using a device of the machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// libibverbs is missing.
    #[error(
        "libibverbs cannot be loaded ({why}): install it with a driver for the RNIC (Debian's packages libibverbs1 \
         and ibverbs-providers)"
    )]
    Absent {
        /// The library to load.
        library: String,
        /// The message of the dynamic linker.
        why: String,
    },
    /// libibverbs lacks a function.
    #[error("{library} is too old: it lacks the function {symbol}, which rdma-core 34 or later provides")]
    TooOld {
        /// The loaded library.
        library: String,
        /// The missing function.
        symbol: String,
    },
    /// The device list could not be read.
    #[error("libibverbs cannot list the RDMA devices: {0}; the kernel module ib_uverbs must be loaded")]
    NoList(io::Error),
    /// The machine has no RDMA device.
    #[error(
        "libibverbs knows no RDMA device: for each device that `rdma link` shows, libibverbs needs a driver in user \
         space (Debian's package ibverbs-providers)"
    )]
    NoDevices,
    /// The requested device does not exist.
    #[error("there is no RDMA device {name}; there are: {known}")]
    NoSuchDevice {
        /// The requested name.
        name: String,
        /// The names of the existing devices.
        known: String,
    },
    /// The device cannot be opened.
    #[error(
        "the device {name} cannot be opened: {error}; /dev/infiniband/uverbs* must be readable and writable for this \
         user"
    )]
    DoesNotOpen {
        /// The name of the device.
        name: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The device does not have the requested port.
    #[error("the device {name} has no port {port}: its ports are 1 to {ports}")]
    NoSuchPort {
        /// The name of the device.
        name: String,
        /// The requested port.
        port: u8,
        /// Number of ports of the device.
        ports: u8,
    },
    /// The port is not active.
    #[error(
        "port {port} of the device {name} is {state}, not active: `ip link` shows whether its network interface is up \
         and has a carrier"
    )]
    Down {
        /// The name of the device.
        name: String,
        /// The number of the port.
        port: u8,
        /// The state of the port.
        state: &'static str,
    },
    /// The port is not Ethernet.
    #[error("port {port} of the device {name} is {link_layer}, but Doorbell speaks RoCE v2, which needs Ethernet")]
    NotEthernet {
        /// The name of the device.
        name: String,
        /// The number of the port.
        port: u8,
        /// The link layer of the port.
        link_layer: &'static str,
    },
    /// The port has no suitable GID.
    #[error("port {port} of the device {name} has no {wanted}; it has: {gids}")]
    NoGid {
        /// The name of the device.
        name: String,
        /// The number of the port.
        port: u8,
        /// The requested kind of GID.
        wanted: String,
        /// The GIDs of the port.
        gids: String,
    },
    /// The limit on locked memory is too small.
    #[error(
        "{what} failed: {error}; this process may lock {limit_bytes} B of memory, and RNICs lock registered memory: \
         raise the limit with `ulimit -l unlimited`, or with memlock in /etc/security/limits.conf"
    )]
    LockedMemory {
        /// The attempted operation.
        what: &'static str,
        /// The error of the kernel.
        error: io::Error,
        /// The limit on locked memory, in bytes.
        limit_bytes: u64,
    },
    /// The device or its driver refused an operation.
    #[error("{what} failed: {error}")]
    Refused {
        /// The attempted operation.
        what: &'static str,
        /// The error of the kernel or the driver.
        error: io::Error,
    },
}

impl SystemError {
    /// Returns the error that a failed call has just left in `errno`.
    pub(crate) fn last(what: &'static str) -> Self {
        Self::refused(what, io::Error::last_os_error())
    }

    pub(crate) fn refused(what: &'static str, error: io::Error) -> Self {
        use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
        // The kernel reports ENOMEM both for missing memory and for exceeding the limit on locked memory. If such a
        // limit exists, the error names it.
        let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
        if error.raw_os_error() == Some(nix::libc::ENOMEM) && limit != RLIM_INFINITY {
            return Self::LockedMemory { what, error, limit_bytes: limit };
        }
        Self::Refused { what, error }
    }

    /// Converts the result of a C call that returns 0 on success and an error number on failure.
    pub(crate) fn check(what: &'static str, result: i32) -> Result<(), Self> {
        match result {
            0 => Ok(()),
            // Some drivers return -1 from such calls and set `errno`.
            -1 => Err(Self::last(what)),
            number => Err(Self::refused(what, io::Error::from_raw_os_error(number.abs()))),
        }
    }
}
