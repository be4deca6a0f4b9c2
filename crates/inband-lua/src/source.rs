//! Prepares the text of a script: every key in brackets is passed through a check.
//!
//! Lua 5.1 hashes an object by its address, which differs between replicas. With objects among its keys, the order of a
//! table, the moment at which it grows and the memory that it takes would differ too. So objects cannot be keys. Apart
//! from functions of the library, which the prelude wraps, only `t[k] = v` and `{[k] = v}` can put such a key into a
//! table.

/// The function that checks a key, a local variable of every script.
const CHECK: &str = "__inband_key";

/// Why a script is refused before Lua sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Name(&'a [u8]),
    /// A string or a number.
    Literal,
    Symbol(u8),
}

/// The next token from `at` on, with its start and end; `None` at the end of the text.
fn token(text: &[u8], mut at: usize) -> Option<(Token<'_>, usize, usize)> {
    let until = |from: usize, is_in: &dyn Fn(u8) -> bool| {
        let rest = &text[from..];
        from + rest.iter().position(|b| !is_in(*b)).unwrap_or(rest.len())
    };
    loop {
        at = until(at, &|b| b.is_ascii_whitespace() || b == 0x0b);
        let first = *text.get(at)?;
        if text[at..].starts_with(b"--") {
            at = match long_bracket(text, at + 2) {
                Some(end) => end,
                None => until(at, &|b| b != b'\n' && b != b'\r'),
            };
            continue;
        }
        let (token, end) = match first {
            b'[' => match long_bracket(text, at) {
                Some(end) => (Token::Literal, end),
                None => (Token::Symbol(first), at + 1),
            },
            b'"' | b'\'' => (Token::Literal, quoted(text, at)),
            b'0'..=b'9' => {
                let end = until(at, &|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_');
                (Token::Literal, end)
            }
            b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
                let end = until(at, &|b| b.is_ascii_alphanumeric() || b == b'_');
                (Token::Name(&text[at..end]), end)
            }
            other => (Token::Symbol(other), at + 1),
        };
        return Some((token, at, end));
    }
}

/// The end of the long bracket that begins at `at`; the end of the text if it is not closed.
fn long_bracket(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?.strip_prefix(b"[")?;
    let level = rest.iter().position(|b| *b != b'=')?;
    let body = rest[level..].strip_prefix(b"[")?;
    let close = [&b"]"[..], &vec![b'='; level], b"]"].concat();
    let len = body.windows(close.len()).position(|w| w == close);
    Some(len.map_or(text.len(), |len| at + level + 2 + len + close.len()))
}

/// The end of the quoted string that begins at `at`.
fn quoted(text: &[u8], at: usize) -> usize {
    let quote = text[at];
    let mut end = at + 1;
    while let Some(byte) = text.get(end) {
        match byte {
            // Two characters can be one line end.
            b'\\' => match text.get(end + 1..end + 3) {
                Some(b"\r\n" | b"\n\r") => end += 2,
                _ => end += 1,
            },
            // Lua reports the unfinished string.
            b'\n' | b'\r' => return end,
            byte if *byte == quote => return end + 1,
            _ => {}
        }
        end += 1;
    }
    text.len()
}

/// The text that is compiled. Its lines have the same numbers as those of the script.
pub fn prepare(text: &[u8]) -> Result<Vec<u8>, Reserved> {
    let mut out = format!("local {CHECK}=...;").into_bytes();
    let check = [CHECK.as_bytes(), b"("].concat();
    let (mut at, mut copied) = (0, 0);
    // For each open bracket, whether its key is checked.
    let mut open = Vec::new();
    while let Some((found, start, end)) = token(text, at) {
        at = end;
        match found {
            Token::Name(name) if name == CHECK.as_bytes() => return Err(Reserved),
            Token::Symbol(b'[') => {
                let is_literal = token(text, end).is_some_and(|(key, _, end)| {
                    let after = token(text, end).map(|(after, ..)| after);
                    key == Token::Literal && after == Some(Token::Symbol(b']'))
                });
                open.push(!is_literal);
                if !is_literal {
                    out.extend_from_slice(&text[copied..end]);
                    out.extend_from_slice(&check);
                    copied = end;
                }
            }
            Token::Symbol(b']') if open.pop() == Some(true) => {
                out.extend_from_slice(&text[copied..start]);
                out.push(b')');
                copied = start;
            }
            _ => {}
        }
    }
    out.extend_from_slice(&text[copied..]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_brackets_are_checked() {
        let cases = [
            ("t[1]=2 t['a']=t[ [[x]] ]", "t[1]=2 t['a']=t[ [[x]] ]"),
            ("t[k]=t[t[1]]", "t[K(k)]=t[K(t[1])]"),
            ("{[f()]=1,[2]=3}", "{[K(f())]=1,[2]=3}"),
            (
                "--[[ t[k] ]] t[a --[==[ ] ]]]==] ] -- x[y]\n",
                "--[[ t[k] ]] t[K(a --[==[ ] ]]]==] )] -- x[y]\n",
            ),
            (
                "s='[k]\\'[k]' s=\"\\\\\" t[\"a\"..1]=[=[ [k] ]=]",
                "s='[k]\\'[k]' s=\"\\\\\" t[K(\"a\"..1)]=[=[ [k] ]=]",
            ),
            ("t[-1]", "t[K(-1)]"),
            ("'open", "'open"),
            ("[[open", "[[open"),
            ("a\\", "a\\"),
            ("'\\", "'\\"),
        ];
        for (text, expected) in cases {
            let prepared = prepare(text.as_bytes()).unwrap();
            let prepared = String::from_utf8(prepared).unwrap();
            let prepared = prepared.replace(CHECK, "K");
            assert_eq!(prepared, format!("local K=...;{expected}"), "{text}");
        }
        assert_eq!(prepare(b"__inband_key=print"), Err(Reserved));
    }
}
