//! The elements of a collection in one value: `count u32 | count x end u32 | bytes`, big-endian. A row is a string; an
//! `end` is where it ends in `bytes`, and the next one begins there. So a row is found by its number, and by its
//! contents if the rows are in order.

const WORD_LEN_BYTES: usize = 4;

/// The rows of a collection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rows<'a> {
    ends: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Rows<'a> {
    /// Returns the rows of a stored value; an empty value has none.
    pub fn new(value: &'a [u8]) -> Self {
        let parts = value.split_first_chunk::<WORD_LEN_BYTES>();
        let parts = parts.and_then(|(count, rest)| {
            let ends_len = (u32::from_be_bytes(*count) as usize).checked_mul(WORD_LEN_BYTES)?;
            rest.split_at_checked(ends_len)
        });
        let (ends, bytes) = parts.unwrap_or_default();
        Self { ends, bytes }
    }

    /// The same, if the value is well-formed.
    pub fn checked(value: &'a [u8]) -> Option<Self> {
        let rows = Self::new(value);
        let count = value.first_chunk()?;
        let is_whole = u32::from_be_bytes(*count) as usize == rows.len()
            && value.len() == WORD_LEN_BYTES + rows.ends.len() + rows.bytes.len();
        let in_order = (1..rows.len()).all(|at| rows.end(at - 1) <= rows.end(at));
        let last = rows.len().checked_sub(1).map_or(0, |at| rows.end(at));
        (is_whole && in_order && last == rows.bytes.len()).then_some(rows)
    }

    pub fn len(&self) -> usize {
        self.ends.len() / WORD_LEN_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Length of the rows as they are packed.
    pub fn len_bytes(&self) -> usize {
        self.ends.len() + self.bytes.len()
    }

    fn end(&self, at: usize) -> usize {
        let word = self.ends.get(at * WORD_LEN_BYTES..);
        let word = word.and_then(|word| word.first_chunk());
        word.map_or(0, |word| u32::from_be_bytes(*word) as usize)
    }

    /// Returns the row of this number.
    pub fn get(&self, at: usize) -> &'a [u8] {
        let start = if at == 0 { 0 } else { self.end(at - 1) };
        self.bytes.get(start..self.end(at)).unwrap_or(&[])
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone {
        let rows = *self;
        (0..self.len()).map(move |at| rows.get(at))
    }

    /// Whether every `step`th row is greater than the one before.
    pub fn is_ascending(&self, step: usize) -> bool {
        let starts = (step..self.len()).step_by(step);
        starts
            .into_iter()
            .all(|at| self.get(at - step) < self.get(at))
    }

    /// Returns the number of the first row for which this does not hold; it holds for all rows before.
    pub fn partition_point(&self, holds: impl Fn(&'a [u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match holds(self.get(middle)) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Returns the number of the row among every `step`th, which ascend, that equals `row`.
    pub fn find(&self, row: &[u8], step: usize) -> Option<usize> {
        let (mut low, mut high) = (0, self.len() / step);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.get(middle * step).cmp(row) {
                std::cmp::Ordering::Equal => return Some(middle * step),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }
}

/// Returns the length of the value that holds these rows.
pub fn len_bytes<R: AsRef<[u8]>>(rows: impl Iterator<Item = R>) -> usize {
    rows.fold(WORD_LEN_BYTES, |len, row| {
        len + WORD_LEN_BYTES + row.as_ref().len()
    })
}

/// Packs rows, which must not be longer than 4 GiB.
pub fn pack<R: AsRef<[u8]>>(rows: impl ExactSizeIterator<Item = R> + Clone) -> Vec<u8> {
    let mut value = Vec::with_capacity(len_bytes(rows.clone()));
    value.extend_from_slice(&(rows.len() as u32).to_be_bytes());
    let mut end = 0;
    for row in rows.clone() {
        end += row.as_ref().len() as u32;
        value.extend_from_slice(&end.to_be_bytes());
    }
    rows.for_each(|row| value.extend_from_slice(row.as_ref()));
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_again_and_every_cut_is_seen() {
        let rows = ["", "a", "bb", "d", "zzzz"];
        let value = pack(rows.iter());
        assert_eq!(value.len(), len_bytes(rows.iter()));
        let packed = Rows::checked(&value).unwrap();
        assert!(packed.iter().eq(rows.iter().map(|row| row.as_bytes())));
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(packed.find(row.as_bytes(), 1), Some(at));
        }
        for absent in ["0", "aa", "c", "zzzzz"] {
            assert_eq!(packed.find(absent.as_bytes(), 1), None);
        }
        assert!(packed.is_ascending(1));
        assert!(!Rows::new(&pack(["b", "a"].iter())).is_ascending(1));
        assert!(!Rows::new(&pack(["a", "a"].iter())).is_ascending(1));
        for len in 0..value.len() {
            assert!(Rows::checked(&value[..len]).is_none(), "cut at {len}");
            Rows::new(&value[..len]).iter().for_each(drop);
        }
        assert!(Rows::checked(&[&value[..], b"x"].concat()).is_none());
        assert!(Rows::new(&[]).is_empty());
        // Ends that go backwards.
        let mut crossed = pack(["ab", "c"].iter());
        crossed[7] = 9;
        assert!(Rows::checked(&crossed).is_none());
        Rows::new(&crossed).iter().for_each(drop);
    }
}
