//! Nodes on real UDP sockets on 127.0.0.1: several logs, several leaders.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inband_ground::auth::{Keys, Secret};
use inband_host::key_file::KeyFile;
use inband_paxos::config::{Config, Dataplane, Role};
use inband_paxos::dataplane::soft::Registers;
use inband_paxos::dataplane::wire::{emit, Header, Type};
use inband_paxos::host::spread_leaders;
use inband_paxos::log::{Burst, ReadTicket, ReplicatedLog, Ticket, ValueKind};
use inband_paxos::node::{Node, NodeError};
use inband_testing::port::free_address;

const HOSTS: usize = 3;
const PARTITIONS: usize = 3;
const LOGS: usize = PARTITIONS + 1;
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Clusters that are polled continuously compete for CPU, and suspect healthy leaders.
static ONE: Mutex<()> = Mutex::new(());

struct Cluster {
    _one: MutexGuard<'static, ()>,
    _dir: tempfile::TempDir,
    configs: Vec<Config>,
    nodes: Vec<Node>,
    /// What each host has applied, by log.
    applied: Vec<Vec<Vec<Vec<u8>>>>,
    /// The outcomes of each host's own values.
    done: Vec<BTreeMap<Ticket, Vec<u8>>>,
    /// Instance up to which it has applied each log.
    positions: Vec<[u64; LOGS]>,
    /// Answered reads, with the instance applied at that time.
    answered: BTreeMap<ReadTicket, u64>,
}

impl Cluster {
    fn start() -> Cluster {
        Cluster::start_with(None)
    }

    /// With keys, all hosts read them from one file.
    fn start_with(keys: Option<&KeyFile>) -> Cluster {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().expect("a directory");
        let key_file = keys.map(|keys| {
            let path = dir.path().join("keys.toml");
            keys.save(&path).expect("it is written");
            format!("key_file = {path:?}\n")
        });
        let key_file = key_file.unwrap_or_default();
        let nodes: String = (1..=HOSTS)
            .map(|id| {
                let address = free_address();
                format!(
                    "[[node]]\nid = {id}\nname = \"n{id}\"\naddress = \"{address}\"\n\
                     roles = [\"leader\", \"acceptor\", \"replica\"]\n"
                )
            })
            .collect();
        let configs: Vec<Config> = (1..=HOSTS)
            .map(|id| {
                let state = dir.path().join(format!("{id}"));
                let text = format!(
                    "[cluster]\nname = \"c\"\nepoch = 1\nfirst_instances = [1, 11, 21, 31]\n\
                     partitions = {PARTITIONS}\nring_slots = 64\ndurability = \"memory\"\n{key_file}[host]\nnode = {id}\n\
                     state_dir = {state:?}\ndataplane = \"udp\"\n{nodes}"
                );
                Config::parse(&text, "test").expect("it is right")
            })
            .collect();
        let open = |config| Node::open(config, Dataplane::Udp, &[0, 10, 20, 30]);
        Cluster {
            _one: one,
            _dir: dir,
            nodes: configs
                .iter()
                .map(|c| open(c).expect("it starts"))
                .collect(),
            configs,
            applied: vec![vec![Vec::new(); LOGS]; HOSTS],
            done: vec![BTreeMap::new(); HOSTS],
            positions: vec![[0; LOGS]; HOSTS],
            answered: BTreeMap::new(),
        }
    }

    fn poll(&mut self) {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let mut bursts = Burst::for_logs(LOGS);
            node.poll(&mut bursts);
            for (log, burst) in bursts.iter().enumerate() {
                assert!(burst.failed.is_empty(), "{:?}", burst.failed);
                for decided in burst.decided() {
                    if decided.origin.kind == ValueKind::Command {
                        self.applied[at][log].push(decided.value.to_vec());
                    }
                    if let Some(ticket) = decided.ticket {
                        self.done[at].insert(ticket, decided.value.to_vec());
                        node.answered(ticket);
                    }
                    node.applied(log, decided.instance);
                    self.positions[at][log] = decided.instance;
                }
                assert!(burst.reads_failed.is_empty(), "{:?}", burst.reads_failed);
                for (ticket, index) in &burst.confirmed {
                    assert!(self.positions[at][log] >= *index, "handed over before");
                    self.answered.insert(*ticket, self.positions[at][log]);
                }
            }
        }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&Cluster) -> bool) {
        let deadline = Instant::now() + TIME_LIMIT;
        while !done(self) {
            assert!(Instant::now() < deadline, "not in time: {what}");
            self.poll();
        }
    }

    fn leaders(&self) -> Vec<Option<usize>> {
        let leads = |at: usize, log: usize| {
            self.nodes[at]
                .leader_view(log)
                .is_some_and(|view| view.round != 0)
        };
        (0..LOGS)
            .map(|log| (0..self.nodes.len()).find(|at| leads(*at, log)))
            .collect()
    }
}

#[test]
fn several_logs_over_sockets() {
    let mut cluster = Cluster::start();
    cluster.until("every log has its first leader", |c| {
        c.leaders() == [Some(0), Some(1), Some(2), Some(0)]
    });
    let mut submitted: Vec<BTreeMap<Ticket, Vec<u8>>> = vec![BTreeMap::new(); HOSTS];
    // Several times around the ring of 64 slots.
    for number in 0..300u32 {
        for (at, submitted) in submitted.iter_mut().enumerate() {
            let log = (number as usize + at) % LOGS;
            let value = [&(at as u32).to_be_bytes()[..], &number.to_be_bytes()].concat();
            let node = &mut cluster.nodes[at];
            let ticket = node.submit(log, &value).expect("there is room");
            assert_eq!(ticket.partition(), log);
            submitted.insert(ticket, value);
        }
        cluster.poll();
    }
    cluster.until("everything is decided", |c| c.done == submitted);
    cluster.until("all have all", |c| {
        let count = |at: usize| c.applied[at].iter().map(Vec::len).sum::<usize>();
        let is_equal = |at: usize| c.applied[at] == c.applied[0];
        (0..HOSTS).all(|at| count(at) >= 300 * HOSTS && is_equal(at))
    });

    // What one host has decided, another one reads.
    for number in 0..50 {
        let (at, log) = (number % HOSTS, number % LOGS);
        let ticket = cluster.nodes[at]
            .submit(log, b"seen")
            .expect("there is room");
        cluster.until("it is decided", |c| c.done[at].contains_key(&ticket));
        let must_see = cluster.positions[at][log];
        let other = (at + 1) % HOSTS;
        let read = cluster.nodes[other].confirm_read(log);
        assert_eq!(read.partition(), log);
        cluster.until("it is read", |c| c.answered.contains_key(&read));
        let seen = cluster.answered.remove(&read).expect("it is there");
        assert!(seen >= must_see, "{seen} of log {log}, not {must_see}");
    }

    // One host is removed: its logs, and only they, get another leader.
    let before = cluster.leaders();
    cluster.nodes.remove(1);
    cluster.applied.remove(1);
    cluster.done.remove(1);
    cluster.positions.remove(1);
    cluster.until("log 1 has another leader", |c| c.leaders()[1].is_some());
    let after = cluster.leaders();
    assert_eq!(
        (before[0], before[2], before[3]),
        (Some(0), Some(2), Some(0))
    );
    // Host 2 now has index 1.
    assert_eq!(after, [Some(0), Some(1), Some(1), Some(0)]);
    let ticket = cluster.nodes[0].submit(1, b"last").expect("there is room");
    cluster.until("it is decided", |c| c.done[0].contains_key(&ticket));
}

/// All acceptors keep their votes, so opening an epoch means sealing and opening each of them.
#[test]
fn nodes_go_on_in_another_epoch() {
    let mut cluster = Cluster::start();
    let all_lead = |c: &Cluster| c.leaders() == [Some(0), Some(1), Some(2), Some(0)];
    cluster.until("every log has its first leader", all_lead);
    let submit = |cluster: &mut Cluster, value: &[u8]| -> Vec<Ticket> {
        let mut logs = 0..LOGS;
        let ticket = logs.by_ref().map(|log| cluster.nodes[0].submit(log, value));
        ticket.map(|t| t.expect("there is room")).collect()
    };
    let first = submit(&mut cluster, b"first");
    let has = |c: &Cluster, tickets: &[Ticket]| tickets.iter().all(|t| c.done[0].contains_key(t));
    cluster.until("all are decided", |c| has(c, &first));
    let acceptors = |cluster: &Cluster, act: &dyn Fn(&Registers, usize)| {
        for node in &cluster.nodes {
            let registers = node.registers().expect("it has roles");
            (0..LOGS).for_each(|log| act(registers, log));
        }
    };
    acceptors(&cluster, &|registers, log| registers.acceptor.seal(log, 2));
    acceptors(&cluster, &|registers, log| registers.acceptor.open(log));
    let second = submit(&mut cluster, b"second");
    // Without the third node as a leader.
    let mut nodes = cluster.configs[0].nodes.clone();
    nodes[2].roles.retain(|role| *role != Role::Leader);
    let leaders = spread_leaders(&[nodes[0].id, nodes[1].id], LOGS);
    for at in [1, 0, 2] {
        let heard = cluster.nodes[at].host().highest_epoch_seen();
        assert!(heard <= 2);
        for _ in 0..2 {
            let entered = cluster.nodes[at].enter_epoch(2, &nodes, &leaders);
            entered.expect("once, and once more");
        }
    }
    cluster.until("all are decided", |c| has(c, &second));
    // Leaders stay; only log 2 has lost its leader.
    let leaders = cluster.leaders();
    assert_eq!(leaders, [Some(0), Some(1), Some(0), Some(0)]);
    let third = submit(&mut cluster, b"third");
    cluster.until("all are decided", |c| has(c, &third));
}

fn counted(node: &Node, reason: &str) -> u64 {
    node.counters().get(reason).copied().unwrap_or(0)
}

#[test]
fn keys_are_rotated_while_values_are_decided_and_strangers_count_for_nothing() {
    let mut keys = KeyFile::generate().expect("random bytes");
    let mut cluster = Cluster::start_with(Some(&keys));
    let path = cluster.configs[0].cluster.key_file.clone();
    let path = path.expect("there is one");
    cluster.until("every log has a leader", |c| {
        c.leaders().iter().all(Option::is_some)
    });
    let decide = |cluster: &mut Cluster| {
        for log in 0..LOGS {
            let ticket = cluster.nodes[1].submit(log, b"value").expect("room");
            cluster.until("it is decided", |c| c.done[1].contains_key(&ticket));
        }
    };
    decide(&mut cluster);
    // Add everywhere, then activate everywhere, then drop the old one, on one host after another.
    let new = keys.add().expect("there is room");
    let steps: [&dyn Fn(&mut KeyFile); 3] = [
        &|_| (),
        &|keys| keys.activate(new).expect("it is there"),
        &|keys| keys.drop_others(),
    ];
    for step in steps {
        step(&mut keys);
        keys.save(&path).expect("it is written");
        for at in 0..HOSTS {
            let reloaded = cluster.nodes[at].reload_keys().expect("it is right");
            let reloaded = reloaded.expect("there are some");
            assert_eq!(
                (reloaded.active(), reloaded.ids()),
                (keys.active(), keys.ids())
            );
            decide(&mut cluster);
        }
    }
    for node in &cluster.nodes {
        assert_eq!((counted(node, "bad_key"), counted(node, "bad_tag")), (0, 0));
    }

    // A stranger's packets: without a tag, with the key that was dropped, with a forged tag.
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
    let mut trim = Header::new(Type::Trim, 2, 1);
    trim.floor = 1 << 40;
    let mut packet = Vec::new();
    emit(&trim, &[], &mut packet);
    let send = |packet: &[u8]| {
        let to = cluster.configs[0].this().address;
        stranger.send_to(packet, to).expect("it is sent");
    };
    let guess = Secret([1; 16]);
    send(&packet);
    Keys::new(1, &[(1, guess)]).unwrap().sign(&mut packet);
    send(&packet);
    Keys::new(new, &[(new, guess)]).unwrap().sign(&mut packet);
    send(&packet);
    let floor = |c: &Cluster| c.nodes[0].acceptor_view(0).expect("an acceptor").floor;
    cluster.until("they are counted", |c| {
        counted(&c.nodes[0], "bad_key") == 2 && counted(&c.nodes[0], "bad_tag") == 1
    });
    assert!(floor(&cluster) < 1 << 40);

    // Another digest key is refused, because values could not be read any more. So is a file that others can read.
    KeyFile::generate()
        .expect("random bytes")
        .save(&path)
        .expect("it is written");
    let error = cluster.nodes[0]
        .reload_keys()
        .expect_err("another digest key");
    assert!(error.to_string().contains("digest key"), "{error}");
    assert_eq!(cluster.nodes[0].keys().map(|keys| keys.active()), Some(new));
    decide(&mut cluster);

    // Hosts with a different key, at the same addresses, are strangers too.
    drop(cluster);
    let mut other = Cluster::start_with(Some(&KeyFile::generate().expect("random bytes")));
    let has_leaders = |c: &Cluster| c.leaders().iter().all(Option::is_some);
    other.until("a cluster of its own", has_leaders);
    let taken = other.nodes.remove(2);
    drop(taken);
    let theirs = &other.configs[2];
    let own = KeyFile::generate().expect("random bytes");
    own.save(theirs.cluster.key_file.as_deref().expect("there is one"))
        .expect("it is written");
    let stranger = Node::open(theirs, Dataplane::Udp, &[0, 10, 20, 30]).expect("it starts");
    other.nodes.push(stranger);
    other.until("nobody hears it, and it hears nobody", |c| {
        [0, 1]
            .iter()
            .all(|at| counted(&c.nodes[*at], "bad_tag") > 0)
            && counted(&c.nodes[2], "bad_tag") > 0
            && c.nodes[2]
                .host()
                .partition(0)
                .learner()
                .is_some_and(|l| l.known_highest() == 0)
    });
}

#[test]
fn positions_go_with_the_logs() {
    let cluster = Cluster::start();
    let error = Node::open(&cluster.configs[0], Dataplane::Udp, &[0]).err();
    assert!(
        matches!(error, Some(NodeError::Positions { given: 1, logs: 4 })),
        "{error:?}"
    );
}
