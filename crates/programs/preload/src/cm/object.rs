//! Conversion between C pointers and Rust objects for ids, channels and events. These objects belong to no context, so
//! no context counts them.
//!
//! Each object is a `#[repr(C)]` structure that begins with its C structure. So a pointer to the object is also a
//! pointer to the C structure.

use crate::objects::answer::{Answer, Refused};

/// A structure that begins with its C counterpart.
///
/// # Safety
///
/// The implementor is `#[repr(C)]` and its first field is a `C`.
pub(super) unsafe trait Object: Sized {
    /// C structure at the start of the object.
    type C;
    /// Name of the object type in error messages.
    const NAME: &'static str;
}

/// Returns the object to which a C pointer refers.
///
/// # Safety
///
/// `pointer` is null, or came from [`give`] for a `T` and was not passed to [`take`].
pub(super) unsafe fn object<'a, T: Object>(pointer: *mut T::C) -> Answer<&'a T> {
    // SAFETY: the caller guarantees that the pointer is null or refers to a `T`. Only shared references to this `T`
    // exist.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or_else(|| Refused::invalid(format!("the {} is null", T::NAME)))
}

/// Moves an object to memory that C code can refer to, and returns its pointer.
pub(super) fn give<T: Object>(object: T) -> *mut T::C {
    Box::into_raw(Box::new(object)).cast()
}

/// Takes ownership of an object back from C.
///
/// # Safety
///
/// `pointer` came from [`give`] for a `T`, and no code uses the pointer any more.
pub(super) unsafe fn take<T: Object>(pointer: *mut T::C) -> Box<T> {
    // SAFETY: the caller guarantees that the pointer came from a `Box<T>`.
    unsafe { Box::from_raw(pointer.cast::<T>()) }
}
