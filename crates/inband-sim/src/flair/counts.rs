//! The names of FLAIR's statistics.

use inband_flair::replica::Counters;

use crate::stats::Counts;

pub const ACTIVATIONS: &str = "sessions activated";
/// Replicas that restarted without memory.
pub const RESTARTS: &str = "replicas that came back empty";
/// Of these, replicas whose machine restarted, too.
pub const REBOOTS: &str = "replicas with another clock";
/// Founders that failed at the first acknowledgement.
pub const FOUNDERS_LOST: &str = "founders lost";
/// Switches that restarted without memory.
pub const RESETS: &str = "switches that came back empty";
/// Reads sent to a replica that was down.
pub const READS_OF_THE_DEAD: &str = "reads of the dead";

/// Returns the counters of a replica.
pub(super) fn of_replica(replica: Counters) -> Counts {
    let mut counts = Counts::default();
    for (name, count) in [
        ("reads of leaders", replica.reads_leader),
        ("reads of followers", replica.reads_follower),
        ("reads that advanced", replica.reads_advanced),
        ("reads refused", replica.reads_refused),
        ("writes applied", replica.writes),
        ("writes dropped", replica.writes_dropped),
        ("refreshes", replica.refreshes),
        ("bad packets", replica.bad_packets),
    ] {
        counts.add(name, count);
    }
    counts
}
