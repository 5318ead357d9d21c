//! Results of C calls: the errno of verbs, and a sentence that explains a refusal.

use std::borrow::Cow;
use std::ffi::c_int;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use doorbell_verbs::{Error, ModifyError, ObjectError, PostErrorKind};

use crate::process::explain::{explain, hint, is_wanted};
use crate::process::fork::Inside;
use crate::process::wait::Uncancelled;

/// Reason for which a call was refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) errno: c_int,
    why: Cow<'static, str>,
    /// Whether the sentence goes to standard error even without `--explain`.
    pub(crate) is_hint: bool,
}

pub(crate) type Answer<T> = Result<T, Refused>;

impl Refused {
    pub(crate) fn new(errno: c_int, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into(), is_hint: false }
    }

    /// Creates a refusal with EINVAL whose reason newcomers need at once: the program lacks an option that RoCE
    /// needs.
    pub(crate) fn hint(why: impl Into<Cow<'static, str>>) -> Self {
        Self { is_hint: true, ..Self::invalid(why) }
    }

    pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, why)
    }

    pub(crate) fn unsupported(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EOPNOTSUPP, why)
    }

    /// Writes the reason to standard error. With `--explain`, it writes each sentence once, otherwise only the first
    /// hint of the process.
    pub(crate) fn tell(&self, call: &str) {
        if is_wanted() || self.is_hint {
            let _uncancelled = Uncancelled::new();
            if is_wanted() {
                explain(&call, &self.why);
            } else {
                hint(&call, &self.why);
            }
        }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<ObjectError> for Refused {
    fn from(error: ObjectError) -> Self {
        let errno = match error {
            ObjectError::Exhausted(_) => libc::ENOMEM,
            ObjectError::Busy { .. } => libc::EBUSY,
            _ => libc::EINVAL,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<ModifyError> for Refused {
    fn from(error: ModifyError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::Object(error) => error.into(),
            Error::Modify(error) => error.into(),
            error => {
                let errno = match &error {
                    Error::Os { error, .. } if error.kind() == ErrorKind::Unsupported => libc::EOPNOTSUPP,
                    Error::Os { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
                    Error::Bind(_) => libc::ENODEV,
                    _ => libc::EINVAL,
                };
                Self::new(errno, error.to_string())
            }
        }
    }
}

impl From<PostErrorKind> for Refused {
    fn from(kind: PostErrorKind) -> Self {
        let errno = match kind {
            PostErrorKind::QueueFull { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        };
        Self::new(errno, kind.to_string())
    }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library has one location per thread, which is valid for as long as the thread.
    unsafe { *libc::__errno_location() = errno }
}

/// Runs `body` so that nothing unwinds into C: a panic of this library becomes an error of the call. Meanwhile the
/// thread is not cancelled, so cancellation does not unwind `body` either. No other thread forks meanwhile, since the
/// child would find locks held.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let _uncancelled = Uncancelled::new();
    let _inside = Inside::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(Refused::new(libc::EIO, "a defect of this library")))
}

/// Runs a call that returns 0 or the errno.
pub(crate) fn status(call: &str, body: impl FnOnce() -> Answer<()>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(refused) => {
            refused.tell(call);
            set_errno(refused.errno);
            refused.errno
        }
    }
}

/// Runs a call that returns a number, or -1 with errno set.
pub(crate) fn number(call: &str, body: impl FnOnce() -> Answer<c_int>) -> c_int {
    guarded(body).unwrap_or_else(|refused| {
        refused.tell(call);
        set_errno(refused.errno);
        -1
    })
}

/// Runs a call that returns an object, or null with errno set.
pub(crate) fn pointer<T>(call: &str, body: impl FnOnce() -> Answer<*mut T>) -> *mut T {
    guarded(body).unwrap_or_else(|refused| {
        refused.tell(call);
        set_errno(refused.errno);
        ptr::null_mut()
    })
}
