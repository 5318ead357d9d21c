//! Rules at the boundary between a program and its device: faults of calls, of posts and of completions.

use std::fmt::Write as _;

use doorbell_verbs_core::{AsyncEvent, CompletionOpcode, CqId, SrqId, Status};
use doorbell_wire::Qpn;

use super::super::time::TimeText;
use super::fields::{RuleProblem, allowed, problem, wrong};

/// Call of verbs that a fault plan can refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // each variant is the function of libibverbs with its name
pub enum VerbsCall {
    AllocPd,
    DeallocPd,
    RegMr,
    ReregMr,
    DeregMr,
    AllocMw,
    DeallocMw,
    CreateCompChannel,
    CreateCq,
    CreateSrq,
    CreateQp,
    ModifyQp,
    AttachMcast,
}

impl VerbsCall {
    /// Calls, their names in rules, and the start of the error of a refused call.
    pub(in super::super) const ALL: [(Self, &'static str, &'static str); 13] = [
        (Self::AllocPd, "alloc-pd", "the fault plan refuses ibv_alloc_pd"),
        (Self::DeallocPd, "dealloc-pd", "the fault plan refuses ibv_dealloc_pd"),
        (Self::RegMr, "reg-mr", "the fault plan refuses ibv_reg_mr"),
        (Self::ReregMr, "rereg-mr", "the fault plan refuses ibv_rereg_mr"),
        (Self::DeregMr, "dereg-mr", "the fault plan refuses ibv_dereg_mr"),
        (Self::AllocMw, "alloc-mw", "the fault plan refuses ibv_alloc_mw"),
        (Self::DeallocMw, "dealloc-mw", "the fault plan refuses ibv_dealloc_mw"),
        (Self::CreateCompChannel, "create-comp-channel", "the fault plan refuses ibv_create_comp_channel"),
        (Self::CreateCq, "create-cq", "the fault plan refuses ibv_create_cq"),
        (Self::CreateSrq, "create-srq", "the fault plan refuses ibv_create_srq"),
        (Self::CreateQp, "create-qp", "the fault plan refuses ibv_create_qp"),
        (Self::ModifyQp, "modify-qp", "the fault plan refuses ibv_modify_qp"),
        (Self::AttachMcast, "attach-mcast", "the fault plan refuses ibv_attach_mcast"),
    ];

    /// Returns the name of the call in rules.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the start of the error of a refused call.
    pub fn refusal(self) -> &'static str {
        Self::ALL[self as usize].2
    }

    fn has_queue_pair(self) -> bool {
        matches!(self, Self::ModifyQp | Self::AttachMcast)
    }
}

/// Kinds of work requests and their names in rules.
pub(in super::super) const OPERATIONS: [(&str, CompletionOpcode); 8] = [
    ("send", CompletionOpcode::Send),
    ("write", CompletionOpcode::Write),
    ("read", CompletionOpcode::Read),
    ("compare-swap", CompletionOpcode::CompareSwap),
    ("fetch-add", CompletionOpcode::FetchAdd),
    ("bind-window", CompletionOpcode::BindWindow),
    ("local-invalidate", CompletionOpcode::LocalInvalidate),
    ("receive", CompletionOpcode::Receive),
];

/// Returns the name of the kind of a work request.
pub(in super::super) fn operation_name(opcode: CompletionOpcode) -> &'static str {
    let kind = request_kind(opcode);
    OPERATIONS.iter().find(|(_, known)| *known == kind).map_or("", |(name, _)| *name)
}

/// Returns the kind of a work request. Receives of SENDs and of immediate data are posted alike.
pub(in super::super) fn request_kind(opcode: CompletionOpcode) -> CompletionOpcode {
    if opcode == CompletionOpcode::ReceiveWriteImmediate { CompletionOpcode::Receive } else { opcode }
}

/// Returns the name of a status in rules: that of libibverbs without `IBV_WC_`, such as `rem-access-err`.
pub(in super::super) fn status_name(status: Status) -> String {
    status.symbol().trim_start_matches("IBV_WC_").to_ascii_lowercase().replace('_', "-")
}

/// Asynchronous event that a rule raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RaisedEvent {
    CommunicationEstablished,
    SqDrained,
    QpFatal,
    QpRequestError,
    QpAccessError,
    QpLastWqeReached,
    CqError,
    SrqLimitReached,
}

impl RaisedEvent {
    /// Events and their names in rules: those of libibverbs without `IBV_EVENT_`.
    pub(in super::super) const ALL: [(&'static str, Self); 8] = [
        ("comm-est", Self::CommunicationEstablished),
        ("sq-drained", Self::SqDrained),
        ("qp-fatal", Self::QpFatal),
        ("qp-req-err", Self::QpRequestError),
        ("qp-access-err", Self::QpAccessError),
        ("qp-last-wqe-reached", Self::QpLastWqeReached),
        ("cq-err", Self::CqError),
        ("srq-limit-reached", Self::SrqLimitReached),
    ];

    pub(in super::super) fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Returns the event for the objects of a completion; `None` if the queue pair has no shared receive queue.
    pub(in super::super) fn of(self, qpn: Qpn, cq: CqId, srq: Option<SrqId>) -> Option<AsyncEvent> {
        Some(match self {
            Self::CommunicationEstablished => AsyncEvent::CommunicationEstablished(qpn),
            Self::SqDrained => AsyncEvent::SqDrained(qpn),
            Self::QpFatal => AsyncEvent::QpFatal(qpn),
            Self::QpRequestError => AsyncEvent::QpRequestError(qpn),
            Self::QpAccessError => AsyncEvent::QpAccessError(qpn),
            Self::QpLastWqeReached => AsyncEvent::QpLastWqeReached(qpn),
            Self::CqError => AsyncEvent::CqError(cq.0),
            Self::SrqLimitReached => AsyncEvent::SrqLimitReached(srq?.0),
        })
    }

    /// Returns whether the event reports a queue pair in the error state (IBTA Vol 1, 11.6.3.2).
    fn is_error_of_queue_pair(self) -> bool {
        matches!(self, Self::QpFatal | Self::QpRequestError | Self::QpAccessError)
    }
}

/// Fault at the boundary between a program and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum VerbsFault {
    /// A request completes with an error.
    Complete { operation: Option<CompletionOpcode>, status: Status, ends_queue_pair: bool },
    /// A post fails.
    RefusePost { operation: Option<CompletionOpcode>, errno: i32 },
    /// Another call fails.
    RefuseCall { call: VerbsCall, errno: i32 },
    /// The program sees a completion later.
    Hide { operation: Option<CompletionOpcode>, delay_ns: u64 },
    /// The device raises an event with a completion.
    Raise { operation: Option<CompletionOpcode>, event: RaisedEvent, ends_queue_pair: bool },
}

impl VerbsFault {
    pub(super) fn action_name(self) -> &'static str {
        match self {
            Self::Complete { .. } => "completion",
            Self::RefusePost { .. } => "post-error",
            Self::RefuseCall { .. } => "call-error",
            Self::Hide { .. } => "slow-poll",
            Self::Raise { .. } => "event",
        }
    }

    fn operation(self) -> Option<CompletionOpcode> {
        match self {
            Self::Complete { operation, .. }
            | Self::RefusePost { operation, .. }
            | Self::Hide { operation, .. }
            | Self::Raise { operation, .. } => operation,
            Self::RefuseCall { .. } => None,
        }
    }

    /// Returns whether the fault concerns work requests of this kind.
    pub(in super::super) fn concerns(self, opcode: CompletionOpcode) -> bool {
        self.operation().is_none_or(|kind| kind == request_kind(opcode))
    }

    /// Returns whether the fault concerns completions.
    pub(in super::super) fn is_of_completions(self) -> bool {
        matches!(self, Self::Complete { .. } | Self::Hide { .. } | Self::Raise { .. })
    }

    /// Returns whether two faults of the same calls exclude each other.
    pub(in super::super) fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Complete { .. }, Self::Complete { .. }) | (Self::RefusePost { .. }, Self::RefusePost { .. }) => {
                self.operation() == other.operation()
            }
            (Self::RefuseCall { call: one, .. }, Self::RefuseCall { call: other, .. }) => one == other,
            _ => false,
        }
    }

    /// Returns the fields of the fault in the text of a rule.
    pub(super) fn fields(self) -> Vec<(&'static str, String)> {
        let mut fields: Vec<(&'static str, String)> = Vec::new();
        fields.extend(self.operation().map(|operation| ("operation", operation_name(operation).to_owned())));
        let kept = |is_kept: bool| is_kept.then(|| ("queue-pair", "kept".to_owned()));
        match self {
            Self::Complete { status, ends_queue_pair, .. } => {
                fields.push(("status", status_name(status)));
                fields.extend(kept(!ends_queue_pair));
            }
            Self::RefusePost { errno, .. } => fields.push(("errno", errno_name(errno))),
            Self::RefuseCall { call, errno } => {
                fields.push(("call", call.name().to_owned()));
                fields.push(("errno", errno_name(errno)));
            }
            Self::Hide { delay_ns, .. } => fields.push(("for", TimeText(delay_ns).to_string())),
            Self::Raise { event, ends_queue_pair, .. } => {
                fields.push(("event", event.name().to_owned()));
                fields.extend(kept(event.is_error_of_queue_pair() && !ends_queue_pair));
            }
        }
        fields
    }
}

/// Error numbers of calls of verbs, and their names.
const ERRNOS: [(&str, i32); 16] = [
    ("EPERM", libc::EPERM),
    ("EIO", libc::EIO),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EFAULT", libc::EFAULT),
    ("EBUSY", libc::EBUSY),
    ("ENODEV", libc::ENODEV),
    ("EINVAL", libc::EINVAL),
    ("EMFILE", libc::EMFILE),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("ENETUNREACH", libc::ENETUNREACH),
    ("ENOBUFS", libc::ENOBUFS),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];

/// Largest error number of the kernel.
const ERRNO_MAX: i32 = 4095;

fn errno_name(errno: i32) -> String {
    let named = ERRNOS.iter().find(|(_, number)| *number == errno);
    named.map_or_else(|| errno.to_string(), |(name, _)| (*name).to_owned())
}

fn parse_errno(text: &str) -> Option<i32> {
    let named = ERRNOS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    named.or_else(|| text.parse().ok().filter(|number| (1..=ERRNO_MAX).contains(number) && !text.starts_with('+')))
}

/// Fields of a rule at the boundary.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VerbsFields {
    operation: Option<CompletionOpcode>,
    status: Option<Status>,
    errno: Option<i32>,
    call: Option<VerbsCall>,
    event: Option<RaisedEvent>,
    keeps_queue_pair: Option<bool>,
}

impl VerbsFields {
    /// Takes a field. Returns `Ok(false)` if the field is of another kind of rule.
    pub(super) fn set(&mut self, field: &str, value: &str) -> Result<bool, RuleProblem> {
        let refuse = || wrong(field, value);
        match field {
            "operation" => {
                let named = OPERATIONS.iter().find(|(name, _)| *name == value);
                self.operation = Some(named.ok_or_else(refuse)?.1);
            }
            "status" => {
                let named = Status::FAILED.into_iter().find(|status| status_name(*status) == value);
                self.status = Some(named.ok_or_else(refuse)?);
            }
            "errno" => self.errno = Some(parse_errno(value).ok_or_else(refuse)?),
            "call" => {
                let named = VerbsCall::ALL.iter().find(|(_, name, _)| *name == value);
                self.call = Some(named.ok_or_else(refuse)?.0);
            }
            "event" => {
                let named = RaisedEvent::ALL.iter().find(|(name, _)| *name == value);
                self.event = Some(named.ok_or_else(refuse)?.1);
            }
            "queue-pair" => {
                self.keeps_queue_pair = Some(match value {
                    "error" => false,
                    "kept" => true,
                    _ => return Err(refuse()),
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the fault of an action; `None` if the action is one on packets. `for_ns` is the field `for`.
    pub(super) fn fault(&self, action: &str, for_ns: Option<u64>) -> Result<Option<VerbsFault>, RuleProblem> {
        let missing = |field: &'static str| {
            move || problem(field, format!("the field is missing, allowed is {}", allowed(field)))
        };
        let operation = self.operation;
        Ok(Some(match action {
            "completion" => {
                let status = self.status.ok_or_else(missing("status"))?;
                VerbsFault::Complete { operation, status, ends_queue_pair: !self.keeps_queue_pair.unwrap_or(false) }
            }
            "post-error" => VerbsFault::RefusePost { operation, errno: self.errno.ok_or_else(missing("errno"))? },
            "call-error" => {
                let call = self.call.ok_or_else(missing("call"))?;
                VerbsFault::RefuseCall { call, errno: self.errno.ok_or_else(missing("errno"))? }
            }
            "slow-poll" => match for_ns {
                Some(delay_ns) if delay_ns > 0 => VerbsFault::Hide { operation, delay_ns },
                _ => return Err(problem("for", "the delay is missing or 0, allowed is a time such as for=5ms")),
            },
            "event" => {
                let event = self.event.ok_or_else(missing("event"))?;
                let is_error = event.is_error_of_queue_pair();
                if self.keeps_queue_pair == Some(false) && !is_error {
                    let problem_text = "the event is of no queue pair in the error state, allowed is kept";
                    return Err(problem("queue-pair", problem_text));
                }
                let ends_queue_pair = is_error && !self.keeps_queue_pair.unwrap_or(false);
                VerbsFault::Raise { operation, event, ends_queue_pair }
            }
            _ => return Ok(None),
        }))
    }
}

/// Returns the problem of a rule whose call has no queue pair, although `field` names one.
pub(super) fn check_queue_pair(fault: VerbsFault, field: &str) -> Result<(), RuleProblem> {
    let VerbsFault::RefuseCall { call, .. } = fault else { return Ok(()) };
    if call.has_queue_pair() {
        return Ok(());
    }
    let mut text = format!("the call {} has no queue pair, allowed are", call.name());
    let others = VerbsCall::ALL.iter().filter(|(call, ..)| call.has_queue_pair());
    for (index, (_, name, _)) in others.enumerate() {
        let _ = write!(text, "{} {name}", if index > 0 { " and" } else { "" }); // writing to a string cannot fail
    }
    Err(problem(field, text))
}
