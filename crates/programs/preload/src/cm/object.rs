//! Conversion between C pointers and Rust objects for ids, channels and events. These objects belong to no context, so
//! no context counts them.
//!
//! Each object is a `#[repr(C)]` structure that begins with the C structure, so a pointer to one is a pointer to both.

use crate::objects::answer::{Answer, Refused};

/// Structure that begins with its C counterpart.
///
/// # Safety
///
/// The implementor is `#[repr(C)]` and its first field is a `C`.
pub(super) unsafe trait Object: Sized {
    /// C structure at the start of the object.
    type C;
    /// Name of the object in errors.
    const NAME: &'static str;
}

/// Returns the object behind a C pointer.
///
/// # Safety
///
/// `pointer` is null, or came from [`give`] for a `T` and was not passed to [`take`].
pub(super) unsafe fn object<'a, T: Object>(pointer: *mut T::C) -> Answer<&'a T> {
    // SAFETY: by the caller's promise it points to a `T`, of which only shared references exist.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or_else(|| Refused::invalid(format!("the {} is null", T::NAME)))
}

/// Hands an object to C.
pub(super) fn give<T: Object>(object: T) -> *mut T::C {
    Box::into_raw(Box::new(object)).cast()
}

/// Takes an object back from C.
///
/// # Safety
///
/// `pointer` came from [`give`] for a `T`, and nothing uses it any more.
pub(super) unsafe fn take<T: Object>(pointer: *mut T::C) -> Box<T> {
    // SAFETY: by the caller's promise it came from a `Box<T>`.
    unsafe { Box::from_raw(pointer.cast::<T>()) }
}
