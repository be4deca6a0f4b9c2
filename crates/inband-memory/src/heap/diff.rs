//! Which lines of a page have been written.

use super::{Page, PAGE_CHUNKS};

/// Returns, for each chunk, a bitmap of the lines that differ from the twin; all lines if the twin is not known.
pub fn changed_lines(page: &Page, twin: Option<&Page>) -> [u16; PAGE_CHUNKS] {
    let Some(twin) = twin else {
        return [u16::MAX; PAGE_CHUNKS];
    };
    let mut changed = [0; PAGE_CHUNKS];
    for (chunk, bits) in changed.iter_mut().enumerate() {
        for (line, (now, then)) in page[chunk].iter().zip(&twin[chunk]).enumerate() {
            *bits |= u16::from(now != then) << line;
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::super::ZERO_PAGE;
    use super::*;

    #[test]
    fn only_lines_that_differ() {
        let mut page = ZERO_PAGE;
        assert_eq!(changed_lines(&page, Some(&ZERO_PAGE)), [0; PAGE_CHUNKS]);
        page[0][0][63] = 1;
        page[2][15][0] = 1;
        page[2][3][7] = 1;
        let expected = [1, 0, 1 << 15 | 1 << 3, 0];
        assert_eq!(changed_lines(&page, Some(&ZERO_PAGE)), expected);
        assert_eq!(changed_lines(&page, None), [u16::MAX; PAGE_CHUNKS]);
    }
}
