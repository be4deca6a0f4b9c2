//! A small map by ticket. Tickets ascend as they are issued and are mostly removed in that order too, so a queue finds
//! and removes them quickly, and unlike a tree it allocates nothing once it has grown.

use std::collections::VecDeque;

use crate::log::Ticket;

#[derive(Debug)]
pub(crate) struct ByTicket<T>(VecDeque<(Ticket, T)>);

impl<T> ByTicket<T> {
    pub fn new() -> ByTicket<T> {
        ByTicket(VecDeque::new())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds an entry; its ticket must be higher than all previous ones.
    pub fn push(&mut self, ticket: Ticket, value: T) {
        assert!(
            self.0.back().is_none_or(|(last, _)| *last < ticket),
            "tickets ascend"
        );
        self.0.push_back((ticket, value));
    }

    fn at(&self, ticket: Ticket) -> Option<usize> {
        self.0.binary_search_by_key(&ticket, |entry| entry.0).ok()
    }

    pub fn get(&self, ticket: Ticket) -> Option<&T> {
        self.at(ticket).map(|at| &self.0[at].1)
    }

    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.at(ticket).map(|at| &mut self.0[at].1)
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<T> {
        let at = self.at(ticket)?;
        self.0.remove(at).map(|(_, value)| value)
    }

    /// In ticket order.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &T)> {
        self.0.iter().map(|(ticket, value)| (*ticket, value))
    }

    /// In ticket order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    /// In ticket order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Keeps the entries for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(Ticket, &T) -> bool) {
        self.0.retain(|(ticket, value)| keep(*ticket, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_and_dropped_in_any_order() {
        let mut things = ByTicket::new();
        for number in [3, 4, 7, 9] {
            things.push(Ticket(number), number * 10);
        }
        assert_eq!(things.remove(Ticket(4)), Some(40));
        assert_eq!(things.remove(Ticket(4)), None);
        assert_eq!(things.get(Ticket(5)), None);
        *things.get_mut(Ticket(7)).unwrap() += 1;
        things.retain(|ticket, _| ticket != Ticket(9));
        let left: Vec<(Ticket, &u64)> = things.iter().collect();
        assert_eq!(left, [(Ticket(3), &30), (Ticket(7), &71)]);
        assert_eq!(things.len(), 2);
    }
}
