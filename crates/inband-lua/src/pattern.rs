//! Lua's patterns, as in `lstrlib.c` of Lua 5.1, with every comparison counted: a short pattern can take exponential
//! time, and C code cannot be interrupted.

use crate::budget::{Budget, Over};
use crate::BYTES_PER_STEP;

/// Most captures of a pattern.
const CAPTURES_MAX: usize = 32;
/// Deepest recursion, about one per item of the pattern.
const DEPTH_MAX: usize = 200;

/// Why a match failed with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternError {
    Malformed(&'static str),
    Over(Over),
}

impl From<Over> for PatternError {
    fn from(over: Over) -> Self {
        PatternError::Over(over)
    }
}

type Result<T> = std::result::Result<T, PatternError>;

fn malformed<T>(why: &'static str) -> Result<T> {
    Err(PatternError::Malformed(why))
}

#[derive(Debug, Clone, Copy)]
enum Len {
    Open,
    Position,
    Bytes(usize),
}

/// A captured part of the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capture<'a> {
    Bytes(&'a [u8]),
    /// An index from 1.
    Position(usize),
}

/// Matches a pattern against a subject.
pub struct Matcher<'a> {
    subject: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<(usize, Len)>,
    depth: usize,
    budget: &'a Budget,
}

impl<'a> Matcher<'a> {
    pub fn new(subject: &'a [u8], pattern: &'a [u8], budget: &'a Budget) -> Self {
        Self {
            subject,
            pattern,
            captures: Vec::new(),
            depth: 0,
            budget,
        }
    }

    /// The end of the match that begins at `start`, with the pattern from `at` on.
    pub fn match_at(&mut self, start: usize, at: usize) -> Result<Option<usize>> {
        self.captures.clear();
        self.depth = 0;
        self.step(start, at)
    }

    /// The captures of the last match, which spans `start..end`; the whole match if there are none and `or_whole`.
    pub fn captures(&self, start: usize, end: usize, or_whole: bool) -> Result<Vec<Capture<'a>>> {
        if self.captures.is_empty() && or_whole {
            return Ok(vec![Capture::Bytes(&self.subject[start..end])]);
        }
        let each = self.captures.iter().map(|(start, len)| match len {
            Len::Open => malformed("unfinished capture"),
            Len::Position => Ok(Capture::Position(start + 1)),
            Len::Bytes(len) => Ok(Capture::Bytes(&self.subject[*start..start + len])),
        });
        each.collect()
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.pattern.get(at).copied()
    }

    fn step(&mut self, s: usize, p: usize) -> Result<Option<usize>> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return malformed("pattern too complex");
        }
        let found = self.step_in(s, p);
        self.depth -= 1;
        found
    }

    fn step_in(&mut self, mut s: usize, mut p: usize) -> Result<Option<usize>> {
        loop {
            self.budget.charge(1)?;
            let Some(first) = self.byte(p) else {
                return Ok(Some(s));
            };
            match (first, self.byte(p + 1)) {
                (b'(', Some(b')')) => return self.open(s, p + 2, Len::Position),
                (b'(', _) => return self.open(s, p + 1, Len::Open),
                (b')', _) => return self.close(s, p + 1),
                (b'%', Some(b'b')) => match self.balance(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (b'%', Some(b'f')) => {
                    let set = p + 2;
                    if self.byte(set) != Some(b'[') {
                        return malformed("missing '[' after '%f' in pattern");
                    }
                    let end = self.class_end(set)?;
                    self.charge_class(set, end)?;
                    let before = s.checked_sub(1).map_or(0, |at| self.subject[at]);
                    let here = self.subject.get(s).copied().unwrap_or(0);
                    if self.is_in_set(before, set, end - 1) || !self.is_in_set(here, set, end - 1) {
                        return Ok(None);
                    }
                    p = end;
                }
                (b'%', Some(digit)) if digit.is_ascii_digit() => {
                    match self.back_reference(s, digit)? {
                        Some(end) => (s, p) = (end, p + 2),
                        None => return Ok(None),
                    }
                }
                (b'$', None) => return Ok((s == self.subject.len()).then_some(s)),
                _ => {
                    let end = self.class_end(p)?;
                    self.charge_class(p, end)?;
                    let is_match = s < self.subject.len() && self.is_single(s, p, end);
                    match self.byte(end) {
                        Some(b'?') => {
                            if is_match {
                                if let Some(found) = self.step(s + 1, end + 1)? {
                                    return Ok(Some(found));
                                }
                            }
                            p = end + 1;
                        }
                        Some(b'*') => return self.most(s, p, end),
                        Some(b'+') if is_match => return self.most(s + 1, p, end),
                        Some(b'+') => return Ok(None),
                        Some(b'-') => return self.least(s, p, end),
                        _ if is_match => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    fn open(&mut self, s: usize, p: usize, len: Len) -> Result<Option<usize>> {
        if self.captures.len() >= CAPTURES_MAX {
            return malformed("too many captures");
        }
        self.captures.push((s, len));
        let level = self.captures.len();
        let found = self.step(s, p)?;
        if found.is_none() {
            self.captures.truncate(level - 1);
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Result<Option<usize>> {
        let is_open = |capture: &(usize, Len)| matches!(capture.1, Len::Open);
        let Some(at) = self.captures.iter().rposition(is_open) else {
            return malformed("invalid pattern capture");
        };
        self.captures[at].1 = Len::Bytes(s - self.captures[at].0);
        let found = self.step(s, p)?;
        if found.is_none() {
            self.captures[at].1 = Len::Open;
        }
        Ok(found)
    }

    fn balance(&mut self, s: usize, p: usize) -> Result<Option<usize>> {
        let (Some(begin), Some(end)) = (self.byte(p), self.byte(p + 1)) else {
            return malformed("unbalanced pattern");
        };
        if self.subject.get(s) != Some(&begin) {
            return Ok(None);
        }
        let mut depth = 1;
        for (at, byte) in self.subject.iter().enumerate().skip(s + 1) {
            self.budget.charge(1)?;
            if *byte == end {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if *byte == begin {
                depth += 1;
            }
        }
        Ok(None)
    }

    fn back_reference(&mut self, s: usize, digit: u8) -> Result<Option<usize>> {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        let Some((start, Len::Bytes(len))) = self.captures.get(index).copied() else {
            return malformed("invalid capture index");
        };
        self.budget.charge(len as u64)?;
        let captured = &self.subject[start..start + len];
        Ok(self.subject[s..].starts_with(captured).then_some(s + len))
    }

    fn most(&mut self, s: usize, p: usize, end: usize) -> Result<Option<usize>> {
        let mut count = 0;
        while s + count < self.subject.len() && self.is_single(s + count, p, end) {
            self.budget.charge(1)?;
            self.charge_class(p, end)?;
            count += 1;
        }
        loop {
            if let Some(found) = self.step(s + count, end + 1)? {
                return Ok(Some(found));
            }
            match count {
                0 => return Ok(None),
                _ => count -= 1,
            }
        }
    }

    fn least(&mut self, mut s: usize, p: usize, end: usize) -> Result<Option<usize>> {
        loop {
            if let Some(found) = self.step(s, end + 1)? {
                return Ok(Some(found));
            }
            if s >= self.subject.len() || !self.is_single(s, p, end) {
                return Ok(None);
            }
            self.charge_class(p, end)?;
            s += 1;
        }
    }

    /// Charges for a comparison with the class `p..end`.
    fn charge_class(&self, p: usize, end: usize) -> Result<()> {
        Ok(self.budget.charge(((end - p) / BYTES_PER_STEP) as u64)?)
    }

    /// The end of the class that begins at `p`.
    fn class_end(&self, p: usize) -> Result<usize> {
        match self.byte(p) {
            Some(b'%') if self.byte(p + 1).is_none() => {
                malformed("malformed pattern (ends with '%')")
            }
            Some(b'%') => Ok(p + 2),
            Some(b'[') => {
                let mut at = p + 1;
                if self.byte(at) == Some(b'^') {
                    at += 1;
                }
                loop {
                    // The first `]` of a set stands for itself.
                    let Some(byte) = self.byte(at) else {
                        return malformed("malformed pattern (missing ']')");
                    };
                    at += 1;
                    if byte == b'%' {
                        at += 1;
                    }
                    if self.byte(at) == Some(b']') {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether the byte at `s` is in the class `p..end`.
    fn is_single(&self, s: usize, p: usize, end: usize) -> bool {
        let byte = self.subject[s];
        match self.pattern[p] {
            b'.' => true,
            b'%' => is_of_class(byte, self.pattern[p + 1]),
            b'[' => self.is_in_set(byte, p, end - 1),
            other => other == byte,
        }
    }

    /// Whether a byte is in the set that begins with the `[` at `p` and ends with the `]` at `close`.
    fn is_in_set(&self, byte: u8, p: usize, close: usize) -> bool {
        let mut at = p + 1;
        let is_negated = self.byte(at) == Some(b'^');
        at += usize::from(is_negated);
        while at < close {
            let first = self.pattern[at];
            let is_range = self.byte(at + 1) == Some(b'-') && at + 2 < close;
            let (is_in, len) = match first {
                b'%' => (is_of_class(byte, self.byte(at + 1).unwrap_or(0)), 2),
                first if is_range => ((first..=self.pattern[at + 2]).contains(&byte), 3),
                first => (first == byte, 1),
            };
            if is_in {
                return !is_negated;
            }
            at += len;
        }
        is_negated
    }
}

fn is_of_class(byte: u8, class: u8) -> bool {
    let is_in = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is_in != class.is_ascii_uppercase()
}
