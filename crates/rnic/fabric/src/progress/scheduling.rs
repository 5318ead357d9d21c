//! CPU affinity and scheduling policy of threads.
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

use libc::{c_int, cpu_set_t, pthread_t, sched_param};

/// CPU affinity and scheduling policy.
#[derive(Clone, Copy)]
pub(super) struct Scheduling {
    /// `None` if the kernel supports more processors than the set has.
    affinity: Option<cpu_set_t>,
    policy: Option<(c_int, sched_param)>,
}

impl Scheduling {
    /// Returns the affinity and policy that new threads of the calling thread inherit.
    pub(super) fn inherited() -> Self {
        // SAFETY: a set of zeros is an empty set, and the kernel writes at most the size of the set.
        let affinity = unsafe {
            let mut set: cpu_set_t = std::mem::zeroed();
            (libc::sched_getaffinity(0, size_of::<cpu_set_t>(), &raw mut set) == 0).then_some(set)
        };
        // The functions of pthread would return an old policy if the program has changed it by a system call.
        // SAFETY: zeros are valid parameters, and the kernel writes parameters of this type.
        let policy = unsafe {
            let mut parameters: sched_param = std::mem::zeroed();
            let policy = libc::syscall(libc::SYS_sched_getscheduler, 0) as c_int;
            let read = libc::syscall(libc::SYS_sched_getparam, 0, &raw mut parameters);
            (policy >= 0 && read == 0).then_some(if policy & libc::SCHED_RESET_ON_FORK == 0 {
                (policy, parameters)
            } else {
                (libc::SCHED_OTHER, std::mem::zeroed())
            })
        };
        Self { affinity, policy }
    }

    /// Applies the affinity and policy to another thread. If the kernel refuses one of them, the thread keeps its own.
    pub(super) fn give_to<T>(&self, thread: &JoinHandle<T>) {
        // SAFETY: a thread that nothing has joined has a valid identifier.
        unsafe { self.apply(thread.as_pthread_t()) };
    }

    /// # Safety
    ///
    /// The thread is not joined.
    unsafe fn apply(&self, thread: pthread_t) {
        // SAFETY: the thread is valid, and the pointers refer to values of the expected types.
        unsafe {
            if let Some(set) = &self.affinity {
                libc::pthread_setaffinity_np(thread, size_of::<cpu_set_t>(), set);
            }
            if let Some((policy, parameters)) = &self.policy {
                libc::pthread_setschedparam(thread, *policy, parameters);
            }
        }
    }
}

#[cfg(test)]
impl Scheduling {
    /// Restricts the calling thread to one of its processors, and gives it the policy of batch jobs.
    pub(super) fn restrict_this_thread() {
        let mut restricted = Self::inherited();
        let one = restricted.shown().0[0];
        // SAFETY: the sets and parameters are valid, and this thread runs.
        unsafe {
            let mut set: cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(one, &mut set);
            restricted.affinity = Some(set);
            restricted.policy = Some((libc::SCHED_BATCH, std::mem::zeroed()));
            restricted.apply(libc::pthread_self());
        }
    }

    /// Returns the affinity and policy of a thread.
    pub(super) fn of<T>(thread: &JoinHandle<T>) -> Self {
        // SAFETY: the thread is not joined, and the pointers refer to values of the expected types.
        unsafe {
            let (mut set, mut policy, mut parameters) = (std::mem::zeroed(), 0, std::mem::zeroed());
            let thread = thread.as_pthread_t();
            assert_eq!(libc::pthread_getaffinity_np(thread, size_of::<cpu_set_t>(), &raw mut set), 0);
            assert_eq!(libc::pthread_getschedparam(thread, &raw mut policy, &raw mut parameters), 0);
            Self { affinity: Some(set), policy: Some((policy, parameters)) }
        }
    }

    /// Returns the processors and the policy.
    pub(super) fn shown(&self) -> (Vec<usize>, Option<c_int>) {
        let set = self.affinity.expect("the set has room for all processors");
        // SAFETY: the numbers are below the size of the set.
        let has = |&processor: &usize| unsafe { libc::CPU_ISSET(processor, &set) };
        ((0..libc::CPU_SETSIZE as usize).filter(has).collect(), self.policy.map(|(policy, _)| policy))
    }
}
