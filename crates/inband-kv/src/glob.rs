//! Glob-style patterns as Redis matches them: `*`, `?`, `[a-c]`, `[^x]`, `\` quotes.

use crate::limits::GLOB_PASSES_MAX;

/// Returns whether `text` matches `pattern`; `None` if that takes more than linear time, see [`GLOB_PASSES_MAX`].
pub fn matches(pattern: &[u8], text: &[u8]) -> Option<bool> {
    let mut left = GLOB_PASSES_MAX * (pattern.len() + text.len());
    matches_within(pattern, text, &mut |bytes| {
        left = left.saturating_sub(bytes);
        left > 0
    })
}

/// Returns whether `text` matches `pattern`; `None` if `spend` refuses the bytes of the pattern that a step has
/// compared. The running time is bounded by the product of the lengths.
pub fn matches_within(
    pattern: &[u8],
    text: &[u8],
    spend: &mut dyn FnMut(usize) -> bool,
) -> Option<bool> {
    let (mut p, mut t) = (0, 0);
    // Where to resume after a mismatch: after the last star, one byte later in the text.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        if p == pattern.len() && t == text.len() {
            return Some(true);
        }
        if p < pattern.len() && t < text.len() {
            let (matched, next) = match_one(pattern, p, text[t]);
            if !spend(next - p) {
                return None;
            }
            if matched {
                p = next;
                t += 1;
                continue;
            }
        }
        match retry {
            Some((after_star, from)) if from < text.len() => {
                retry = Some((after_star, from + 1));
                (p, t) = (after_star, from + 1);
            }
            _ => return Some(false),
        }
    }
}

/// Matches one byte against the pattern element at `p`. Also returns where the next element starts.
fn match_one(pattern: &[u8], p: usize, byte: u8) -> (bool, usize) {
    match pattern[p] {
        b'?' => (true, p + 1),
        b'[' => match_class(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte, p + 2),
        literal => (literal == byte, p + 1),
    }
}

fn match_class(pattern: &[u8], mut p: usize, byte: u8) -> (bool, usize) {
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut matched = false;
    loop {
        match pattern.get(p) {
            // An unclosed class ends with the pattern, as in Redis.
            None => return (matched != negated, p),
            Some(b']') => return (matched != negated, p + 1),
            Some(b'\\') if p + 1 < pattern.len() => {
                matched |= pattern[p + 1] == byte;
                p += 2;
            }
            Some(low) if pattern.get(p + 1) == Some(&b'-') && p + 2 < pattern.len() => {
                let (low, high) = (*low.min(&pattern[p + 2]), *low.max(&pattern[p + 2]));
                matched |= (low..=high).contains(&byte);
                p += 3;
            }
            Some(literal) => {
                matched |= *literal == byte;
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h*l*o", "hello", true),
            ("h[ae]llo", "hello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[\\]]", "]", true),
            ("[abc", "b", true),
            ("a\\", "a\\", true),
            ("key:*:x", "key:1:2:x", true),
            ("key:*:x", "key:1:2:y", false),
            ("**a**", "bab", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                Some(expected),
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn hostile_pattern_ends_soon() {
        let pattern = "a*".repeat(500) + "b";
        let text = "a".repeat(1300);
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), Some(false));
        let pattern = format!("*{}b", "a".repeat(15_000));
        let text = "a".repeat(30_000);
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), None);
    }
}
