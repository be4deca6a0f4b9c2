//! What Redis clients may say here.

use inband_resp::reply::{Protocol, Reply};
use inband_resp::request::Args;

use crate::client::Op;

/// A request understood.
#[derive(Debug)]
pub enum Command {
    /// One operation on FLAIR.
    One(Op, Then),
    /// Several, answered as one.
    Several(Vec<Op>, Then),
    /// Answered without FLAIR.
    Local(Reply),
    /// The version of the protocol that answers are in from now on.
    Hello(Protocol),
    /// `+OK`, and goodbye.
    Quit,
}

/// What the answer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The value, or nil.
    Value,
    /// `+OK`.
    Ok,
    /// How many keys there were.
    Count,
    /// A value, or nil, for each.
    Values,
}

fn wrong_number(name: &str) -> Command {
    Command::Local(Reply::error(format!(
        "ERR wrong number of arguments for '{name}' command"
    )))
}

/// Understand a request, which has a name at least.
pub fn parse(args: Args<'_>) -> Command {
    let name = String::from_utf8_lossy(args.get(0)).to_ascii_lowercase();
    let key = |at: usize| args.get(at).to_vec();
    let gets = || args.from(1).map(|k| Op::Get(k.to_vec()));
    match (name.as_str(), args.len()) {
        ("get", 2) => Command::One(Op::Get(key(1)), Then::Value),
        ("set", 3) => {
            let (key, data) = (key(1), args.get(2).to_vec());
            Command::One(Op::Put(key, data), Then::Ok)
        }
        ("set", n) if n > 3 => Command::Local(Reply::error(
            "ERR SET takes no options here: FLAIR has get, put and delete",
        )),
        ("del" | "unlink", n) if n >= 2 => {
            let deletes = args.from(1).map(|k| Op::Delete(k.to_vec()));
            Command::Several(deletes.collect(), Then::Count)
        }
        ("exists", n) if n >= 2 => Command::Several(gets().collect(), Then::Count),
        ("mget", n) if n >= 2 => Command::Several(gets().collect(), Then::Values),
        ("ping", 1) => Command::Local(Reply::Status("PONG".into())),
        ("ping", 2) | ("echo", 2) => Command::Local(Reply::bulk(args.get(1))),
        ("quit", 1) => Command::Quit,
        ("select", 2) if args.get(1) == b"0" => Command::Local(Reply::Ok),
        ("select", 2) => Command::Local(Reply::error("ERR DB index is out of range")),
        ("hello", 1) => Command::Hello(Protocol::Resp2),
        ("hello", _) => match args.get(1) {
            b"2" => Command::Hello(Protocol::Resp2),
            b"3" => Command::Hello(Protocol::Resp3),
            _ => Command::Local(Reply::error("NOPROTO unsupported protocol version")),
        },
        // Asked by redis-cli and redis-benchmark before anything else.
        ("command", _) => Command::Local(Reply::Array(Vec::new())),
        ("config", 3) if args.get(1).eq_ignore_ascii_case(b"get") => {
            Command::Local(Reply::Map(Vec::new()))
        }
        ("client", n) if n >= 2 => Command::Local(Reply::Ok),
        ("get" | "set" | "del" | "unlink" | "exists" | "mget" | "echo" | "select" | "ping", _) => {
            wrong_number(&name)
        }
        _ => Command::Local(Reply::error(format!(
            "ERR unknown command '{name}'; FLAIR has GET, SET, DEL, EXISTS and MGET"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Command {
        let bytes = words.concat().into_bytes();
        let mut ranges = Vec::new();
        let mut at = 0;
        for word in words {
            ranges.push((at, at + word.len()));
            at += word.len();
        }
        parse(Args::new(&bytes, &ranges))
    }

    #[test]
    fn the_three_operations() {
        let key = b"k".to_vec();
        assert!(matches!(parsed(&["GET", "k"]), Command::One(Op::Get(k), Then::Value) if k == key));
        assert!(
            matches!(parsed(&["set", "k", "v"]), Command::One(Op::Put(k, data), Then::Ok) if k == key && data == b"v")
        );
        assert!(
            matches!(parsed(&["Del", "k", "l"]), Command::Several(ops, Then::Count) if ops.len() == 2)
        );
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (words, says) in [
            (&["GET"][..], "wrong number of arguments for 'get'"),
            (&["SET", "k", "v", "NX"], "takes no options"),
            (&["INCR", "k"], "unknown command 'incr'"),
            (&["SELECT", "1"], "out of range"),
            (&["HELLO", "4"], "NOPROTO"),
        ] {
            let Command::Local(Reply::Error(text)) = parsed(words) else {
                panic!("{words:?}");
            };
            assert!(text.contains(says), "{text}");
        }
    }
}
