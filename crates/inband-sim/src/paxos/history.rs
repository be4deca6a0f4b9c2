//! What clients of the replicated store did and saw.
//!
//! Every partition has one key whose value is its history: each command appends its number. So a value read anywhere,
//! at any time, shows which commands were applied there, in which order, and how often. Of any two values of one key,
//! one must be a prefix of the other.

use std::collections::{BTreeMap, BTreeSet};

use inband_kv::store::Position;

use crate::paxos::invariant::{Broken, Invariant};

/// Length of a command's number in a history.
const NUMBER_LEN_BYTES: usize = 8;

/// Returns a command's number as stored in a history.
pub(crate) fn written(command: u64) -> String {
    format!("{command:07};")
}

fn numbers(value: &[u8]) -> Result<Vec<u64>, Broken> {
    let number = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        text.strip_suffix(';')?.parse().ok()
    };
    let numbers: Option<Vec<u64>> = value.chunks(NUMBER_LEN_BYTES).map(number).collect();
    numbers.ok_or_else(|| {
        let text = String::from_utf8_lossy(value);
        Invariant::ReplicasEqual.broken(format!("a history is torn: {text}"))
    })
}

/// The longest history of a partition seen so far.
#[derive(Debug, Default)]
struct History {
    commands: Vec<u64>,
    places: BTreeMap<u64, usize>,
    /// By place: commands that were acknowledged before they were seen.
    claimed: BTreeMap<usize, u64>,
    /// Number of commands that clients know of.
    known: usize,
    /// The history's length at each position at which a replica was seen.
    lengths: BTreeMap<Position, usize>,
}

/// The commands of all clients, and the history of each partition.
#[derive(Debug)]
pub(crate) struct Histories {
    of: Vec<History>,
    /// Partitions that a command writes to.
    involved: BTreeMap<u64, Vec<usize>>,
    /// What clients knew when a command was submitted, as returned by [`all_known`](Histories::all_known).
    knew: BTreeMap<u64, Vec<usize>>,
    certainly_not: BTreeSet<u64>,
}

impl Histories {
    pub fn new(partitions: usize) -> Histories {
        Histories {
            of: (0..partitions).map(|_| History::default()).collect(),
            involved: BTreeMap::new(),
            knew: BTreeMap::new(),
            certainly_not: BTreeSet::new(),
        }
    }

    /// A client submits a command to a replica.
    pub fn submitted(&mut self, command: u64, involved: &[usize]) {
        self.involved.insert(command, involved.to_vec());
        self.knew.insert(command, self.all_known());
    }

    /// A client was told that its command was not applied and never will be.
    pub fn not_applied(&mut self, command: u64) -> Result<(), Broken> {
        self.certainly_not.insert(command);
        match self.of.iter().any(|h| h.places.contains_key(&command)) {
            false => Ok(()),
            true => Err(Invariant::ExactlyOnce.broken(format!(
                "a client was told that command {command} was not applied; it was"
            ))),
        }
    }

    /// A replica has this value at this position of a partition. It must be a prefix of the one history.
    pub fn saw(
        &mut self,
        node: u8,
        partition: usize,
        position: Position,
        value: &[u8],
    ) -> Result<usize, Broken> {
        let seen = numbers(value)?;
        let history = &mut self.of[partition];
        let common = seen.len().min(history.commands.len());
        if seen[..common] != history.commands[..common] {
            return Err(Invariant::ReplicasEqual.broken(format!(
                "replica {node} has another history of partition {partition} than was seen before: \
                 {seen:?} after {:?}",
                history.commands
            )));
        }
        let length = *history.lengths.entry(position).or_insert(seen.len());
        if length != seen.len() {
            return Err(Invariant::ReplicasEqual.broken(format!(
                "replica {node} has {} commands at {position:?} of {partition}, another had {length}",
                seen.len()
            )));
        }
        for command in &seen[common..] {
            let at = history.commands.len();
            let is_known = self.involved.get(command);
            if !is_known.is_some_and(|involved| involved.contains(&partition)) {
                return Err(Invariant::ExactlyOnce.broken(format!(
                    "replica {node} applied command {command} in {partition}, where nobody wanted it"
                )));
            }
            if self.certainly_not.contains(command) {
                return Err(Invariant::ExactlyOnce.broken(format!(
                    "command {command} was applied after its client was told it never would be"
                )));
            }
            if let Some(first) = history.places.insert(*command, at) {
                return Err(Invariant::ExactlyOnce.broken(format!(
                    "command {command} was applied twice in {partition}, as number {first} and {at}"
                )));
            }
            history.commands.push(*command);
            if history.claimed.remove(&at).is_some_and(|c| c != *command) {
                return Err(Invariant::NothingLost.broken(format!(
                    "command {command} stands where another was acknowledged, at {at} of {partition}"
                )));
            }
        }
        Ok(seen.len())
    }

    /// A client was told that its command made the history of this partition this long.
    pub fn acknowledged(
        &mut self,
        command: u64,
        partition: usize,
        len_bytes: i64,
    ) -> Result<(), Broken> {
        let length = usize::try_from(len_bytes).unwrap_or(0) / NUMBER_LEN_BYTES;
        let history = &mut self.of[partition];
        history.known = history.known.max(length);
        let at = length.wrapping_sub(1);
        let there = match history.commands.get(at) {
            Some(there) => *there,
            None => *history.claimed.entry(at).or_insert(command),
        };
        if there == command {
            return Ok(());
        }
        Err(Invariant::NothingLost.broken(format!(
            "command {command} was acknowledged at {at} of {partition}, where {there} stands"
        )))
    }

    /// Returns how many commands of a partition clients know of.
    pub fn known(&self, partition: usize) -> usize {
        self.of[partition].known
    }

    /// Returns how many commands of each partition clients know of.
    pub fn all_known(&self) -> Vec<usize> {
        self.of.iter().map(|history| history.known).collect()
    }

    /// A client has read a history of this length, which must be at least `must_see`.
    pub fn read(
        &mut self,
        node: u8,
        partition: usize,
        length: usize,
        must_see: usize,
    ) -> Result<(), Broken> {
        let known = &mut self.of[partition].known;
        *known = (*known).max(length);
        if length >= must_see {
            return Ok(());
        }
        Err(Invariant::ReadsLinearizable.broken(format!(
            "replica {node} read {length} commands of {partition}; a client knew of {must_see} before"
        )))
    }

    /// A command read the histories of several partitions; clients knew of `must_see` when it was submitted. A command
    /// over several of these partitions must be in all of them, in the same order, and with it everything that clients
    /// knew when it was submitted.
    pub fn read_together(
        &mut self,
        node: u8,
        values: &[(usize, Vec<u8>)],
        must_see: &[usize],
    ) -> Result<(), Broken> {
        let lists: Result<Vec<(usize, Vec<u64>)>, Broken> = values
            .iter()
            .map(|(partition, value)| Ok((*partition, numbers(value)?)))
            .collect();
        let lists = lists?;
        self.are_atomic(&lists)?;
        for (partition, list) in &lists {
            self.read(node, *partition, list.len(), must_see[*partition])?;
        }
        for command in lists.iter().flat_map(|(_, list)| list) {
            let knew = self.knew.get(command).map_or(&[][..], |knew| knew);
            let lacks = |(partition, list): &&(usize, Vec<u64>)| {
                knew.get(*partition).is_some_and(|knew| list.len() < *knew)
            };
            if let Some((partition, list)) = lists.iter().find(lacks) {
                return Err(Invariant::ReadsLinearizable.broken(format!(
                    "replica {node} read command {command} and only {} commands of {partition}; {} were \
                     known when it was submitted",
                    list.len(),
                    knew[*partition]
                )));
            }
        }
        Ok(())
    }

    /// Checks the same for everything ever seen. Call at the end of a run.
    pub fn all_atomic(&self) -> Result<(), Broken> {
        let lists = self.of.iter().map(|h| h.commands.clone()).enumerate();
        self.are_atomic(&lists.collect::<Vec<_>>())
    }

    fn are_atomic(&self, lists: &[(usize, Vec<u64>)]) -> Result<(), Broken> {
        for (a, of_a) in lists {
            for (b, of_b) in lists.iter().filter(|(b, _)| b > a) {
                let concerns = |command: &u64| {
                    let involved = self.involved.get(command);
                    involved.is_some_and(|all| all.contains(a) && all.contains(b))
                };
                let both_a: Vec<u64> = of_a.iter().copied().filter(concerns).collect();
                let both_b: Vec<u64> = of_b.iter().copied().filter(concerns).collect();
                if both_a != both_b {
                    return Err(Invariant::CrossPartitionAtomic.broken(format!(
                        "commands over partitions {a} and {b} are {both_a:?} in one and {both_b:?} \
                         in the other"
                    )));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(commands: &[u64]) -> Vec<u8> {
        commands
            .iter()
            .map(|c| written(*c))
            .collect::<String>()
            .into_bytes()
    }

    fn at(applied: u64) -> Position {
        Position { applied, entry: 0 }
    }

    fn rule(result: Result<usize, Broken>) -> Invariant {
        result.expect_err("a rule is broken").invariant
    }

    #[test]
    fn each_rule_is_noticed() {
        let mut histories = Histories::new(2);
        (1..=4).for_each(|command| histories.submitted(command, &[0]));
        histories.submitted(5, &[0, 1]);
        assert_eq!(histories.saw(1, 0, at(2), &value(&[1, 2])), Ok(2));
        assert_eq!(
            rule(histories.saw(2, 0, at(3), &value(&[1, 3]))),
            Invariant::ReplicasEqual
        );
        assert_eq!(
            rule(histories.saw(2, 0, at(2), &value(&[1]))),
            Invariant::ReplicasEqual
        );
        assert_eq!(
            rule(histories.saw(2, 0, at(4), &value(&[1, 2, 1]))),
            Invariant::ExactlyOnce
        );
        assert_eq!(
            rule(histories.saw(2, 1, at(4), &value(&[3]))),
            Invariant::ExactlyOnce
        );
        let lost = histories.acknowledged(4, 0, 8).expect_err("2 stands there");
        assert_eq!(lost.invariant, Invariant::NothingLost);
        assert_eq!(histories.acknowledged(2, 0, 16), Ok(()));
        let old = histories
            .read(1, 0, 1, histories.known(0))
            .expect_err("2 were known");
        assert_eq!(old.invariant, Invariant::ReadsLinearizable);
        let half = histories.read_together(1, &[(0, value(&[1, 5])), (1, value(&[]))], &[0, 0]);
        let half = half.expect_err("5 concerns both");
        assert_eq!(half.invariant, Invariant::CrossPartitionAtomic);
        // Two commands of partition 0 are known.
        let old = histories.read_together(1, &[(0, value(&[1])), (1, value(&[]))], &[2, 0]);
        let old = old.expect_err("2 were known when it began");
        assert_eq!(old.invariant, Invariant::ReadsLinearizable);
        histories.submitted(6, &[1]);
        let torn = histories.read_together(1, &[(0, value(&[1])), (1, value(&[6]))], &[0, 0]);
        let torn = torn.expect_err("2 were known when 6 was submitted");
        assert_eq!(torn.invariant, Invariant::ReadsLinearizable);
        let whole = histories.read_together(1, &[(0, value(&[1, 2])), (1, value(&[6]))], &[0, 0]);
        assert_eq!(whole, Ok(()));
        let said = histories.not_applied(2).expect_err("it was");
        assert_eq!(said.invariant, Invariant::ExactlyOnce);
    }
}
