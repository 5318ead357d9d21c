//! Numbers of a device's objects, limits on them, and errors of their creation and destruction.

use std::net::IpAddr;

/// Error of creating or destroying an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A number is out of range.
    #[error("{what} is {given}, allowed is {least} to {most}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// Given value.
        given: usize,
        /// Minimum.
        least: usize,
        /// Maximum.
        most: usize,
    },
    /// The device has no free object of this kind.
    #[error("the device has no more {0}")]
    Exhausted(&'static str),
    /// The object does not exist.
    #[error("there is no such {0}")]
    Unknown(&'static str),
    /// Other objects still use the object.
    #[error("the {what} is still used by {users}")]
    Busy {
        /// Object to destroy.
        what: &'static str,
        /// Its users.
        users: &'static str,
    },
    /// The region's range is invalid, or the device is full.
    #[error("a memory region of {length} B at {address:#x} is impossible on this device")]
    Region {
        /// Address of the region.
        address: u64,
        /// Length of the region.
        length: usize,
    },
    /// The queue pair was not attached to the group, or not detached from it.
    #[error("the multicast group {group}: {why}")]
    Group {
        /// Multicast group.
        group: IpAddr,
        /// Reason.
        why: &'static str,
    },
    /// The objects belong to different protection domains.
    #[error("the {0} belongs to another protection domain")]
    ForeignPd(&'static str),
}

/// Number of a completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Number of a shared receive queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// Limits of a device. Each depth and size is enforced exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Queue pairs.
    pub max_qps: usize,
    /// Work requests of a queue.
    pub max_queue_depth: usize,
    /// Scatter-gather elements of a work request.
    pub max_sges: usize,
    /// Bytes of inline data of a work request.
    pub max_inline: usize,
    /// Completion queues.
    pub max_cqs: usize,
    /// Entries of a completion queue.
    pub max_cq_depth: usize,
    /// Shared receive queues.
    pub max_srqs: usize,
    /// READs and atomics outstanding per queue pair and direction.
    pub max_rd_atomic: usize,
    /// Memory regions.
    pub max_regions: usize,
    /// Bytes of a region.
    pub max_region_bytes: u64,
    /// Memory windows.
    pub max_windows: usize,
    /// Multicast groups that queue pairs are attached to.
    pub max_groups: usize,
}

/// Checks that a number is within its range.
///
/// # Errors
///
/// The number is outside its range ([`ObjectError::Range`]).
pub fn check_range(what: &'static str, given: usize, least: usize, most: usize) -> Result<(), ObjectError> {
    if (least..=most).contains(&given) { Ok(()) } else { Err(ObjectError::Range { what, given, least, most }) }
}
