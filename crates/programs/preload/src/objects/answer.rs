//! Results of C calls. A failed call sets an errno of verbs and explains the error in a sentence.

use std::borrow::Cow;
use std::ffi::c_int;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use doorbell_verbs::{Error, ModifyError, ObjectError, PortError, PostErrorKind};

use crate::process::explain::{explain, hint, is_wanted};
use crate::process::fork::Inside;
use crate::process::wait::Uncancelled;

/// Error of a call.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) errno: c_int,
    why: Cow<'static, str>,
    /// Whether the library writes the sentence to standard error even without `--explain`.
    pub(crate) is_hint: bool,
}

pub(crate) type Answer<T> = Result<T, Refused>;

impl Refused {
    pub(crate) fn new(errno: c_int, why: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, why: why.into(), is_hint: false }
    }

    /// Creates an error with EINVAL for a program that lacks an option which RoCE needs. New users need this
    /// explanation at once.
    pub(crate) fn hint(why: impl Into<Cow<'static, str>>) -> Self {
        Self { is_hint: true, ..Self::invalid(why) }
    }

    pub(crate) fn invalid(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EINVAL, why)
    }

    pub(crate) fn unsupported(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(libc::EOPNOTSUPP, why)
    }

    /// Writes the reason to standard error. With `--explain`, the library writes each sentence once. Without it, the
    /// library writes only the first hint of the process.
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
            ObjectError::DeviceFatal => libc::EIO,
            _ => libc::EINVAL,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<ModifyError> for Refused {
    fn from(error: ModifyError) -> Self {
        let errno = match error {
            ModifyError::Refused { errno } => errno,
            ModifyError::DeviceFatal => libc::EIO,
            _ => libc::EINVAL,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<PortError> for Refused {
    fn from(error: PortError) -> Self {
        Self::new(libc::EIO, error.to_string())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::Object(error) => error.into(),
            Error::Modify(error) => error.into(),
            Error::Port(error) => error.into(),
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
            PostErrorKind::Refused { errno } => errno,
            _ => libc::EINVAL,
        };
        Self::new(errno, kind.to_string())
    }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library has one location per thread, which is valid for as long as the thread runs.
    unsafe { *libc::__errno_location() = errno }
}

/// Runs `body`, and converts a panic of `body` to an error of the call, since a panic must not unwind into C. During
/// `body`, the thread cannot be cancelled, so cancellation does not unwind `body` either. No other thread forks during
/// `body`, since the child would inherit locked locks.
pub(crate) fn guarded<T>(body: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let _uncancelled = Uncancelled::new();
    let _inside = Inside::new();
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(Refused::new(libc::EIO, "a panic in Doorbell's library ended the call")))
}

/// Runs a call that returns 0 or an errno.
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

/// Runs a call that returns a number, or -1 after setting the errno.
pub(crate) fn number(call: &str, body: impl FnOnce() -> Answer<c_int>) -> c_int {
    guarded(body).unwrap_or_else(|refused| {
        refused.tell(call);
        set_errno(refused.errno);
        -1
    })
}

/// Runs a call that returns a pointer to an object, or null after setting the errno.
pub(crate) fn pointer<T>(call: &str, body: impl FnOnce() -> Answer<*mut T>) -> *mut T {
    guarded(body).unwrap_or_else(|refused| {
        refused.tell(call);
        set_errno(refused.errno);
        ptr::null_mut()
    })
}
