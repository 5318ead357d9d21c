//! Ids, channels and events as C sees them and as Rust does. They belong to no context, so nothing keeps
//! account of them.
//!
//! Each is a `#[repr(C)]` structure that begins with the C one, so that a pointer to either is a pointer
//! to both.

use crate::answer::{Answer, Refused};

/// A structure that begins with its C counterpart.
///
/// # Safety
///
/// The implementor is `#[repr(C)]` and its first field is a `C`.
pub(super) unsafe trait Object: Sized {
    /// What C knows of it.
    type C;
    /// What it is called in errors.
    const NAME: &'static str;
}

/// The object behind a C pointer.
///
/// # Safety
///
/// If it is not null, `pointer` came from [`give`] for a `T` and was not taken back.
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
