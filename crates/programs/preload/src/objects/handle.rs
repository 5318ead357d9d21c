//! Objects of verbs, which have a C part and a Rust part.
//!
//! Each object is a `#[repr(C)]` structure that begins with its C structure ([`Object::C`]). So a pointer to the object
//! is also a pointer to the C structure.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use doorbell_sync::IgnorePoison;

use crate::objects::answer::{Answer, Refused};

/// A structure that begins with its C counterpart.
///
/// # Safety
///
/// The implementor is `#[repr(C)]`. Its first field is a `C`, or a structure that begins with a `C`.
pub(crate) unsafe trait Object: Sized {
    /// C structure at the start of the object.
    type C;
    /// Kind of the objects of this type.
    const KIND: Kind;
}

/// Kinds of objects. Objects can be destroyed in the order of their kinds.
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
    /// Returns the name of the kind in error messages.
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

/// Returns the object to which a C pointer refers.
///
/// # Safety
///
/// `pointer` is null, or came from [`Handles::give`] for a `T` and was not passed to [`Handles::take`].
pub(crate) unsafe fn object<'a, T: Object>(pointer: *mut T::C) -> Answer<&'a T> {
    // SAFETY: the caller guarantees that the pointer is null or refers to a `T`. Only shared references to this `T`
    // exist.
    unsafe { pointer.cast::<T>().as_ref() }.ok_or_else(|| Refused::invalid(format!("the {} is null", T::KIND.name())))
}

/// Objects of a context that the program has not destroyed.
#[derive(Debug, Default)]
pub(crate) struct Handles(Mutex<HashMap<usize, Kind>>);

impl Handles {
    fn known(&self) -> MutexGuard<'_, HashMap<usize, Kind>> {
        self.0.lock().ignore_poison()
    }

    /// Moves an object to memory that C code can refer to, and returns its pointer.
    pub(crate) fn give<T: Object>(&self, object: T) -> *mut T::C {
        self.give_as(T::KIND, object)
    }

    /// Like [`give`](Self::give), but records the object under another kind than that of its type.
    pub(crate) fn give_as<T: Object>(&self, kind: Kind, object: T) -> *mut T::C {
        let pointer = Box::into_raw(Box::new(object));
        self.known().insert(pointer as usize, kind);
        pointer.cast()
    }

    /// Takes ownership of an object back from C.
    ///
    /// # Safety
    ///
    /// `pointer` came from [`give`](Self::give) for a `T`, and no code uses the pointer any more.
    pub(crate) unsafe fn take<T: Object>(&self, pointer: *mut T::C) -> Box<T> {
        self.known().remove(&(pointer as usize));
        // SAFETY: the caller guarantees that the pointer came from a `Box<T>`.
        unsafe { Box::from_raw(pointer.cast::<T>()) }
    }

    /// Returns the objects that the program has not destroyed, in an order in which they can be destroyed.
    pub(crate) fn left(&self) -> Vec<(Kind, usize)> {
        let mut left: Vec<_> = self.known().iter().map(|(&pointer, &kind)| (kind, pointer)).collect();
        left.sort_unstable();
        left
    }
}

/// Number of users of an object. An object with users must not be destroyed.
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

    /// Returns an error if the object has users.
    pub(crate) fn expect_none(&self, what: &str) -> Answer<()> {
        if self.none() {
            return Ok(());
        }
        Err(Refused::new(libc::EBUSY, format!("other objects still use the {what}")))
    }
}
