//! A cluster in namespaces, and clients that record every reply.

#![allow(dead_code, missing_docs)]

pub mod flair;
pub mod small_disk;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_cluster::paxos::supervisor::HostEntry;
use inband_cluster::paxos::{ClusterSpec, ClusterStatus, Supervisor};
use inband_control::service;
use inband_paxos::config::{Dataplane, Role};
use inband_testing::port::free_ports;

/// One cluster at a time: there are two cores, and pauses are measured.
static ONE: Mutex<()> = Mutex::new(());

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_inband");

/// Returns whether namespaces and XDP work here. If not, the test is reported as skipped.
pub fn lab_works() -> bool {
    let works = inband_lab::preflight::check_lab();
    if let Err(error) = &works {
        inband_testing::not_run(error);
    }
    works.is_ok()
}

/// Time limit on a busy machine for what takes moments on an idle one.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than the default, which several stalls of the machine exceed, and shorter than [`Client`]'s own timeout.
const SUBMIT_DEADLINE_MS: u64 = 15_000;

pub struct Cluster {
    pub supervisor: Supervisor,
    pub dir: PathBuf,
    spec: ClusterSpec,
    one: MutexGuard<'static, ()>,
}

/// A stopped cluster, with its data.
pub struct Stopped {
    dir: PathBuf,
    spec: ClusterSpec,
    one: MutexGuard<'static, ()>,
}

impl Stopped {
    /// Starts again on the same data.
    pub fn up_again(mut self, change: impl FnOnce(&mut ClusterSpec)) -> (Cluster, ClusterSpec) {
        change(&mut self.spec);
        let supervisor = Supervisor::start(self.spec.clone()).expect("the cluster starts again");
        let spec = self.spec.clone();
        let cluster = Cluster {
            supervisor,
            dir: self.dir,
            spec: self.spec,
            one: self.one,
        };
        cluster.wait_until_it_serves();
        (cluster, spec)
    }
}

impl Cluster {
    pub fn start(
        name: &str,
        dataplane: Dataplane,
        change: impl FnOnce(&mut ClusterSpec),
    ) -> Cluster {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = std::env::temp_dir().join(format!("ib-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let mut spec = ClusterSpec::new(PROGRAM, &dir);
        spec.dataplane = dataplane;
        spec.resp = SocketAddr::from(([127, 0, 0, 1], free_ports(8)));
        spec.metrics_port = free_ports(16);
        spec.timing.submit_deadline_ms = SUBMIT_DEADLINE_MS;
        change(&mut spec);
        let supervisor = Supervisor::start(spec.clone()).expect("the cluster starts");
        let cluster = Cluster {
            supervisor,
            dir,
            spec,
            one,
        };
        cluster.wait_until_it_serves();
        cluster
    }

    /// Waits until it serves at the front and at each replica: a replica may not have entered the epoch yet.
    fn wait_until_it_serves(&self) {
        let deadline = Instant::now() + TIMEOUT;
        let hosts = self.status().hosts;
        let replicas = hosts.iter().filter_map(|host| {
            let number = host.name.strip_prefix("replica/")?;
            Some(self.replica(number.parse().expect("a number")))
        });
        for address in std::iter::once(self.resp()).chain(replicas) {
            while Client::try_connect(address)
                .and_then(|mut c| c.try_call(&["SET", "warm", "up"]))
                .as_deref()
                != Some("+OK")
            {
                assert!(
                    Instant::now() < deadline,
                    "{address} does not serve: {:#?}",
                    self.supervisor.status()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    pub fn resp(&self) -> SocketAddr {
        self.supervisor.resp()
    }

    /// The port of one replica alone.
    pub fn replica(&self, i: u16) -> SocketAddr {
        let front = self.supervisor.resp();
        SocketAddr::new(front.ip(), front.port() + 1 + i)
    }

    pub fn status(&self) -> ClusterStatus {
        self.supervisor.status()
    }

    pub fn counter(&self, host: &str, counter: &str) -> u64 {
        let mut count = 0;
        // A host that waits for a CPU does not answer in time.
        self.wait_for("the host answers", TIMEOUT, |status| {
            let mut hosts = status.hosts.iter();
            let entry = hosts.find(|h| h.name == host);
            let said = entry.expect("a host of this name").status.as_ref();
            count = said.map_or(0, |said| said.counters.get(counter).copied().unwrap_or(0));
            said.is_some()
        });
        count
    }

    /// The name of the host that leads a log.
    pub fn leader(&self, log: usize) -> String {
        let mut leader = None;
        self.wait_for("the log has a leader", TIMEOUT, |status| {
            leader = status.leader(log).map(str::to_owned);
            leader.is_some()
        });
        leader.expect("it was waited for")
    }

    /// Waits until a condition on the status holds.
    pub fn wait_for(
        &self,
        what: &str,
        limit: Duration,
        mut good: impl FnMut(&ClusterStatus) -> bool,
    ) {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.status();
            if good(&status) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: not within {limit:?}: {status:#?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until all replicas have applied the same instance.
    pub fn wait_until_equal(&self, limit: Duration) {
        self.wait_for("replicas become equal", limit, |status| {
            let applied: Vec<Option<&Vec<u64>>> = status
                .hosts
                .iter()
                .filter(|h| h.name.starts_with("replica"))
                .map(|h| Some(&h.status.as_ref()?.replica.as_ref()?.applied))
                .collect();
            applied[0].is_some() && applied.iter().all(|a| *a == applied[0])
        });
    }

    /// Waits until everything answered is in the stores of a majority of replicas, as shown by the trim floor, so that
    /// it outlives all processes.
    pub fn wait_until_stored(&self, limit: Duration) {
        self.wait_for("a majority has stored everything", limit, |status| {
            let hosts = status.hosts.iter().filter_map(|h| h.status.as_ref());
            let acceptors: Vec<_> = hosts.flat_map(|h| &h.acceptors).collect();
            !acceptors.is_empty() && acceptors.iter().all(|a| a.floor > a.highest_voted)
        });
    }

    /// A host's data directories.
    fn data_dirs(&self, host: &str) -> Vec<PathBuf> {
        let name = host.replace('/', "-");
        let own = self.dir.join(format!("hosts/{name}/data"));
        let more = self.spec.more_data.iter().map(|dir| dir.join(&name));
        [own].into_iter().chain(more).collect()
    }

    /// Waits until all acceptors vote in all logs. Returns their names.
    pub fn wait_until_all_vote(&self, limit: Duration) -> Vec<String> {
        let mut names = Vec::new();
        self.wait_for("all acceptors vote", limit, |status| {
            let acceptors = || {
                let is_acceptor = |h: &&HostEntry| h.roles.contains(&Role::Acceptor);
                status.hosts.iter().filter(is_acceptor)
            };
            names = acceptors().map(|h| h.name.clone()).collect();
            acceptors().all(|host| {
                let said = host.status.as_ref();
                said.is_some_and(|s| s.acceptors.iter().all(|a| a.voting))
            })
        });
        names
    }

    /// The status reported by the control plane.
    pub fn plane(&self) -> service::Status {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.supervisor.control_plane(&service::Request::Status) {
                Ok(service::Response::Status(status)) => return *status,
                other => assert!(Instant::now() < deadline, "{other:?}"),
            }
        }
    }

    /// Instances of all logs applied by the most advanced replica.
    pub fn progress(&self) -> u64 {
        progress(&self.status())
    }

    /// Stops cleanly and starts again on the same data.
    pub fn down_and_up(self, change: impl FnOnce(&mut ClusterSpec)) -> (Cluster, ClusterSpec) {
        let report = self.supervisor.down().expect("down");
        assert!(
            report.clean_at.is_some(),
            "unclean: {:?}",
            report.unclean_because
        );
        self.crash().up_again(change)
    }

    /// Kills everything at once.
    pub fn crash(self) -> Stopped {
        drop(self.supervisor);
        Stopped {
            dir: self.dir,
            spec: self.spec,
            one: self.one,
        }
    }

    /// Stops cleanly and compares the contents of all replicas.
    pub fn down_and_compare(self) {
        let hosts = self.status().hosts;
        let report = self.supervisor.down().expect("down");
        assert!(
            report.clean_at.is_some(),
            "unclean: {:?}",
            report.unclean_because
        );
        let replicas = hosts.iter().filter(|h| h.name.starts_with("replica"));
        let dirs: Vec<Vec<PathBuf>> = replicas.map(|h| self.data_dirs(&h.name)).collect();
        drop(self.supervisor);
        let digests: Vec<String> = dirs.iter().map(|d| inspect(d)).collect();
        assert!(
            digests.iter().all(|d| *d == digests[0]),
            "replicas differ: {digests:#?}"
        );
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Instances of all logs applied by the most advanced replica.
pub fn progress(status: &ClusterStatus) -> u64 {
    let said = status.hosts.iter().filter_map(|h| h.status.as_ref());
    let replicas = said.filter_map(|s| s.replica.as_ref());
    replicas.map(|r| r.applied.iter().sum()).max().unwrap_or(0)
}

/// The output of `inband inspect` for a replica's stores.
pub fn inspect(data_dirs: &[PathBuf]) -> String {
    let output = Command::new(PROGRAM)
        .arg("inspect")
        .args(data_dirs)
        .output()
        .expect("inspect runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A RESP client with one command at a time.
pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn try_connect(address: SocketAddr) -> Option<Client> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
        stream.set_nodelay(true).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .ok()?;
        Some(Client {
            reader: BufReader::new(stream.try_clone().ok()?),
            stream,
        })
    }

    pub fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).expect("the store accepts connections")
    }

    /// `None`: the connection was lost, so the outcome is unknown.
    pub fn try_call(&mut self, parts: &[&str]) -> Option<String> {
        let mut request = format!("*{}\r\n", parts.len());
        for part in parts {
            request += &format!("${}\r\n{part}\r\n", part.len());
        }
        self.stream.write_all(request.as_bytes()).ok()?;
        self.reply()
    }

    /// A reply; the items of an array are separated by spaces.
    fn reply(&mut self) -> Option<String> {
        let line = self.line()?;
        if let Some(items) = line.strip_prefix('*') {
            let items = (0..items.parse::<usize>().ok()?).map(|_| self.reply());
            return Some(items.collect::<Option<Vec<_>>>()?.join(" "));
        }
        match line.strip_prefix('$') {
            Some("-1") => Some("(nil)".into()),
            Some(_) => self.line(),
            None => Some(line),
        }
    }

    pub fn call(&mut self, parts: &[&str]) -> String {
        self.try_call(parts).expect("an answer")
    }

    /// GET of each key, all sent at once.
    fn get_all(&mut self, keys: &[String]) -> Vec<String> {
        let get = |key: &String| format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
        let requests: String = keys.iter().map(get).collect();
        let sent = self.stream.write_all(requests.as_bytes());
        sent.expect("the store takes them");
        let replies = keys.iter().map(|_| self.reply().expect("an answer"));
        replies.collect()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(n) if n > 0 => Some(line.trim_end().to_owned()),
            _ => None,
        }
    }
}

/// The results of one client: every command ended in exactly one of these ways.
#[derive(Debug, Default, Clone)]
pub struct Record {
    pub acknowledged: Vec<u64>,
    pub failed: Vec<(u64, String)>,
    pub unknown: Vec<u64>,
    pub longest_pause: Duration,
    pub increments: u64,
}

/// Without a pause, clients would take the CPUs from the cluster, and write more than a test can read back in the end.
const BETWEEN_COMMANDS: Duration = Duration::from_millis(2);
const GETS_AT_ONCE: usize = 64;

/// Clients that write numbered keys and increment a counter, each one command at a time.
pub struct Load {
    stop: Arc<AtomicBool>,
    /// SETs that were acknowledged to each client.
    acknowledged: Vec<Arc<AtomicU64>>,
    clients: Vec<JoinHandle<Record>>,
}

impl Load {
    /// Starts `clients` clients, spread over `addresses`.
    pub fn start(addresses: &[SocketAddr], clients: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged: Vec<Arc<AtomicU64>> = (0..clients).map(|_| Arc::default()).collect();
        let clients = (0..)
            .zip(&acknowledged)
            .map(|(i, acknowledged)| {
                let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
                let addresses = addresses.to_vec();
                std::thread::spawn(move || run_client(i, &addresses, &stop, &acknowledged))
            })
            .collect();
        Load {
            stop,
            acknowledged,
            clients,
        }
    }

    /// Lets the clients run for this long, and until each of them has got a further acknowledgement.
    pub fn run_for(&self, ms: u64) {
        let count = |acknowledged: &Arc<AtomicU64>| acknowledged.load(Ordering::Acquire);
        let before: Vec<u64> = self.acknowledged.iter().map(count).collect();
        std::thread::sleep(Duration::from_millis(ms));
        let deadline = Instant::now() + TIMEOUT;
        let go_on = || {
            let mut now = self.acknowledged.iter().map(count).zip(&before);
            now.all(|(now, before)| now > *before)
        };
        while !go_on() {
            assert!(Instant::now() < deadline, "a client got no acknowledgement");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn stop(self) -> Vec<Record> {
        self.stop.store(true, Ordering::Release);
        self.clients
            .into_iter()
            .map(|c| c.join().expect("a client does not panic"))
            .collect()
    }
}

fn run_client(
    id: usize,
    addresses: &[SocketAddr],
    stop: &AtomicBool,
    acknowledged: &AtomicU64,
) -> Record {
    let mut record = Record::default();
    let mut turn = id;
    let mut client = Client::connect(addresses[turn % addresses.len()]);
    let mut last = Instant::now();
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        number += 1;
        let (key, value) = (format!("client{id}:{number}"), number.to_string());
        let reply = client.try_call(&["SET", &key, &value]);
        let counted = client.try_call(&["INCR", &format!("count{id}")]);
        record.longest_pause = record.longest_pause.max(last.elapsed());
        std::thread::sleep(BETWEEN_COMMANDS);
        last = Instant::now();
        match reply {
            Some(reply) if reply == "+OK" => {
                record.acknowledged.push(number);
                acknowledged.fetch_add(1, Ordering::Release);
            }
            Some(reply) if reply.contains("outcome unknown") => record.unknown.push(number),
            Some(reply) => record.failed.push((number, reply)),
            None => {
                record.unknown.push(number);
                // The replica failed: continue at another one that answers.
                let deadline = Instant::now() + TIMEOUT;
                loop {
                    turn += 1;
                    if let Some(fresh) = Client::try_connect(addresses[turn % addresses.len()]) {
                        client = fresh;
                        break;
                    }
                    assert!(
                        Instant::now() < deadline,
                        "nobody accepts connections at {addresses:?}"
                    );
                    std::thread::sleep(Duration::from_millis(20));
                }
                continue;
            }
        }
        if let Some(counted) = counted {
            record.increments += u64::from(counted.starts_with(':'));
        }
    }
    record
}

/// Time limit for a replica to load a checkpoint.
const LOADED_TIMEOUT: Duration = Duration::from_secs(60);

/// GET; retried while a replica that has fallen behind is loading a checkpoint.
fn loaded(client: &mut Client, key: &str) -> String {
    let deadline = Instant::now() + LOADED_TIMEOUT;
    loop {
        let got = client.call(&["GET", key]);
        if !got.starts_with("-LOADING") || Instant::now() >= deadline {
            return got;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that nothing acknowledged is lost, and nothing is applied twice. Returns how much was checked.
pub fn check(address: SocketAddr, records: &[Record]) -> u64 {
    let mut client = Client::connect(address);
    let mut checked = 0;
    for (id, record) in records.iter().enumerate() {
        for numbers in record.acknowledged.chunks(GETS_AT_ONCE) {
            let key = |number: &u64| format!("client{id}:{number}");
            let keys: Vec<String> = numbers.iter().map(key).collect();
            let replies = client.get_all(&keys);
            for ((number, key), mut got) in numbers.iter().zip(&keys).zip(replies) {
                if got.starts_with("-LOADING") {
                    got = loaded(&mut client, key);
                }
                assert_eq!(
                    got,
                    number.to_string(),
                    "client {id}: an acknowledged SET is lost"
                );
                checked += 1;
            }
        }
        let count: u64 = loaded(&mut client, &format!("count{id}"))
            .parse()
            .unwrap_or(0);
        let most = record.increments + record.unknown.len() as u64 + record.failed.len() as u64 + 1;
        assert!(
            (record.increments..=most).contains(&count),
            "client {id}: {} increments acknowledged, {count} applied",
            record.increments
        );
        if record.unknown.is_empty() && record.failed.is_empty() {
            assert!(
                count <= record.increments + 1,
                "client {id}: applied twice: {} acknowledged, {count} applied",
                record.increments
            );
        }
    }
    assert!(checked > 0, "no command was acknowledged at all");
    checked
}
