//! Strings as arrays of bits: `GETBIT`, `SETBIT`, `BITCOUNT`, `BITPOS`, `BITOP`, `BITFIELD` and `BITFIELD_RO`. The first bit
//! is the highest one of the first byte.

use std::borrow::Cow;

use inband_resp::reply::Reply;
use inband_resp::request::Args;

use crate::command::{Command, Strings};
use crate::engine::value_too_long;
use crate::events::EventClass;
use crate::keyspace::Keys;
use crate::parse::{integer, strict_integer, SYNTAX_ERROR};
use crate::types::{Kind, Work, WRONG_TYPE};

/// Redis takes no offset behind this many bits, which is more than a value may have.
const OFFSET_END: i64 = 1 << 32;
const BITS_PER_BYTE: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the variants are the commands
pub enum BitOp {
    GetBit,
    SetBit,
    BitCount,
    BitPos,
    BitField,
    BitFieldRo,
}

impl BitOp {
    /// In the order of their numbers in the log; never reorder, only append.
    pub(crate) const ALL: [BitOp; 6] = [
        BitOp::GetBit,
        BitOp::SetBit,
        BitOp::BitCount,
        BitOp::BitPos,
        BitOp::BitField,
        BitOp::BitFieldRo,
    ];

    /// Changes nothing. `BITFIELD` may be a read, but the log does not look at its arguments.
    pub fn only_reads(self) -> bool {
        !matches!(self, BitOp::SetBit | BitOp::BitField)
    }

    /// Whether the reply has a number for each of many subcommands.
    pub fn replies_with_array(self) -> bool {
        matches!(self, BitOp::BitField | BitOp::BitFieldRo)
    }
}

/// How `BITOP` combines bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BitLogic {
    And,
    Or,
    Xor,
    Not,
}

impl BitLogic {
    /// In the order of their numbers in the log; never reorder, only append.
    pub(crate) const ALL: [BitLogic; 4] =
        [BitLogic::And, BitLogic::Or, BitLogic::Xor, BitLogic::Not];

    fn name(self) -> &'static [u8] {
        match self {
            BitLogic::And => b"AND",
            BitLogic::Or => b"OR",
            BitLogic::Xor => b"XOR",
            BitLogic::Not => b"NOT",
        }
    }

    fn of_bytes(self, a: u8, b: u8) -> u8 {
        match self {
            BitLogic::And => a & b,
            BitLogic::Or => a | b,
            BitLogic::Xor => a ^ b,
            // It has one operand.
            BitLogic::Not => a,
        }
    }
}

type Checked<T> = Result<T, Reply>;

fn error<T>(why: &'static str) -> Checked<T> {
    Err(Reply::error(why))
}

/// Checks what Redis checks before it looks at the key.
pub fn check(op: BitOp, args: &Strings<'_>) -> Checked<()> {
    let args: Vec<&[u8]> = args.iter().collect();
    match op {
        BitOp::GetBit => drop(offset(args[0], None)?),
        BitOp::SetBit => drop((offset(args[0], None)?, bit_of(args[1])?)),
        BitOp::BitPos => drop(wanted(args[0])?),
        BitOp::BitCount => {}
        BitOp::BitField | BitOp::BitFieldRo => {
            let fields = fields(&args)?;
            if op == BitOp::BitFieldRo && fields.iter().any(Field::writes) {
                return error("ERR BITFIELD_RO only supports the GET subcommand");
            }
        }
    }
    Ok(())
}

/// `#N` is the Nth field of this many bits.
fn offset(arg: &[u8], bits: Option<u32>) -> Checked<u64> {
    let (text, factor) = match (arg, bits) {
        ([b'#', text @ ..], Some(bits)) => (text, i64::from(bits)),
        _ => (arg, 1),
    };
    let offset = strict_integer(text).and_then(|number| number.checked_mul(factor));
    match offset {
        Some(offset @ 0..OFFSET_END) => Ok(offset as u64),
        _ => error("ERR bit offset is not an integer or out of range"),
    }
}

fn bit_of(arg: &[u8]) -> Checked<bool> {
    match arg {
        b"0" => Ok(false),
        b"1" => Ok(true),
        _ => error("ERR bit is not an integer or out of range"),
    }
}

/// The bit that `BITPOS` looks for.
fn wanted(arg: &[u8]) -> Checked<bool> {
    match integer(arg)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => error("ERR The bit argument must be 1 or 0."),
    }
}

/// Executes a command whose key holds a string or nothing.
pub fn execute(
    keys: &mut dyn Keys,
    work: &Work,
    op: BitOp,
    key: &[u8],
    args: &Strings<'_>,
) -> Result<Reply, rocksdb::Error> {
    let args: Vec<&[u8]> = args.iter().collect();
    let limit = keys.grown_len_bytes_max();
    let record = keys.get(key)?;
    let (value, expire_at_ms) = record.map_or((None, 0), |r| (Some(r.value), r.expire_at_ms));
    // The others look at a few bits only, and copy a value only to change it, which has limits of its own.
    let visited = match op {
        BitOp::BitCount | BitOp::BitPos => value.map_or(0, <[u8]>::len),
        _ => 0,
    };
    if let Err(reply) = work.visit(1, visited) {
        return Ok(reply);
    }
    let read = match op {
        BitOp::GetBit => offset(args[0], None).map(|at| bit(value.unwrap_or_default(), at)),
        BitOp::BitCount => value.map_or(Ok(0), |value| bit_count(value, &args)),
        BitOp::BitPos => bit_pos(value, &args),
        BitOp::SetBit | BitOp::BitField | BitOp::BitFieldRo => {
            let value = Cow::Borrowed(value.unwrap_or_default());
            let written = match op {
                BitOp::SetBit => set_bit(value, &args, limit),
                _ => bit_field(value, &args, limit),
            };
            let written = match written {
                Err(reply) => return Ok(reply),
                Ok(written) => written,
            };
            if let Some(value) = written.value {
                keys.put(key, expire_at_ms, &value)?;
            }
            if written.is_changed {
                keys.notify(EventClass::String, "setbit", key);
            }
            return Ok(written.reply);
        }
    };
    Ok(read.map_or_else(|reply| reply, Reply::Integer))
}

/// What is to be written, and the reply.
struct Written {
    value: Option<Vec<u8>>,
    /// Not only zeros were appended.
    is_changed: bool,
    reply: Reply,
}

fn bit(value: &[u8], at: u64) -> i64 {
    let byte = value.get((at / BITS_PER_BYTE) as usize).copied();
    i64::from(byte.unwrap_or(0) >> (BITS_PER_BYTE - 1 - at % BITS_PER_BYTE) & 1)
}

fn put_bit(value: &mut [u8], at: u64, is_set: bool) {
    let mask = 1 << (BITS_PER_BYTE - 1 - at % BITS_PER_BYTE);
    if let Some(byte) = value.get_mut((at / BITS_PER_BYTE) as usize) {
        *byte = if is_set { *byte | mask } else { *byte & !mask };
    }
}

/// The value if it is to be written.
fn owned(value: Cow<[u8]>) -> Option<Vec<u8>> {
    match value {
        Cow::Borrowed(_) => None,
        Cow::Owned(value) => Some(value),
    }
}

/// Makes room for a bit. Returns whether there was none.
fn make_room(value: &mut Cow<[u8]>, last: u64, limit: usize) -> Checked<bool> {
    let len = (last / BITS_PER_BYTE) as usize + 1;
    if len > limit {
        return Err(value_too_long(len, limit));
    }
    let is_longer = len > value.len();
    if is_longer {
        value.to_mut().resize(len, 0);
    }
    Ok(is_longer)
}

fn set_bit(mut value: Cow<[u8]>, args: &[&[u8]], limit: usize) -> Checked<Written> {
    let (at, is_set) = (offset(args[0], None)?, bit_of(args[1])?);
    let is_longer = make_room(&mut value, at, limit)?;
    let before = bit(&value, at);
    let is_changed = is_longer || before != i64::from(is_set);
    if is_changed {
        put_bit(value.to_mut(), at, is_set);
    }
    Ok(Written {
        value: owned(value),
        is_changed,
        reply: Reply::Integer(before),
    })
}

/// What a range counts in.
fn is_in_bits(arg: Option<&&[u8]>) -> Checked<bool> {
    match arg.map(|unit| unit.to_ascii_uppercase()).as_deref() {
        None | Some(b"BYTE") => Ok(false),
        Some(b"BIT") => Ok(true),
        Some(_) => error(SYNTAX_ERROR),
    }
}

/// The bits of a range, from the first to the one behind the last.
fn range(len_bytes: usize, is_in_bits: bool, start: i64, end: i64) -> (u64, u64) {
    let factor = if is_in_bits { 1 } else { BITS_PER_BYTE as i64 };
    let len = (len_bytes as u64 * BITS_PER_BYTE) as i64 / factor;
    let from_start = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let (start, end) = (from_start(start), from_start(end).min(len - 1));
    if start > end {
        return (0, 0);
    }
    ((start * factor) as u64, ((end + 1) * factor) as u64)
}

fn bit_count(value: &[u8], args: &[&[u8]]) -> Checked<i64> {
    let (from, to) = match args {
        [] => (0, value.len() as u64 * BITS_PER_BYTE),
        [start, end, unit @ ..] if unit.len() <= 1 => {
            let (start, end) = (integer(start)?, integer(end)?);
            if start < 0 && end < 0 && start > end {
                return Ok(0);
            }
            range(value.len(), is_in_bits(unit.first())?, start, end)
        }
        _ => return error(SYNTAX_ERROR),
    };
    let first_whole = from.next_multiple_of(BITS_PER_BYTE).min(to);
    let last_whole = (to - to % BITS_PER_BYTE).max(first_whole);
    let bytes = |at: u64| (at / BITS_PER_BYTE) as usize;
    let whole = value.get(bytes(first_whole)..bytes(last_whole));
    let whole = whole.unwrap_or_default().iter();
    let whole: i64 = whole.map(|byte| i64::from(byte.count_ones())).sum();
    let edges = (from..first_whole).chain(last_whole..to);
    Ok(whole + edges.map(|at| bit(value, at)).sum::<i64>())
}

fn bit_pos(value: Option<&[u8]>, args: &[&[u8]]) -> Checked<i64> {
    let is_set = wanted(args[0])?;
    let Some(value) = value else {
        return Ok(if is_set { -1 } else { 0 });
    };
    let ((from, to), has_end) = match args {
        [_] => (range(value.len(), false, 0, -1), false),
        [_, start] => (range(value.len(), false, integer(start)?, -1), false),
        [_, start, end, unit @ ..] if unit.len() <= 1 => {
            let start = integer(start)?;
            let is_in_bits = is_in_bits(unit.first())?;
            (range(value.len(), is_in_bits, start, integer(end)?), true)
        }
        _ => return error(SYNTAX_ERROR),
    };
    if from == to {
        return Ok(-1);
    }
    let skipped = if is_set { 0 } else { u8::MAX };
    let mut at = from;
    while at < to {
        let byte = value.get((at / BITS_PER_BYTE) as usize).copied();
        if at % BITS_PER_BYTE == 0 && byte == Some(skipped) {
            at += BITS_PER_BYTE;
        } else if bit(value, at) == i64::from(is_set) {
            return Ok(at as i64);
        } else {
            at += 1;
        }
    }
    // Zeros follow a string whose end was not given.
    Ok(if is_set || has_end { -1 } else { to as i64 })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Get,
    Set(i64, Overflow),
    IncrBy(i64, Overflow),
}

/// A subcommand of `BITFIELD`.
#[derive(Debug, Clone, Copy)]
struct Field {
    action: Action,
    is_signed: bool,
    bits: u32,
    offset: u64,
}

impl Field {
    fn writes(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    fn last(&self) -> u64 {
        self.offset + u64::from(self.bits) - 1
    }

    fn read(&self, value: &[u8]) -> i128 {
        let bits = self.offset..=self.last();
        let number = bits.fold(0u64, |number, at| number << 1 | bit(value, at) as u64);
        self.of_bits(number)
    }

    /// The number of the lowest bits.
    fn of_bits(&self, number: u64) -> i128 {
        let unused = u64::BITS - self.bits;
        match self.is_signed {
            true => i128::from((number << unused) as i64 >> unused),
            false => i128::from(number << unused >> unused),
        }
    }

    fn write(&self, value: &mut [u8], number: i128) {
        for place in 0..self.bits {
            let is_set = number >> (self.bits - 1 - place) & 1 == 1;
            put_bit(value, self.offset + u64::from(place), is_set);
        }
    }

    /// What is written for a number that may be too large or too small; `None`: nothing.
    fn fit(&self, number: i128, overflow: Overflow) -> Option<i128> {
        let (min, max) = match self.is_signed {
            true => (-(1i128 << (self.bits - 1)), (1i128 << (self.bits - 1)) - 1),
            false => (0, (1i128 << self.bits) - 1),
        };
        if (min..=max).contains(&number) {
            return Some(number);
        }
        match overflow {
            Overflow::Wrap => Some(self.of_bits(number as u64)),
            Overflow::Saturate => Some(number.clamp(min, max)),
            Overflow::Fail => None,
        }
    }
}

fn type_of(arg: &[u8]) -> Checked<(bool, u32)> {
    let (is_signed, bits) = match arg {
        [b'i', bits @ ..] => (true, bits),
        [b'u', bits @ ..] => (false, bits),
        _ => (false, &[][..]),
    };
    let most = if is_signed { 64 } else { 63 };
    match strict_integer(bits) {
        Some(bits) if (1..=most).contains(&bits) => Ok((is_signed, bits as u32)),
        _ => error(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        ),
    }
}

fn fields(args: &[&[u8]]) -> Checked<Vec<Field>> {
    let (mut fields, mut overflow) = (Vec::new(), Overflow::Wrap);
    let mut rest = args;
    while let [word, after @ ..] = rest {
        let word = word.to_ascii_uppercase();
        if let (b"OVERFLOW", [how, after @ ..]) = (&*word, after) {
            overflow = match how.to_ascii_uppercase().as_slice() {
                b"WRAP" => Overflow::Wrap,
                b"SAT" => Overflow::Saturate,
                b"FAIL" => Overflow::Fail,
                _ => return error("ERR Invalid OVERFLOW type specified"),
            };
            rest = after;
            continue;
        }
        let numbers = match &*word {
            b"GET" => 0,
            b"SET" | b"INCRBY" => 1,
            _ => return error(SYNTAX_ERROR),
        };
        let Some((given, after)) = after.split_at_checked(2 + numbers) else {
            return error(SYNTAX_ERROR);
        };
        let (is_signed, bits) = type_of(given[0])?;
        let offset = offset(given[1], Some(bits))?;
        let action = match &*word {
            b"GET" => Action::Get,
            b"SET" => Action::Set(integer(given[2])?, overflow),
            _ => Action::IncrBy(integer(given[2])?, overflow),
        };
        fields.push(Field {
            action,
            is_signed,
            bits,
            offset,
        });
        rest = after;
    }
    Ok(fields)
}

fn bit_field(mut value: Cow<[u8]>, args: &[&[u8]], limit: usize) -> Checked<Written> {
    let fields = fields(args)?;
    let last = fields.iter().filter(|f| f.writes()).map(Field::last).max();
    let is_longer = last.map_or(Ok(false), |last| make_room(&mut value, last, limit))?;
    let (mut replies, mut is_changed) = (Vec::new(), false);
    for field in fields {
        let before = field.read(&value);
        let (number, overflow, is_set) = match field.action {
            Action::Get => {
                replies.push(Reply::Integer(before as i64));
                continue;
            }
            // The same 64 bits.
            Action::Set(number, overflow) if field.is_signed => {
                (i128::from(number), overflow, true)
            }
            Action::Set(number, overflow) => (i128::from(number as u64), overflow, true),
            Action::IncrBy(number, overflow) => (before + i128::from(number), overflow, false),
        };
        let Some(number) = field.fit(number, overflow) else {
            replies.push(Reply::Nil);
            continue;
        };
        is_changed |= is_longer || number != before;
        if number != before {
            field.write(value.to_mut(), number);
        }
        let reply = if is_set { before } else { number };
        replies.push(Reply::Integer(reply as i64));
    }
    Ok(Written {
        value: owned(value),
        is_changed,
        reply: Reply::Array(replies),
    })
}

/// Parses `BITOP`.
pub fn parse_combine(args: Args<'_>) -> Checked<Command<'_>> {
    let word = args.get(1);
    let is_word = |logic: &BitLogic| word.eq_ignore_ascii_case(logic.name());
    let Some(logic) = BitLogic::ALL.into_iter().find(is_word) else {
        return error(SYNTAX_ERROR);
    };
    let keys = Strings::Args(args, 3);
    if logic == BitLogic::Not && keys.len() != 1 {
        return error("ERR BITOP NOT must be called with a single source key.");
    }
    Ok(Command::CombineBits {
        logic,
        target: args.get(2),
        keys,
    })
}

/// Executes `BITOP`. Shorter strings count as if zeros followed.
pub fn combine(
    keys: &mut dyn Keys,
    work: &Work,
    logic: BitLogic,
    target: &[u8],
    names: &Strings<'_>,
) -> Result<Reply, rocksdb::Error> {
    if let Err(reply) = work.begin(names.len()) {
        return Ok(reply);
    }
    let mut combined: Vec<u8> = Vec::new();
    for (place, name) in names.iter().enumerate() {
        let record = keys.get(name)?;
        let value = match record {
            Some(record) if record.kind != Kind::String => return Ok(Reply::error(WRONG_TYPE)),
            record => record.map_or(&[][..], |record| record.value),
        };
        if let Err(reply) = work.visit(1, value.len().max(combined.len())) {
            return Ok(reply);
        }
        if place == 0 {
            combined = value.to_vec();
            continue;
        }
        combined.resize(combined.len().max(value.len()), 0);
        let others = value.iter().chain(std::iter::repeat(&0));
        for (byte, other) in combined.iter_mut().zip(others) {
            *byte = logic.of_bytes(*byte, *other);
        }
    }
    if logic == BitLogic::Not {
        combined.iter_mut().for_each(|byte| *byte = !*byte);
    }
    if !combined.is_empty() {
        keys.put(target, 0, &combined)?;
        keys.notify(EventClass::String, "set", target);
    } else if keys.delete(target)? {
        keys.notify(EventClass::Generic, "del", target);
    }
    Ok(Reply::Integer(combined.len() as i64))
}
