//! Faults that a plan injects into the calls of a program. The provider of a device wraps its queue pairs and shared
//! receive queues, and checks its other calls. Without such a plan, a provider wraps nothing.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use doorbell_fabric::{VerbsCall, VerbsFaults};
use doorbell_verbs_core::{
    CompletionOpcode, ModifyError, PostError, PostErrorKind, QpAttributes, QpInfo, RecvRequest, SendRequest, SrqId,
};
use doorbell_wire::Qpn;

use crate::error::Error;
use crate::raw;

/// The faults of a device, and its clock.
#[derive(Clone)]
pub struct InjectedFaults {
    faults: VerbsFaults,
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl std::fmt::Debug for InjectedFaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InjectedFaults").field("faults", &self.faults).finish_non_exhaustive()
    }
}

impl InjectedFaults {
    /// Creates the faults of a device. `clock` returns the time on the device's clock in nanoseconds.
    pub fn new(faults: VerbsFaults, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { faults, clock: Arc::new(clock) }
    }

    /// Checks that no rule refuses a call. `qpn` is the queue pair of the call.
    ///
    /// # Errors
    ///
    /// A rule refuses the call. The error has the errno of the rule.
    pub fn check(&self, call: VerbsCall, qpn: Option<Qpn>) -> Result<(), Error> {
        match self.refuses(call, qpn) {
            Some(errno) => Err(Error::os(call.refusal())(io::Error::from_raw_os_error(errno))),
            None => Ok(()),
        }
    }

    fn refuses(&self, call: VerbsCall, qpn: Option<Qpn>) -> Option<i32> {
        self.faults.refuses_call((self.clock)(), call, qpn)
    }

    /// Returns the error of the first work request of a list that a rule refuses.
    fn check_posts(&self, qpn: Option<Qpn>, kinds: impl Iterator<Item = CompletionOpcode>) -> Option<PostError> {
        let now_ns = (self.clock)();
        kinds.enumerate().find_map(|(index, kind)| {
            let errno = self.faults.refuses_post(now_ns, qpn, kind)?;
            Some(PostError { index, kind: PostErrorKind::Refused { errno } })
        })
    }

    /// Returns a queue pair with faults in its calls.
    pub fn queue_pair(&self, inner: Box<dyn raw::Qp>) -> Box<dyn raw::Qp> {
        self.faults.created(inner.qpn());
        Box::new(FaultyQp { inner, injected: self.clone() })
    }

    /// Returns a shared receive queue with faults in its posts.
    pub fn shared_receive_queue(&self, inner: Box<dyn raw::Srq>) -> Box<dyn raw::Srq> {
        Box::new(FaultySrq { inner, injected: self.clone() })
    }
}

fn kinds_of_sends(list: &[SendRequest<'_>]) -> impl Iterator<Item = CompletionOpcode> {
    list.iter().map(|request| request.operation.completion_opcode())
}

fn kinds_of_receives(list: &[RecvRequest<'_>]) -> impl Iterator<Item = CompletionOpcode> {
    std::iter::repeat_n(CompletionOpcode::Receive, list.len())
}

struct FaultyQp {
    inner: Box<dyn raw::Qp>,
    injected: InjectedFaults,
}

impl raw::Qp for FaultyQp {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }

    fn modify(&self, attributes: &QpAttributes) -> Result<(), ModifyError> {
        match self.injected.refuses(VerbsCall::ModifyQp, Some(self.qpn())) {
            Some(errno) => Err(ModifyError::Refused { errno }),
            None => self.inner.modify(attributes),
        }
    }

    fn query(&self) -> QpInfo {
        self.inner.query()
    }

    fn attach(&self, group: IpAddr) -> Result<(), Error> {
        self.injected.check(VerbsCall::AttachMcast, Some(self.qpn()))?;
        self.inner.attach(group)
    }

    fn detach(&self, group: IpAddr) -> Result<(), Error> {
        self.inner.detach(group)
    }

    unsafe fn post_send(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        let refused = self.injected.check_posts(Some(self.qpn()), kinds_of_sends(list));
        let accepted = refused.map_or(list.len(), |error| error.index);
        // SAFETY: both functions have the same contract.
        unsafe { self.inner.post_send(&list[..accepted]) }?;
        refused.map_or(Ok(()), Err)
    }

    unsafe fn post_all_sends(&self, list: &[SendRequest<'_>]) -> Result<(), PostError> {
        match self.injected.check_posts(Some(self.qpn()), kinds_of_sends(list)) {
            Some(error) => Err(error),
            // SAFETY: both functions have the same contract.
            None => unsafe { self.inner.post_all_sends(list) },
        }
    }

    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let refused = self.injected.check_posts(Some(self.qpn()), kinds_of_receives(list));
        let accepted = refused.map_or(list.len(), |error| error.index);
        // SAFETY: both functions have the same contract.
        unsafe { self.inner.post_recv(&list[..accepted]) }?;
        refused.map_or(Ok(()), Err)
    }
}

impl Drop for FaultyQp {
    fn drop(&mut self) {
        self.injected.faults.destroyed(self.inner.qpn());
    }
}

struct FaultySrq {
    inner: Box<dyn raw::Srq>,
    injected: InjectedFaults,
}

impl raw::Srq for FaultySrq {
    fn id(&self) -> SrqId {
        self.inner.id()
    }

    fn arm_limit(&self, limit: usize) {
        self.inner.arm_limit(limit);
    }

    fn limit(&self) -> usize {
        self.inner.limit()
    }

    fn posted(&self) -> Option<usize> {
        self.inner.posted()
    }

    unsafe fn post_recv(&self, list: &[RecvRequest<'_>]) -> Result<(), PostError> {
        let refused = self.injected.check_posts(None, kinds_of_receives(list));
        let accepted = refused.map_or(list.len(), |error| error.index);
        // SAFETY: both functions have the same contract.
        unsafe { self.inner.post_recv(&list[..accepted]) }?;
        refused.map_or(Ok(()), Err)
    }
}
