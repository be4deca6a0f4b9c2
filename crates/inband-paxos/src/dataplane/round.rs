//! Rounds: counter, incarnation and node of their owner, packed as `wire.h` says.

use super::c;

/// Highest incarnation a round can carry.
pub const INCARNATION_MAX: u64 = (1 << c::IB_ROUND_INCARNATION_BITS) - 1;
/// Highest counter a round can carry.
pub const COUNTER_MAX: u64 = (1 << c::IB_ROUND_COUNTER_BITS) - 1;

/// A component of a round does not fit its bits. Values never wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{part} {value} is over the limit of {limit} that a round can carry; restart the cluster from its data")]
pub struct RoundOverflow {
    part: &'static str,
    value: u64,
    limit: u64,
}

/// Pack a round. Rounds of one owner are ordered by counter; two owners never produce the same round.
pub fn round(counter: u64, incarnation: u64, node: u8) -> Result<u64, RoundOverflow> {
    if counter > COUNTER_MAX {
        return Err(RoundOverflow {
            part: "counter",
            value: counter,
            limit: COUNTER_MAX,
        });
    }
    if incarnation > INCARNATION_MAX {
        return Err(RoundOverflow {
            part: "incarnation",
            value: incarnation,
            limit: INCARNATION_MAX,
        });
    }
    let low_bits = c::IB_ROUND_INCARNATION_BITS + c::IB_ROUND_NODE_BITS;
    Ok(counter << low_bits | incarnation << c::IB_ROUND_NODE_BITS | u64::from(node))
}

/// Returns the counter of a round.
pub fn counter(round: u64) -> u64 {
    round >> (c::IB_ROUND_INCARNATION_BITS + c::IB_ROUND_NODE_BITS)
}

/// Returns the node that owns a round; 0 for round 0, which has no owner.
pub fn owner(round: u64) -> u8 {
    (round & 0xff) as u8
}

/// Returns the process that owns a round: its incarnation and node.
pub fn process(round: u64) -> u64 {
    round & ((1 << (c::IB_ROUND_INCARNATION_BITS + c::IB_ROUND_NODE_BITS)) - 1)
}

/// Returns the lowest round of this owner above `seen`.
pub fn next_above(seen: u64, incarnation: u64, node: u8) -> Result<u64, RoundOverflow> {
    round(counter(seen) + 1, incarnation, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_packing() {
        let r = round(7, 3, 200).unwrap();
        assert_eq!((counter(r), owner(r)), (7, 200));
        assert!(next_above(r, 1, 1).unwrap() > r);
    }

    #[test]
    fn overflow_is_refused() {
        assert!(round(COUNTER_MAX + 1, 0, 1).is_err());
        assert!(round(0, INCARNATION_MAX + 1, 1).is_err());
        assert!(next_above(round(COUNTER_MAX, 1, 1).unwrap(), 1, 1).is_err());
    }
}
