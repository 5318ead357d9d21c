use crate::{Msn, QKey, Qpn, RKey};

/// Defines `Packet`, the view of a header of `$len` bytes, and the functions that all headers share.
///
/// The calling module defines `Repr` with `read` and `write`, and the accessors of the fields. Only these functions
/// know the layout of the header.
macro_rules! header_view {
    ($(#[$doc:meta])* $len:ident) => {
        $(#[$doc])*
        ///
        /// The buffer may hold more bytes after the header.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct Packet<T> {
            buffer: T,
        }

        impl<T: AsRef<[u8]>> Packet<T> {
            /// Creates a view of `buffer` without a check of its length. Accessors panic if the buffer is shorter
            /// than the header.
            #[inline]
            pub const fn new_unchecked(buffer: T) -> Packet<T> {
                Packet { buffer }
            }

            /// Creates a view of `buffer`, which must be at least as long as the header.
            ///
            /// # Errors
            ///
            /// The buffer is shorter ([`Error::Truncated`]).
            #[inline]
            pub fn new_checked(buffer: T) -> Result<Packet<T>, Error> {
                let packet = Packet::new_unchecked(buffer);
                packet.check_len()?;
                Ok(packet)
            }

            /// Checks that the buffer is at least as long as the header, so that no accessor panics.
            ///
            /// # Errors
            ///
            /// The buffer is shorter than the header ([`Error::Truncated`]). Then accessors may panic.
            #[inline]
            pub fn check_len(&self) -> Result<(), Error> {
                let found = self.buffer.as_ref().len();
                if found < $len {
                    return Err(Error::Truncated { needed: $len, found });
                }
                Ok(())
            }

            /// Returns the buffer.
            #[inline]
            pub fn into_inner(self) -> T {
                self.buffer
            }

            #[inline]
            fn get<const N: usize>(&self, at: usize) -> [u8; N] {
                let mut bytes = [0; N];
                bytes.copy_from_slice(&self.buffer.as_ref()[at..at + N]);
                bytes
            }
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
            #[inline]
            fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
                self.buffer.as_mut()[at..at + N].copy_from_slice(&bytes);
            }
        }

        impl<'a, T: AsRef<[u8]> + ?Sized> Packet<&'a T> {
            /// Returns the bytes after the header in the buffer.
            #[inline]
            pub fn payload(&self) -> &'a [u8] {
                &self.buffer.as_ref()[$len..]
            }
        }

        impl Repr {
            /// Returns the bytes that [`emit`](Repr::emit) writes.
            #[inline]
            pub const fn buffer_len() -> usize {
                $len
            }

            /// Writes the header.
            ///
            /// # Panics
            /// If the buffer is shorter than the header.
            #[inline]
            pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
                let mut bytes = [0; $len];
                self.write(&mut bytes);
                packet.set(0, bytes);
            }
        }
    };
}

/// Defines `Packet` and `Repr` of a header for which every bit pattern is valid. The table has each field of whole
/// bytes with its setter, its type and its offset, and then the offset of a reserved byte.
macro_rules! plain_header {
    (
        $(#[$view:meta])*
        $len:ident
        $(#[$repr:meta])*
        Repr {
            $($(#[$doc:meta])* $field:ident, $set:ident: $type:ty = $at:literal;)+
        }
        $(reserved = $reserved:literal)?
    ) => {
        header_view! {
            $(#[$view])*
            $len
        }

        impl<T: AsRef<[u8]>> Packet<T> {
            $(
                #[doc = concat!("Returns the field [`", stringify!($field), "`](Repr::", stringify!($field), ").")]
                #[inline]
                pub fn $field(&self) -> $type {
                    $crate::view::Field::from_bytes(self.get($at))
                }
            )+
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
            $(
                #[doc = concat!("Sets the field [`", stringify!($field), "`](Repr::", stringify!($field), ").")]
                #[inline]
                pub fn $set(&mut self, value: $type) {
                    self.set($at, $crate::view::Field::into_bytes(value));
                }
            )+
        }

        $(#[$repr])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct Repr {
            $(
                $(#[$doc])*
                pub $field: $type,
            )+
        }

        impl Repr {
            /// Reads the header.
            ///
            /// # Errors
            ///
            /// The buffer is shorter than the header ([`Error::Truncated`]). Every bit pattern is valid.
            #[inline]
            pub fn parse<T: AsRef<[u8]> + ?Sized>(packet: &Packet<&T>) -> Result<Repr, Error> {
                packet.check_len()?;
                Ok(Repr::read(&packet.get(0)))
            }

            /// Reads the header.
            #[inline]
            pub fn read(bytes: &[u8; $len]) -> Repr {
                let packet = Packet::new_unchecked(bytes);
                Repr { $($field: packet.$field()),+ }
            }

            /// Writes the header, with reserved bytes zero.
            #[inline]
            pub fn write(&self, out: &mut [u8; $len]) {
                $(out[$reserved] = 0;)?
                let mut packet = Packet::new_unchecked(out);
                $(packet.$set(self.$field);)+
            }
        }
    };
}

/// Field of a header that takes whole bytes, the most significant byte first.
pub(crate) trait Field<const BYTES: usize> {
    fn from_bytes(bytes: [u8; BYTES]) -> Self;
    fn into_bytes(self) -> [u8; BYTES];
}

macro_rules! field {
    ($type:ty: $len:literal, $bytes:ident => $from:expr, $value:ident => $into:expr) => {
        impl $crate::view::Field<$len> for $type {
            #[inline]
            fn from_bytes($bytes: [u8; $len]) -> Self {
                $from
            }

            #[inline]
            fn into_bytes(self) -> [u8; $len] {
                let $value = self;
                $into
            }
        }
    };
}

field!(u32: 4, bytes => u32::from_be_bytes(bytes), value => value.to_be_bytes());
field!(u64: 8, bytes => u64::from_be_bytes(bytes), value => value.to_be_bytes());
field!(RKey: 4, bytes => RKey::new(u32::from_be_bytes(bytes)), key => key.get().to_be_bytes());
field!(QKey: 4, bytes => QKey::new(u32::from_be_bytes(bytes)), key => key.get().to_be_bytes());
field!(Qpn: 3, bytes => Qpn::new(from_be_24(bytes)), qpn => to_be_24(qpn.get()));
field!(Msn: 3, bytes => Msn::new(from_be_24(bytes)), msn => to_be_24(msn.get()));

/// Returns the number in three bytes.
#[inline]
pub(crate) const fn from_be_24(bytes: [u8; 3]) -> u32 {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]])
}

/// Returns the lower 24 bits as three bytes.
#[inline]
pub(crate) const fn to_be_24(value: u32) -> [u8; 3] {
    let [_, a, b, c] = value.to_be_bytes();
    [a, b, c]
}
