//! `sync` mode on real sockets and a real disk: everything is killed at once and recovers completely, in the same
//! epoch.

use std::time::{Duration, Instant};

use inband_paxos::config::{Config, Dataplane, Durability};
use inband_paxos::log::{Burst, ReplicatedLog, ValueKind};
use inband_paxos::node::Node;
use inband_paxos::session::{SessionTable, Verdict};
use inband_testing::port::free_address;

const HOSTS: usize = 3;
const LOGS: usize = 3;
const TIME_LIMIT: Duration = Duration::from_secs(60);

struct Cluster {
    dir: tempfile::TempDir,
    configs: Vec<Config>,
    nodes: Vec<Node>,
    /// What was delivered to each host since it started, by log.
    handed: Vec<Vec<Vec<Vec<u8>>>>,
    /// By host and log: which of these values are new.
    sessions: Vec<Vec<SessionTable>>,
}

impl Cluster {
    fn new(durability: Durability) -> Cluster {
        let dir = tempfile::tempdir().expect("a directory");
        let nodes: String = (1..=HOSTS)
            .map(|id| {
                let address = free_address();
                format!(
                    "[[node]]\nid = {id}\nname = \"n{id}\"\naddress = \"{address}\"\n\
                     roles = [\"leader\", \"acceptor\", \"replica\"]\n"
                )
            })
            .collect();
        let config = |id| {
            let state = dir.path().join(format!("{id}"));
            let text = format!(
                "[cluster]\nname = \"c\"\nepoch = 1\nfirst_instance = 1\npartitions = 2\n\
                 ring_slots = 64\ndurability = \"{durability}\"\n[host]\nnode = {id}\n\
                 state_dir = {state:?}\ndataplane = \"udp\"\n{nodes}"
            );
            Config::parse(&text, "test").expect("it is right")
        };
        Cluster {
            configs: (1..=HOSTS).map(config).collect(),
            dir,
            nodes: Vec::new(),
            handed: Vec::new(),
            sessions: Vec::new(),
        }
    }

    /// Ends all processes at once without notice, and restarts them with empty replicas.
    fn restart(&mut self) {
        self.nodes.clear();
        let open = |config| Node::open(config, Dataplane::Udp, &[0; LOGS]).expect("it starts");
        self.nodes = self.configs.iter().map(open).collect();
        self.handed = vec![vec![Vec::new(); LOGS]; HOSTS];
        self.sessions = vec![vec![SessionTable::default(); LOGS]; HOSTS];
    }

    fn poll(&mut self) {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let mut bursts = Burst::for_logs(LOGS);
            node.poll(&mut bursts);
            for (log, burst) in bursts.iter().enumerate() {
                for decided in burst.decided() {
                    let sessions = &mut self.sessions[at][log];
                    let is_new =
                        sessions.admit(decided.instance, &decided.origin) == Verdict::Apply;
                    if is_new && decided.origin.kind == ValueKind::Command {
                        self.handed[at][log].push(decided.value.to_vec());
                    }
                    if let Some(ticket) = decided.ticket {
                        node.answered(ticket);
                    }
                }
            }
        }
    }

    fn until(&mut self, within: Duration, mut done: impl FnMut(&Cluster) -> bool) -> bool {
        let deadline = Instant::now() + within;
        while !done(self) {
            if Instant::now() > deadline {
                return false;
            }
            self.poll();
        }
        true
    }

    /// Submits a value in each log at each host, and waits until every host has `total` in each.
    fn decide(&mut self, value: u8, total: usize) {
        for node in &mut self.nodes {
            for log in 0..LOGS {
                node.submit(log, &[value; 20]).expect("there is room");
            }
        }
        let all = |c: &Cluster| {
            c.handed
                .iter()
                .flatten()
                .all(|values| values.len() == total)
        };
        let done = self.until(TIME_LIMIT, all);
        let counts: Vec<usize> = self.handed.iter().flatten().map(Vec::len).collect();
        assert!(done, "{total} in each log at each host, not {counts:?}");
    }

    fn votes(&self) -> bool {
        let voting = |node: &Node| node.acceptor_view(0).is_some_and(|view| view.voting);
        self.nodes.iter().all(voting)
    }
}

#[test]
fn a_cluster_that_is_killed_comes_back_whole() {
    let mut cluster = Cluster::new(Durability::Sync);
    cluster.restart();
    cluster.decide(1, HOSTS);
    let before = cluster.handed.clone();
    for round in 1..4 {
        cluster.restart();
        assert!(cluster.votes());
        // Nothing has been trimmed, so empty replicas get everything from the acceptors.
        cluster.decide(1 + round, HOSTS * (1 + usize::from(round)));
        for (now, before) in cluster.handed.iter().flatten().zip(before.iter().flatten()) {
            assert!(now.starts_with(before), "{now:?} {before:?}");
        }
    }
}

/// The control run: with votes in memory the same restart ends the epoch.
#[test]
fn without_the_journal_it_does_not() {
    let mut cluster = Cluster::new(Durability::Memory);
    cluster.restart();
    cluster.decide(1, HOSTS);
    cluster.restart();
    assert!(!cluster.votes());
    let some = |c: &Cluster| c.handed.iter().flatten().any(|values| !values.is_empty());
    assert!(!cluster.until(Duration::from_millis(500), some));
}

/// Schedules.md, 8: a damaged record in the middle is not a torn tail.
#[test]
fn a_damaged_journal_means_recovering() {
    let mut cluster = Cluster::new(Durability::Sync);
    cluster.restart();
    cluster.decide(1, HOSTS);
    cluster.nodes.clear();
    let journal = cluster.dir.path().join("1/acceptor");
    let segment = std::fs::read_dir(&journal)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("journal-"))
        .expect("there is a journal");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    cluster.restart();
    let voting = |at: usize| cluster.nodes[at].acceptor_view(0).unwrap().voting;
    assert_eq!([voting(0), voting(1), voting(2)], [false, true, true]);
    // The other two are a majority.
    cluster.decide(2, 2 * HOSTS);
}
