//! Hashes, lists and sets: compared with a real Redis, in scripts and transactions, after a restart, in an export.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use crate::common::{scratch, show, wait_for, Bench, Served};
use inband_kv::import::{import, ImportOptions};
use inband_kv::replica::ReplicaConfig;
use inband_kv::testing::MemoryCluster;

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn collections_expire_are_deleted_and_survive_a_restart() {
    let mut bench = Bench::default();
    bench.script(
        "HSET h b 2 a 1 -> 2
         RPUSH l x y -> 2
         SADD s m -> 1
         TYPE h -> hash
         TYPE l -> list
         TYPE s -> set
         DBSIZE -> 3
         PEXPIRE h 500 -> 1
         HSET h c 3 -> 1
         PTTL h -> 500
         PERSIST h -> 1
         TTL h -> -1
         PEXPIRE h 500 -> 1
         HGETALL h -> {'a':'1' 'b':'2' 'c':'3'}",
    );
    bench.reopen();
    bench.script(
        "PTTL h -> 500
         HGETALL h -> {'a':'1' 'b':'2' 'c':'3'}
         LRANGE l 0 -1 -> ['x' 'y']
         SMEMBERS s -> ['m']
         @500
         EXISTS h l -> 1
         HGETALL h -> {}
         SREM s m -> 1
         EXISTS s -> 0
         DEL l -> 1
         DBSIZE -> 0
         SET h string -> OK
         GET h -> 'string'",
    );
}

#[test]
fn the_wrong_type_is_refused_and_nothing_changes() {
    let mut bench = Bench::default();
    bench.script("HSET h a 1 -> 1\nSET str 1 -> OK");
    for command in [
        "GET h",
        "GETDEL h",
        "GETEX h PERSIST",
        "GETSET h 1",
        "SET h 1 GET",
        "SET h 1 IFEQ 1",
        "DELIFEQ h 1",
        "INCR h",
        "INCRBYFLOAT h 1",
        "APPEND h 1",
        "STRLEN h",
        "GETRANGE h 0 1",
        "SETRANGE h 0 1",
        "LPUSH h 1",
        "SADD h 1",
        "LLEN h",
        "SCARD h",
        "HGET str a",
        "HSET str a 1",
        "SINTER nosuch h",
    ] {
        assert_eq!(show(&bench.run(command)), WRONG, "{command}");
    }
    bench.script(
        "MGET h str -> [nil '1']
         HGETALL h -> {'a':'1'}
         GET str -> '1'
         SETNX h 1 -> 0
         SET h 1 -> OK
         TYPE h -> string
         HSET n f 9223372036854775807 -> 1
         HINCRBY n f 1 -> -ERR increment or decrement would overflow
         HGET n f -> '9223372036854775807'",
    );
}

#[test]
fn a_collection_has_the_limit_of_a_string() {
    let mut bench = Bench::default();
    let part = "x".repeat(30_000);
    for field in 0..34 {
        assert_eq!(show(&bench.run(&format!("HSET h {field} {part}"))), "1");
    }
    let reply = show(&bench.run(&format!("HSET h one_more {part}")));
    assert_eq!(
        reply,
        "-ERR hash of 1050350 bytes is over the limit of 1048576 bytes"
    );
    bench.script("HLEN h -> 34\nHDEL h 0 1 nosuch 0 -> 2\nHLEN h -> 32");
}

/// The members popped depend on nothing but the log.
#[test]
fn spop_is_the_same_on_every_replica() {
    let popped: Vec<Vec<String>> = (0..2)
        .map(|_| {
            let mut bench = Bench::default();
            bench.run("SADD s a b c d e f g h i j");
            bench.run("SADD t a b c d e f g h i j");
            (0..5)
                .flat_map(|_| [bench.run("SPOP s"), bench.run("SPOP t 2")])
                .map(|reply| show(&reply))
                .collect()
        })
        .collect();
    assert_eq!(popped[0], popped[1]);
    let mut different = popped[0].clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 10, "{different:?}");
}

#[test]
fn a_malformed_collection_is_not_restored() {
    let mut bench = Bench::default();
    let two = [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, b'a', b'b'];
    let mut crossed = two;
    crossed[12..].copy_from_slice(b"ba");
    let mut restore = |kind: &[u8], value: &[u8]| {
        let words = [&b"INBAND.RESTORE"[..], b"k", kind, b"0", value];
        show(&bench.run_words(&words, None))
    };
    let refused = "-ERR this is not a collection of an export";
    assert_eq!(restore(b"set", &crossed), refused);
    assert_eq!(restore(b"set", &two[..13]), refused);
    assert_eq!(restore(b"set", &[0; 4]), refused);
    assert_eq!(restore(b"string", &two), refused);
    assert_eq!(restore(b"hash", &two), "OK");
    assert_eq!(restore(b"set", &two), "OK");
    assert_eq!(restore(b"list", &crossed), "OK");
    bench.script("LRANGE k 0 -1 -> ['b' 'a']");
}

/// Lets the second replica learn of what these requests at the first one do only by a checkpoint. Returns the client that
/// sent them.
pub fn by_checkpoint(
    cluster: &MemoryCluster,
    first: &Served,
    requests: impl FnOnce(&mut Asker),
) -> Asker {
    // The second replica gets nothing more until what it needs is gone.
    cluster.pace();
    cluster.allow(0, 0, 10_000);
    let mut client = Asker::connect(first.address);
    requests(&mut client);
    cluster.keep_entries(10);
    for n in 0..100 {
        assert_eq!(client.ask(&format!("SET k{n} v")), "+OK");
    }
    cluster.set_checkpoint_peers(vec![first.checkpoint_address]);
    cluster.unpace();
    client
}

/// A client that reads whole replies.
pub struct Asker(BufReader<TcpStream>);

impl Asker {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        let timeout = std::time::Duration::from_secs(30);
        stream.set_read_timeout(Some(timeout)).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        self.0.get_mut()
    }

    /// Waits for input. Returns whether there is none: the connection has ended, or its timeout has passed.
    pub fn is_over(&mut self) -> bool {
        self.0.fill_buf().map_or(true, <[u8]>::is_empty)
    }

    pub fn send(&mut self, requests: &[Vec<String>]) {
        let mut out = String::new();
        for words in requests {
            out += &format!("*{}\r\n", words.len());
            for word in words {
                out += &format!("${}\r\n{word}\r\n", word.len());
            }
        }
        self.0.get_mut().write_all(out.as_bytes()).unwrap();
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.send(&[line.split(' ').map(str::to_owned).collect()]);
        self.reply(false)
    }

    /// A reply as text. With `sorted`, the order of an array, or of the array in it, does not count.
    pub fn reply(&mut self, sorted: bool) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let len = line.get(1..).and_then(|n| n.parse::<i64>().ok());
        match (line.as_bytes().first(), len) {
            (Some(b'$'), Some(len @ 0..)) => {
                let mut bytes = vec![0; len as usize + 2];
                self.0.read_exact(&mut bytes).unwrap();
                format!("'{}'", String::from_utf8_lossy(&bytes[..len as usize]))
            }
            (Some(b'*'), Some(items @ 0..)) => {
                let mut items: Vec<String> = (0..items).map(|_| self.reply(sorted)).collect();
                if sorted {
                    items.sort();
                }
                format!("[{}]", items.join(" "))
            }
            (Some(b'>'), Some(parts @ 0..)) => {
                let parts = (0..parts).map(|_| self.reply(false));
                format!(">[{}]", parts.collect::<Vec<_>>().join(" "))
            }
            (Some(b'%'), Some(pairs @ 0..)) => {
                let items = (0..2 * pairs).map(|_| self.reply(sorted));
                format!("{{{}}}", items.collect::<Vec<_>>().join(" "))
            }
            _ => line.to_owned(),
        }
    }
}

/// A real Redis, ended when it is dropped.
pub struct RealRedis {
    process: std::process::Child,
    /// Kept open, because it may still write.
    _log: BufReader<std::process::ChildStdout>,
    pub address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl RealRedis {
    /// Starts one on a free port; `None` if there is no program for it.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same, with more options.
    pub fn start_with(options: &[&str]) -> Option<Self> {
        loop {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            drop(socket);
            match Self::start_at(address, options) {
                Ok(Some(redis)) => return Some(redis),
                Ok(None) => {}
                Err(_) => {
                    inband_testing::not_run("redis-server is not on the PATH");
                    return None;
                }
            }
        }
    }

    /// `None`: another process has taken the port. A connection would not tell: the other process might accept it.
    fn start_at(address: SocketAddr, options: &[&str]) -> std::io::Result<Option<Self>> {
        let dir = scratch();
        let mut process = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            // It looks this often for clients that have waited long enough.
            .args(["--save", "", "--hz", "500", "--dir"])
            .arg(dir.path())
            .args(options)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut log = BufReader::new(process.stdout.take().unwrap());
        let is_ready = |line: std::io::Result<String>| {
            line.is_ok_and(|line| line.contains("Ready to accept connections"))
        };
        let is_ready = log.by_ref().lines().any(is_ready);
        let redis = Self {
            process,
            _log: log,
            address,
            _dir: dir,
        };
        Ok(is_ready.then_some(redis))
    }
}

#[test]
fn a_real_redis_notices_that_its_port_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let Some(redis) = RealRedis::start() else {
        return;
    };
    let address = taken.local_addr().unwrap();
    assert!(RealRedis::start_at(address, &[]).unwrap().is_none());
    assert_eq!(Asker::connect(redis.address).ask("PING"), "+PONG");
}

impl Drop for RealRedis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Pseudo-random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    pub fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

/// `K` is a key, `F` a field or member, `V` a value, `I` an integer, `D` a decimal number; of sorted sets, `S` is a score,
/// `B` the end of a range of scores, `X` that of a range of members.
pub const TEMPLATES: &[&str] = &[
    "SET K V",
    "SET K V NX GET",
    "GET K",
    "GETDEL K",
    "GETSET K V",
    "APPEND K V",
    "STRLEN K",
    "INCRBY K I",
    "INCRBYFLOAT K D",
    "GETRANGE K I I",
    "MGET K K K",
    "MSETNX K V K V",
    "DEL K",
    "DEL K K",
    "EXISTS K K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K",
    "COPY K K replace DB 0",
    "COPY K K DB",
    "TYPE K",
    "EXPIRE K 1000",
    "PERSIST K",
    "TTL K",
    "HSET K F V",
    "HSET K F V F V F V",
    "HSET K F V F",
    "HMSET K F V F V",
    "HSETNX K F V",
    "HGET K F",
    "HMGET K F F F",
    "HGETALL K",
    "HDEL K F F",
    "HEXISTS K F",
    "HLEN K",
    "HKEYS K",
    "HVALS K",
    "HINCRBY K F I",
    "HINCRBYFLOAT K F D",
    "HINCRBYFLOAT K F x",
    "HSTRLEN K F",
    "HSCAN K 0",
    "HSCAN K 0 MATCH f[0-3] COUNT 100",
    "HSCAN K x",
    "LPUSH K V",
    "LPUSH K V V V",
    "RPUSH K V V",
    "LPUSHX K V",
    "RPUSHX K V V",
    "LPOP K",
    "RPOP K",
    "LPOP K 2",
    "LPOP K 1 2",
    "LREM K x V",
    "RPOP K I",
    "LLEN K",
    "LRANGE K I I",
    "LRANGE K 0 -1",
    "LINDEX K I",
    "LINDEX K x",
    "LSET K I V",
    "LTRIM K I I",
    "LREM K I V",
    "LINSERT K BEFORE V V",
    "LINSERT K after V V",
    "LINSERT K beside V V",
    "LMOVE K K LEFT RIGHT",
    "LMOVE K K right left",
    "LMOVE K K up down",
    "RPOPLPUSH K K",
    "SADD K F",
    "SADD K F V F",
    "SREM K F F",
    "SMEMBERS K",
    "SISMEMBER K F",
    "SMISMEMBER K F F",
    "SCARD K",
    "SPOP K 100",
    "SPOP K -1",
    "SMOVE K K F",
    "SINTER K K",
    "SUNION K K K",
    "SDIFF K K",
    "SSCAN K 0",
    "SSCAN K 0 COUNT 0",
    "SINTERSTORE K K K",
    "SUNIONSTORE K K K",
    "SDIFFSTORE K K K",
    "SUNIONSTORE K K",
    "SINTERCARD 1 K",
    "SINTERCARD 2 K K",
    "SINTERCARD 2 K K LIMIT 1",
    "SINTERCARD 2 K K limit 0",
    "SINTERCARD 2 K K LIMIT -1",
    "SINTERCARD 2 K K LIMIT",
    "SINTERCARD 2 K K FIRST 1",
    "SINTERCARD 3 K K",
    "SINTERCARD 0 K",
    "SINTERCARD x K",
    "SRANDMEMBER K 100",
    "SRANDMEMBER K 0",
    "SRANDMEMBER K x",
    "SRANDMEMBER K -9223372036854775808",
    "SRANDMEMBER K 1 2",
    "HRANDFIELD K 100",
    "HRANDFIELD K 100 WITHVALUES",
    "HRANDFIELD K 0 withvalues",
    "HRANDFIELD K 1 WITHSCORES",
    "HRANDFIELD K x WITHVALUES",
    "HRANDFIELD K 9223372036854775807 WITHVALUES",
    "HRANDFIELD K 1 WITHVALUES x",
    "LPOS K V",
    "LPOS K V RANK I",
    "LPOS K V RANK -1 COUNT 0",
    "LPOS K V COUNT 2 MAXLEN 3",
    "LPOS K V RANK 2 COUNT 1",
    "LPOS K V COUNT -1",
    "LPOS K V MAXLEN -1",
    "LPOS K V COUNT",
    "LPOS K V FIRST 1",
];

pub const KEYS: [&str; 6] = ["k0", "k1", "k2", "k3", "k4", "k5"];

pub fn command(random: &mut Random, templates: &[&str]) -> Vec<String> {
    let template = random.of(templates);
    let mut words = template.split(' ');
    let mut command = vec![words.next().unwrap().to_owned()];
    for word in words {
        command.push(match word {
            "K" => random.of(&KEYS).to_owned(),
            "F" => format!("f{}", random.below(6)),
            "V" => random
                .of(&["", "1", "-7", "2.5", "word", "another word", "1000000"])
                .to_owned(),
            "I" => random
                .of(&["0", "1", "-1", "2", "-2", "5", "-100", "100"])
                .to_owned(),
            "D" => random.of(&["0.5", "-1.25", "3", "1e3"]).to_owned(),
            "S" => random
                .of(&[
                    "0",
                    "1",
                    "-1",
                    "2",
                    "1.5",
                    "0.1",
                    "-7.25",
                    "1e10",
                    "1e17",
                    "3e-7",
                    "inf",
                    "-inf",
                    "+5",
                    ".5",
                    "123456789.123",
                ])
                .to_owned(),
            "B" => random
                .of(&[
                    "0", "1", "(1", "-1", "(2", "1.5", "-inf", "+inf", "inf", "(-inf", "1e10",
                    "(0.1", "", "x", "(x", "nan",
                ])
                .to_owned(),
            "X" => random
                .of(&[
                    "-", "+", "[f1", "(f1", "[f4", "(f3", "[", "(", "f1", "-x", "[zz",
                ])
                .to_owned(),
            other => other.to_owned(),
        });
    }
    command
}

/// In which order Redis returns these is not specified.
fn is_unordered(command: &[String]) -> bool {
    [
        "HGETALL",
        "HKEYS",
        "HVALS",
        "HSCAN",
        "SMEMBERS",
        "SPOP",
        "SINTER",
        "SUNION",
        "SDIFF",
        "SSCAN",
        "SRANDMEMBER",
        "HRANDFIELD",
        "ZRANDMEMBER",
    ]
    .contains(&&*command[0])
}

#[test]
fn a_real_redis_answers_the_same() {
    compare_with_redis(TEMPLATES, "HELLO 2");
}

/// Random commands on a real Redis and here; some in scripts and transactions.
pub fn compare_with_redis(templates: &[&str], hello: &str) {
    let Some(redis) = RealRedis::start() else {
        return;
    };
    for (seed, partitions) in [(1, 1), (2, 1), (3, 3), (4, 3)] {
        let (cluster, dir) = (MemoryCluster::with_partitions(partitions), scratch());
        let served = Served::start(&cluster, dir.path(), ReplicaConfig::default());
        let (mut real, mut ours) = (
            Asker::connect(redis.address),
            Asker::connect(served.address),
        );
        assert_eq!(real.ask("FLUSHALL"), "+OK");
        for asker in [&mut real, &mut ours] {
            let greeting = asker.ask(hello);
            assert!(!greeting.starts_with('-'), "{greeting}");
        }
        let mut random = Random(seed);
        for _ in 0..40 {
            let mut requests = Vec::new();
            while requests.len() < 50 {
                let commands: Vec<_> = (0..3).map(|_| command(&mut random, templates)).collect();
                match random.below(10) {
                    0 => {
                        requests.push((vec!["MULTI".to_owned()], false));
                        requests.extend(commands.into_iter().map(|command| (command, false)));
                        requests.push((vec!["EXEC".to_owned()], true));
                    }
                    1 => {
                        let mut words = vec!["EVAL", "return redis.pcall(unpack(ARGV))", "6"];
                        words.extend(KEYS);
                        words.extend(commands[0].iter().map(String::as_str));
                        let words = words.into_iter().map(str::to_owned).collect();
                        requests.push((words, is_unordered(&commands[0])));
                    }
                    _ => requests.extend(commands.into_iter().map(|command| {
                        let sorted = is_unordered(&command);
                        (command, sorted)
                    })),
                }
            }
            let words: Vec<_> = requests.iter().map(|(words, _)| words.clone()).collect();
            real.send(&words);
            ours.send(&words);
            for (at, (words, sorted)) in requests.iter().enumerate() {
                let (expected, got) = (real.reply(*sorted), ours.reply(*sorted));
                assert_eq!(
                    got,
                    expected,
                    "seed {seed}: {words:?}, after {:?}",
                    &requests[..at]
                );
            }
        }
    }
}

/// Also what a script that ran into its limit has undone.
#[test]
fn replicas_are_equal_and_an_export_has_everything() {
    let cluster = MemoryCluster::with_partitions(3);
    let dirs = [scratch(), scratch()];
    let served: Vec<Served> = (0..2)
        .map(|i| {
            let config = ReplicaConfig {
                replica_index: i as u64,
                ..ReplicaConfig::default()
            };
            Served::start(&cluster, dirs[i].path(), config)
        })
        .collect();
    let mut random = Random(5);
    for round in 0..30 {
        let mut asker = Asker::connect(served[round % 2].address);
        let commands: Vec<_> = (0..30).map(|_| command(&mut random, TEMPLATES)).collect();
        asker.send(&commands);
        commands.iter().for_each(|_| drop(asker.reply(true)));
        let endless = "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], 'f', 1) redis.call('del', KEYS[2]) redis.call('sadd', KEYS[2], 'm') while true do end";
        let mut words = vec!["EVAL", endless, "2"];
        words.extend([random.of(&KEYS[..5]), "k5"]);
        let before: Vec<_> = KEYS.map(|key| asker.ask(&format!("TYPE {key}"))).into();
        asker.send(&[words.into_iter().map(str::to_owned).collect()]);
        assert!(asker.reply(false).starts_with("-ERR"));
        let after: Vec<_> = KEYS.map(|key| asker.ask(&format!("TYPE {key}"))).into();
        assert_eq!(before, after);
    }
    let mut asker = Asker::connect(served[0].address);
    for line in [
        "DEL h l s",
        "HSET h a 1 b 2",
        "RPUSH l 2 1 2",
        "SADD s x y",
        "PEXPIREAT h 4000000000000",
    ] {
        assert!(asker.ask(line).starts_with(':'), "{line}");
    }
    wait_for("both replicas are equal", || {
        served[0].control.digest().unwrap().1 == served[1].control.digest().unwrap().1
    });
    let mut stream = Vec::new();
    served[0].control.export(&mut stream).unwrap();
    assert_eq!(&stream[..8], b"IBEXPT2\n");
    let (other, dir) = (MemoryCluster::with_partitions(1), scratch());
    let target = Served::start(&other, dir.path(), ReplicaConfig::default());
    import(
        &stream[..],
        target.address,
        ImportOptions::default(),
        &mut |_| {},
    )
    .unwrap();
    let mut imported = Asker::connect(target.address);
    for line in [
        "HGETALL h",
        "LRANGE l 0 -1",
        "SMEMBERS s",
        "EXPIRE h 1 LT",
        "TYPE k0",
        "DBSIZE",
    ] {
        assert_eq!(imported.ask(line), asker.ask(line), "{line}");
    }
    let scanned = imported.ask("SCAN 0 COUNT 100 TYPE hash");
    assert!(
        scanned.contains("'h'") && !scanned.contains("'l'"),
        "{scanned}"
    );
}
