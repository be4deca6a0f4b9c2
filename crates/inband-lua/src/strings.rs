//! The functions of `string` that match patterns: Lua's own can run for very long without an instruction of the script.

use mlua::{Function, Lua, MultiValue, Table, Value};

use crate::pattern::{Capture, Matcher, PatternError};
use crate::{fail, results, Calls, Context};

/// Bytes that have a meaning in patterns.
const SPECIALS: &[u8] = b"^$*+?.([%-";

fn error_of(lua: &Lua, error: PatternError) -> mlua::Error {
    match error {
        PatternError::Malformed(why) => fail(lua, why),
        PatternError::Over(over) => mlua::Error::external(over),
    }
}

fn value_of(lua: &Lua, capture: Capture<'_>) -> mlua::Result<Value> {
    match capture {
        Capture::Bytes(bytes) => lua.create_string(bytes).map(Value::String),
        Capture::Position(at) => Ok(Value::Integer(at as i64)),
    }
}

/// A start index as an offset; negative ones count from the end.
fn offset(init: Option<f64>, len: usize) -> usize {
    let init = init.unwrap_or(1.0);
    let from_end = if init < 0.0 {
        len as f64 + init + 1.0
    } else {
        init
    };
    (from_end.max(1.0) as usize - 1).min(len)
}

fn find_plain(
    context: &Context,
    subject: &[u8],
    wanted: &[u8],
    from: usize,
) -> mlua::Result<Option<usize>> {
    if wanted.is_empty() {
        return Ok(Some(from));
    }
    for start in from..=subject.len().saturating_sub(wanted.len()) {
        context.charge(1)?;
        if subject[start] == wanted[0] {
            context.charge_bytes(wanted.len())?;
            if subject[start..].starts_with(wanted) {
                return Ok(Some(start));
            }
        }
    }
    Ok(None)
}

type FindArgs = (mlua::String, mlua::String, Option<f64>, Option<bool>);

/// `string.find` and `string.match`.
fn find(lua: &Lua, context: &Context, args: FindArgs, is_find: bool) -> mlua::Result<MultiValue> {
    let (subject, pattern, init, is_plain) = args;
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let from = offset(init, subject.len());
    let has_specials = pattern.iter().any(|byte| SPECIALS.contains(byte));
    if is_find && (is_plain == Some(true) || !has_specials) {
        if subject.len() - from < pattern.len() {
            return results(lua, Value::Nil);
        }
        return match find_plain(context, &subject, &pattern, from)? {
            Some(start) => results(lua, (start + 1, start + pattern.len())),
            None => results(lua, Value::Nil),
        };
    }
    let is_anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(&subject, &pattern, &context.budget);
    let mut start = from;
    loop {
        let end = matcher.match_at(start, usize::from(is_anchored));
        if let Some(end) = end.map_err(|e| error_of(lua, e))? {
            let captures = matcher.captures(start, end, !is_find);
            let captures = captures.map_err(|e| error_of(lua, e))?;
            let mut found = MultiValue::new();
            if is_find {
                found.push_back(Value::Integer(start as i64 + 1));
                found.push_back(Value::Integer(end as i64));
            }
            for capture in captures {
                found.push_back(value_of(lua, capture)?);
            }
            return Ok(found);
        }
        if is_anchored || start >= subject.len() {
            return results(lua, Value::Nil);
        }
        start += 1;
    }
}

fn gmatch(
    lua: &Lua,
    context: Context,
    subject: &mlua::String,
    pattern: &mlua::String,
) -> mlua::Result<Function> {
    let (subject, pattern) = (subject.as_bytes().to_vec(), pattern.as_bytes().to_vec());
    context.charge_bytes(subject.len() + pattern.len())?;
    let mut next = 0;
    lua.create_function_mut(move |lua, ()| {
        let mut matcher = Matcher::new(&subject, &pattern, &context.budget);
        while next <= subject.len() {
            let start = next;
            let end = matcher.match_at(start, 0).map_err(|e| error_of(lua, e))?;
            let Some(end) = end else {
                next += 1;
                continue;
            };
            next = if end == start { end + 1 } else { end };
            let captures = matcher.captures(start, end, true);
            let mut found = MultiValue::new();
            for capture in captures.map_err(|e| error_of(lua, e))? {
                found.push_back(value_of(lua, capture)?);
            }
            return Ok(found);
        }
        results(lua, Value::Nil)
    })
}

/// What replaces a match.
enum Replacement {
    Text(Vec<u8>),
    Table(Table),
    Function(Function),
}

impl Replacement {
    fn of(lua: &Lua, value: Value) -> mlua::Result<Self> {
        Ok(match value {
            Value::Table(table) => Replacement::Table(table),
            Value::Function(function) => Replacement::Function(function),
            other => match lua.coerce_string(other)? {
                Some(text) => Replacement::Text(text.as_bytes().to_vec()),
                None => {
                    let why = "bad argument #3 to 'gsub' (string/function/table expected)";
                    return Err(fail(lua, why));
                }
            },
        })
    }

    /// Append what replaces a match with these captures.
    fn append(
        &self,
        lua: &Lua,
        context: &Context,
        calls: &Calls,
        whole: &[u8],
        captures: &[Capture<'_>],
        out: &mut Vec<u8>,
    ) -> mlua::Result<()> {
        let value = match self {
            Replacement::Text(text) => {
                return append_text(lua, context, text, whole, captures, out)
            }
            Replacement::Table(table) => calls.index(table, value_of(lua, captures[0])?)?,
            Replacement::Function(function) => {
                let mut args = MultiValue::new();
                for capture in captures {
                    args.push_back(value_of(lua, *capture)?);
                }
                calls.call(function, args)?
            }
        };
        match value {
            Value::Nil | Value::Boolean(false) => out.extend_from_slice(whole),
            Value::String(_) | Value::Integer(_) | Value::Number(_) => {
                if let Some(text) = lua.coerce_string(value)? {
                    out.extend_from_slice(&text.as_bytes());
                }
            }
            other => {
                let why = format!("invalid replacement value (a {})", other.type_name());
                return Err(fail(lua, why));
            }
        }
        Ok(())
    }
}

fn append_text(
    lua: &Lua,
    context: &Context,
    text: &[u8],
    whole: &[u8],
    captures: &[Capture<'_>],
    out: &mut Vec<u8>,
) -> mlua::Result<()> {
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match (byte, if *byte == b'%' { bytes.next() } else { None }) {
            // Charged before it is copied: one match can ask for any amount.
            (b'%', Some(b'0')) => {
                context.charge_bytes(whole.len())?;
                out.extend_from_slice(whole);
            }
            (b'%', Some(digit)) if digit.is_ascii_digit() => {
                match captures.get(usize::from(digit - b'1')) {
                    Some(Capture::Bytes(bytes)) => {
                        context.charge_bytes(bytes.len())?;
                        out.extend_from_slice(bytes);
                    }
                    Some(Capture::Position(at)) => out.extend_from_slice(at.to_string().as_bytes()),
                    None => return Err(fail(lua, "invalid capture index")),
                }
            }
            (b'%', Some(other)) => out.push(*other),
            (b'%', None) => out.push(0),
            (byte, _) => out.push(*byte),
        }
    }
    Ok(())
}

type GsubArgs = (mlua::String, mlua::String, Value, Option<f64>);

fn gsub(
    lua: &Lua,
    context: &Context,
    calls: &Calls,
    args: GsubArgs,
) -> mlua::Result<(mlua::String, usize)> {
    let (subject, pattern, replacement, times_max) = args;
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let replacement = Replacement::of(lua, replacement)?;
    let times_max = times_max.map_or(usize::MAX, |times| times.max(0.0) as usize);
    let is_anchored = pattern.first() == Some(&b'^');
    let mut matcher = Matcher::new(&subject, &pattern, &context.budget);
    let (mut out, mut at, mut times) = (Vec::new(), 0, 0);
    while times < times_max {
        let end = matcher.match_at(at, usize::from(is_anchored));
        let end = end.map_err(|e| error_of(lua, e))?;
        if let Some(end) = end {
            times += 1;
            let captures = matcher.captures(at, end, true);
            let captures = captures.map_err(|e| error_of(lua, e))?;
            let before = out.len();
            let whole = &subject[at..end];
            replacement.append(lua, context, calls, whole, &captures, &mut out)?;
            context.charge_bytes(out.len() - before)?;
        }
        match end {
            Some(end) if end > at => at = end,
            _ if at < subject.len() => {
                out.push(subject[at]);
                at += 1;
            }
            _ => break,
        }
        if is_anchored {
            break;
        }
    }
    context.charge_bytes(subject.len())?;
    out.extend_from_slice(&subject[at.min(subject.len())..]);
    Ok((lua.create_string(&out)?, times))
}

/// The functions that replace those of Lua's `string`.
pub fn library(lua: &Lua, context: &Context, calls: &Calls) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (name, is_find) in [("find", true), ("match", false)] {
        let own = context.clone();
        let function = lua.create_function(move |lua, args| find(lua, &own, args, is_find))?;
        table.set(name, function)?;
    }
    let own = context.clone();
    let function = lua.create_function(
        move |lua, (subject, pattern): (mlua::String, mlua::String)| {
            gmatch(lua, own.clone(), &subject, &pattern)
        },
    )?;
    table.set("gmatch", function)?;
    let (own, calls) = (context.clone(), calls.clone());
    let function = lua.create_function(move |lua, args| gsub(lua, &own, &calls, args))?;
    table.set("gsub", function)?;
    Ok(table)
}
