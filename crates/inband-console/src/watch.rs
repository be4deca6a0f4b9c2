//! Asks for the cluster's status again and again, and notes what has changed.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use inband_host::program::in_words;
use nix::unistd::{sysconf, SysconfVar};

use crate::cluster::Cluster;
use crate::feed::{Event, Feed};
use crate::topology::{Host, Topology};

const STATUS_INTERVAL: Duration = Duration::from_millis(250);
/// The state of a process that serves.
const RUNNING: &str = "running";

/// CPU time that a process has used, in clock ticks.
fn cpu_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may contain spaces.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn ticks_per_s() -> f64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    ticks as f64
}

/// What was counted at the last status.
struct Counted {
    at: Instant,
    ticks: BTreeMap<u32, u64>,
    packets: BTreeMap<String, u64>,
}

impl Counted {
    fn new() -> Counted {
        Counted {
            at: Instant::now(),
            ticks: BTreeMap::new(),
            packets: BTreeMap::new(),
        }
    }

    /// Adds the rates since the last status.
    fn rate(&mut self, hosts: &mut [Host], ticks_per_s: f64) {
        let elapsed_s = self.at.elapsed().as_secs_f64().max(1e-3);
        self.at = Instant::now();
        for host in hosts {
            if let Some((pid, ticks)) = host.pid.and_then(|pid| Some((pid, cpu_ticks(pid)?))) {
                let before = self.ticks.insert(pid, ticks);
                let used = before.map(|before| ticks.saturating_sub(before) as f64);
                host.cpu_percent = used.map(|used| 100.0 * used / ticks_per_s / elapsed_s);
            }
            if let Some(packets) = host.packets {
                let before = self.packets.insert(host.name.clone(), packets);
                let carried = before.map(|before| packets.saturating_sub(before) as f64);
                host.packets_per_s = carried.map(|carried| carried / elapsed_s);
            }
        }
    }
}

/// What changed from one status to the next: text, and whether it is a fault.
pub fn changes(before: &Topology, now: &Topology) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for host in &now.hosts {
        let Some(was) = before.hosts.iter().find(|was| was.name == host.name) else {
            found.push((format!("{} joined", host.name), false));
            continue;
        };
        if was.state != host.state {
            found.push((
                format!("{} is {}", host.name, host.state),
                host.state != RUNNING,
            ));
        } else if was.pid != host.pid && host.pid.is_some() {
            found.push((format!("{} was restarted", host.name), false));
        }
        if host.is_leader && !was.is_leader {
            found.push((format!("{} leads", host.name), false));
        }
    }
    for was in &before.hosts {
        if !now.hosts.iter().any(|host| host.name == was.name) {
            found.push((format!("{} left", was.name), false));
        }
    }
    found
}

/// Until the process ends.
pub fn watch(cluster: &Cluster, feed: &Feed) {
    let ticks_per_s = ticks_per_s();
    let mut counted = Counted::new();
    let mut last: Option<Topology> = None;
    loop {
        let now = match cluster.status() {
            Ok(status) => {
                let mut topology = Topology::of(&cluster.system, &status);
                counted.rate(&mut topology.hosts, ticks_per_s);
                if let Some(last) = &last {
                    for (text, is_fault) in changes(last, &topology) {
                        feed.mark(text, is_fault);
                    }
                }
                last = Some(topology.clone());
                topology
            }
            Err(error) => Topology {
                error: Some(in_words(&error)),
                ..last.clone().unwrap_or_default()
            },
        };
        feed.send(&Event::Topology(now));
        thread::sleep(STATUS_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn topology(hosts: &[(&str, &str, bool)]) -> Topology {
        let hosts: Vec<_> = hosts
            .iter()
            .map(|(name, process, leads)| json!({"name": name, "process": process, "pid": 1, "status": {"state": if *leads { "leading" } else { "following" }}}))
            .collect();
        Topology::of("box", &json!({"processes": hosts}))
    }

    #[test]
    fn changes_are_noted_once() {
        let before = topology(&[
            ("node/1", RUNNING, true),
            ("node/2", RUNNING, false),
            ("node/3", RUNNING, false),
        ]);
        let now = topology(&[
            ("node/1", "exited", false),
            ("node/2", RUNNING, true),
            ("node/4", RUNNING, false),
        ]);
        let texts: Vec<_> = changes(&before, &now);
        let expected = [
            ("node/1 is exited", true),
            ("node/2 leads", false),
            ("node/4 joined", false),
            ("node/3 left", false),
        ];
        assert_eq!(
            texts,
            expected.map(|(text, is_fault)| (text.to_owned(), is_fault))
        );
        assert!(changes(&now, &now).is_empty());
    }

    #[test]
    fn this_process_has_used_a_cpu() {
        assert!(cpu_ticks(std::process::id()).is_some());
    }
}
