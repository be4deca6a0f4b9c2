//! Replies as Lua values, and Lua values as replies.

use inband_resp::reply::Reply;
use mlua::{Error, Lua, Table, Value};

use crate::budget::Over;
use crate::{sha1_hex, Context};

/// Deepest table in a reply.
const DEPTH_MAX: usize = 64;

/// Text of a Lua string; replies with a text are UTF-8.
pub fn text(string: &mlua::String) -> String {
    String::from_utf8_lossy(&string.as_bytes()).into_owned()
}

/// A table with one field.
pub fn table_of(lua: &Lua, field: &str, text: &[u8]) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.raw_set(field, lua.create_string(text)?)?;
    Ok(Value::Table(table))
}

/// What `redis.call` returns.
pub fn to_value(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    match reply {
        Reply::Ok => table_of(lua, "ok", b"OK"),
        Reply::Status(text) => table_of(lua, "ok", text.as_bytes()),
        Reply::Error(text) => table_of(lua, "err", text.as_bytes()),
        Reply::Integer(number) => Ok(Value::Number(number as f64)),
        Reply::Nil | Reply::NilArray => Ok(Value::Boolean(false)),
        Reply::Bulk(bytes) => Ok(Value::String(lua.create_string(&bytes)?)),
        Reply::Array(items) => list(lua, items.into_iter()),
        Reply::Double(text) => Ok(Value::String(lua.create_string(&text)?)),
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            list(lua, pairs.into_iter().flat_map(|(key, value)| [key, value]))
        }
    }
}

fn list(lua: &Lua, items: impl Iterator<Item = Reply>) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    for (at, item) in items.enumerate() {
        table.raw_set(at + 1, to_value(lua, item)?)?;
    }
    Ok(Value::Table(table))
}

/// The reply of a script that returns this value; `room` is what remains of its length.
pub fn of_value(
    value: &Value,
    context: &Context,
    room: &mut usize,
    depth: usize,
) -> mlua::Result<Reply> {
    context.charge(1)?;
    use_room(size_of::<Reply>(), context, room)?;
    if depth > DEPTH_MAX {
        return Ok(Reply::error("ERR reached lua stack limit"));
    }
    let reply = match value {
        Value::String(string) => Reply::Bulk(string.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Integer(*number),
        Value::Number(number) => Reply::Integer(*number as i64),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => match special(table)? {
            Some(reply) => reply,
            None => {
                let mut items = Vec::new();
                loop {
                    let item: Value = table.raw_get(items.len() + 1)?;
                    if item.is_nil() {
                        return Ok(Reply::Array(items));
                    }
                    items.push(of_value(&item, context, room, depth + 1)?);
                }
            }
        },
        _ => Reply::Nil,
    };
    use_room(reply.len_bytes() - size_of::<Reply>(), context, room)?;
    Ok(reply)
}

fn use_room(bytes: usize, context: &Context, room: &mut usize) -> mlua::Result<()> {
    match room.checked_sub(bytes) {
        Some(left) => {
            *room = left;
            Ok(())
        }
        None => Err(Error::external(context.budget.end(Over::Reply))),
    }
}

/// A status or an error.
fn special(table: &Table) -> mlua::Result<Option<Reply>> {
    if let Value::String(error) = table.raw_get("err")? {
        let error = text(&error);
        let error = error.strip_prefix('-').unwrap_or(&error);
        return Ok(Some(Reply::error(error.to_owned())));
    }
    if let Value::String(status) = table.raw_get("ok")? {
        let status = text(&status).replace(['\r', '\n'], " ");
        return Ok(Some(Reply::Status(status.into())));
    }
    Ok(None)
}

/// `redis.error_reply`, `redis.status_reply` and `redis.sha1hex`.
pub fn add(lua: &Lua, context: &Context, native: &Table) -> mlua::Result<()> {
    let wrong = b"ERR wrong number or type of arguments";
    let error_reply = lua.create_function(move |lua, why: Value| {
        let Value::String(why) = why else {
            return table_of(lua, "err", wrong);
        };
        let why = text(&why);
        let code = match why.strip_prefix('-') {
            Some(why) => why.to_owned(),
            None => why,
        };
        let is_code_alone = !code.contains(' ');
        let prefix = if is_code_alone { "ERR " } else { "" };
        table_of(lua, "err", format!("{prefix}{code}").as_bytes())
    })?;
    native.set("error_reply", error_reply)?;
    let status_reply = lua.create_function(move |lua, status: Value| match status {
        Value::String(status) => table_of(lua, "ok", &status.as_bytes()),
        _ => table_of(lua, "err", wrong),
    })?;
    native.set("status_reply", status_reply)?;
    let own = context.clone();
    let sha1hex = lua.create_function(move |_, text: mlua::String| {
        own.charge(text.as_bytes().len())?;
        Ok(sha1_hex(&text.as_bytes()))
    })?;
    native.set("sha1hex", sha1hex)
}
