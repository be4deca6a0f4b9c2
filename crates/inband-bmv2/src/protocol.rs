//! Thrift's binary protocol, as far as the interface uses it.

use std::io::{self, Read};

/// Longest text or list that is accepted: the largest register arrays have 2^26 words.
const LEN_MAX: usize = 1 << 26;
/// Structs and lists within each other.
const DEPTH_MAX: usize = 8;

mod kind {
    pub const STOP: u8 = 0;
    pub const BOOL: u8 = 2;
    pub const BYTE: u8 = 3;
    pub const I16: u8 = 6;
    pub const I32: u8 = 8;
    pub const I64: u8 = 10;
    pub const TEXT: u8 = 11;
    pub const STRUCT: u8 = 12;
    pub const MAP: u8 = 13;
    pub const LIST: u8 = 15;
}

/// Version 1, and a call.
const CALL: [u8; 4] = [0x80, 1, 0, 1];

/// The arguments of a call, or a struct: its fields have the numbers from 1.
#[derive(Default)]
pub struct Fields(Vec<u8>, i16);

impl Fields {
    fn field(&mut self, kind: u8) {
        self.1 += 1;
        self.0.push(kind);
        self.0.extend(self.1.to_be_bytes());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.0.extend((value.len() as i32).to_be_bytes());
        self.0.extend(value);
    }

    /// An i32.
    pub fn number(mut self, value: usize) -> Fields {
        self.field(kind::I32);
        self.0.extend((value as i32).to_be_bytes());
        self
    }

    /// An i64.
    pub fn long(mut self, value: u64) -> Fields {
        self.field(kind::I64);
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn text(mut self, value: impl AsRef<[u8]>) -> Fields {
        self.field(kind::TEXT);
        self.bytes(value.as_ref());
        self
    }

    pub fn structure(mut self, value: Fields) -> Fields {
        self.field(kind::STRUCT);
        self.0.extend(value.0);
        self.0.push(kind::STOP);
        self
    }

    pub fn texts(mut self, values: &[&[u8]]) -> Fields {
        self.field(kind::LIST);
        self.0.push(kind::TEXT);
        self.0.extend((values.len() as i32).to_be_bytes());
        values.iter().for_each(|value| self.bytes(value));
        self
    }

    /// A list of one struct.
    pub fn one(mut self, value: Fields) -> Fields {
        self.field(kind::LIST);
        self.0.push(kind::STRUCT);
        self.0.extend(1i32.to_be_bytes());
        self.0.extend(value.0);
        self.0.push(kind::STOP);
        self
    }

    /// The call of this method.
    pub fn message(self, name: &str) -> Vec<u8> {
        let mut out = CALL.to_vec();
        out.extend((name.len() as i32).to_be_bytes());
        out.extend(name.as_bytes());
        out.extend([0; 4]);
        out.extend(self.0);
        out.push(kind::STOP);
        out
    }
}

/// A value in an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    Number(i64),
    Text(Vec<u8>),
    /// Of a map: its keys, each with its value behind it.
    List(Vec<Value>),
    Struct(Vec<(i16, Value)>),
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn len(from: &mut impl Read) -> io::Result<usize> {
    let len = u32::from_be_bytes(take(from)?) as usize;
    if len > LEN_MAX {
        return Err(bad("the answer of the switch is too long"));
    }
    Ok(len)
}

fn text(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let len = len(from)?;
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn value(from: &mut impl Read, of: u8, depth: usize) -> io::Result<Value> {
    if depth == DEPTH_MAX {
        return Err(bad("the answer of the switch is nested too deeply"));
    }
    Ok(match of {
        kind::BOOL | kind::BYTE => Value::Number(i8::from_be_bytes(take(from)?).into()),
        kind::I16 => Value::Number(i16::from_be_bytes(take(from)?).into()),
        kind::I32 => Value::Number(i32::from_be_bytes(take(from)?).into()),
        kind::I64 => Value::Number(i64::from_be_bytes(take(from)?)),
        kind::TEXT => Value::Text(text(from)?),
        kind::STRUCT => Value::Struct(fields(from, depth + 1)?),
        kind::MAP => {
            let of: [u8; 2] = take(from)?;
            let items = (0..len(from)?).flat_map(|_| of);
            let items = items.map(|of| value(from, of, depth + 1));
            Value::List(items.collect::<io::Result<_>>()?)
        }
        kind::LIST => {
            let [of] = take(from)?;
            let items = 0..len(from)?;
            let items = items.map(|_| value(from, of, depth + 1));
            Value::List(items.collect::<io::Result<_>>()?)
        }
        _ => return Err(bad("the answer of the switch has an unknown type")),
    })
}

fn fields(from: &mut impl Read, depth: usize) -> io::Result<Vec<(i16, Value)>> {
    let mut fields = Vec::new();
    loop {
        let [of] = take(from)?;
        if of == kind::STOP {
            return Ok(fields);
        }
        let id = i16::from_be_bytes(take(from)?);
        fields.push((id, value(from, of, depth)?));
    }
}

/// Reads an answer: its kind and its fields.
pub fn message(from: &mut impl Read) -> io::Result<(u8, Vec<(i16, Value)>)> {
    let mut from = io::BufReader::new(from);
    let [_, _, _, of] = take(&mut from)?;
    text(&mut from)?; // the method
    take::<4>(&mut from)?; // the number of the call
    Ok((of, fields(&mut from, 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(of: u8, fields: Fields) -> Vec<u8> {
        let mut bytes = fields.message("m");
        bytes[3] = of;
        bytes
    }

    #[test]
    fn answers_are_read_and_damaged_ones_are_errors() {
        let inner = Fields::default().long(u64::MAX).text("b");
        let bytes = answer(
            2,
            Fields::default().number(7).structure(inner).texts(&[b"c"]),
        );
        let inner = vec![(1, Value::Number(-1)), (2, Value::Text(b"b".to_vec()))];
        let list = Value::List(vec![Value::Text(b"c".to_vec())]);
        let all = vec![(1, Value::Number(7)), (2, Value::Struct(inner)), (3, list)];
        assert_eq!(message(&mut &bytes[..]).unwrap(), (2, all));
        let map = [
            &[kind::MAP, 0, 1, kind::BYTE, kind::TEXT, 0, 0, 0, 1, 7][..],
            &[0, 0, 0, 1, b'd'],
        ];
        let mut bytes_of_map = answer(2, Fields(map.concat(), 1));
        let pair = vec![Value::Number(7), Value::Text(b"d".to_vec())];
        assert_eq!(
            message(&mut &bytes_of_map[..]).unwrap(),
            (2, vec![(1, Value::List(pair))])
        );
        bytes_of_map.truncate(bytes_of_map.len() - 3);
        assert!(message(&mut &bytes_of_map[..]).is_err());
        for len in 0..bytes.len() {
            assert!(message(&mut &bytes[..len]).is_err(), "{len} bytes");
        }
        let too_long = [&bytes[..4], &u32::MAX.to_be_bytes()].concat();
        assert!(message(&mut &too_long[..]).is_err());
        let mut nested = Fields::default();
        for _ in 0..=DEPTH_MAX {
            nested = Fields::default().structure(nested);
        }
        assert!(message(&mut &answer(2, nested)[..]).is_err());
    }
}
