//! Macros for a system's message types, flags and header: names are given once, and offsets come from the C headers.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::{
    checked, u16_at, u32_at, u64_at, unpadded, ParseError, HEADER_LEN_BYTES, VALUE_LEN_MAX_BYTES,
};

/// How a field is stored in a header, in network order, at one or several offsets.
pub trait Field: Sized {
    fn get(header: &[u8], at: &[usize]) -> Self;
    fn put(&self, header: &mut [u8], at: &[usize]);
}

macro_rules! integers {
    ($($type:ty, $at:expr;)+) => {$(
        impl Field for $type {
            #[inline]
            fn get(header: &[u8], at: &[usize]) -> $type {
                $at(header, at[0])
            }

            #[inline]
            fn put(&self, header: &mut [u8], at: &[usize]) {
                header[at[0]..at[0] + size_of::<$type>()].copy_from_slice(&self.to_be_bytes());
            }
        }
    )+};
}

integers! {
    u8, |header: &[u8], at: usize| header[at];
    u16, u16_at;
    u32, u32_at;
    u64, u64_at;
}

/// Stored as address and port.
impl Field for SocketAddrV4 {
    #[inline]
    fn get(header: &[u8], at: &[usize]) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from(u32_at(header, at[0])), u16_at(header, at[1]))
    }

    #[inline]
    fn put(&self, header: &mut [u8], at: &[usize]) {
        u32::from(*self.ip()).put(header, &at[..1]);
        self.port().put(header, &at[1..]);
    }
}

/// A header in host order. Implemented by [`header!`](crate::header!).
pub trait Message: Copy {
    /// Reads the header of a packet that is at least a header long and has type `kind`.
    fn read_as(kind: u8, packet: &[u8]) -> Result<Self, ParseError>;

    /// Writes the header to the start of a packet, which must be signed afterwards.
    fn write_to(&self, packet: &mut [u8], value_len_bytes: usize);

    /// Splits a UDP payload into header and value. Nothing may follow the value.
    fn split(packet: &[u8]) -> Result<(Self, &[u8]), ParseError> {
        let (kind, value) = checked(packet)?;
        let header = Self::read_as(kind, packet)?;
        unpadded(packet, value)?;
        Ok((header, value))
    }

    /// Appends the packet to `out`; its value is the concatenation of the parts. Returns the packet, which must be
    /// signed.
    ///
    /// # Panics
    /// If the value is longer than [`VALUE_LEN_MAX_BYTES`]. Callers check user input before.
    fn append<'a>(&self, value: &[&[u8]], out: &'a mut Vec<u8>) -> &'a mut [u8] {
        let value_len_bytes = value.iter().map(|part| part.len()).sum();
        assert!(
            value_len_bytes <= VALUE_LEN_MAX_BYTES,
            "a value of {value_len_bytes} bytes does not fit a packet"
        );
        let start = out.len();
        out.resize(start + HEADER_LEN_BYTES, 0);
        self.write_to(&mut out[start..], value_len_bytes);
        value.iter().for_each(|part| out.extend_from_slice(part));
        &mut out[start..]
    }
}

/// `message_types!(Type { Read = c::IB_X_READ, ... })` defines an enum of a system's message types, and `ALL` with all
/// of them.
#[macro_export]
macro_rules! message_types {
    ($(#[$doc:meta])* $name:ident { $($kind:ident = $value:path),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum $name { $($kind = $value as u8),+ }

        impl $name {
            /// Every type, in wire order.
            pub const ALL: [$name; [$($value),+].len()] = [$($name::$kind),+];

            /// Returns the type with this number on the wire.
            pub fn from_wire(byte: u8) -> Result<$name, $crate::wire::ParseError> {
                let found = $name::ALL.into_iter().find(|kind| *kind as u8 == byte);
                found.ok_or($crate::wire::ParseError::Type(byte))
            }
        }
    };
}

/// `flag_bits!(flag { DELETE = c::IB_X_F_DELETE, ... })` defines a module with a constant for each flag, and `ALL` with
/// all of them.
#[macro_export]
macro_rules! flag_bits {
    ($(#[$doc:meta])* $name:ident { $($flag:ident = $value:expr),+ $(,)? }) => {
        $(#[$doc])*
        #[allow(missing_docs)]
        pub mod $name {
            use super::c;
            $(pub const $flag: u16 = $value as u16;)+
            /// By name.
            pub const ALL: &[(&str, u16)] = &[$((stringify!($flag), $flag)),+];
        }
    };
}

/// Defines a struct with a header's fields in host order:
///
/// ```ignore
/// header!(Header of c::ib_x_header, Type, set { session: u64, client: SocketAddrV4 = client_address client_port });
/// ```
///
/// `Type` is made by [`message_types!`], and `set` is the system's name for the frame's `partition`. The struct has
/// `kind`, `flags`, that field and `node`, followed by the given fields, which have the same names as in C unless other
/// C fields are given.
#[macro_export]
macro_rules! header {
    ($(#[$doc:meta])* $name:ident of $raw:ty, $kind:ty, $partition:ident {
        $($(#[$field_doc:meta])* $field:ident : $type:ty $(= $($at:ident)+)?),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub struct $name {
            pub kind: $kind,
            pub flags: u16,
            pub $partition: u16,
            pub node: u16,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::wire::Message for $name {
            fn read_as(kind: u8, packet: &[u8]) -> Result<$name, $crate::wire::ParseError> {
                Ok($name::read(<$kind>::from_wire(kind)?, packet))
            }

            fn write_to(&self, packet: &mut [u8], value_len_bytes: usize) {
                self.write(packet, value_len_bytes);
            }
        }

        impl $name {
            /// Returns a header whose other fields are zero.
            pub fn of(kind: $kind) -> $name {
                $name::read(kind, &[0; $crate::wire::HEADER_LEN_BYTES])
            }

            /// Returns whether all of these flags are set.
            pub fn has(&self, flags: u16) -> bool {
                self.flags & flags == flags
            }

            /// Reads the header of a packet that is at least a header long.
            fn read(kind: $kind, packet: &[u8]) -> $name {
                $name {
                    kind,
                    flags: $crate::wire::u16_at(packet, std::mem::offset_of!($raw, flags)),
                    $partition: $crate::wire::u16_at(packet, std::mem::offset_of!($raw, $partition)),
                    node: $crate::wire::u16_at(packet, std::mem::offset_of!($raw, node)),
                    $($field: $crate::wire::header::Field::get(
                        packet,
                        &$crate::header!(@at $raw, $field $(= $($at)+)?),
                    ),)*
                }
            }

            /// Writes the header to the start of a packet, which must be signed afterwards.
            fn write(&self, packet: &mut [u8], value_len_bytes: usize) {
                let common = $crate::wire::Common {
                    kind: self.kind as u8,
                    flags: self.flags,
                    partition: self.$partition,
                    node: self.node,
                    value_len_bytes: value_len_bytes as u16,
                };
                common.put(packet);
                $($crate::wire::header::Field::put(
                    &self.$field,
                    packet,
                    &$crate::header!(@at $raw, $field $(= $($at)+)?),
                );)*
            }
        }
    };
    (@at $raw:ty, $field:ident) => { [std::mem::offset_of!($raw, $field)] };
    (@at $raw:ty, $field:ident = $($at:ident)+) => { [$(std::mem::offset_of!($raw, $at)),+] };
}
