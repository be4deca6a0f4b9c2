//! Shared by the tests: a hand-written log, and replicas served on a thread.

pub mod world;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{mpsc, Arc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_host::log::{Decided, Origin, Ticket, ValueKind};
use inband_kv::clock_exchange::HostClocks;
use inband_kv::command::SessionStamp;
use inband_kv::control::ReplicaControl;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::parse::{parse, Request};
use inband_kv::partition::partition_of;
use inband_kv::replica::{Replica, ReplicaConfig, ReplicaError};
use inband_kv::store::{Outcomes, Store, StoreError};
use inband_kv::testing::MemoryCluster;
use inband_kv::value::ValueWriter;
use inband_kv::workers::WorkerConfig;
use inband_resp::reply::Reply;
use inband_resp::request::Args;
use proptest::prelude::*;

/// Time limit on a busy machine for what takes milliseconds on an idle one.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A point in time for tests.
pub const T0_MS: u64 = 1_700_000_000_000;

/// A temporary directory, in memory if there is a suitable file system: these tests crash processes, not hosts, and
/// open very many databases.
pub fn scratch() -> tempfile::TempDir {
    let in_memory = tempfile::Builder::new()
        .prefix("inband-kv-")
        .tempdir_in("/dev/shm");
    in_memory.unwrap_or_else(|_| tempfile::tempdir().expect("temporary directory"))
}

/// How many workers [`Served`] replicas have: none, unless a test runs tests with this many.
pub const WORKERS_VARIABLE: &str = "INBAND_TEST_WORKERS";

fn workers() -> WorkerConfig {
    let asked = std::env::var(WORKERS_VARIABLE);
    let threads = asked.map_or(0, |text| text.parse().expect("a number"));
    WorkerConfig::eager(threads)
}

/// The number of cases of a property test: `default`, or `PROPTEST_CASES` if set.
pub fn cases(default: u32) -> proptest::test_runner::Config {
    let asked = std::env::var("PROPTEST_CASES");
    proptest::test_runner::Config {
        cases: asked
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default),
        failure_persistence: None,
        ..Default::default()
    }
}

/// A machine of one partition in `dir`.
pub fn open(dir: &Path) -> Machine {
    Machine::open(MachineConfig::single(dir)).expect("opens")
}

/// Encodes one command given as words; `Err` is the reply if it does not parse.
pub fn encode(words: &[&[u8]], stamp: Option<SessionStamp>) -> Result<Vec<u8>, Reply> {
    let bytes = words.concat();
    let mut at = 0;
    let ranges: Vec<_> = words
        .iter()
        .map(|word| {
            at += word.len();
            (at - word.len(), at)
        })
        .collect();
    match parse(Args::new(&bytes, &ranges))? {
        Request::Replicated(command) => {
            let mut out = bytes::BytesMut::new();
            command.encode(stamp, &mut out);
            Ok(out.to_vec())
        }
        other => panic!("{other:?} does not go through the log"),
    }
}

/// Delivers one value of the first log.
pub fn deliver(
    machine: &mut Machine,
    decided: Decided<'_>,
    outcomes: &mut Outcomes,
) -> Result<(), StoreError> {
    let Decided {
        instance,
        origin,
        ticket,
        value,
    } = decided;
    machine.bursts()[0].push(instance, origin, ticket, value);
    machine.run(outcomes).map(|_| ())
}

/// `*2\r\n$3\r\nGET\r\n...` of a line.
pub fn resp(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let strings = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), strings.collect::<String>())
}

/// Words of a line; `""` is an empty word.
pub fn words(line: &str) -> Vec<&[u8]> {
    line.split(' ')
        .map(|word| {
            if word == "\"\"" {
                &b""[..]
            } else {
                word.as_bytes()
            }
        })
        .collect()
}

/// A decided value.
#[derive(Debug, Clone)]
pub struct Value {
    pub origin: Origin,
    pub bytes: Vec<u8>,
}

/// A hand-written log with one proposer, in order.
pub struct Log {
    pub values: Vec<Value>,
    session: u64,
    next_seq: u64,
}

impl Default for Log {
    fn default() -> Self {
        let kind = ValueKind::OpenSession;
        let origin = Origin {
            client_id: 1,
            client_seq: 0,
            client_low: 0,
            kind,
        };
        Self {
            values: vec![Value {
                origin,
                bytes: Vec::new(),
            }],
            session: 1,
            next_seq: 1,
        }
    }
}

impl Log {
    /// A log that starts with no-ops, so that its proposer's session has a different id.
    pub fn after_holes(holes: usize) -> Self {
        let mut log = Self::default();
        let noop = Origin {
            kind: ValueKind::Noop,
            ..log.values[0].origin
        };
        for _ in 0..holes {
            log.values.insert(
                0,
                Value {
                    origin: noop,
                    bytes: Vec::new(),
                },
            );
        }
        log.session += holes as u64;
        log
    }

    /// The first `len` values of this log.
    pub fn prefix(&self, len: usize) -> Self {
        Self {
            values: self.values[..len.min(self.values.len())].to_vec(),
            ..Self::default()
        }
    }

    /// Appends a value of encoded commands, proposed at `time_ms`.
    pub fn push(&mut self, time_ms: u64, commands: &[Vec<u8>]) {
        let mut writer = ValueWriter::new();
        commands.iter().for_each(|command| writer.push(command));
        let (client_id, client_seq) = (self.session, self.next_seq);
        let kind = ValueKind::Command;
        let origin = Origin {
            client_id,
            client_seq,
            client_low: client_seq,
            kind,
        };
        self.next_seq += 1;
        self.values.push(Value {
            origin,
            bytes: writer.finish(time_ms).to_vec(),
        });
    }

    /// Appends a value of lines.
    pub fn push_lines(&mut self, time_ms: u64, lines: &[&str]) {
        let commands: Vec<_> = lines
            .iter()
            .map(|line| encode(&words(line), None).expect("parses"))
            .collect();
        self.push(time_ms, &commands);
    }

    /// Applies all values that `machine` lacks, in bursts of `burst_len`. Returns the replies.
    pub fn apply(&self, machine: &mut Machine, burst_len: usize) -> Vec<Reply> {
        let mut replies = Vec::new();
        let applied = machine.store(0).applied() as usize;
        let missing: Vec<_> = self.values.iter().enumerate().skip(applied).collect();
        for burst in missing.chunks(burst_len) {
            for (at, value) in burst {
                let (instance, ticket) = (*at as u64 + 1, Some(Ticket(*at as u64)));
                machine.bursts()[0].push(instance, value.origin, ticket, &value.bytes);
            }
            let mut outcomes = Outcomes::default();
            machine.run(&mut outcomes).expect("applies");
            replies.extend(outcomes.replies);
        }
        replies
    }
}

/// A store with its own log: commands in, replies out.
pub struct Bench {
    pub machine: Machine,
    /// Removed after the machine is closed.
    pub dir: tempfile::TempDir,
    pub log: Log,
    pub now_ms: u64,
}

impl Default for Bench {
    fn default() -> Self {
        let dir = scratch();
        let machine = open(dir.path());
        Self {
            dir,
            machine,
            log: Log::default(),
            now_ms: T0_MS,
        }
    }
}

impl Bench {
    /// Executes lines and compares: `command -> reply`; `@ms` sets the clock to `T0 + ms`.
    #[track_caller]
    pub fn script(&mut self, text: &str) {
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(ms) = line.strip_prefix('@') {
                self.now_ms = T0_MS + ms.parse::<u64>().expect("a number");
                continue;
            }
            let (command, expected) = line.split_once(" -> ").expect("an arrow");
            assert_eq!(show(&self.run(command)), expected, "{line}");
        }
    }

    /// Executes one line.
    pub fn run(&mut self, line: &str) -> Reply {
        self.run_stamped(line, None)
    }

    /// Executes one line of a session.
    pub fn run_stamped(&mut self, line: &str, stamp: Option<SessionStamp>) -> Reply {
        self.run_words(&words(line), stamp)
    }

    /// Executes a command whose words may contain spaces.
    pub fn run_words(&mut self, words: &[&[u8]], stamp: Option<SessionStamp>) -> Reply {
        match encode(words, stamp) {
            Err(reply) => reply,
            Ok(command) => {
                self.log.push(self.now_ms, &[command]);
                self.log
                    .apply(&mut self.machine, 1)
                    .pop()
                    .expect("one reply")
            }
        }
    }

    /// Closes the store and opens it again, as a restart does.
    pub fn reopen(&mut self) {
        // The database is locked while it is open, so another machine must take its place.
        let elsewhere = tempfile::tempdir().expect("temporary directory");
        self.machine = open(elsewhere.path());
        self.machine = open(self.dir.path());
    }

    pub fn store(&self) -> &Store {
        self.machine.store(0)
    }

    /// A value without commands.
    pub fn tick(&mut self) {
        self.log.push(self.now_ms, &[]);
        self.log.apply(&mut self.machine, 1);
    }
}

/// What happens to a write apart from what is applied.
#[derive(Debug, Clone, Copy)]
pub enum Apart {
    /// It begins.
    Begin,
    /// The part of a log is written: the first one that is left, or the last one.
    Step { is_last: bool },
    /// Its end is noted, if it has ended.
    End,
}

impl Apart {
    pub fn act(self, machine: &mut Machine) -> Result<(), StoreError> {
        match self {
            Apart::Begin => machine.begin_write(),
            Apart::Step { is_last } => {
                machine.step_write(is_last);
                Ok(())
            }
            Apart::End => machine.end_write().map(|_| ()),
        }
    }
}

pub fn any_apart() -> impl Strategy<Value = Apart> {
    prop_oneof![
        Just(Apart::Begin),
        any::<bool>().prop_map(|is_last| Apart::Step { is_last }),
        Just(Apart::End)
    ]
}

/// A reply in readable form.
pub fn show(reply: &Reply) -> String {
    match reply {
        Reply::Ok => "OK".into(),
        Reply::Status(text) => text.to_string(),
        Reply::Integer(number) => number.to_string(),
        Reply::Nil => "nil".into(),
        Reply::NilArray => "nilarray".into(),
        Reply::Bulk(bytes) => format!("'{}'", String::from_utf8_lossy(bytes)),
        Reply::Error(text) => format!("-{text}"),
        Reply::Array(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" "))
        }
        Reply::Double(text) => text.clone(),
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            let pair = |(k, v): &(Reply, Reply)| format!("{}:{}", show(k), show(v));
            format!(
                "{{{}}}",
                pairs.iter().map(pair).collect::<Vec<_>>().join(" ")
            )
        }
    }
}

/// Opens a store that a replica of this process may have had open a moment ago: its thread that answers a peer may not
/// have exited yet.
fn open_when_free(config: MachineConfig) -> Result<Machine, StoreError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Machine::open(config.clone()) {
            Err(StoreError::RocksDb(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

/// The clocks of a replica's host.
#[derive(Clone, Default)]
pub struct TestClocks {
    /// How much additional time has passed.
    pub passed_ms: Arc<AtomicU64>,
    /// How far the wall clock is ahead.
    pub wall_ahead_ms: Arc<AtomicI64>,
}

impl TestClocks {
    pub fn of_host(&self) -> HostClocks {
        let (real, all) = (HostClocks::default(), self.clone());
        let (passed_ms, steady_us) = (self.passed_ms.clone(), real.steady_us);
        HostClocks {
            wall_ms: Arc::new(move || {
                let passed_ms = all.passed_ms.load(Ordering::Relaxed);
                let ahead_ms = all.wall_ahead_ms.load(Ordering::Relaxed);
                ((real.wall_ms)() + passed_ms).saturating_add_signed(ahead_ms)
            }),
            steady_us: Arc::new(move || steady_us() + passed_ms.load(Ordering::Relaxed) * 1000),
        }
    }
}

/// A replica on its own thread.
pub struct Served {
    pub address: SocketAddr,
    pub checkpoint_address: SocketAddr,
    pub control: Arc<ReplicaControl>,
    /// Additional time that has passed for this replica, in milliseconds.
    pub clock_offset_ms: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<(), ReplicaError>>>,
}

impl Served {
    /// Starts a replica of `cluster` with its store in `dir`.
    pub fn start(cluster: &MemoryCluster, dir: &Path, config: ReplicaConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self::start_on(cluster, dir, config, listener)
    }

    /// Starts the replicas 0, 1 ... of `cluster`, each with its store in one of `dirs`.
    pub fn start_all<const N: usize>(
        cluster: &MemoryCluster,
        dirs: &[tempfile::TempDir; N],
    ) -> [Self; N] {
        std::array::from_fn(|index| {
            let config = ReplicaConfig {
                replica_index: index as u64,
                ..ReplicaConfig::default()
            };
            Self::start(cluster, dirs[index].path(), config)
        })
    }

    /// Starts again in the same directory, as after a crash, without an orderly stop.
    pub fn restart(self, cluster: &MemoryCluster, dir: &Path, config: ReplicaConfig) -> Self {
        drop(self);
        Self::start(cluster, dir, config)
    }

    /// The same, on a listener that may be shared.
    pub fn start_on(
        cluster: &MemoryCluster,
        dir: &Path,
        config: ReplicaConfig,
        listener: TcpListener,
    ) -> Self {
        let machine = MachineConfig {
            dirs: vec![dir.to_path_buf()],
            partitions: cluster.partitions(),
            sync: false,
        };
        Self::start_with(cluster, machine, config, listener)
    }

    /// The same, with all options of the store.
    pub fn start_with(
        cluster: &MemoryCluster,
        machine: MachineConfig,
        config: ReplicaConfig,
        listener: TcpListener,
    ) -> Self {
        let peers = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self::start_at(
            cluster,
            machine,
            config,
            listener,
            peers,
            TestClocks::default(),
        )
    }

    /// The same, with all options.
    pub fn start_at(
        cluster: &MemoryCluster,
        machine: MachineConfig,
        mut config: ReplicaConfig,
        listener: TcpListener,
        peers: TcpListener,
        clocks: TestClocks,
    ) -> Self {
        let cluster = cluster.clone();
        let address = listener.local_addr().expect("an address");
        config.clocks = clocks.of_host();
        if config.workers == WorkerConfig::default() {
            config.workers = workers();
        }
        let clock_offset_ms = clocks.passed_ms;
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let machine = open_when_free(machine)?;
            let log = Box::new(cluster.join(&machine.applied())?);
            let mut replica = Replica::new(config, machine, log, vec![listener], Some(peers))?;
            let checkpoint_address = replica.checkpoint_address().expect("a server");
            sender
                .send((replica.control(), checkpoint_address))
                .expect("somebody waits");
            replica.run()
        });
        let (control, checkpoint_address) = receiver.recv().expect("the replica starts");
        Self {
            address,
            checkpoint_address,
            control,
            clock_offset_ms,
            thread: Some(thread),
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Stops it; panics if it ended with an error.
    pub fn stop(mut self) {
        self.control.stop();
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic").expect("no error");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take() {
            // A panic is reported by the test that waits for the thread.
            let _ = thread.join();
        }
    }
}

/// A client that sends and expects raw bytes.
pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self { stream }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("sends");
    }

    /// Reads exactly `expected`.
    #[track_caller]
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut got = vec![0; expected.len()];
        let mut len = 0;
        while len < got.len() {
            match self.stream.read(&mut got[len..]) {
                Ok(1..) if got[..len] != expected[..len] => break,
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&got[..len])),
            }
        }
        let got = String::from_utf8_lossy(&got[..len]);
        assert_eq!(got, String::from_utf8_lossy(expected));
    }

    /// Sends a line and reads one line of the reply.
    pub fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.line()
    }

    /// Reads one line.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte).expect("a reply") {
                0 => return format!("closed after {:?}", String::from_utf8_lossy(&line)),
                _ if byte[0] == b'\n' => return String::from_utf8_lossy(&line).trim_end().into(),
                _ => line.push(byte[0]),
            }
        }
    }

    /// Reads until the server closes.
    pub fn rest(&mut self) -> String {
        String::from_utf8_lossy(&self.rest_bytes()).into_owned()
    }

    /// Reads until the server closes.
    pub fn rest_bytes(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A reset counts as the end too.
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }
}

/// One key per partition, with names that start with `prefix`.
pub fn key_of_each(prefix: &str, partitions: usize) -> Vec<String> {
    let key_of = |partition| {
        let is_there = |key: &String| partition_of(key.as_bytes(), partitions) == partition;
        let mut names = (0..).map(|i| format!("{prefix}{i}"));
        names.find(is_there).expect("there is one")
    };
    (0..partitions).map(key_of).collect()
}

/// Waits until a condition holds.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come true");
        std::thread::sleep(Duration::from_millis(2));
    }
}
