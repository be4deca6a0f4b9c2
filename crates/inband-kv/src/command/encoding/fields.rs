//! The fields of an encoded command: numbers, strings, lists, expiry times.

use bytes::{BufMut, BytesMut};

use crate::command::{lists, Expiry, Queue, Strings, Watched};

const EXPIRY_NEVER: u8 = 0;
const EXPIRY_KEEP: u8 = 1;
const EXPIRY_IN_MS: u8 = 2;
const EXPIRY_AT_MS: u8 = 3;

/// Appends an unsigned number as a varint: seven bits per byte, low bits first.
pub(in crate::command) fn put_varint(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

pub(in crate::command) fn put_signed(out: &mut BytesMut, number: i64) {
    put_varint(out, ((number << 1) ^ (number >> 63)) as u64);
}

pub(in crate::command) fn put_string(out: &mut BytesMut, string: &[u8]) {
    put_varint(out, string.len() as u64);
    out.put_slice(string);
}

pub(in crate::command) fn put_strings(out: &mut BytesMut, strings: &Strings<'_>) {
    put_varint(out, strings.len() as u64);
    strings.iter().for_each(|string| put_string(out, string));
}

pub(in crate::command) fn put_expiry(out: &mut BytesMut, expiry: Expiry) {
    match expiry {
        Expiry::Never => out.put_u8(EXPIRY_NEVER),
        Expiry::Keep => out.put_u8(EXPIRY_KEEP),
        Expiry::InMs(ms) => {
            out.put_u8(EXPIRY_IN_MS);
            put_signed(out, ms);
        }
        Expiry::AtMs(ms) => {
            out.put_u8(EXPIRY_AT_MS);
            put_signed(out, ms);
        }
    }
}

/// Takes fields from the front of a slice.
pub(in crate::command) struct Reader<'a>(pub(in crate::command) &'a [u8]);

impl<'a> Reader<'a> {
    pub(in crate::command) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(in crate::command) fn varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(in crate::command) fn signed(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(in crate::command) fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (string, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(string)
    }

    pub(in crate::command) fn strings(&mut self) -> Option<Strings<'a>> {
        let count = usize::try_from(self.varint()?).ok()?;
        let all = self.0;
        for _ in 0..count {
            self.string()?;
        }
        Some(Strings::Encoded(count, all))
    }

    pub(in crate::command) fn watched(&mut self) -> Option<Watched<'a>> {
        let count = usize::try_from(self.varint()?).ok()?;
        let bytes = self.0;
        for _ in 0..count {
            self.string()?;
            self.varint()?;
        }
        Some(Watched::new(count, bytes))
    }

    pub(in crate::command) fn queue(&mut self) -> Option<Queue<'a>> {
        let count = usize::try_from(self.varint()?).ok()?;
        let bytes = self.0;
        for _ in 0..count {
            lists::queued(self.string()?)?;
        }
        Some(Queue::new(count, bytes))
    }

    pub(in crate::command) fn choice<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        all.get(usize::from(self.byte()?)).copied()
    }

    pub(in crate::command) fn expiry(&mut self) -> Option<Expiry> {
        Some(match self.byte()? {
            EXPIRY_NEVER => Expiry::Never,
            EXPIRY_KEEP => Expiry::Keep,
            EXPIRY_IN_MS => Expiry::InMs(self.signed()?),
            EXPIRY_AT_MS => Expiry::AtMs(self.signed()?),
            _ => return None,
        })
    }
}
