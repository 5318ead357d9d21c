//! Memory that RNICs may write while a test uses it. All accesses are raw copies.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// A block of zeroed memory. Only pages that were accessed use physical memory.
#[derive(Debug)]
pub struct Block {
    base: *mut u8,
    layout: Layout,
}

impl Block {
    /// Allocates a block.
    ///
    /// # Panics
    ///
    /// If the system has no memory for the block.
    pub fn new(length: usize) -> Self {
        let layout = Layout::from_size_align(length.max(1), 16).expect("a small block");
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null(), "no memory of {length} B is available");
        Self { base, layout }
    }

    /// Returns the pointer to the first byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Returns the number of bytes.
    #[allow(clippy::len_without_is_empty, reason = "a block has at least one byte")]
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Copies bytes out of the block.
    ///
    /// # Panics
    ///
    /// If the range is not inside the block.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.len(), "{length} B at {offset} exceed {} B", self.len());
        let mut out = vec![0; length];
        // SAFETY: the range is inside the block, the buffer is a separate allocation, and tests run on one thread.
        unsafe { self.base.add(offset).copy_to_nonoverlapping(out.as_mut_ptr(), length) };
        out
    }

    /// Copies bytes into the block.
    ///
    /// # Panics
    ///
    /// If the bytes do not fit into the block at `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len(), "{} B at {offset} exceed {} B", bytes.len(), self.len());
        // SAFETY: the range is inside the block, and tests run on one thread.
        unsafe { self.base.add(offset).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// Reads eight bytes as a number.
    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().expect("eight bytes"))
    }

    /// Writes a number as eight bytes.
    pub fn set_word(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block was allocated with this layout. Regions over the block ended with their RNIC.
        unsafe { dealloc(self.base, self.layout) }
    }
}
