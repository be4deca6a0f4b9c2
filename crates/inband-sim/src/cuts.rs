//! Which links are cut. A link is a directed pair of hosts, and several faults may cut the same one.

use std::collections::BTreeMap;

#[derive(Debug)]
pub struct Cuts<H>(BTreeMap<(H, H), u32>);

impl<H> Default for Cuts<H> {
    fn default() -> Self {
        Cuts(BTreeMap::new())
    }
}

impl<H: Ord> Cuts<H> {
    /// Cuts the link in this direction only.
    pub fn cut(&mut self, from: H, to: H) {
        *self.0.entry((from, to)).or_default() += 1;
    }

    /// Undoes one cut; other faults may still cut the link.
    pub fn mend(&mut self, from: H, to: H) {
        let pair = (from, to);
        if let Some(count) = self.0.get_mut(&pair) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&pair);
            }
        }
    }

    pub fn is_linked(&self, from: H, to: H) -> bool {
        !self.0.contains_key(&(from, to))
    }

    /// Undoes all cuts.
    pub fn heal(&mut self) {
        self.0.clear();
    }
}
