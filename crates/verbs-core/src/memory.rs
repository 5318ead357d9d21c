//! Registered memory as work requests name it.

use doorbell_wire::RKey;

bitflags::bitflags! {
    /// What a region may be used for. Reading it locally is always allowed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The RNIC may write it for local work requests (receives, READ responses).
        const LOCAL_WRITE = 1;
        /// A peer may WRITE it.
        const REMOTE_WRITE = 2;
        /// A peer may READ it.
        const REMOTE_READ = 4;
        /// A peer may use atomics on it.
        const REMOTE_ATOMIC = 8;
        /// Memory windows may be bound to it.
        const WINDOW_BIND = 16;
        /// Its memory may come and go: each access asks first whether it is there, if the device can.
        const ON_DEMAND = 64;
    }
}

/// Names a protection domain of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub u32);

/// The local key of a region, which scatter-gather elements carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct LKey(pub u32);

/// A scatter-gather element: a piece of a registered region. It is laid out as in verbs' C API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Where it starts, as the region was registered.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The region.
    pub lkey: LKey,
}

/// Why an access to registered memory was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// No region has the key.
    #[error("no memory region has the key {key:#010x}: it was never registered, or is deregistered")]
    UnknownKey {
        /// The key.
        key: u32,
    },
    /// The region belongs to another protection domain.
    #[error("the memory region {key:#010x} belongs to another protection domain than the queue pair")]
    ForeignPd {
        /// The key.
        key: u32,
    },
    /// The range is not inside the region.
    #[error(
        "{length} bytes at {address:#x} are not inside the memory region {key:#010x}, \
         which has {region_length} bytes at {region_address:#x}"
    )]
    OutOfBounds {
        /// The key.
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
    /// The region was registered without the right.
    #[error("the memory region {key:#010x} was registered with {granted:?}, the access needs {needed:?}")]
    Forbidden {
        /// The key.
        key: u32,
        /// What the access needs.
        needed: Access,
        /// What the region grants.
        granted: Access,
    },
    /// The region is paged on demand, and there is no memory, or none that may be used so.
    #[error("the memory region {key:#010x} is paged on demand, and {length} bytes at {address:#x} are not there")]
    NotThere {
        /// The key.
        key: u32,
        /// Start of the access.
        address: u64,
        /// Bytes of the access.
        length: u64,
    },
    /// An atomic operation on an address that is not a multiple of 8.
    #[error("an atomic operation needs an address that is a multiple of 8, got {address:#x}")]
    Misaligned {
        /// The address.
        address: u64,
    },
    /// A memory window is not what the request takes it for.
    #[error("the memory window {key:#010x} cannot be bound or invalidated so: {why}")]
    Window {
        /// The key.
        key: u32,
        /// Why.
        why: &'static str,
    },
}

/// How a memory window is bound, and through which queue pairs peers reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowKind {
    /// Bound anew at any time, through any queue pair of its protection domain, and reached
    /// through all of them. Binding no bytes takes the key back.
    Type1,
    /// Bound only while it is not; reached through the queue pair that bound it (type 2B). Its
    /// owner or the peer takes the key back.
    Type2,
}

/// What a memory window is to stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// Its new key: the upper 24 bits are those of the window, the rest is the program's choice.
    pub rkey: RKey,
    /// The region, which must allow it ([`Access::WINDOW_BIND`]).
    pub lkey: LKey,
    /// Where the window starts, in the region's addresses.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What peers may do. The rights of the region to peers do not count.
    pub access: Access,
    /// Peers name bytes by their offset in the window.
    pub zero_based: bool,
}
