//! The values of a published file, mapped into memory. This process writes the values, and other processes read them at
//! any time. Other processes also write the request to the port.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::layout::{ORDER_WORDS, VALUES_START};
use crate::sequence;

/// Mapping of a file, with the position of its sequence number, time and values.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<std::ffi::c_void>,
    bytes: NonZeroUsize,
    /// Sequence number, followed by the time, the values, the request and the reply. The mapping contains
    /// `VALUES_START + values + ORDER_WORDS` words from this address on.
    words: NonNull<AtomicU64>,
    values: usize,
}

// SAFETY: no other value uses the mapping, so it can move between threads. All accesses are atomic.
unsafe impl Send for Mapping {}
// SAFETY: all accesses are atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file of `bytes` bytes. The caller has written all bytes, so the kernel has already allocated all pages.
    /// At the offset `values_at`, the file holds the sequence number, the time, `values` values, and the words for
    /// orders.
    pub(super) fn new(file: &File, bytes: usize, values_at: usize, values: usize) -> io::Result<Self> {
        let end = values_at + (VALUES_START + values + ORDER_WORDS) * size_of::<AtomicU64>();
        let bytes = NonZeroUsize::new(bytes)
            .filter(|bytes| end <= bytes.get() && values_at.is_multiple_of(align_of::<AtomicU64>()))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses does not overlap other memory of this process.
        let base = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, file, 0)? };
        // SAFETY: `values_at` lies within the mapping, as checked above.
        let words = unsafe { base.cast::<u8>().add(values_at) }.cast();
        Ok(Self { base, bytes, words, values })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < VALUES_START + self.values + ORDER_WORDS);
        // SAFETY: the word lies within the mapping. It is aligned, since a mapping begins at a page and `values_at` is
        // aligned. The mapping lives as long as `self`. This process accesses the word only through atomics, and other
        // processes only through system calls on the file.
        unsafe { self.words.add(index).as_ref() }
    }

    /// Returns a word for orders.
    pub(super) fn load(&self, order_word: usize) -> u64 {
        self.word(VALUES_START + self.values + order_word).load(Ordering::Relaxed)
    }

    /// Writes a word for orders.
    pub(super) fn set(&self, order_word: usize, value: u64) {
        self.word(VALUES_START + self.values + order_word).store(value, Ordering::Relaxed);
    }

    /// Writes the time and the values. A reader gets either all of them or none. Only one thread may write at a time.
    pub(super) fn store(&self, at_ns: u64, values: &[u64]) {
        let values = values.iter().take(self.values).copied();
        sequence::write(|index| self.word(index), std::iter::once(at_ns).chain(values));
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` created this mapping, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.base, self.bytes.get()) };
    }
}
