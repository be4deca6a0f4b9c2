//! Compares the gateway with memcached: the same requests must get the same replies.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use inband_box::gateway::{Gateway, Settings};
use inband_box::local::Local;
use inband_testing::not_run;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

struct Served {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(chunks: u64) -> Served {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let local = Local::new(chunks).expect("memory");
        let reader = local.machine().reader();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = stop.clone();
        let thread = std::thread::spawn(move || {
            let settings = Settings::default();
            let gateway = Gateway::new(vec![listener], reader, local, settings);
            gateway.expect("a gateway").run(&is_over).expect("it runs");
        });
        Served {
            address,
            stop,
            thread: Some(thread),
        }
    }

    fn connect(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let joined = self.thread.take().expect("it was started").join();
        assert!(joined.is_ok() || std::thread::panicking());
    }
}

struct Client {
    stream: TcpStream,
    /// The last cas that `gets` has shown.
    cas: u64,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let until = Instant::now() + Duration::from_secs(60);
        let stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "{address}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        stream.set_nodelay(true).expect("set");
        let timeout = Some(Duration::from_secs(60));
        stream.set_read_timeout(timeout).expect("set");
        Client { stream, cas: 1 }
    }

    /// Sends a request, and returns everything that is answered.
    fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        let cas = self.cas.to_string();
        let text = replace(request, b"{cas}", cas.as_bytes());
        let mut stream = self.stream.try_clone().expect("a socket");
        let sent = std::thread::spawn(move || stream.write_all(&[&text[..], b"mn\r\n"].concat()));
        let mut reply = Vec::new();
        let mut part = [0; 65536];
        while !reply.ends_with(b"MN\r\n") {
            let len = self.stream.read(&mut part).unwrap_or_else(|error| {
                panic!(
                    "{error}, asked {} answered {}",
                    request.escape_ascii(),
                    reply.escape_ascii()
                )
            });
            assert!(len > 0, "closed, asked {}", request.escape_ascii());
            reply.extend_from_slice(&part[..len]);
        }
        sent.join().expect("a thread").expect("sent");
        reply
    }

    fn learn_cas(&mut self, key: &str) {
        let reply = self.ask(format!("gets {key}\r\n").as_bytes());
        let line = reply.split(|b| *b == b'\r').next().expect("a line");
        let words: Vec<_> = line.split(|b| *b == b' ').collect();
        if let [b"VALUE", .., cas] = words[..] {
            let cas = std::str::from_utf8(cas).expect("digits");
            self.cas = cas.parse().expect("a number");
        }
    }
}

fn replace(text: &[u8], what: &[u8], with: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        match text[at..].starts_with(what) {
            true => {
                out.extend_from_slice(with);
                at += what.len();
            }
            false => {
                out.push(text[at]);
                at += 1;
            }
        }
    }
    out
}

/// Removes what may differ: cas uniques, times, whether an item was read before, and what `me` says about the memory.
fn comparable(reply: &[u8]) -> String {
    let text = reply.escape_ascii().to_string();
    let lines = text.split("\\r\\n").map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_meta = matches!(words[0], "HD" | "VA" | "EX" | "NF" | "NS" | "EN");
        let masked = words.iter().enumerate().map(|(n, word)| {
            let digits = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
            match word.split_at_checked(1) {
                Some(("c", rest)) if is_meta && rest != "0" && digits(rest) => "cN".to_owned(),
                // Whether an item was read before is local to a node, and approximate.
                Some((flag @ ("t" | "l" | "h"), rest)) if is_meta && digits(rest) => {
                    format!("{flag}N")
                }
                _ if words[0] == "VALUE" && n == 4 => "N".to_owned(),
                _ if words[0] == "ME" && n > 1 => String::new(),
                _ => (*word).to_owned(),
            }
        });
        masked.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

struct Memcached {
    child: Child,
    address: SocketAddr,
}

impl Memcached {
    fn start() -> Option<Memcached> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let child = Command::new("memcached")
            .args([
                "-l",
                "127.0.0.1",
                "-U",
                "0",
                "-u",
                "nobody",
                "-t",
                "1",
                "-p",
            ])
            .arg(address.port().to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let version = Command::new("memcached").arg("-V").output().ok()?;
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let mut child = child.ok()?;
        if !version.contains("1.6.18") {
            let _ = child.kill();
            let _ = child.wait();
            not_run(format!("this is {}, not memcached 1.6.18", version.trim()));
            return None;
        }
        Some(Memcached { child, address })
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Generator {
    random: StdRng,
    date_s: u64,
}

impl Generator {
    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.random.random_range(0..of.len())]
    }

    fn key(&mut self) -> String {
        match self.random.random_range(0..60) {
            0 => "k".repeat(250),
            1 => "k".repeat(251),
            2 => "noreply".to_owned(),
            n => format!("key{}", n % 5),
        }
    }

    fn time(&mut self) -> String {
        match self.random.random_range(0..24) {
            0 => "-1".to_owned(),
            1 => "2592000".to_owned(),
            2 => "2592001".to_owned(),
            3 => self.date_s.to_string(),
            4 => "x".to_owned(),
            5 => "4294967296".to_owned(),
            6..=8 => "500".to_owned(),
            _ => "0".to_owned(),
        }
    }

    fn number(&mut self) -> String {
        let numbers = [
            "0",
            "1",
            "7",
            "10",
            "99",
            "18446744073709551615",
            "18446744073709551616",
            "-1",
            "x",
            "1x",
            "+5",
            "4294967296",
        ];
        self.pick(&numbers).to_owned()
    }

    fn value(&mut self) -> String {
        match self.random.random_range(0..10) {
            0 => String::new(),
            1..=4 => self.number(),
            5 => "10 ".to_owned(),
            6 => "x".repeat(self.random.random_range(0..3000)),
            7 => "a\r\nb".to_owned(),
            _ => "value".to_owned(),
        }
    }

    fn quiet(&mut self) -> &'static str {
        match self.random.random_range(0..8) {
            0 => " noreply",
            _ => "",
        }
    }

    fn data(&mut self, line: String, value: &str) -> String {
        match self.random.random_range(0..40) {
            // Longer than announced: the rest is taken for a command.
            0 => format!("{line}\r\n{value}xyz\r\n"),
            _ => format!("{line}\r\n{value}\r\n"),
        }
    }

    fn flags(&mut self, of: &[&str]) -> String {
        let mut flags = String::new();
        for _ in 0..self.random.random_range(0..5) {
            let flag = self.pick(of);
            // Both with `t` between them is a combination that no client needs.
            if (flag == "N" && flags.contains(" T")) || (flag == "T" && flags.contains(" N")) {
                continue;
            }
            let argument = match flag {
                "N" | "T" => self.time(),
                // Not the times that items have: memcached counts in seconds.
                "R" => self.pick(&["0", "100", "900", "x"]).to_owned(),
                "C" => "{cas}".to_owned(),
                "O" => "opaque".to_owned(),
                "F" | "J" | "D" => self.number(),
                "M" => self
                    .pick(&["E", "A", "P", "R", "S", "I", "D", "+", "-", "", "SS"])
                    .to_owned(),
                _ => String::new(),
            };
            flags += &format!(" {flag}{argument}");
        }
        flags
    }

    fn request(&mut self) -> String {
        let (key, quiet) = (self.key(), self.quiet());
        match self.random.random_range(0..40) {
            0..=5 => {
                let command = self.pick(&["set", "set", "add", "replace", "append", "prepend"]);
                let (flags, time, value) = (self.number(), self.time(), self.value());
                let len = value.len();
                self.data(
                    format!("{command} {key} {flags} {time} {len}{quiet}"),
                    &value,
                )
            }
            6..=7 => {
                let (time, value) = (self.time(), self.value());
                let cas = self.pick(&["{cas}", "{cas}", "0", "x"]);
                let len = value.len();
                self.data(format!("cas {key} 3 {time} {len} {cas}{quiet}"), &value)
            }
            8..=12 => {
                let command = self.pick(&["get", "get", "gets", "bget"]);
                let more = self.pick(&["", " key1", " key1 key2 key3 ", "  key4"]);
                format!("{command} {key}{more}\r\n")
            }
            13 => {
                let many = vec!["key1 key2 absent"; self.random.random_range(1..20)].join(" ");
                format!("get {many}\r\n")
            }
            14 => {
                let command = self.pick(&["gat", "gats"]);
                let (time, more) = (self.time(), self.pick(&["", " key1 key2"]));
                format!("{command} {time} {key}{more}\r\n")
            }
            15..=17 => {
                let (command, delta) = (self.pick(&["incr", "decr"]), self.number());
                format!("{command} {key} {delta}{quiet}\r\n")
            }
            18..=19 => {
                let zero = self.pick(&["", "", "", " 0", " 1", " 0 0"]);
                format!("delete {key}{zero}{quiet}\r\n")
            }
            20 => format!("touch {key} {}{quiet}\r\n", self.time()),
            21 if self.random.random_bool(0.2) => {
                let time = self.pick(&["", " 0", " -1", " x"]);
                format!("flush_all{time}{quiet}\r\n")
            }
            22 => {
                let lines = [
                    "version",
                    "verbosity 1",
                    "verbosity",
                    "verbosity x",
                    "verbosity 1 noreply",
                    "me key1",
                    "me absent",
                    "me",
                    "mx key1",
                    "m",
                    "",
                    " ",
                    "get",
                    "gets",
                    "gat",
                    "gat 0",
                    "gat x key1",
                    "set",
                    "set k 0 0",
                    "set k 0 0 -1",
                    "set k 0 0 x",
                    "cas k 0 0 1",
                    "incr",
                    "incr key1",
                    "touch",
                    "touch key1",
                    "delete",
                    "nonsense",
                    "stats nonsense",
                    "GET key1",
                    "gets2 key1",
                    "mg",
                    "ms",
                    "ms key1",
                    "ms key1 x",
                    "ms key1 -1",
                    "md",
                    "ma",
                    "shutdown",
                    "flush_all 0 0 0",
                    "mg key1 key2",
                    "mg key1 v v",
                    "md key1 q q",
                    "ms key1 S100 T0",
                    "mg a!b b",
                    "mg YWI= b k",
                    "mg key1 s s s s s s s s s s s s s s s s s s s",
                ];
                format!("{}\r\n", self.pick(&lines))
            }
            23..=28 => {
                let of = [
                    "v", "s", "t", "c", "f", "k", "O", "q", "u", "h", "N", "T", "R", "Z", "l",
                ];
                format!("mg {key}{}\r\n", self.flags(&of))
            }
            29..=33 => {
                let of = ["T", "F", "C", "M", "M", "I", "O", "k", "c", "q", "S"];
                let (flags, value) = (self.flags(&of), self.value());
                self.data(format!("ms {key} {}{flags}", value.len()), &value)
            }
            34..=36 => {
                let of = ["I", "I", "T", "C", "O", "k", "q"];
                format!("md {key}{}\r\n", self.flags(&of))
            }
            37 => {
                let text = self.pick(&["YWI=", "YWJj", "a", "===="]);
                let (verb, flags) = (
                    self.pick(&["mg", "md", "ma"]),
                    self.pick(&["", " v", " k N0"]),
                );
                format!("{verb} {text} b{flags} k\r\n")
            }
            _ => {
                let of = ["N", "J", "D", "T", "M", "C", "O", "k", "c", "t", "v", "q"];
                format!("ma {key}{}\r\n", self.flags(&of))
            }
        }
    }
}

/// 20,000 random requests, some of them pipelined.
#[test]
fn it_says_what_memcached_says() {
    let Some(memcached) = Memcached::start() else {
        not_run("memcached is not installed (apt-get install memcached)");
        return;
    };
    let served = Served::start(100_000);
    let mut theirs = Client::connect(memcached.address);
    let mut ours = served.connect();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a date");
    let seed = 17;
    let mut generator = Generator {
        random: StdRng::seed_from_u64(seed),
        date_s: now.as_secs() + 40 * 24 * 60 * 60,
    };
    let mut history: Vec<String> = Vec::new();
    for n in 0..20_000 {
        let count = if generator.random.random_bool(0.1) {
            6
        } else {
            1
        };
        let request: String = (0..count).map(|_| generator.request()).collect();
        let has_number = ["incr ", "decr ", "ma "]
            .iter()
            .any(|of| request.contains(of));
        if count > 1 && (has_number || request.contains(&"k".repeat(251))) {
            // memcached drops the replies before the one to a `get` of such a key.
            continue;
        }
        if request.contains("{cas}") && generator.random.random_bool(0.7) {
            let key = request.split(' ').nth(1).unwrap_or("key1").to_owned();
            theirs.learn_cas(&key);
            ours.learn_cas(&key);
        }
        history.push(request.clone());
        let (they, we) = (theirs.ask(request.as_bytes()), ours.ask(request.as_bytes()));
        let last: Vec<_> = history.iter().rev().take(12).rev().collect();
        assert_eq!(
            comparable(&we),
            comparable(&they),
            "seed {seed}, request {n}: ours is the left one; the last requests: {last:#?}"
        );
        if has_number {
            // memcached keeps the length of a shorter number only while nobody else refers to the item, and sometimes
            // miscounts references.
            for client in [&mut theirs, &mut ours] {
                let key = request
                    .split(' ')
                    .nth(1)
                    .unwrap_or("key1")
                    .trim()
                    .to_owned();
                client.ask(format!("delete {key}\r\n").as_bytes());
            }
        }
    }
}

/// A shorter number keeps the length of the longer one before it; a longer one does not.
#[test]
fn numbers_are_padded() {
    let served = Served::start(10_000);
    let mut client = served.connect();
    for (request, reply) in [
        ("set n 0 0 2\r\n10\r\n", "STORED"),
        ("decr n 1\r\n", "9"),
        ("get n\r\n", "VALUE n 0 2\r\n9 \r\nEND"),
        ("incr n 90\r\n", "99"),
        ("ma n v t c\r\n", "VA 3 t-1 c4\r\n100"),
        ("get n\r\n", "VALUE n 0 3\r\n100\r\nEND"),
        ("decr n 1000\r\n", "0"),
        ("mg n v s\r\n", "VA 3 s3\r\n0  "),
        (
            "incr n x\r\n",
            "CLIENT_ERROR invalid numeric delta argument",
        ),
    ] {
        let said = client.ask(request.as_bytes());
        let expected = format!("{reply}\r\nMN\r\n");
        assert_eq!(String::from_utf8_lossy(&said), expected, "{request}");
    }
}

/// What only this gateway guarantees, or what would take memcached minutes.
#[test]
fn long_values_and_many_keys() {
    let served = Served::start(20_000);
    let mut client = served.connect();
    let value = vec![b'v'; 1 << 20];
    let set = [
        format!("set long 1 0 {}\r\n", value.len()).as_bytes(),
        &value,
        b"\r\n",
    ]
    .concat();
    assert_eq!(client.ask(&set), b"STORED\r\nMN\r\n");
    let reply = client.ask(b"get long\r\n");
    assert_eq!(
        reply.len(),
        value.len() + "VALUE long 1 1048576\r\n\r\nEND\r\nMN\r\n".len()
    );
    // 30 MB of replies to one request.
    let many = format!("get {}\r\n", ["long"; 30].join(" "));
    assert_eq!(client.ask(many.as_bytes()).matches_of(b"VALUE long"), 30);
    let too_long = [
        b"set k 0 0 1048577\r\n".to_vec(),
        vec![b'v'; 1_048_577],
        b"\r\n".to_vec(),
    ];
    let reply = client.ask(&too_long.concat());
    assert_eq!(reply, b"SERVER_ERROR object too large for cache\r\nMN\r\n");
    // 4,229 chunks each: the fifth does not fit, and the item that was there stays.
    for n in 0..3 {
        let set = replace(&set, b"set long", format!("set long{n}").as_bytes());
        assert_eq!(client.ask(&set), b"STORED\r\nMN\r\n");
    }
    let set = replace(&set, b"set long", b"set long0");
    let reply = client.ask(&set);
    assert_eq!(
        reply,
        b"SERVER_ERROR out of memory storing object\r\nMN\r\n"
    );
    assert!(client.ask(b"get long0\r\n").len() > 1 << 20);
    assert_eq!(client.ask(b"delete long1\r\n"), b"DELETED\r\nMN\r\n");
    assert_eq!(client.ask(&set), b"STORED\r\nMN\r\n");
    let stats = client.ask(b"stats\r\n");
    assert_eq!(stats.matches_of(b"STAT evictions 0"), 1);
    assert_eq!(stats.matches_of(b"STAT curr_items 3"), 1);
}

trait Matches {
    fn matches_of(&self, what: &[u8]) -> usize;
}

impl Matches for Vec<u8> {
    fn matches_of(&self, what: &[u8]) -> usize {
        self.windows(what.len())
            .filter(|window| *window == what)
            .count()
    }
}

/// A pipeline longer than what is begun at once, with reads before writes of the same key.
#[test]
fn a_pipeline_keeps_its_order() {
    let served = Served::start(10_000);
    let mut client = served.connect();
    let mut request = String::new();
    let mut expected = String::new();
    for n in 0..5_000 {
        request +=
            &format!("set k 0 0 4\r\n{n:04}\r\nget k\r\nset k 0 0 1 noreply\r\nx\r\nversion\r\n");
        expected += &format!("STORED\r\nVALUE k 0 4\r\n{n:04}\r\nEND\r\nVERSION 1.6.18\r\n");
    }
    expected += "MN\r\n";
    let reply = client.ask(request.as_bytes());
    assert_eq!(String::from_utf8_lossy(&reply), expected);
}

#[test]
fn two_thousand_clients_at_once() {
    let served = Served::start(10_000);
    let mut clients: Vec<_> = (0..2_000).map(|_| served.connect()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let line = format!("set k{n} 0 0 1\r\nx\r\nget k{n}\r\n");
        client.stream.write_all(line.as_bytes()).expect("sent");
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let expected = format!("STORED\r\nVALUE k{n} 0 1\r\nx\r\nEND\r\n");
        let mut reply = vec![0; expected.len()];
        client.stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&reply), expected);
    }
    clients[0].stream.write_all(b"quit\r\n").expect("sent");
    assert_eq!(clients[0].stream.read(&mut [0]).expect("the end"), 0);
}
