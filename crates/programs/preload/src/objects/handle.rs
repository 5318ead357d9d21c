//! Objects in their C form and their Rust form.
//!
//! Each object is a `#[repr(C)]` structure that begins with the C structure ([`Object::C`]). So a pointer to either
//! is a pointer to both.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use doorbell_sync::IgnorePoison;

use crate::objects::answer::{Answer, Refused};

/// A structure that begins with its C counterpart.
///
/// # Safety
///
/// The implementor is `#[repr(C)]`. Its first field is a `C`, or a structure that begins with one.
pub(crate) unsafe trait Object: Sized {
    /// The C structure of the object.
    type C;
    /// Kind of the object.
    const KIND: Kind;
}

/// Kinds of objects, in an order in which they can be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Qp,
    Mw,
    Mr,
    Ah,
    Srq,
    Cq,
    Channel,
    Dm,
    ParentDomain,
    Pd,
    Td,
}

impl Kind {
    /// Returns the name that errors use.
    fn name(self) -> &'static str {
        match self {
            Self::Qp => "queue pair",
            Self::Mw => "memory window",
            Self::Mr => "memory region",
            Self::Ah => "address handle",
            Self::Srq => "shared receive queue",
            Self::Cq => "completion queue",
            Self::Channel => "completion channel",
            Self::Dm => "device memory",
            Self::ParentDomain => "parent domain",
            Self::Pd => "protection domain",
            Self::Td => "thread domain",
        }
    }
}

/// Returns the object of a C pointer.
///
/// # Safety
///
/// If it is not null, `pointer` came from [`Handles::give`] for a `T` and was not taken back.
pub(crate) unsafe fn object<'a, T: Object>(pointer: *mut T::C) -> Answer<&'a T> {
    // SAFETY: by the caller's promise it points to a `T`, of which only shared references exist.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or_else(|| Refused::invalid(format!("the {} is null", T::KIND.name())))
}

/// Objects of a context that the program holds.
#[derive(Debug, Default)]
pub(crate) struct Handles(Mutex<HashMap<usize, Kind>>);

impl Handles {
    fn known(&self) -> MutexGuard<'_, HashMap<usize, Kind>> {
        self.0.lock().ignore_poison()
    }

    /// Hands an object to C.
    pub(crate) fn give<T: Object>(&self, object: T) -> *mut T::C {
        self.give_as(T::KIND, object)
    }

    /// Hands an object to C under another kind than that of its type.
    pub(crate) fn give_as<T: Object>(&self, kind: Kind, object: T) -> *mut T::C {
        let pointer = Box::into_raw(Box::new(object));
        self.known().insert(pointer as usize, kind);
        pointer.cast()
    }

    /// Takes an object back from C.
    ///
    /// # Safety
    ///
    /// `pointer` came from [`give`](Self::give) for a `T`, and nothing uses it any more.
    pub(crate) unsafe fn take<T: Object>(&self, pointer: *mut T::C) -> Box<T> {
        self.known().remove(&(pointer as usize));
        // SAFETY: by the caller's promise it came from a `Box<T>`.
        unsafe { Box::from_raw(pointer.cast::<T>()) }
    }

    /// Returns the remaining objects of the program, in an order in which they can be destroyed.
    pub(crate) fn left(&self) -> Vec<(Kind, usize)> {
        let mut left: Vec<_> = self.known().iter().map(|(&pointer, &kind)| (kind, pointer)).collect();
        left.sort_unstable();
        left
    }
}

/// Number of users of an object, which must not be destroyed while it has any.
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Release); // orders the user's accesses before the destruction of the object
    }

    pub(crate) fn none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    /// Returns an error if the object is in use.
    pub(crate) fn expect_none(&self, what: &str) -> Answer<()> {
        if self.none() {
            return Ok(());
        }
        Err(Refused::new(libc::EBUSY, format!("the {what} is still in use by other objects")))
    }
}
