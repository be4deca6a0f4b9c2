//! Which links are cut: directed pairs of hosts, each by any number of faults at once.

use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub struct Cuts<H>(BTreeMap<(H, H), u32>);

impl<H> Default for Cuts<H> {
    fn default() -> Self {
        Cuts(BTreeMap::new())
    }
}

impl<H: Ord> Cuts<H> {
    /// Cut the link from one host to another, in this direction.
    pub fn cut(&mut self, from: H, to: H) {
        *self.0.entry((from, to)).or_default() += 1;
    }

    /// Undo one cut.
    pub fn mend(&mut self, from: H, to: H) {
        let pair = (from, to);
        if let Some(count) = self.0.get_mut(&pair) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&pair);
            }
        }
    }

    /// Does a link lead from one host to the other?
    pub fn is_linked(&self, from: H, to: H) -> bool {
        !self.0.contains_key(&(from, to))
    }

    /// All links work.
    pub fn heal(&mut self) {
        self.0.clear();
    }
}
