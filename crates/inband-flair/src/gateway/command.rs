//! The commands that the gateway accepts.

use inband_resp::reply::{Protocol, Reply};
use inband_resp::request::Args;

use crate::client::Op;
use crate::limits::GATEWAY_KEYS_MAX;

/// A parsed request.
#[derive(Debug)]
pub enum Command {
    /// One operation on FLAIR.
    One(Op, Then),
    /// Several operations with one answer. They are executed independently.
    Several(Vec<Op>, Then),
    /// Too many keys for one request.
    TooLong(Reply),
    /// Answered by the gateway itself.
    Local(Reply),
    Auth(Credentials),
    /// HELLO: the protocol version of answers from now on, and optionally credentials.
    Hello(Option<Protocol>, Option<Credentials>),
    /// MULTI, which is refused, and so is everything up to EXEC or DISCARD.
    Multi,
    /// EXEC or DISCARD.
    EndOfTransaction(Reply),
    /// The number of the connection.
    ClientId,
    /// Answers `+OK`, then closes.
    Quit,
}

/// The answer to MULTI.
pub const NO_TRANSACTIONS: &str =
    "ERR FLAIR has no transactions; commands up to EXEC or DISCARD are not executed";
/// The answer to commands after it.
pub const NOT_EXECUTED: &str =
    "ERR not executed: it follows MULTI, which was refused; send DISCARD to end this";

/// How to build the answer from the outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The value, or nil.
    Value,
    /// `+OK`.
    Ok,
    /// The number of keys deleted.
    Deleted,
    /// The number of keys that exist.
    Existing,
    /// The value, or nil, of each key.
    Values,
}

impl Then {
    /// Returns whether the operations are reads.
    pub fn is_read(self) -> bool {
        match self {
            Then::Value | Then::Existing | Then::Values => true,
            Then::Ok | Then::Deleted => false,
        }
    }
}

/// Credentials of AUTH or HELLO.
#[derive(Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Whether they name the default user, the only one.
    pub is_default_user: bool,
    pub password: Vec<u8>,
}

impl Credentials {
    fn new(user: &[u8], password: &[u8]) -> Credentials {
        Credentials {
            is_default_user: user == b"default",
            password: password.to_vec(),
        }
    }
}

/// Returns whether this command is allowed before authentication.
pub fn is_for_everybody(name: &[u8]) -> bool {
    let known = ["auth", "hello", "quit"];
    known
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

fn wrong_number(name: &str) -> Command {
    Command::Local(Reply::error(format!(
        "ERR wrong number of arguments for '{name}' command"
    )))
}

/// Parses a request, which has at least a name.
pub fn parse(args: Args<'_>) -> Command {
    let name = String::from_utf8_lossy(args.get(0)).to_ascii_lowercase();
    let key = |at: usize| args.get(at).to_vec();
    let gets = || args.from(1).map(|k| Op::Get(k.to_vec()));
    let keys = match name.as_str() {
        "del" | "unlink" | "exists" | "mget" => args.len() - 1,
        "mset" => args.len() / 2,
        _ => 1,
    };
    if keys > GATEWAY_KEYS_MAX {
        return Command::TooLong(Reply::error(format!(
            "ERR {keys} keys are over the limit of {GATEWAY_KEYS_MAX} keys; use several commands"
        )));
    }
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
            Command::Several(deletes.collect(), Then::Deleted)
        }
        ("exists", n) if n >= 2 => Command::Several(gets().collect(), Then::Existing),
        ("mget", n) if n >= 2 => Command::Several(gets().collect(), Then::Values),
        ("mset", n) if n >= 3 && n % 2 == 1 => {
            let pair = |at: usize| Op::Put(key(at), key(at + 1));
            Command::Several((1..n).step_by(2).map(pair).collect(), Then::Ok)
        }
        ("auth", 2) => Command::Auth(Credentials::new(b"default", args.get(1))),
        ("auth", 3) => Command::Auth(Credentials::new(args.get(1), args.get(2))),
        ("ping", 1) => Command::Local(Reply::Status("PONG".into())),
        ("ping", 2) | ("echo", 2) => Command::Local(Reply::bulk(args.get(1))),
        ("multi", 1) => Command::Multi,
        ("exec", 1) => Command::EndOfTransaction(Reply::error(
            "EXECABORT Transaction discarded: FLAIR has no transactions",
        )),
        ("discard", 1) => Command::EndOfTransaction(Reply::Ok),
        ("quit", 1) => Command::Quit,
        ("select", 2) if args.get(1) == b"0" => Command::Local(Reply::Ok),
        ("select", 2) => Command::Local(Reply::error("ERR DB index is out of range")),
        ("hello", 1) => Command::Hello(None, None),
        ("hello", _) => hello(args),
        // redis-cli and redis-benchmark send this first.
        ("command", _) => Command::Local(Reply::Array(Vec::new())),
        ("config", 3) if args.get(1).eq_ignore_ascii_case(b"get") => {
            Command::Local(Reply::Map(Vec::new()))
        }
        ("client", n) if n >= 2 => client(args),
        (
            "get" | "set" | "del" | "unlink" | "exists" | "mget" | "mset" | "auth" | "echo"
            | "select" | "ping" | "multi" | "exec" | "discard" | "client",
            _,
        ) => wrong_number(&name),
        _ => Command::Local(Reply::error(format!(
            "ERR unknown command '{name}'; FLAIR has GET, SET, DEL, EXISTS, MGET and MSET"
        ))),
    }
}

/// What client libraries send about themselves is accepted, and not kept.
fn client(args: Args<'_>) -> Command {
    let name = String::from_utf8_lossy(args.get(1)).to_ascii_lowercase();
    match name.as_str() {
        "id" => Command::ClientId,
        "getname" => Command::Local(Reply::Nil),
        "setname" | "setinfo" | "no-evict" | "no-touch" => Command::Local(Reply::Ok),
        _ => Command::Local(Reply::error(format!(
            "ERR unknown subcommand '{name}' of CLIENT; FLAIR has ID, GETNAME, SETNAME and SETINFO"
        ))),
    }
}

/// `HELLO version [AUTH user password] [SETNAME name]`.
fn hello(args: Args<'_>) -> Command {
    let protocol = match args.get(1) {
        b"2" => Protocol::Resp2,
        b"3" => Protocol::Resp3,
        _ => return Command::Local(Reply::error("NOPROTO unsupported protocol version")),
    };
    let (mut credentials, mut at) = (None, 2);
    while at < args.len() {
        let option = args.get(at).to_ascii_lowercase();
        match &option[..] {
            b"auth" if at + 2 < args.len() => {
                credentials = Some(Credentials::new(args.get(at + 1), args.get(at + 2)));
                at += 3;
            }
            b"setname" if at + 1 < args.len() => at += 2,
            _ => return Command::Local(Reply::error("ERR Syntax error in HELLO")),
        }
    }
    Command::Hello(Some(protocol), credentials)
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
            matches!(parsed(&["Del", "k", "l"]), Command::Several(ops, Then::Deleted) if ops.len() == 2)
        );
    }

    #[test]
    fn several_keys_at_once_up_to_the_limit() {
        assert!(
            matches!(parsed(&["MSET", "a", "1", "b", "2"]), Command::Several(ops, Then::Ok)
                if ops == [Op::Put(b"a".into(), b"1".into()), Op::Put(b"b".into(), b"2".into())])
        );
        let mut words = vec!["MGET"];
        words.resize(GATEWAY_KEYS_MAX + 1, "k");
        assert!(matches!(parsed(&words), Command::Several(..)));
        words.push("k");
        assert!(
            matches!(parsed(&words), Command::TooLong(Reply::Error(says))
            if says.contains("4097 keys are over the limit of 4096"))
        );
    }

    #[test]
    fn the_password_comes_alone_or_with_the_protocol() {
        let said = || Credentials::new(b"default", b"p");
        assert!(matches!(parsed(&["AUTH", "p"]), Command::Auth(c) if c == said()));
        let words = ["HELLO", "3", "auth", "default", "p", "SETNAME", "me"];
        assert!(
            matches!(parsed(&words), Command::Hello(Some(Protocol::Resp3), Some(c)) if c == said())
        );
        assert!(matches!(parsed(&["AUTH", "x", "p"]), Command::Auth(c) if !c.is_default_user));
        assert!(is_for_everybody(b"Auth") && !is_for_everybody(b"GET"));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (words, says) in [
            (
                &["MSET", "a", "1", "b"][..],
                "wrong number of arguments for 'mset'",
            ),
            (&["HELLO", "3", "AUTH", "p"], "Syntax error"),
            (&["GET"], "wrong number of arguments for 'get'"),
            (&["SET", "k", "v", "NX"], "takes no options"),
            (&["INCR", "k"], "unknown command 'incr'"),
            (&["SELECT", "1"], "out of range"),
            (&["HELLO", "4"], "NOPROTO"),
            (&["CLIENT", "REPLY", "OFF"], "unknown subcommand 'reply'"),
            (&["CLIENT"], "wrong number of arguments for 'client'"),
            (&["EXEC", "now"], "wrong number of arguments for 'exec'"),
        ] {
            let Command::Local(Reply::Error(text)) = parsed(words) else {
                panic!("{words:?}");
            };
            assert!(text.contains(says), "{text}");
        }
    }
}
