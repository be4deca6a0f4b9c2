//! Scripts answer as a real Redis answers them, and end in the same way everywhere.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

use bytes::BytesMut;
use inband_lua::{run, Ended, Host, Limits, Script};
use inband_resp::reply::{Protocol, Reply};

const LIMITS: Limits = Limits {
    steps: 1_000_000,
    memory_bytes: 16 << 20,
    reply_bytes: 1 << 20,
};

/// A few commands of Redis.
#[derive(Default)]
struct Store(HashMap<Vec<u8>, Vec<u8>>);

impl Host for Store {
    fn call(&mut self, args: &[Vec<u8>]) -> Option<Reply> {
        let name = args[0].to_ascii_uppercase();
        Some(match (&name[..], &args[1..]) {
            (b"GET", [key]) => self.0.get(key).map_or(Reply::Nil, Reply::bulk),
            (b"SET", [key, value]) => {
                self.0.insert(key.clone(), value.clone());
                Reply::Ok
            }
            (b"INCR", [key]) => {
                let number = String::from_utf8_lossy(self.0.get(key).map_or(b"0", |v| v)).parse();
                let Ok(number) = number.map(|number: i64| number + 1) else {
                    return Some(Reply::error("ERR value is not an integer or out of range"));
                };
                self.0.insert(key.clone(), number.to_string().into_bytes());
                Reply::Integer(number)
            }
            (b"MGET", keys) => {
                let get = |key| self.0.get(key).map_or(Reply::Nil, Reply::bulk);
                Reply::Array(keys.iter().map(get).collect())
            }
            (b"PING", []) => Reply::Status("PONG".into()),
            (b"GET" | b"SET" | b"INCR", _) => {
                Reply::error("ERR Wrong number of args calling Redis command from script")
            }
            _ => Reply::error("ERR Unknown Redis command called from script"),
        })
    }
}

fn evaluate(text: &str, keys: &[&[u8]], args: &[&[u8]], store: &mut Store) -> Ended {
    let text = text.as_bytes();
    run(&Script { text, keys, args }, &LIMITS, store)
}

fn show(reply: &Reply) -> String {
    let mut out = BytesMut::new();
    reply.write_resp(&mut out, Protocol::Resp2);
    String::from_utf8_lossy(&out).into_owned()
}

fn ours(text: &str) -> String {
    let mut store = Store::default();
    match evaluate(text, &[b"k1", b"k2"], &[b"a1", b"17"], &mut store) {
        Ended::Reply(reply) => show(&reply),
        Ended::Undo(reply) => format!("undone {}", show(&reply)),
    }
}

/// Scripts, separated by empty lines.
const SCRIPTS: &str = include_str!("scripts.lua");

fn scripts() -> impl Iterator<Item = &'static str> {
    SCRIPTS
        .split("\n\n")
        .map(str::trim_end)
        .filter(|script| !script.is_empty())
}

/// Ends a process when it is dropped.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Redis {
    stream: TcpStream,
}

impl Redis {
    fn ask(&mut self, words: &[&str]) -> String {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        let end = "$8\r\nthe end!\r\n";
        request += "*2\r\n$4\r\nECHO\r\n$8\r\nthe end!\r\n";
        self.stream.write_all(request.as_bytes()).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(end.as_bytes()) {
            let mut part = [0; 4096];
            let len = self.stream.read(&mut part).unwrap();
            assert!(len > 0, "Redis closes the connection after {words:?}");
            reply.extend_from_slice(&part[..len]);
        }
        reply.truncate(reply.len() - end.len());
        String::from_utf8_lossy(&reply).into_owned()
    }
}

#[test]
fn a_real_redis_answers_the_same() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = socket.local_addr().unwrap();
    drop(socket);
    let redis = Command::new("redis-server")
        .args([
            "--port",
            &address.port().to_string(),
            "--save",
            "",
            "--dir",
            "/tmp",
        ])
        .stdout(Stdio::null())
        .spawn();
    let Ok(redis) = redis else {
        inband_testing::not_run("redis-server is not on the PATH");
        return;
    };
    let _redis = Ends(redis);
    let mut differences = Vec::new();
    let mut stream = None;
    for _ in 0..1000 {
        stream = TcpStream::connect(address).ok();
        if stream.is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    if let Some(stream) = stream {
        let mut client = Redis { stream };
        for script in scripts() {
            client.ask(&["FLUSHALL"]);
            let theirs = client.ask(&["EVAL", script, "2", "k1", "k2", "a1", "17"]);
            let ours = ours(script);
            if ours != theirs {
                differences.push(format!(
                    "{script}\n  Redis: {theirs:?}\n  ours:  {ours:?}\n"
                ));
            }
        }
    } else {
        differences.push("Redis does not start".into());
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn limits_end_a_script() {
    let undone = |text: &str| match evaluate(text, &[b"k"], &[], &mut Store::default()) {
        Ended::Undo(Reply::Error(why)) => why.into_owned(),
        other => panic!("{text}: {other:?}"),
    };
    let steps = "ERR script is over the limit of 1000000 steps; nothing that it did took effect";
    let memory =
        "ERR script is over the limit of 16777216 bytes of memory; nothing that it did took effect";
    let reply =
        "ERR script is over the limit of 1048576 bytes of reply; nothing that it did took effect";
    let cases = [
        ("while true do end", steps),
        (
            "local function f() return pcall(f) end while true do f() end",
            steps,
        ),
        (
            "while true do pcall(function() while true do end end) end",
            steps,
        ),
        (
            "xpcall(function() while true do end end, function() while true do end end)",
            steps,
        ),
        (
            "local s = ('a'):rep(60) return s:find(('a*'):rep(20)..'b')",
            steps,
        ),
        ("return ('x'):rep(2000000)", steps),
        ("('').rep('', 1e12)", steps),
        ("for i = 1, 1e5 do string.rep('', '2147483647') end", steps),
        ("table.concat({}, '', 1, 2147483647)", steps),
        (
            "local s = ('a'):rep(100000) s:gsub('.*', ('%0'):rep(100000))",
            steps,
        ),
        (
            "local t = {} for i = 1, 9000 do table.insert(t, 1, i) end",
            steps,
        ),
        (
            "local t = {} for i = 1, 40 do t = {t, t} end return t",
            reply,
        ),
        (
            "local t = {1} for i = 1, 40 do t = {t, t} end return cjson.encode(t)",
            steps,
        ),
        ("while true do redis.call('ping') end", steps),
        (
            "local s = ('x'):rep(500000) while true do s:upper() end",
            steps,
        ),
        (
            "local s = ('x'):rep(500000) for i = 1, 20 do s:lower() s:reverse() end",
            steps,
        ),
        (
            "local s = ('x'):rep(500000) for i = 1, 30 do s:sub(1, -1) end",
            steps,
        ),
        (
            "local s = ('x'):rep(500000) for i = 1, 3 do redis.sha1hex(s) end",
            steps,
        ),
        (
            "local s = ('b'):rep(500000) for i = 1, 3 do struct.size(s) end",
            steps,
        ),
        (
            "return ('y'):rep(10000):find('[' .. ('x'):rep(10000) .. ']+')",
            steps,
        ),
        ("local s = 'x' while true do s = s .. s end", memory),
        (
            "local s = 'x' while true do pcall(function() s = s .. s end) end",
            memory,
        ),
        ("local s = '' while true do s = s .. 'xxxxxxxx' end", memory),
        ("error('not enough memory')", memory),
        (
            "local s = ('x'):rep(100000) local t = {} for i = 1, 20 do t[i] = s end return t",
            reply,
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(undone(text), expected, "{text}");
    }
}

/// mlua panics above about 8,000 references, and ends the process if there is no memory for them.
#[test]
fn many_values() {
    let cases = [
        (
            "local t = {} for i = 1, 9000 do t[i] = ('%05d'):format((i * 7) % 9000) end
             table.sort(t) return t[1] .. t[9000]",
            "$10\r\n0000008999\r\n",
        ),
        (
            "local t = {} for i = 1, 6000 do t[i] = 'x' end
             return #cmsgpack.pack(unpack(t)) + select('#', cmsgpack.unpack(cmsgpack.pack(unpack(t))))",
            ":18000\r\n",
        ),
        (
            "return select('#', struct.unpack(('c1'):rep(6000), ('x'):rep(6000)))",
            ":6001\r\n",
        ),
        (
            "local t = {} for i = 1, 7500 do t[i] = 'x' end return redis.pcall('mget', unpack(t))",
            "too many results to unpack",
        ),
        (
            "return cmsgpack.unpack(('\\161x'):rep(9000))",
            "too many results to unpack",
        ),
        (
            "local t = {} for i = 1, 900 do t = {t} end
             return #cjson.encode(cjson.decode(cjson.encode(t)))",
            ":1802\r\n",
        ),
    ];
    let limits = Limits {
        steps: 10_000_000,
        ..LIMITS
    };
    for (text, expected) in cases {
        let (keys, args) = (&[][..], &[][..]);
        let script = Script {
            text: text.as_bytes(),
            keys,
            args,
        };
        let Ended::Reply(reply) = run(&script, &limits, &mut Store::default()) else {
            panic!("{text} is undone");
        };
        let reply = show(&reply);
        assert!(reply.contains(expected), "{text}: {reply}");
    }
    // Memory runs out while values are taken.
    for take in [
        "redis.pcall('mget', unpack(t))",
        "table.sort(t)",
        "cmsgpack.pack(unpack(t))",
        "cmsgpack.unpack(p)",
        "struct.unpack(f, p)",
    ] {
        for left in (6_000..7_900).step_by(100) {
            let text = format!(
                "local t = {{}} for i = 1, 3000 do t[i] = 'v' .. i end
                 local p, f = ('\\161x'):rep(3000), ('c1'):rep(3000)
                 local x = ('x'):rep(1000) local hold, n = {{}}, 0
                 for size = 1, {left} do n = n + 1 hold[n] = x .. size end
                 {take}"
            );
            let limits = Limits {
                memory_bytes: 8 << 20,
                ..LIMITS
            };
            let text = text.as_bytes();
            let (keys, args) = (&[][..], &[][..]);
            run(&Script { text, keys, args }, &limits, &mut Store::default());
        }
    }
}

/// Errors and what `tostring` says have no addresses.
#[test]
fn addresses_are_not_shown() {
    for text in [
        "return {pcall(function() ('x'):gsub('.', function() error({}) end) end)}",
        "('x'):gsub('.', function() error({}) end)",
        "('x'):gsub('.', function() error(redis.call) end)",
        "table.sort({1, 2}, function() error({}) end)",
        "local ok, e = pcall(table.sort, {1, 2}, function() error({}) end) return tostring(e)",
        "return tostring(setmetatable({}, {__metatable = {__tostring = 1}}))",
        "return tostring(setmetatable({}, {__metatable = 'x'}))",
        "error({})",
        "error(setmetatable({}, {__metatable = {__tostring = 1}}))",
        "error(print or redis.call)",
        "tostring = nil error(redis.call)",
        "return _G[redis.call]",
        "return {pcall(function() return _G[{}] end)}",
        "('x'):gsub('x', setmetatable({}, {__index = function() error({}) end}))",
        "xpcall(function() error({}) end, function(e) error(e) end)",
    ] {
        let reply = ours(text);
        let shown = reply.replace(": 0x0", "");
        assert!(!shown.contains("0x"), "{text}: {reply}");
        assert_eq!(reply, ours(text), "{text}");
    }
    let text = "local ok, e = pcall(string.gsub, 'x', '.', function() error({code = 7}) end) return e.code";
    assert_eq!(ours(text), ":7\r\n");
    let text = "return tostring(setmetatable({}, {__tostring = function() return 'T' end, __metatable = 1}))";
    assert_eq!(ours(text), "$1\r\nT\r\n");
}

/// What a script may allocate depends on the script only.
#[test]
fn memory_ends_a_script_at_the_same_step() {
    let text = "local t = {} while true do t[#t + 1] = {a = #t} redis.call('incr', 'n') end";
    let count = || {
        let mut store = Store::default();
        assert!(matches!(
            evaluate(text, &[], &[], &mut store),
            Ended::Undo(_)
        ));
        store.0.remove(&b"n"[..]).expect("it was counted")
    };
    let first = count();
    let heap: Vec<Vec<u8>> = (1..200).map(|len| vec![0; len * 100]).collect();
    for _ in 0..5 {
        assert_eq!(count(), first);
    }
    drop(heap);
}

#[test]
fn what_could_differ_between_replicas_is_not_there() {
    let gone = [
        "os",
        "io",
        "debug",
        "coroutine",
        "load",
        "loadstring",
        "dofile",
        "loadfile",
        "require",
        "package",
        "collectgarbage",
        "newproxy",
        "print",
        "getfenv",
        "setfenv",
    ];
    for name in gone {
        let text = format!("return rawget(_G, '{name}') == nil");
        assert_eq!(ours(&text), ":1\r\n", "{name}");
    }
    assert_eq!(ours("return tostring({})"), "$10\r\ntable: 0x0\r\n");
    assert_eq!(ours("return string.dump == nil"), ":1\r\n");
    assert!(ours("table.insert({}, -2147483640, 1)").contains("out of bounds"));
    for text in [
        "local t = {} t[{}] = 1",
        // Line ends that are not only "\n".
        "--\rlocal t = {} t[{}] = 1",
        "local x = '\\\r\n' local t = {} t[{}] = 1 --'",
        "local t = {[error] = 1}",
        "local t = {} rawset(t, {}, 1)",
        "local t = {} t[redis] = 1",
    ] {
        assert!(
            ours(text).contains("cannot be a key"),
            "{text}: {}",
            ours(text)
        );
    }
    assert!(ours("local __inband_key = 1").contains("reserved"));
    // Nor is bytecode.
    assert!(ours("\x1bLua").contains("compiling"));
}

#[test]
fn nothing_remains_of_a_script() {
    let mut store = Store::default();
    let text = "string.format = nil math.x = 1 rawset(_G, 'left', 1) KEYS[1] = 2 return 1";
    assert_eq!(
        evaluate(text, &[b"k"], &[], &mut store),
        Ended::Reply(Reply::Integer(1))
    );
    let text = "return {KEYS[1], string.format('%d', 1), rawget(_G, 'left') or 0, math.x or 0}";
    assert_eq!(
        evaluate(text, &[b"k"], &[], &mut store),
        Ended::Reply(Reply::Array(vec![
            Reply::bulk("k"),
            Reply::bulk("1"),
            Reply::Integer(0),
            Reply::Integer(0)
        ]))
    );
}

#[test]
fn digests() {
    assert_eq!(
        inband_lua::sha1_hex(b""),
        "da39a3ee5e6b4b0d3255bfef95601890afd80709"
    );
    assert_eq!(
        inband_lua::sha1_hex(b"return 1"),
        "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"
    );
}
