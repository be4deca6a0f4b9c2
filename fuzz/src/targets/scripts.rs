//! Scripts: replicas with different heaps answer alike, store the same, and count the same work.

use std::collections::BTreeMap;

use inband_lua::{run_counted, Ended, Host, Limits, Script};
use inband_resp::reply::Reply;

use crate::input::Input;

const LIMITS: Limits = Limits {
    steps: 200_000,
    memory_bytes: 4 << 20,
    reply_bytes: 64 << 10,
};
const DEPTH_MAX: usize = 5;
const STATEMENTS_MAX: usize = 12;
/// A script that is longer is not from a fuzzer.
const RAW_LEN_BYTES_MAX: usize = 4096;

/// Places for expressions are written as `$`.
const EXPRESSIONS: &[&str] = &[
    "nil",
    "true",
    "0",
    "1",
    "-1",
    "2.5",
    "1e15",
    "1/0",
    "9007199254740993",
    "''",
    "'x'",
    "'10'",
    "'%d+'",
    "'.'",
    "'[a-z]*'",
    "'(%w)(%w*)'",
    "a",
    "b",
    "c",
    "KEYS[1]",
    "ARGV[1]",
    "{}",
    "{1, 2, 3}",
    "{$, $}",
    "{x = $}",
    "{$, y = {$}}",
    "f",
    "error",
    "redis.call",
    "cjson.null",
    "function() return $ end",
    "function(x, y) return $ end",
    "function(x) error($) end",
    "setmetatable({}, {__index = $})",
    "setmetatable({$}, {__tostring = $, __metatable = $})",
    "$ + $",
    "$ .. $",
    "$ == $",
    "$ < $",
    "$ and $",
    "$ or $",
    "not $",
    "#$",
    "-($)",
    "$ % $",
    "$ ^ 2",
    "tostring($)",
    "tonumber($)",
    "type($)",
    "select('#', $, $)",
    "next($)",
    "rawequal($, $)",
    "rawget($, $)",
    "getmetatable($)",
    "pcall($, $)",
    "pcall(error, $)",
    "xpcall($, $)",
    "pcall(function() return $ end)",
    "string.rep($, 50)",
    "string.upper($)",
    "string.reverse($)",
    "string.sub($, $, $)",
    "string.format('%s %d', $, $)",
    "string.format('%q', $)",
    "string.byte($, 1, 5)",
    "string.find($, $)",
    "string.match($, $)",
    "string.gsub($, $, $)",
    "string.gsub($, '.', f)",
    "string.gsub($, $, {x = $})",
    "table.concat({$, $}, $)",
    "table.concat($)",
    "table.sort($)",
    "table.sort($, $)",
    "table.remove($)",
    "unpack($)",
    "math.floor($)",
    "math.random(100)",
    "math.sin($)",
    "math.max($, $)",
    "bit.band($, $)",
    "bit.tohex($)",
    "cjson.encode($)",
    "cjson.decode($)",
    "cjson.decode(cjson.encode($))",
    "cmsgpack.pack($, $)",
    "cmsgpack.unpack($)",
    "cmsgpack.unpack(cmsgpack.pack($))",
    "struct.pack('>I2s', $, $)",
    "struct.unpack('>I2', $)",
    "struct.size('<d')",
    "redis.sha1hex($)",
    "redis.call('get', 'k')",
    "redis.call('set', $, $)",
    "redis.call('incr', 'n')",
    "redis.pcall($, $)",
    "redis.error_reply($)",
    "redis.status_reply($)",
];

const STATEMENTS: &[&str] = &[
    "a = $",
    "b = $",
    "c = $",
    "out[#out + 1] = $",
    "out[#out + 1] = $",
    "out[$] = $",
    "rawset(out, $, $)",
    "for i = 1, 3 do % end",
    "for k, v in pairs($) do % end",
    "for i = 1, 200 do out[i] = {i} end",
    "if $ then % else % end",
    "local ok, e = pcall(function() % end) out[#out + 1] = tostring(e)",
    "pcall(function() % end)",
    "f = function(x) % return $ end",
    "table.sort($, function(x, y) % end)",
    "string.gsub('abc', '.', function(x) % end)",
    "redis.call('set', $, tostring($))",
    "local s = 'x' for i = 1, 14 do s = s .. s end a = s",
    "while true do % end",
    "error($)",
    "for w in string.gmatch($, $) do % end",
    "local t = {} for i = 1, 50 do t['k' .. i] = i end b = t",
];

/// Fills in a template.
fn fill(template: &str, input: &mut Input<'_>, depth: usize, out: &mut String) {
    for part in template.chars() {
        match part {
            '$' if depth < DEPTH_MAX => {
                let choice = input.below(EXPRESSIONS.len());
                fill(EXPRESSIONS[choice], input, depth + 1, out);
            }
            '$' => out.push_str("'leaf'"),
            '%' if template.contains(" end") && depth < DEPTH_MAX => {
                let choice = input.below(STATEMENTS.len());
                fill(STATEMENTS[choice], input, depth + 1, out);
            }
            '%' if template.contains(" end") => {}
            other => out.push(other),
        }
    }
}

/// A script that is generated from these bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    generated(&mut Input::new(bytes))
}

fn generated(input: &mut Input<'_>) -> String {
    let mut text = String::from("local a, b, c, f, out = 1, 'b', {3}, tostring, {}\n");
    for _ in 0..1 + input.below(STATEMENTS_MAX) {
        let choice = input.below(STATEMENTS.len());
        // An error does not end the script.
        text.push_str("do local ok, e = pcall(function() ");
        fill(STATEMENTS[choice], input, 0, &mut text);
        text.push_str(" end) if not ok then out[#out + 1] = tostring(e) end end\n");
    }
    text.push_str("return out, a");
    text
}

#[derive(Default)]
struct Store(BTreeMap<Vec<u8>, Vec<u8>>);

impl Host for Store {
    fn call(&mut self, args: &[Vec<u8>]) -> Option<Reply> {
        let name = args[0].to_ascii_lowercase();
        Some(match (&name[..], &args[1..]) {
            (b"get", [key]) => self.0.get(key).map_or(Reply::Nil, Reply::bulk),
            (b"set", [key, value]) => {
                self.0.insert(key.clone(), value.clone());
                Reply::Ok
            }
            (b"incr", [key]) => {
                let number = String::from_utf8_lossy(self.0.get(key).map_or(b"0", |v| v)).parse();
                let Ok(number @ ..=0xffff) = number.map(|number: i64| number + 1) else {
                    return Some(Reply::error("ERR value is not an integer or out of range"));
                };
                self.0.insert(key.clone(), number.to_string().into_bytes());
                Reply::Integer(number)
            }
            _ => Reply::error("ERR Unknown Redis command called from script"),
        })
    }
}

type Outcome = (Ended, u64, BTreeMap<Vec<u8>, Vec<u8>>);

fn outcome(text: &[u8]) -> Outcome {
    let mut store = Store::default();
    let (keys, args) = (&[&b"k"[..]][..], &[&b"17"[..]][..]);
    let (ended, steps) = run_counted(&Script { text, keys, args }, &LIMITS, &mut store);
    (ended, steps, store.0)
}

/// Two replicas execute the text. Returns how it ended.
pub fn compare(text: &[u8]) -> Ended {
    let one = outcome(text);
    // Another thread has another heap, and this one has holes.
    let two = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut heap: Vec<Vec<u8>> = (1..400).map(|len| vec![0; len * 37 % 1500]).collect();
            let mut at = 0;
            heap.retain(|_| {
                at += 1;
                at % 3 == 0
            });
            outcome(text)
        });
        other.join().expect("the script is executed")
    });
    assert_eq!(one, two, "{}", String::from_utf8_lossy(text));
    let reply = format!("{:?}", one.0);
    let is_own = String::from_utf8_lossy(text).contains("0x");
    let shows = reply.replace(": 0x0", "").contains("0x");
    assert!(is_own || !shows, "an address in {reply}");
    one.0
}

/// A byte that is odd if a text follows, else what to generate.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 2 {
        0 => compare(generated(&mut input).as_bytes()),
        _ => compare(input.piece(RAW_LEN_BYTES_MAX)),
    };
}
