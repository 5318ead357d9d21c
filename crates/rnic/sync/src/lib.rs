//! The one rule for a lock whose holder panicked: the lock stays usable.
//!
//! A panic in Doorbell's code leaves consistent state behind, or ends the process. If each later lock of a poisoned
//! mutex panicked too, one panic would cause many, also in destructors.
//!
//! ```
//! use std::sync::Mutex;
//!
//! use doorbell_sync::IgnorePoison;
//!
//! let number = Mutex::new(1);
//! *number.lock().ignore_poison() += 1;
//! assert_eq!(*number.lock().ignore_poison(), 2);
//! ```

use std::sync::PoisonError;

/// Result of a lock that may be poisoned.
pub trait IgnorePoison {
    /// The guard, or the value.
    type Guard;

    /// Returns the guard, also if another thread panicked while it held the lock.
    fn ignore_poison(self) -> Self::Guard;
}

impl<T> IgnorePoison for Result<T, PoisonError<T>> {
    type Guard = T;

    #[inline]
    fn ignore_poison(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, RwLock};

    use super::*;

    #[test]
    fn locks_stay_usable_after_a_panic_of_their_holder() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(2));
        std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guards = (mutex.lock().ignore_poison(), lock.write().ignore_poison());
                panic!("while both locks are held");
            });
            assert!(holder.join().is_err());
        });
        assert!(mutex.is_poisoned() && lock.is_poisoned());
        assert_eq!((*mutex.lock().ignore_poison(), *lock.read().ignore_poison()), (1, 2));
    }
}
