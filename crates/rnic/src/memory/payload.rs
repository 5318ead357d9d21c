//! Packets that arrived, in memory of this process or in memory that their sender may write meanwhile.

use std::marker::PhantomData;
use std::ptr;

/// Bytes that are copied to where they belong and are never looked at, since somebody may change them meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    start: *const u8,
    length: usize,
    lives: PhantomData<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Payload<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), length: bytes.len(), lives: PhantomData }
    }
}

impl Payload<'_> {
    /// Bytes of memory that another process may write at any time.
    ///
    /// # Safety
    ///
    /// All of them must be mapped for as long as this value and its copies live.
    #[inline]
    pub unsafe fn shared(start: *const u8, length: usize) -> Self {
        Self { start, length, lives: PhantomData }
    }

    /// How many bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.length
    }

    /// Are there none?
    #[inline]
    pub fn is_empty(self) -> bool {
        self.length == 0
    }

    /// The bytes before a place, and those from there on.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    #[inline]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.length);
        let rest = Self { start: self.start.wrapping_add(at), length: self.length - at, ..self };
        (Self { length: at, ..self }, rest)
    }

    /// Copies the bytes.
    ///
    /// # Panics
    ///
    /// If `out` has another length.
    pub fn copy_to(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.length);
        // SAFETY: the bytes are mapped, and `out` is private memory of the same length.
        unsafe { ptr::copy_nonoverlapping(self.start, out.as_mut_ptr(), self.length) }
    }

    /// The first byte, for raw copies.
    #[inline]
    pub(super) fn start(self) -> *const u8 {
        self.start
    }
}

/// How many bytes of a packet hold all headers that an RNIC reads, with some to spare: AtomicETH behind the BTH is 40.
pub const HEADERS_BYTES_MAX: usize = 64;

/// A packet, or what is left of it behind headers that were read.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Its first bytes in private memory.
    headers: &'a [u8],
    /// All of it.
    bytes: Payload<'a>,
}

impl<'a> From<&'a [u8]> for Packet<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { headers: bytes, bytes: bytes.into() }
    }
}

impl<'a> Packet<'a> {
    /// A packet in memory that somebody may write meanwhile, with a copy of its first [`HEADERS_BYTES_MAX`] bytes, or
    /// of all where it is shorter. Headers are read from the copy alone.
    ///
    /// # Panics
    ///
    /// If `headers` has not as many bytes as [`HEADERS_BYTES_MAX`] or, where that is less, as the packet.
    #[inline]
    pub fn with_headers(headers: &'a [u8], bytes: Payload<'a>) -> Self {
        assert_eq!(headers.len(), bytes.len().min(HEADERS_BYTES_MAX));
        Self { headers, bytes }
    }

    /// All bytes that are left.
    #[inline]
    pub fn bytes(self) -> Payload<'a> {
        self.bytes
    }

    /// How many bytes are left.
    #[inline]
    pub(crate) fn len(self) -> usize {
        self.bytes.len()
    }

    /// Takes a header off.
    #[inline]
    pub(crate) fn split<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (header, rest) = self.headers.split_first_chunk::<N>()?;
        *self = Self { headers: rest, bytes: self.bytes.split_at(N).1 };
        Some(header)
    }

    /// What is left but for padding of this length, if there is as much.
    #[inline]
    pub(crate) fn payload(self, padding: u8) -> Option<Payload<'a>> {
        let length = self.bytes.len().checked_sub(padding.into())?;
        Some(self.bytes.split_at(length).0)
    }
}
