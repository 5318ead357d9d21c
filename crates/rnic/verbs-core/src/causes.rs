//! Probable causes of failed completions, each with a check that confirms or excludes it.

use crate::Status;

/// Probable cause of a failed completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Cause, without a full stop.
    pub cause: &'static str,
    /// Check that confirms or excludes the cause, without a full stop.
    pub check: &'static str,
}

const fn cause(cause: &'static str, check: &'static str) -> Cause {
    Cause { cause, check }
}

const LOCAL_LENGTH: &[Cause] = &[
    cause("the posted receive is shorter than the message", "compare the receive's total length with the sender's"),
    cause(
        "a UD receive lacks the 40 bytes of the global routing header",
        "post receives of the message length plus 40 bytes",
    ),
    cause("a UD message is longer than the path MTU", "`ibv_devinfo` shows active_mtu, the limit of a UD message"),
    cause("the two ends use different message sizes", "start both ends with the same size option"),
];

const LOCAL_QP_OPERATION: &[Cause] = &[
    cause(
        "the work request does not suit the queue pair, such as too many elements or too much inline data",
        "compare the request with the capacities that `ibv_create_qp` returned",
    ),
    cause("the address handle of a UD request is invalid", "compare its GID index and port with `doorbell devices`"),
    cause("the device itself failed", "read the kernel log, and the asynchronous events of the device"),
];

const LOCAL_PROTECTION: &[Cause] = &[
    cause("the lkey is of another protection domain, or of a region that was deregistered", "log lkey and region"),
    cause("the element exceeds the registered region", "compare address and length with those of the registration"),
    cause(
        "the region lacks IBV_ACCESS_LOCAL_WRITE, but a receive, READ or atomic writes it",
        "compare the flags of `ibv_reg_mr` with the operation",
    ),
    cause(
        "the program unmapped or truncated the memory of the region",
        "run the program with an address sanitizer, or strace it",
    ),
];

const FLUSHED: &[Cause] = &[
    cause(
        "an earlier request of this queue pair failed; its completion has the cause",
        "read the first completion of the queue pair that is neither success nor flushed",
    ),
    cause(
        "the program, or a library, moved the queue pair to the error state",
        "search for `ibv_modify_qp` to IBV_QPS_ERR, `rdma_disconnect` and an ended peer",
    ),
    cause(
        "the peer's request failed at this end, which also ends this queue pair",
        "read the completions and asynchronous events of the peer",
    ),
];

const MEMORY_WINDOW: &[Cause] = &[
    cause("the region of the window lacks IBV_ACCESS_MW_BIND", "compare the flags of `ibv_reg_mr`"),
    cause("the window exceeds its region", "compare the bound range with the registration"),
    cause("window and queue pair are of different protection domains", "compare their protection domains"),
];

const BAD_RESPONSE: &[Cause] = &[
    cause(
        "packets of an earlier connection reach a new queue pair with the same number",
        "capture packets, and compare their PSNs with the start PSNs of both ends",
    ),
    cause("the peer violates the protocol", "capture packets and read the responses with `doorbell wire decode`"),
];

const LOCAL_ACCESS: &[Cause] = &[cause(
    "a WRITE with immediate, or a SEND with invalidate, named memory that this end may not use",
    "compare the peer's rkey and address with the live regions of this end",
)];

const REMOTE_INVALID_REQUEST: &[Cause] = &[
    cause(
        "the message is longer than the receive that the peer posted",
        "compare the peer's receives with the message",
    ),
    cause(
        "the peer's queue pair lacks the access flag of the operation",
        "compare qp_access_flags of the peer's `ibv_modify_qp` with the operation",
    ),
    cause(
        "more READs and atomics are outstanding than the peer allows",
        "compare max_rd_atomic here with max_dest_rd_atomic of the peer",
    ),
    cause("the address of an atomic is not a multiple of 8", "log the remote address"),
];

const REMOTE_ACCESS: &[Cause] = &[
    cause("the rkey is wrong, or in another byte order", "print the rkey at both ends"),
    cause(
        "the peer deregistered the region, or ended, before the request arrived",
        "log the peer's deregistration with its time",
    ),
    cause("the request exceeds the region", "compare address and length with the peer's registration"),
    cause(
        "the region or the queue pair of the peer lacks IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC",
        "compare the flags of `ibv_reg_mr` and `ibv_modify_qp` at the peer",
    ),
    cause("region and queue pair of the peer are of different protection domains", "compare them at the peer"),
];

const REMOTE_OPERATION: &[Cause] = &[
    cause(
        "a receive at the peer failed, for example since its lkey was wrong",
        "read the failed completions of the peer; local protection error is the usual one",
    ),
    cause("the memory of the peer's region is gone", "verify that the peer has not unmapped or truncated it"),
    cause("the peer's completion queue overran", "read the asynchronous events of the peer"),
];

const RETRY_EXCEEDED: &[Cause] = &[
    cause(
        "the peer ended, or destroyed its queue pair",
        "verify that the peer's process runs; a flushed completion there precedes its end",
    ),
    cause(
        "the GID indexes of the two ends are of different kinds, such as RoCE v1 and v2, or IPv4 and link-local",
        "`ibv_devinfo -v` or `doorbell devices` at both ends; give both the same kind with -x",
    ),
    cause(
        "the path MTU exceeds the MTU of an interface or switch, so that only small messages arrive",
        "send messages of 256 B; then `ping -M do -s 4128 PEER`, and compare active_mtu of both ends",
    ),
    cause(
        "a firewall or a network drops UDP port 4791",
        "capture at both ends: requests leave here but do not arrive there, or their answers are lost",
    ),
    cause(
        "the peer's queue pair number, PSN or address is wrong, or its queue pair is not yet ready to receive",
        "print numbers and PSNs at both ends, and exchange them after the transition to RTR",
    ),
    cause(
        "the network loses many packets, as without flow control under incast",
        "`doorbell counters`: retransmissions here, packets out of sequence at the peer; PFC or ECN at the switch",
    ),
    cause(
        "timeout and retry_cnt are too short for a peer that is stopped or has no processor",
        "timeout 14 is 67 ms; use at least 14 with retry_cnt 7, and compare with the pauses of the peer",
    ),
];

const RNR_RETRY_EXCEEDED: &[Cause] = &[
    cause(
        "the peer posts receives more slowly than this end sends",
        "`doorbell counters`: RNR NAKs sent at the peer; post more receives, or use credits",
    ),
    cause("the peer posts no receive at all", "verify that receives are posted before the first SEND"),
    cause(
        "the shared receive queue of the peer is empty",
        "set its limit, and refill it on IBV_EVENT_SRQ_LIMIT_REACHED",
    ),
    cause("rnr_retry is below 7", "7 means unlimited; min_rnr_timer of the peer sets the pause between tries"),
];

impl Status {
    /// All statuses of failed requests, in the order of their numbers.
    pub const FAILED: [Status; 12] = [
        Status::LocalLength,
        Status::LocalQpOperation,
        Status::LocalProtection,
        Status::WorkRequestFlushed,
        Status::MemoryWindowBind,
        Status::BadResponse,
        Status::LocalAccess,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::RnrRetryExceeded,
    ];

    /// Returns the number, the symbol, the text and the causes of the status.
    const fn row(self) -> (u32, &'static str, &'static str, &'static [Cause]) {
        match self {
            Self::Success => (0, "IBV_WC_SUCCESS", "success", &[]),
            Self::LocalLength => (1, "IBV_WC_LOC_LEN_ERR", "local length error", LOCAL_LENGTH),
            Self::LocalQpOperation => (2, "IBV_WC_LOC_QP_OP_ERR", "local QP operation error", LOCAL_QP_OPERATION),
            Self::LocalProtection => (4, "IBV_WC_LOC_PROT_ERR", "local protection error", LOCAL_PROTECTION),
            Self::WorkRequestFlushed => (5, "IBV_WC_WR_FLUSH_ERR", "Work Request Flushed Error", FLUSHED),
            Self::MemoryWindowBind => (6, "IBV_WC_MW_BIND_ERR", "memory management operation error", MEMORY_WINDOW),
            Self::BadResponse => (7, "IBV_WC_BAD_RESP_ERR", "bad response error", BAD_RESPONSE),
            Self::LocalAccess => (8, "IBV_WC_LOC_ACCESS_ERR", "local access error", LOCAL_ACCESS),
            Self::RemoteInvalidRequest => {
                (9, "IBV_WC_REM_INV_REQ_ERR", "remote invalid request error", REMOTE_INVALID_REQUEST)
            }
            Self::RemoteAccess => (10, "IBV_WC_REM_ACCESS_ERR", "remote access error", REMOTE_ACCESS),
            Self::RemoteOperation => (11, "IBV_WC_REM_OP_ERR", "remote operation error", REMOTE_OPERATION),
            Self::RetryExceeded => (12, "IBV_WC_RETRY_EXC_ERR", "transport retry counter exceeded", RETRY_EXCEEDED),
            Self::RnrRetryExceeded => {
                (13, "IBV_WC_RNR_RETRY_EXC_ERR", "RNR retry counter exceeded", RNR_RETRY_EXCEEDED)
            }
        }
    }

    /// Returns the number of the status in `enum ibv_wc_status` of libibverbs, which programs print.
    pub const fn number(self) -> u32 {
        self.row().0
    }

    /// Returns the name of the status in libibverbs.
    pub const fn symbol(self) -> &'static str {
        self.row().1
    }

    /// Returns the text of the status that `ibv_wc_status_str` of libibverbs returns.
    pub const fn text(self) -> &'static str {
        self.row().2
    }

    /// Returns the status with this number of `enum ibv_wc_status`; `None` for success and for numbers of other
    /// transports.
    pub fn failed(number: u32) -> Option<Self> {
        Self::FAILED.into_iter().find(|status| status.number() == number)
    }

    /// Returns the probable causes of a failed request, the most frequent one first. The list is empty only for
    /// [`Status::Success`].
    pub const fn causes(self) -> &'static [Cause] {
        self.row().3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_causes_with_checks() {
        for status in Status::FAILED {
            assert!(!status.causes().is_empty(), "{status:?}");
            for cause in status.causes() {
                for text in [cause.cause, cause.check] {
                    assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('|'), "{status:?}: {text}");
                }
            }
        }
        assert!(Status::Success.causes().is_empty());
    }

    #[test]
    fn numbers_lead_back_to_statuses() {
        for status in Status::FAILED {
            assert_eq!(Status::failed(status.number()), Some(status));
        }
        assert_eq!(Status::failed(12), Some(Status::RetryExceeded));
        // Success is no failure, and 3 is of the transport RD, which no status of this crate has.
        for other in [0, 3, 14, u32::MAX] {
            assert_eq!(Status::failed(other), None);
        }
        let numbers = Status::FAILED.map(Status::number);
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
}
