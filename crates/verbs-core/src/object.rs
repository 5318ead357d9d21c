//! Names of a device's objects, how many there may be, and why one was not made or destroyed.

use std::net::IpAddr;

/// Why an object was not created or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// A number is out of range.
    #[error("{what} is {given}, allowed is {least} to {most}")]
    Range {
        /// Which number.
        what: &'static str,
        /// What was given.
        given: usize,
        /// The least allowed.
        least: usize,
        /// The most allowed.
        most: usize,
    },
    /// The device has no more of them.
    #[error("the device has no more {0}")]
    Exhausted(&'static str),
    /// No such object.
    #[error("there is no such {0}")]
    Unknown(&'static str),
    /// Others still use it.
    #[error("the {what} is still used by {users}")]
    Busy {
        /// What was to be destroyed.
        what: &'static str,
        /// By what.
        users: &'static str,
    },
    /// The region's range is impossible, or the device is full.
    #[error("a memory region of {length} B at {address:#x} is not possible on this device")]
    Region {
        /// Its address.
        address: u64,
        /// Its length.
        length: usize,
    },
    /// A queue pair cannot be attached to the group, or detached from it.
    #[error("the multicast group {group}: {why}")]
    Group {
        /// The group.
        group: IpAddr,
        /// Why.
        why: &'static str,
    },
    /// The pieces belong to different protection domains.
    #[error("the {0} belongs to another protection domain")]
    ForeignPd(&'static str),
}

/// Names a completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Names a shared receive queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// What a device is limited to. Depths and sizes are enforced as they are given.
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

/// Checks that a number that something is created with is in its range.
///
/// # Errors
///
/// The number is outside its range ([`ObjectError::Range`]).
pub fn check_range(what: &'static str, given: usize, least: usize, most: usize) -> Result<(), ObjectError> {
    if (least..=most).contains(&given) { Ok(()) } else { Err(ObjectError::Range { what, given, least, most }) }
}
