//! `cjson`: JSON as Redis's library reads and writes it.

use mlua::{Function, LightUserData, Lua, Table, Value};

use crate::{fail, Context};

const DEPTH_MAX: usize = 1000;
/// A list may have this many times as many places as values, or this many places.
const SPARSE_RATIO: usize = 2;
const SPARSE_SAFE: usize = 10;
/// Integers below this have at most 14 digits, which is the precision of other numbers.
const EXACT_MAX: f64 = 1e14;

pub fn library(lua: &Lua, context: &Context) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let format: Function = lua.globals().get::<Table>("string")?.get("format")?;
    let own = context.clone();
    let encode = lua.create_function(move |lua, value: Value| {
        let mut writer = Writer {
            lua,
            context: &own,
            format: &format,
            out: Vec::new(),
        };
        writer.value(&value, 0)?;
        own.charge_bytes(writer.out.len())?;
        lua.create_string(&writer.out)
    })?;
    table.set("encode", encode)?;
    let own = context.clone();
    let decode = lua.create_function(move |lua, text: mlua::String| {
        let text = text.as_bytes();
        own.charge_bytes(text.len())?;
        let mut reader = Reader {
            lua,
            context: &own,
            text: &text,
            at: 0,
        };
        let value = reader.value(0)?;
        match reader.token()? {
            (Token::End, _) => Ok(value),
            found => Err(reader.expected("the end", &found)),
        }
    })?;
    table.set("decode", decode)?;
    table.set(
        "null",
        Value::LightUserData(LightUserData(std::ptr::null_mut())),
    )?;
    Ok(table)
}

/// Any number.
pub fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

pub fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(*number),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
            Some(*number as i64)
        }
        _ => None,
    }
}

struct Writer<'a> {
    lua: &'a Lua,
    context: &'a Context,
    format: &'a Function,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn fail(&self, what: &str, why: &str) -> mlua::Error {
        fail(self.lua, format!("Cannot serialise {what}: {why}"))
    }

    fn value(&mut self, value: &Value, depth: usize) -> mlua::Result<()> {
        self.context.charge(1)?;
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => {
                self.out.extend_from_slice(b"null");
            }
            Value::Boolean(is_true) => self.out.extend_from_slice(match is_true {
                true => b"true",
                false => b"false",
            }),
            Value::String(text) => self.string(&text.as_bytes())?,
            Value::Integer(_) | Value::Number(_) => self.number(value)?,
            Value::Table(table) => self.table(table, depth + 1)?,
            other => return Err(self.fail(other.type_name(), "type not supported")),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> mlua::Result<()> {
        let number = number_of(value).unwrap_or_default();
        if !number.is_finite() {
            return Err(self.fail("number", "must not be NaN or Inf"));
        }
        if number.fract() == 0.0 && number.abs() < EXACT_MAX {
            self.out
                .extend_from_slice((number as i64).to_string().as_bytes());
        } else {
            let text: mlua::String = self.format.call(("%.14g", number))?;
            self.out.extend_from_slice(&text.as_bytes());
        }
        Ok(())
    }

    fn string(&mut self, text: &[u8]) -> mlua::Result<()> {
        self.context.charge_bytes(text.len())?;
        self.out.push(b'"');
        for byte in text {
            let escaped: &[u8] = match byte {
                b'"' => b"\\\"",
                b'\\' => b"\\\\",
                b'/' => b"\\/",
                8 => b"\\b",
                12 => b"\\f",
                b'\n' => b"\\n",
                b'\r' => b"\\r",
                b'\t' => b"\\t",
                0..=31 | 127 => {
                    self.out
                        .extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                    continue;
                }
                _ => std::slice::from_ref(byte),
            };
            self.out.extend_from_slice(escaped);
        }
        self.out.push(b'"');
        Ok(())
    }

    /// The number of places if the table is a list that is not empty.
    fn list_len(&self, table: &Table) -> mlua::Result<Option<usize>> {
        let (mut len, mut items) = (0, 0);
        for pair in table.pairs::<Value, Value>() {
            self.context.charge(1)?;
            match integer(&pair?.0) {
                Some(at @ 1..) => len = len.max(at as usize),
                _ => return Ok(None),
            }
            items += 1;
        }
        if len > items * SPARSE_RATIO && len > SPARSE_SAFE {
            return Err(self.fail("table", "excessively sparse array"));
        }
        Ok((len > 0).then_some(len))
    }

    fn table(&mut self, table: &Table, depth: usize) -> mlua::Result<()> {
        if depth > DEPTH_MAX {
            let why = format!("Cannot serialise, excessively nested ({depth})");
            return Err(fail(self.lua, why));
        }
        if let Some(len) = self.list_len(table)? {
            self.out.push(b'[');
            for at in 1..=len {
                if at > 1 {
                    self.out.push(b',');
                }
                self.value(&table.raw_get::<Value>(at)?, depth)?;
            }
            self.out.push(b']');
            return Ok(());
        }
        self.out.push(b'{');
        let mut is_first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.string(&text.as_bytes())?,
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.number(&key)?;
                    self.out.push(b'"');
                }
                _ => return Err(self.fail("table", "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Colon,
    Comma,
    String(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    End,
    Invalid(&'static str),
}

impl Token {
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::String(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::End => "T_END",
            Token::Invalid(why) => why,
        }
    }
}

struct Reader<'a> {
    lua: &'a Lua,
    context: &'a Context,
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn expected(&self, what: &str, (found, at): &(Token, usize)) -> mlua::Error {
        let (found, at) = (found.name(), at + 1);
        let why = format!("Expected {what} but found {found} at character {at}");
        fail(self.lua, why)
    }

    /// The next token and where it begins.
    fn token(&mut self) -> mlua::Result<(Token, usize)> {
        let rest = &self.text[self.at..];
        let is_space = |byte: &u8| b" \t\r\n".contains(byte);
        self.at += rest.iter().take_while(|byte| is_space(byte)).count();
        let start = self.at;
        let rest = &self.text[start..];
        let words: [(&[u8], Token); 9] = [
            (b"{", Token::ObjectBegin),
            (b"}", Token::ObjectEnd),
            (b"[", Token::ArrayBegin),
            (b"]", Token::ArrayEnd),
            (b":", Token::Colon),
            (b",", Token::Comma),
            (b"true", Token::Boolean(true)),
            (b"false", Token::Boolean(false)),
            (b"null", Token::Null),
        ];
        for (word, token) in words {
            if rest.starts_with(word) {
                self.at += word.len();
                return Ok((token, start));
            }
        }
        let token = match rest.first() {
            None => Token::End,
            Some(b'"') => self.string()?,
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Token::Invalid("invalid token"),
        };
        Ok((token, start))
    }

    fn number(&mut self) -> Token {
        let rest = &self.text[self.at..];
        let is_of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
        let len = rest.iter().take_while(|byte| is_of_number(byte)).count();
        let text = std::str::from_utf8(&rest[..len]).unwrap_or_default();
        match text.parse() {
            Ok(number) => {
                self.at += len;
                Token::Number(number)
            }
            Err(_) => Token::Invalid("invalid number"),
        }
    }

    fn string(&mut self) -> mlua::Result<Token> {
        let mut out = Vec::new();
        let mut at = self.at + 1;
        loop {
            let Some(byte) = self.text.get(at) else {
                return Ok(Token::Invalid("unexpected end of string"));
            };
            at += 1;
            match byte {
                b'"' => break,
                b'\\' => {
                    let escape = self.text.get(at).copied().unwrap_or(0);
                    at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' => out.push(escape),
                        b'b' => out.push(8),
                        b'f' => out.push(12),
                        b'n' => out.push(b'\n'),
                        b'r' => out.push(b'\r'),
                        b't' => out.push(b'\t'),
                        b'u' => match self.code_point(at) {
                            Some((code, end)) => {
                                let mut bytes = [0; 4];
                                out.extend_from_slice(code.encode_utf8(&mut bytes).as_bytes());
                                at = end;
                            }
                            None => return Ok(Token::Invalid("invalid unicode escape code")),
                        },
                        _ => return Ok(Token::Invalid("invalid escape code")),
                    }
                }
                other => out.push(*other),
            }
        }
        self.at = at;
        Ok(Token::String(out))
    }

    fn code_unit(&self, at: usize) -> Option<u32> {
        let digits = self.text.get(at..at + 4)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    }

    /// The character of the escape whose digits are at `at`, and its end.
    fn code_point(&self, at: usize) -> Option<(char, usize)> {
        let high = self.code_unit(at)?;
        if !(0xd800..0xdc00).contains(&high) {
            return Some((char::from_u32(high)?, at + 4));
        }
        if self.text.get(at + 4..at + 6)? != b"\\u" {
            return None;
        }
        let low = self.code_unit(at + 6)?.checked_sub(0xdc00)?;
        let code = 0x10000 + ((high - 0xd800) << 10) + low;
        Some((char::from_u32(code)?, at + 10))
    }

    fn value(&mut self, depth: usize) -> mlua::Result<Value> {
        let token = self.token()?;
        self.value_of(token, depth)
    }

    fn value_of(&mut self, token: (Token, usize), depth: usize) -> mlua::Result<Value> {
        self.context.charge(1)?;
        if depth > DEPTH_MAX {
            let why = format!("Found too many nested data structures ({depth})");
            return Err(fail(self.lua, why));
        }
        Ok(match token.0 {
            Token::String(text) => Value::String(self.lua.create_string(&text)?),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(is_true) => Value::Boolean(is_true),
            Token::Null => Value::LightUserData(LightUserData(std::ptr::null_mut())),
            Token::ArrayBegin => self.array(depth + 1)?,
            Token::ObjectBegin => self.object(depth + 1)?,
            _ => return Err(self.expected("value", &token)),
        })
    }

    fn array(&mut self, depth: usize) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        let mut len = 0;
        self.items(&Token::ArrayEnd, "comma or array end", |reader, token| {
            len += 1;
            table.raw_set(len, reader.value_of(token, depth)?)
        })?;
        Ok(Value::Table(table))
    }

    fn object(&mut self, depth: usize) -> mlua::Result<Value> {
        let table = self.lua.create_table()?;
        self.items(&Token::ObjectEnd, "comma or object end", |reader, token| {
            let Token::String(key) = &token.0 else {
                return Err(reader.expected("object key string", &token));
            };
            let key = reader.lua.create_string(key)?;
            let colon = reader.token()?;
            if colon.0 != Token::Colon {
                return Err(reader.expected("colon", &colon));
            }
            table.raw_set(key, reader.value(depth)?)
        })?;
        Ok(Value::Table(table))
    }

    /// Reads items with commas between them, up to `end`. `read` gets the first token of each.
    fn items(
        &mut self,
        end: &Token,
        expected: &str,
        mut read: impl FnMut(&mut Self, (Token, usize)) -> mlua::Result<()>,
    ) -> mlua::Result<()> {
        let mut token = self.token()?;
        if token.0 == *end {
            return Ok(());
        }
        loop {
            read(self, token)?;
            let after = self.token()?;
            match &after.0 {
                Token::Comma => token = self.token()?,
                found if found == end => return Ok(()),
                _ => return Err(self.expected(expected, &after)),
            }
        }
    }
}
