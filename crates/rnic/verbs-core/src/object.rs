//! Identifiers and maximum numbers of the objects of a device, and errors of creating and destroying objects.

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
    #[error("the device already has its maximum number of {0}")]
    Exhausted(&'static str),
    /// The object does not exist.
    #[error("the device has no such {0}: it was never created, or it was destroyed")]
    Unknown(&'static str),
    /// Other objects still use the object.
    #[error("the {what} is still used by {users}, and can be changed or destroyed only while it is unused")]
    Busy {
        /// Object to destroy.
        what: &'static str,
        /// Kind of the objects that still use the object.
        users: &'static str,
    },
    /// The region is too long or extends beyond the last address, or the device has no free region.
    #[error(
        "a region of {length} B at {address:#x} cannot be registered: it must end before address 2^64 and fit the \
         maximum length of the device, and a region must be free"
    )]
    Region {
        /// Address of the region.
        address: u64,
        /// Length of the region.
        length: usize,
    },
    /// The device did not attach the queue pair to the group, or did not detach the queue pair from the group.
    #[error("the queue pair cannot join or leave the multicast group {group}: {why}")]
    Group {
        /// Multicast group.
        group: IpAddr,
        /// Reason.
        why: &'static str,
    },
    /// The objects belong to different protection domains.
    #[error("the {0} belongs to another protection domain than the queue pair, but must belong to the same one")]
    ForeignPd(&'static str),
    /// The device has failed.
    #[error("the device has failed, so its objects can only be destroyed: open the device again")]
    DeviceFatal,
}

/// Number of a completion queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Number of a shared receive queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// Limits of a device. The device enforces exactly the depths and sizes that a program requests, within these limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of queue pairs.
    pub max_qps: usize,
    /// Maximum number of work requests in a queue.
    pub max_queue_depth: usize,
    /// Maximum number of scatter-gather elements of a work request.
    pub max_sges: usize,
    /// Maximum bytes of inline data of a work request.
    pub max_inline: usize,
    /// Maximum number of completion queues.
    pub max_cqs: usize,
    /// Maximum number of entries of a completion queue.
    pub max_cq_depth: usize,
    /// Maximum number of shared receive queues.
    pub max_srqs: usize,
    /// Maximum number of outstanding READs and atomics, per queue pair and direction.
    pub max_rd_atomic: usize,
    /// Maximum number of memory regions.
    pub max_regions: usize,
    /// Maximum bytes of a region.
    pub max_region_bytes: u64,
    /// Maximum number of memory windows.
    pub max_windows: usize,
    /// Maximum number of multicast groups to which queue pairs are attached.
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

/// Returns the meaning of an error number, and advice if the cause is known.
pub(crate) fn refusal(errno: i32) -> String {
    use std::io::{Error, ErrorKind};
    let error = Error::from_raw_os_error(errno);
    let advice = match error.kind() {
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            "; no route leads from this GID to the peer: give the network interface an address, or choose another GID"
        }
        _ => "",
    };
    format!("{error}{advice}")
}
