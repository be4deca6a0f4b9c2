//! `struct`: values packed as the fields of a C structure, without alignment.

use mlua::{Lua, MultiValue, Table, Value};

use crate::json::number_of;
use crate::{fail, Context};

/// Length of a number in a format without one.
const INT_LEN: usize = 4;

enum Field {
    /// A number of this many bytes.
    Integer(usize, bool),
    Float,
    Double,
    Padding,
    /// Ends with a zero byte.
    String,
    /// This many bytes; 0: the whole string, or as many as the previous number says.
    Bytes(usize),
}

struct Fields<'a> {
    rest: &'a [u8],
    is_little: bool,
}

impl Fields<'_> {
    fn len(&mut self, default: usize) -> usize {
        let digits = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (number, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = std::str::from_utf8(number).unwrap_or_default();
        number.parse().unwrap_or(default)
    }

    fn next(&mut self, lua: &Lua) -> mlua::Result<Option<Field>> {
        loop {
            let Some((first, rest)) = self.rest.split_first() else {
                return Ok(None);
            };
            self.rest = rest;
            return Ok(Some(match first {
                b'<' => {
                    self.is_little = true;
                    continue;
                }
                b'>' => {
                    self.is_little = false;
                    continue;
                }
                b' ' => continue,
                b'b' => Field::Integer(1, true),
                b'B' => Field::Integer(1, false),
                b'h' => Field::Integer(2, true),
                b'H' => Field::Integer(2, false),
                b'l' => Field::Integer(8, true),
                b'L' | b'T' => Field::Integer(8, false),
                b'i' | b'I' => match self.len(INT_LEN) {
                    len @ 1..=8 => Field::Integer(len, *first == b'i'),
                    len => {
                        let why = format!("integral size {len} is larger than limit of 8");
                        return Err(fail(lua, why));
                    }
                },
                b'f' => Field::Float,
                b'd' => Field::Double,
                b'x' => Field::Padding,
                b's' => Field::String,
                b'c' => Field::Bytes(self.len(1)),
                other => {
                    let why = format!("invalid format option '{}'", char::from(*other));
                    return Err(fail(lua, why));
                }
            }));
        }
    }

    fn order(&self, bytes: &mut [u8]) {
        if !self.is_little {
            bytes.reverse();
        }
    }
}

fn pack(
    lua: &Lua,
    context: &Context,
    (format, args): (mlua::String, MultiValue),
) -> mlua::Result<mlua::String> {
    let format = format.as_bytes();
    context.charge(format.len())?;
    let mut fields = Fields {
        rest: &format,
        is_little: true,
    };
    let (mut out, mut args) = (Vec::new(), args.into_iter());
    while let Some(field) = fields.next(lua)? {
        if let Field::Padding = field {
            out.push(0);
            continue;
        }
        let value = args.next().unwrap_or(Value::Nil);
        let number = || match lua.coerce_number(value.clone())? {
            Some(number) => Ok(number),
            None => Err(fail(lua, "bad argument to 'pack' (number expected)")),
        };
        let text = || match lua.coerce_string(value.clone())? {
            Some(text) => Ok(text),
            None => Err(fail(lua, "bad argument to 'pack' (string expected)")),
        };
        match field {
            Field::Integer(len, _) => {
                let number = number()?;
                let bits = if number < 0.0 {
                    number as i64 as u64
                } else {
                    number as u64
                };
                let mut bytes = bits.to_le_bytes();
                fields.order(&mut bytes[..len]);
                out.extend_from_slice(&bytes[..len]);
            }
            Field::Float => {
                let mut bytes = (number()? as f32).to_le_bytes();
                fields.order(&mut bytes);
                out.extend_from_slice(&bytes);
            }
            Field::Double => {
                let mut bytes = number()?.to_le_bytes();
                fields.order(&mut bytes);
                out.extend_from_slice(&bytes);
            }
            Field::String | Field::Bytes(_) => {
                let text = text()?;
                let text = text.as_bytes();
                context.charge_bytes(text.len())?;
                let len = match field {
                    Field::Bytes(len @ 1..) => len,
                    _ => text.len(),
                };
                let Some(text) = text.get(..len) else {
                    return Err(fail(lua, "bad argument to 'pack' (string too short)"));
                };
                out.extend_from_slice(text);
                if let Field::String = field {
                    out.push(0);
                }
            }
            Field::Padding => {}
        }
    }
    lua.create_string(&out)
}

type UnpackArgs = (mlua::String, mlua::String, Option<usize>);

/// What the prelude turns into results: a table, the first of its places that counts, and the last.
fn unpack(lua: &Lua, context: &Context, args: UnpackArgs) -> mlua::Result<(Table, usize, usize)> {
    let (format, data, from) = args;
    let (format, data) = (format.as_bytes(), data.as_bytes());
    context.charge(format.len())?;
    let mut fields = Fields {
        rest: &format,
        is_little: true,
    };
    let mut at = from.unwrap_or(1).saturating_sub(1);
    let (values, mut count) = (lua.create_table()?, 0usize);
    while let Some(field) = fields.next(lua)? {
        let rest = data.get(at..).unwrap_or_default();
        let len = match field {
            Field::Integer(len, _) => len,
            Field::Float => 4,
            Field::Double => 8,
            Field::Padding => 1,
            Field::Bytes(0) => {
                // The number before it is no result.
                let len = number_of(&values.raw_get(count)?);
                count = count.saturating_sub(1);
                len.map_or(0, |len| len.max(0.0) as usize)
            }
            Field::Bytes(len) => len,
            Field::String => match rest.iter().position(|byte| *byte == 0) {
                Some(len) => len + 1,
                None => return Err(fail(lua, "unfinished string in data")),
            },
        };
        let Some(bytes) = rest.get(..len) else {
            return Err(fail(
                lua,
                "bad argument #2 to 'unpack' (data string too short)",
            ));
        };
        at += len;
        context.charge_bytes(len)?;
        let mut word = [0; 8];
        if len <= 8 {
            word[..len].copy_from_slice(bytes);
            fields.order(&mut word[..len]);
        }
        let value = match field {
            Field::Padding => continue,
            Field::Integer(len, is_signed) => {
                let unused_bits = 64 - 8 * len as u32;
                let bits = u64::from_le_bytes(word) << unused_bits;
                Value::Number(match is_signed {
                    true => (bits as i64 >> unused_bits) as f64,
                    false => (bits >> unused_bits) as f64,
                })
            }
            Field::Float => {
                let bits = u64::from_le_bytes(word) as u32;
                Value::Number(f32::from_bits(bits).into())
            }
            Field::Double => Value::Number(f64::from_le_bytes(word)),
            Field::String => Value::String(lua.create_string(&bytes[..len - 1])?),
            Field::Bytes(_) => Value::String(lua.create_string(bytes)?),
        };
        count += 1;
        values.raw_set(count, value)?;
    }
    values.raw_set(count + 1, at + 1)?;
    Ok((values, 1, count + 1))
}

fn size(lua: &Lua, context: &Context, format: &mlua::String) -> mlua::Result<usize> {
    let format = format.as_bytes();
    context.charge(format.len())?;
    let mut fields = Fields {
        rest: &format,
        is_little: true,
    };
    let mut total = 0usize;
    while let Some(field) = fields.next(lua)? {
        total = total.saturating_add(match field {
            Field::Integer(len, _) => len,
            Field::Bytes(len @ 1..) => len,
            Field::Float => 4,
            Field::Double => 8,
            Field::Padding => 1,
            Field::String | Field::Bytes(_) => return Err(fail(lua, "variable-length format")),
        });
    }
    Ok(total)
}

pub fn library(lua: &Lua, context: &Context) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let own = context.clone();
    table.set(
        "pack",
        lua.create_function(move |lua, args| pack(lua, &own, args))?,
    )?;
    let own = context.clone();
    table.set(
        "unpack",
        lua.create_function(move |lua, args| unpack(lua, &own, args))?,
    )?;
    let own = context.clone();
    let function =
        lua.create_function(move |lua, format: mlua::String| size(lua, &own, &format))?;
    table.set("size", function)?;
    Ok(table)
}
