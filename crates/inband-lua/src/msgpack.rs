//! `cmsgpack`: MessagePack as Redis's library reads and writes it.

use mlua::{Lua, MultiValue, Table, Value};

use crate::json::{integer, number_of};
use crate::{fail, Context};

/// Deeper tables are written as nil.
const DEPTH_MAX: usize = 16;
/// Deepest nesting that is read.
const READ_DEPTH_MAX: usize = 128;

pub fn library(lua: &Lua, context: &Context) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let own = context.clone();
    let pack = lua.create_function(move |lua, values: MultiValue| {
        if values.is_empty() {
            return Err(fail(
                lua,
                "bad argument #0 to 'pack' (MessagePack pack needs input.)",
            ));
        }
        let mut out = Vec::new();
        for value in &values {
            write(&own, value, 0, &mut out)?;
        }
        own.charge_bytes(out.len())?;
        lua.create_string(&out)
    })?;
    table.set("pack", pack)?;
    let own = context.clone();
    let unpack = lua.create_function(move |lua, bytes: mlua::String| {
        read_some(lua, &own, &bytes, 0, usize::MAX).map(|(values, last)| (values, 2, last))
    })?;
    table.set("unpack", unpack)?;
    let own = context.clone();
    let one = lua.create_function(move |lua, (bytes, at): (mlua::String, Option<usize>)| {
        with_offset(lua, &own, &bytes, 1, at)
    })?;
    table.set("unpack_one", one)?;
    let own = context.clone();
    type Limited = (mlua::String, usize, Option<usize>);
    let limited = lua.create_function(move |lua, (bytes, limit, at): Limited| {
        with_offset(lua, &own, &bytes, limit, at)
    })?;
    table.set("unpack_limit", limited)?;
    Ok(table)
}

fn write(context: &Context, value: &Value, depth: usize, out: &mut Vec<u8>) -> mlua::Result<()> {
    context.charge(1)?;
    match value {
        Value::String(text) => {
            let text = text.as_bytes();
            context.charge_bytes(text.len())?;
            match text.len() {
                len @ ..32 => out.push(0xa0 | len as u8),
                len => sized(len, [0xd9, 0xda, 0xdb], out),
            }
            out.extend_from_slice(&text);
        }
        Value::Boolean(is_true) => out.push(if *is_true { 0xc3 } else { 0xc2 }),
        Value::Integer(_) | Value::Number(_) => match integer(value) {
            Some(number) => write_integer(number, out),
            None => {
                let number = number_of(value).unwrap_or_default();
                let short = number as f32;
                if f64::from(short) == number {
                    out.push(0xca);
                    out.extend_from_slice(&short.to_be_bytes());
                } else {
                    out.push(0xcb);
                    out.extend_from_slice(&number.to_be_bytes());
                }
            }
        },
        Value::Table(table) if depth < DEPTH_MAX => write_table(context, table, depth + 1, out)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

/// A length of one, two or four bytes after its tag; a tag of 0 cannot be used.
fn sized(len: usize, [tag_1, tag_2, tag_4]: [u8; 3], out: &mut Vec<u8>) {
    match len {
        ..=0xff if tag_1 != 0 => out.extend_from_slice(&[tag_1, len as u8]),
        ..=0xffff => {
            out.push(tag_2);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(tag_4);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

fn write_integer(number: i64, out: &mut Vec<u8>) {
    match number {
        -32..=0x7f => out.push(number as u8),
        0x80..=0xffff_ffff => sized(number as usize, [0xcc, 0xcd, 0xce], out),
        0x1_0000_0000.. => {
            out.push(0xcf);
            out.extend_from_slice(&number.to_be_bytes());
        }
        -0x80..=-33 => out.extend_from_slice(&[0xd0, number as i8 as u8]),
        -0x8000..=-0x81 => {
            out.push(0xd1);
            out.extend_from_slice(&(number as i16).to_be_bytes());
        }
        -0x8000_0000..=-0x8001 => {
            out.push(0xd2);
            out.extend_from_slice(&(number as i32).to_be_bytes());
        }
        _ => {
            out.push(0xd3);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

fn write_table(
    context: &Context,
    table: &Table,
    depth: usize,
    out: &mut Vec<u8>,
) -> mlua::Result<()> {
    let (mut count, mut last, mut is_list) = (0, 0, true);
    for pair in table.pairs::<Value, Value>() {
        context.charge(1)?;
        match integer(&pair?.0) {
            Some(at @ 1..) => last = last.max(at as usize),
            _ => is_list = false,
        }
        count += 1;
    }
    if is_list && last == count {
        match count {
            ..16 => out.push(0x90 | count as u8),
            _ => sized(count, [0, 0xdc, 0xdd], out),
        }
        for at in 1..=count {
            write(context, &table.raw_get::<Value>(at)?, depth, out)?;
        }
        return Ok(());
    }
    match count {
        ..16 => out.push(0x80 | count as u8),
        _ => sized(count, [0, 0xde, 0xdf], out),
    }
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        write(context, &key, depth, out)?;
        write(context, &value, depth, out)?;
    }
    Ok(())
}

/// What the prelude turns into results: a table, the first of its places that counts, and the last.
type Unpacked = (Table, usize, usize);

/// Up to `limit` values from offset `at` on, before them the offset of the next one, or -1 at the end.
fn with_offset(
    lua: &Lua,
    context: &Context,
    bytes: &mlua::String,
    limit: usize,
    at: Option<usize>,
) -> mlua::Result<Unpacked> {
    let (values, last) = read_some(lua, context, bytes, at.unwrap_or(0), limit)?;
    Ok((values, 1, last))
}

/// The same, and the last place of the table.
fn read_some(
    lua: &Lua,
    context: &Context,
    bytes: &mlua::String,
    at: usize,
    limit: usize,
) -> mlua::Result<(Table, usize)> {
    let bytes = bytes.as_bytes();
    let Some(rest) = bytes.get(at..) else {
        let why = format!(
            "Start offset {at} greater than input length {}.",
            bytes.len()
        );
        return Err(fail(lua, why));
    };
    context.charge_bytes(rest.len())?;
    let mut reader = Reader { lua, context, rest };
    let (values, mut count) = (lua.create_table()?, 0usize);
    while !reader.rest.is_empty() && count < limit {
        count += 1;
        // The first place is for the offset.
        values.raw_set(count + 1, reader.value(0)?)?;
    }
    let next = bytes.len() - reader.rest.len();
    values.raw_set(
        1,
        if reader.rest.is_empty() {
            -1
        } else {
            next as i64
        },
    )?;
    Ok((values, count + 1))
}

struct Reader<'a> {
    lua: &'a Lua,
    context: &'a Context,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> mlua::Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            return Err(fail(self.lua, "Missing bytes in input."));
        };
        self.rest = rest;
        Ok(taken)
    }

    /// An unsigned number of `len` bytes.
    fn number(&mut self, len: usize) -> mlua::Result<u64> {
        let bytes = self.take(len)?;
        Ok(bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn string(&mut self, len: usize) -> mlua::Result<Value> {
        let bytes = self.take(len)?;
        self.lua.create_string(bytes).map(Value::String)
    }

    fn value(&mut self, depth: usize) -> mlua::Result<Value> {
        self.context.charge(1)?;
        if depth > READ_DEPTH_MAX {
            return Err(fail(self.lua, "Bad data format in input."));
        }
        let tag = self.number(1)? as u8;
        Ok(match tag {
            ..=0x7f => Value::Integer(i64::from(tag)),
            0xe0.. => Value::Integer(i64::from(tag as i8)),
            0x80..=0x8f => self.map(usize::from(tag & 0x0f), depth)?,
            0x90..=0x9f => self.list(usize::from(tag & 0x0f), depth)?,
            0xa0..=0xbf => self.string(usize::from(tag & 0x1f))?,
            0xc0 => Value::Nil,
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xca => Value::Number(f32::from_bits(self.number(4)? as u32).into()),
            0xcb => Value::Number(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => Value::Number(self.number(1 << (tag - 0xcc))? as f64),
            0xd0..=0xd3 => {
                let len = 1 << (tag - 0xd0);
                let unused_bits = 64 - 8 * len as u32;
                let number = (self.number(len)? << unused_bits) as i64 >> unused_bits;
                Value::Number(number as f64)
            }
            0xc4..=0xc6 => {
                let len = self.number(1 << (tag - 0xc4))?;
                self.string(len as usize)?
            }
            0xd9..=0xdb => {
                let len = self.number(1 << (tag - 0xd9))?;
                self.string(len as usize)?
            }
            0xdc | 0xdd => {
                let len = self.number(2 << (tag - 0xdc))?;
                self.list(len as usize, depth)?
            }
            0xde | 0xdf => {
                let len = self.number(2 << (tag - 0xde))?;
                self.map(len as usize, depth)?
            }
            _ => return Err(fail(self.lua, "Bad data format in input.")),
        })
    }

    fn list(&mut self, len: usize, depth: usize) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        for at in 1..=len {
            let value = self.value(depth + 1)?;
            table.raw_set(at, value)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, len: usize, depth: usize) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        for _ in 0..len {
            let (key, value) = (self.value(depth + 1)?, self.value(depth + 1)?);
            if !matches!(
                key,
                Value::String(_) | Value::Integer(_) | Value::Number(_) | Value::Boolean(_)
            ) {
                return Err(fail(self.lua, "Bad data format in input."));
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}
