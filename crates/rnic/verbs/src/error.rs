use std::io;

use crate::system_error::SystemError;
use doorbell_verbs_core::{ModifyError, ObjectError, Overrun, PortError, PostError};

/// Errors of verbs calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The software RNIC could not be opened.
    #[cfg(feature = "soft")]
    #[error(transparent)]
    Bind(#[from] doorbell_fabric::BindError),
    /// The name is not allowed for a software RNIC.
    #[cfg(feature = "soft")]
    #[error(
        "{0:?} is not a name for a device: 1 to 63 letters, digits, dashes, dots and underscores of ASCII are allowed"
    )]
    Name(String),
    /// A device of the machine cannot be used as requested.
    #[error(transparent)]
    System(#[from] SystemError),
    /// An object could not be created or destroyed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A queue pair could not be modified.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A work request was not accepted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The completion queue overran, so completions were lost.
    #[error(transparent)]
    Overrun(#[from] Overrun),
    /// The port has the ordered state already, or the device has failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// An object belongs to another device.
    #[error("the {0} belongs to another device: all objects of a call must belong to the same device")]
    ForeignDevice(&'static str),
    /// The operating system refused an operation.
    #[error("{what}: {error}")]
    Os {
        /// Description of the failure, such as `the file could not be mapped`.
        what: &'static str,
        /// The error of the operating system.
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn os(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Os { what, error }
    }
}
