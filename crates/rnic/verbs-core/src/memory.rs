//! Registered memory in work requests.

use doorbell_wire::RKey;

bitflags::bitflags! {
    /// Permitted accesses to a region. Local reads are always permitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The RNIC may write the region for local work requests (receives, READ responses).
        const LOCAL_WRITE = 1;
        /// A peer may WRITE the region.
        const REMOTE_WRITE = 2;
        /// A peer may READ the region.
        const REMOTE_READ = 4;
        /// A peer may use atomics on the region.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to the region.
        const WINDOW_BIND = 16;
        /// The program may map and unmap the memory of the region at any time. If the device supports paging on demand,
        /// it checks before each access that the memory is mapped.
        const ON_DEMAND = 64;
    }
}

/// Number of a protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// Local key of a region. Scatter-gather elements name their region by this key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct LKey(pub u32);

/// Scatter-gather element: a part of a registered region. The struct has the layout of `ibv_sge` in the C API of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the address range under which the region was registered.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Key of the region.
    pub lkey: LKey,
}

/// Error of an access to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No region has the key.
    #[error("no memory region has the key {key:#010x}: it was never registered, or it was deregistered")]
    UnknownKey {
        /// Key.
        key: u32,
    },
    /// The region belongs to another protection domain.
    #[error(
        "the memory region {key:#010x} belongs to another protection domain than the queue pair, but must belong to \
         the same one"
    )]
    ForeignPd {
        /// Key.
        key: u32,
    },
    /// The range is not inside the region.
    #[error(
        "{length} bytes at {address:#x} are not inside the memory region {key:#010x}, \
         which has {region_length} bytes at {region_address:#x}"
    )]
    OutOfBounds {
        /// Key.
        key: u32,
        /// Start of the access.
        address: u64,
        /// Bytes of the access.
        length: u64,
        /// Start of the region.
        region_address: u64,
        /// Bytes of the region.
        region_length: u64,
    },
    /// The region was registered without the required right.
    #[error(
        "the memory region {key:#010x} was registered with the rights {granted:?}, but the access needs {needed:?}"
    )]
    Forbidden {
        /// Key.
        key: u32,
        /// Rights that the access needs.
        needed: Access,
        /// Rights that the region grants.
        granted: Access,
    },
    /// The memory is not mapped, is mapped without the required rights, or lies beyond the end of its file.
    #[error(
        "{length} bytes at {address:#x} of the memory region {key:#010x} must be mapped with the rights of the access, \
         and their file must not be truncated"
    )]
    NotThere {
        /// Key.
        key: u32,
        /// Start of the access.
        address: u64,
        /// Bytes of the access.
        length: u64,
    },
    /// An atomic operation has an address that is not a multiple of 8.
    #[error("the address of an atomic operation is {address:#x}, but must be a multiple of 8")]
    Misaligned {
        /// Address.
        address: u64,
    },
    /// The state of a memory window does not permit the request.
    #[error("the memory window {key:#010x} cannot be bound or invalidated: {why}")]
    Window {
        /// Key.
        key: u32,
        /// Reason.
        why: &'static str,
    },
}

/// Type of a memory window. The type determines how the window can be bound, and through which queue pairs peers access
/// the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// A window that can be rebound at any time, through any queue pair of its protection domain. Peers access the
    /// window through all of these queue pairs. A binding of zero bytes invalidates the key of the window.
    Type1,
    /// A window that can be bound only while it is unbound (type 2B). Peers access the window only through the queue
    /// pair that bound it. The key can be invalidated by the program that owns the window, and also by the peer.
    Type2,
}

/// Binding of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// New key of the window. The upper 24 bits must be those of the current key; the program chooses the lower 8 bits.
    pub rkey: RKey,
    /// Local key of the region. The region must permit the binding of windows ([`Access::WINDOW_BIND`]).
    pub lkey: LKey,
    /// Address of the first byte of the window, in the address range of the region.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Rights of peers that access the window. They are independent of the rights that the region itself grants to
    /// peers.
    pub access: Access,
    /// Whether peers address the window by offsets from its start.
    pub zero_based: bool,
}
