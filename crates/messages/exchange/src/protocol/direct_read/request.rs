//! The read request, by which a sender announces a message.

use doorbell_verbs::RKey;
use smallvec::SmallVec;

/// Maximum number of application bytes in a read request.
pub const MAX_APPLICATION_BYTES: usize = 64;

const HEADER_BYTES: usize = 8 + 4 + 4;

/// Bytes of the longest read request.
pub(super) const MAX_REQUEST_BYTES: usize = HEADER_BYTES + MAX_APPLICATION_BYTES;

/// Location of a message in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemotePlace {
    pub(super) address: u64,
    pub(super) rkey: RKey,
    pub(super) length: u32,
}

/// A message that waits in the sender's memory until the receiver READs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub(super) place: RemotePlace,
    pub(super) application: SmallVec<[u8; MAX_APPLICATION_BYTES]>,
}

impl Request {
    /// Returns the bytes of the message.
    #[allow(clippy::len_without_is_empty)] // a message of 0 B is a valid message
    pub fn len(&self) -> usize {
        self.place.length as usize
    }

    /// Returns the application bytes that the sender has added to the read request.
    pub fn application(&self) -> &[u8] {
        &self.application
    }

    /// Encodes the request, with numbers in big endian.
    pub(super) fn encode(&self) -> SmallVec<[u8; MAX_REQUEST_BYTES]> {
        let mut out = SmallVec::new();
        out.extend_from_slice(&self.place.address.to_be_bytes());
        out.extend_from_slice(&self.place.rkey.get().to_be_bytes());
        out.extend_from_slice(&self.place.length.to_be_bytes());
        out.extend_from_slice(&self.application);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (address, rest) = bytes.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (length, application) = rest.split_first_chunk()?;
        if application.len() > MAX_APPLICATION_BYTES {
            return None;
        }
        let place = RemotePlace {
            address: u64::from_be_bytes(*address),
            rkey: RKey::new(u32::from_be_bytes(*rkey)),
            length: u32::from_be_bytes(*length),
        };
        Some(Self { place, application: application.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_wrong_lengths_are_rejected() {
        let place = RemotePlace { address: 0x0123_4567_89ab_cdef, rkey: RKey::new(0xdead_beef), length: 77 };
        let request = Request { place, application: (0..64).collect() };
        let bytes = request.encode();
        assert_eq!(bytes.len(), MAX_REQUEST_BYTES);
        assert_eq!(Request::decode(&bytes), Some(request));
        assert_eq!(bytes[..8], [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        for length in 0..HEADER_BYTES {
            assert_eq!(Request::decode(&bytes[..length]), None);
        }
        assert_eq!(Request::decode(&[0; MAX_REQUEST_BYTES + 1]), None);
    }
}
