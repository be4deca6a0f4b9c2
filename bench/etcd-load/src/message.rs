//! The few protobuf messages of etcd that are used, by hand.

use anyhow::{bail, Context, Result};
use bytes::{BufMut, Bytes, BytesMut};

const WIRE_VARINT: u64 = 0;
const WIRE_FIXED64: u64 = 1;
const WIRE_BYTES: u64 = 2;
const WIRE_FIXED32: u64 = 5;

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

fn put_bytes(out: &mut BytesMut, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | WIRE_BYTES);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// `PutRequest { key = 1, value = 2 }`.
pub fn put(key: &[u8], value: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(key.len() + value.len() + 8);
    put_bytes(&mut out, 1, key);
    put_bytes(&mut out, 2, value);
    out.freeze()
}

/// `RangeRequest { key = 1 }`: one key, linearizable.
pub fn range(key: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(key.len() + 4);
    put_bytes(&mut out, 1, key);
    out.freeze()
}

/// What is used of a `StatusResponse`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `header.member_id`: who answered.
    pub member: u64,
    /// Whom it takes for the leader; 0: nobody.
    pub leader: u64,
}

/// `StatusResponse { header = 1 { member_id = 2 }, leader = 4 }`.
pub fn parse_status(message: &[u8]) -> Result<Status> {
    let mut status = Status::default();
    each_field(message, &mut |field, number, bytes| {
        match field {
            1 => each_field(bytes, &mut |field, number, _| {
                if field == 2 {
                    status.member = number;
                }
                Ok(())
            })?,
            4 => status.leader = number,
            _ => {}
        }
        Ok(())
    })?;
    Ok(status)
}

type Visit<'a> = dyn FnMut(u64, u64, &[u8]) -> Result<()> + 'a;

/// Calls `visit` with number, integer value (0 for others) and bytes (empty for others) of each field.
fn each_field(mut message: &[u8], visit: &mut Visit<'_>) -> Result<()> {
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        let (mut number, mut bytes): (u64, &[u8]) = (0, &[]);
        match tag & 7 {
            WIRE_VARINT => number = take_varint(&mut message)?,
            WIRE_FIXED64 => bytes = take(&mut message, 8)?,
            WIRE_FIXED32 => bytes = take(&mut message, 4)?,
            WIRE_BYTES => {
                let len_bytes = usize::try_from(take_varint(&mut message)?)?;
                bytes = take(&mut message, len_bytes)?;
            }
            other => bail!("protobuf wire type {other} in an answer of etcd"),
        }
        visit(tag >> 3, number, bytes)?;
    }
    Ok(())
}

fn take<'a>(message: &mut &'a [u8], len_bytes: usize) -> Result<&'a [u8]> {
    let (head, rest) = message
        .split_at_checked(len_bytes)
        .context("an answer of etcd ends within a field")?;
    *message = rest;
    Ok(head)
}

fn take_varint(message: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take(message, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    bail!("a number in an answer of etcd is longer than 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_encoded() {
        assert_eq!(&put(b"k", b"vw")[..], b"\x0a\x01k\x12\x02vw");
        let long = put(b"k", &[7; 200]);
        assert_eq!(&long[3..6], b"\x12\xc8\x01");
        assert_eq!(long.len(), 206);
        assert_eq!(&range(b"k")[..], b"\x0a\x01k");
    }

    #[test]
    fn a_status_is_parsed() {
        // header { cluster_id = 5, member_id = 300 }, version "3", leader = 300
        let message = b"\x0a\x05\x08\x05\x10\xac\x02\x12\x013\x20\xac\x02";
        let expected = Status {
            member: 300,
            leader: 300,
        };
        assert_eq!(parse_status(message).expect("a good message"), expected);
        assert!(parse_status(&message[..4]).is_err());
        assert_eq!(parse_status(b"").expect("defaults"), Status::default());
    }
}
