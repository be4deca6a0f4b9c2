//! Commands that a replica answers without the log: about the connection and the server, and `SCAN`, which reads the
//! local copy.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use inband_resp::front::Connections;
use inband_resp::password::Password;
use inband_resp::reply::{Protocol, Reply};
use inband_resp::request::Args;

use crate::connection::Connection;
use crate::control::Status;
use crate::discovery;
use crate::events::{self, EventClasses};
use crate::info;
use crate::limit_hits::{LimitHit, LimitHits};
use crate::limits::{CLIENT_NAME_LEN_BYTES_MAX, SCAN_COUNT_MAX};
use crate::machine::Machine;
use crate::parse::{integer, unknown_subcommand, wrong_arity, SYNTAX_ERROR};
use crate::peer_exchange::Peers;
use crate::replica::end_subscriptions;
use crate::script;
use crate::script_cache::Scripts;
use crate::store::StoreError;
use crate::subscriptions::Subscriptions;
use crate::table::{self, CommandId, CommandSpec, COMMANDS};
use crate::types::{Kind, Work};

/// The version of Redis that is emulated.
const REDIS_VERSION: &str = "7.2.0";
/// The only user.
const DEFAULT_USER: &[u8] = b"default";
/// Page size of `SCAN` without `COUNT`.
const SCAN_COUNT_DEFAULT: usize = 10;

/// What a local command may access.
pub struct World<'a> {
    /// All connections, including the requester's.
    pub connections: &'a mut Connections<Connection>,
    /// Slot of the requester's connection.
    pub slot: usize,
    /// The state of the replica.
    pub status: Status,
    pub password: Option<&'a Password>,
    /// Counts wrong passwords.
    pub hits: &'a LimitHits,
    /// Approximate number of keys with an expiry time.
    pub expiring_keys: &'a dyn Fn() -> u64,
    pub identity: &'a info::Identity,
    pub scripts: &'a Scripts,
    pub subscriptions: &'a Subscriptions,
    pub peers: &'a Peers,
    /// Which keyspace events are published; `None`: that is not known yet.
    pub events: Option<EventClasses>,
    pub now: Instant,
}

impl World<'_> {
    fn client(&mut self) -> Option<&mut Connection> {
        self.connections.get_mut(self.slot)
    }

    /// Its replies to `PING` look like messages.
    fn is_subscriber_in_resp2(&mut self) -> bool {
        let client = self.client();
        client.is_some_and(|c| c.subscriptions() > 0 && c.protocol == Protocol::Resp2)
    }

    /// Checks a client's credentials; the error if they are wrong.
    fn authenticate(&mut self, user: &[u8], said: &[u8]) -> Result<(), Reply> {
        // Without a configured password, the default user may send any password, as in Redis.
        let is_right = self.password.is_none_or(|password| password.is(said));
        if !(user == DEFAULT_USER && is_right) {
            self.hits.count(LimitHit::Password);
            return Err(Reply::error(
                "WRONGPASS invalid username-password pair or user is disabled.",
            ));
        }
        if let Some(client) = self.client() {
            client.trust(true);
        }
        Ok(())
    }
}

/// Returns whether this command is allowed before authentication.
pub fn is_for_everybody(name: &[u8]) -> bool {
    let commands = [
        CommandId::Auth,
        CommandId::Hello,
        CommandId::Quit,
        CommandId::Reset,
    ];
    table::find(name).is_some_and(|spec| commands.contains(&spec.id))
}

/// Returns whether this command is executed while the store is being opened, as in Redis. (Redis also executes some that
/// are about other replicas or subscribers, which this replica does not know before it has a store.)
pub fn is_for_starting(id: CommandId) -> bool {
    matches!(
        id,
        CommandId::Auth
            | CommandId::Client
            | CommandId::Command
            | CommandId::Config
            | CommandId::Echo
            | CommandId::Hello
            | CommandId::Info
            | CommandId::Quit
            | CommandId::ReadOnly
            | CommandId::ReadWrite
            | CommandId::Reset
            | CommandId::Select
            | CommandId::Time
    )
}

/// Answers a request whose arity has been checked.
pub fn execute(id: CommandId, args: Args<'_>, world: &mut World<'_>) -> Reply {
    match id {
        CommandId::Ping => match args.len() {
            1 | 2 if world.is_subscriber_in_resp2() => {
                let said = if args.len() == 2 { args.get(1) } else { b"" };
                Reply::Array(vec![Reply::bulk("pong"), Reply::bulk(said)])
            }
            1 => Reply::Status("PONG".into()),
            2 => Reply::bulk(args.get(1)),
            _ => wrong_arity("PING"),
        },
        CommandId::Echo => Reply::bulk(args.get(1)),
        CommandId::Quit => {
            if let Some(client) = world.client() {
                client.is_closing = true;
            }
            Reply::Ok
        }
        CommandId::Reset => {
            let is_trusted = world.password.is_none();
            let (subscriptions, slot) = (world.subscriptions, world.slot);
            if let Some(client) = world.client() {
                end_subscriptions(subscriptions, slot, client);
                client.reset();
                client.trust(is_trusted);
            }
            Reply::Status("RESET".into())
        }
        CommandId::Select => match integer(args.get(1)) {
            Ok(0) => Reply::Ok,
            Ok(_) if world.identity.discovery.is_cluster => {
                Reply::error("ERR SELECT is not allowed in cluster mode")
            }
            Ok(_) => Reply::error("ERR DB index is out of range"),
            Err(_) => Reply::error("ERR invalid DB index"),
        },
        CommandId::Auth => {
            let (user, said) = match args.len() {
                2 if world.password.is_none() => return no_password(),
                2 => (DEFAULT_USER, args.get(1)),
                3 => (args.get(1), args.get(2)),
                _ => return Reply::error(SYNTAX_ERROR),
            };
            match world.authenticate(user, said) {
                Ok(()) => Reply::Ok,
                Err(reply) => reply,
            }
        }
        CommandId::Hello => hello(args, world),
        CommandId::PubSub => pubsub(args, world.subscriptions),
        CommandId::Script => script::local(args, world.scripts),
        CommandId::Time => {
            let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
            let since_epoch = since_epoch.unwrap_or_default();
            let parts = [
                since_epoch.as_secs(),
                u64::from(since_epoch.subsec_micros()),
            ];
            Reply::Array(parts.map(|part| Reply::bulk(part.to_string())).to_vec())
        }
        CommandId::Client => client_command(args, world),
        CommandId::Command => command_command(args),
        CommandId::Config => config(args, world.identity, world.events),
        CommandId::Info => {
            let sections: Vec<&[u8]> = args.from(1).collect();
            Reply::bulk(info::info(
                &sections,
                &world.status,
                world.identity,
                world.expiring_keys,
                world.now,
            ))
        }
        CommandId::ReadOnly | CommandId::ReadWrite => {
            if let Some(client) = world.client() {
                client.is_readonly = id == CommandId::ReadOnly;
            }
            discovery::answer(id, args, &world.peers.view(), world.identity, 0)
        }
        CommandId::Asking | CommandId::Cluster | CommandId::Role | CommandId::Sentinel => {
            let applied = world.status.applied_instance;
            discovery::answer(id, args, &world.peers.view(), world.identity, applied)
        }
        _ => Reply::error("ERR this command goes through the log"),
    }
}

/// Returns the error for data commands while a checkpoint is being fetched.
pub fn loading_error(status: &Status) -> String {
    format!(
        "LOADING Inband is loading a checkpoint from another replica ({} of {} bytes so far); try \
         again or use another replica",
        status.loading_bytes, status.loading_bytes_total
    )
}

fn store_error(error: &StoreError) -> Reply {
    Reply::error(format!("ERR {error}"))
}

fn no_password() -> Reply {
    Reply::error(
        "ERR AUTH <password> called without any password configured for the default user. Are you \
         sure your configuration is correct?",
    )
}

fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Names contain no spaces or control characters, as in Redis.
fn is_name(name: &[u8]) -> bool {
    name.iter().all(|b| (b'!'..=b'~').contains(b))
}

fn set_name(client: &mut Connection, name: &[u8]) -> Reply {
    if name.len() > CLIENT_NAME_LEN_BYTES_MAX {
        return Reply::error(format!(
            "ERR client name of {} bytes is over the limit of {CLIENT_NAME_LEN_BYTES_MAX} bytes",
            name.len()
        ));
    }
    if !is_name(name) {
        return Reply::error(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        );
    }
    client.name = name.to_vec();
    Reply::Ok
}

/// Returns the names that match a pattern, or all, or the error if comparing takes too long.
fn matching(
    names: impl Iterator<Item = Vec<u8>>,
    pattern: Option<&[u8]>,
) -> Result<Vec<Reply>, Reply> {
    let Some(pattern) = pattern else {
        return Ok(names.map(Reply::Bulk).collect());
    };
    let (work, mut found) = (Work::default(), Vec::new());
    for name in names {
        if work.is_key_match(pattern, &name)? {
            found.push(Reply::Bulk(name));
        }
    }
    Ok(found)
}

/// `PUBSUB`: about the subscribers of this replica.
fn pubsub(args: Args<'_>, subscriptions: &Subscriptions) -> Reply {
    match args.get(1) {
        s if is(s, "CHANNELS") && args.len() <= 3 => {
            let pattern = (args.len() == 3).then(|| args.get(2));
            let channels = subscriptions.channels().into_iter();
            matching(channels, pattern).map_or_else(|refusal| refusal, Reply::Array)
        }
        s if is(s, "NUMSUB") => {
            let counts = args.from(2).flat_map(|channel| {
                let count = subscriptions.subscribers_of(channel);
                [Reply::bulk(channel), Reply::Integer(count as i64)]
            });
            Reply::Array(counts.collect())
        }
        s if is(s, "NUMPAT") && args.len() == 2 => Reply::Integer(subscriptions.patterns() as i64),
        s if is(s, "NUMPAT") => wrong_arity("pubsub|numpat"),
        s => unknown_subcommand("PUBSUB", s),
    }
}

fn hello(args: Args<'_>, world: &mut World<'_>) -> Reply {
    let mut protocol = None;
    if args.len() > 1 {
        protocol = Some(match integer(args.get(1)) {
            Ok(2) => Protocol::Resp2,
            Ok(3) => Protocol::Resp3,
            Ok(_) => return Reply::error("NOPROTO unsupported protocol version"),
            Err(_) => {
                return Reply::error("ERR Protocol version is not an integer or out of range");
            }
        });
    }
    let (mut name, mut credentials) = (None, None);
    let mut at = 2;
    while at < args.len() {
        match args.get(at) {
            option if is(option, "SETNAME") && at + 1 < args.len() => {
                name = Some(args.get(at + 1));
                at += 2;
            }
            option if is(option, "AUTH") && at + 2 < args.len() => {
                credentials = Some((args.get(at + 1), args.get(at + 2)));
                at += 3;
            }
            option => {
                let option = String::from_utf8_lossy(&option[..option.len().min(128)]);
                return Reply::error(format!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
    }
    let is_watching = world.client().is_some_and(|client| client.watchers > 0);
    if is_watching && protocol == Some(Protocol::Resp2) {
        return Reply::error("ERR INBAND.WATCH needs RESP3; end it with INBAND.UNWATCH first");
    }
    if let Some((user, said)) = credentials {
        if let Err(reply) = world.authenticate(user, said) {
            return reply;
        }
    }
    let mode = world.identity.mode();
    let Some(client) = world.client() else {
        return Reply::Nil;
    };
    if !client.is_trusted() {
        return Reply::error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
             <proto> AUTH <user> <pass> option can be used to authenticate the client and select the \
             RESP protocol version at the same time",
        );
    }
    if let Some(name) = name {
        let reply = set_name(client, name);
        if reply.is_error() {
            return reply;
        }
    }
    client.protocol = protocol.unwrap_or(client.protocol);
    let (version, id) = (
        if client.protocol == Protocol::Resp3 {
            3
        } else {
            2
        },
        client.id,
    );
    let pair = |key: &str, value: Reply| (Reply::bulk(key), value);
    Reply::Map(vec![
        pair("server", Reply::bulk("redis")),
        pair("version", Reply::bulk(REDIS_VERSION)),
        pair("proto", Reply::Integer(version)),
        pair("id", Reply::Integer(id as i64)),
        pair("mode", Reply::bulk(mode)),
        pair("role", Reply::bulk("master")),
        pair("modules", Reply::Array(Vec::new())),
    ])
}

/// Parses `CLIENT UNBLOCK`: the client, and whether it gets an error.
pub fn unblock(id: CommandId, args: Args<'_>) -> Option<Result<(u64, bool), Reply>> {
    if id != CommandId::Client || !is(args.get(1), "UNBLOCK") {
        return None;
    }
    let with_error = match args.len() {
        3 => false,
        4 if is(args.get(3), "TIMEOUT") => false,
        4 if is(args.get(3), "ERROR") => true,
        4 => {
            let reply = "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
            return Some(Err(Reply::error(reply)));
        }
        _ => return Some(Err(wrong_arity("client|unblock"))),
    };
    // No client has a negative id.
    let client = integer(args.get(2)).map(|id| u64::try_from(id).unwrap_or(0));
    Some(client.map(|client| (client, with_error)))
}

fn client_command(args: Args<'_>, world: &mut World<'_>) -> Reply {
    let subcommand = args.get(1);
    let takes = |count: usize| args.len() == count;
    let arity = |name: &str| wrong_arity(&format!("client|{name}"));
    let now = world.now;
    match subcommand {
        s if is(s, "LIST") => {
            let lines = world.connections.iter().map(|c| info::client_line(c, now));
            return Reply::bulk(lines.collect::<String>());
        }
        s if is(s, "HELP") => {
            let lines = [
                "CLIENT <subcommand>:",
                "GETNAME ID INFO LIST SETINFO SETNAME REPLY ON UNBLOCK",
            ];
            return Reply::Array(lines.map(|line| Reply::Status(line.into())).to_vec());
        }
        _ => {}
    }
    let Some(client) = world.client() else {
        return Reply::Nil;
    };
    match subcommand {
        s if is(s, "ID") && takes(2) => Reply::Integer(client.id as i64),
        s if is(s, "ID") => arity("id"),
        s if is(s, "GETNAME") && takes(2) && client.name.is_empty() => Reply::Nil,
        s if is(s, "GETNAME") && takes(2) => Reply::bulk(&client.name),
        s if is(s, "GETNAME") => arity("getname"),
        s if is(s, "SETNAME") && takes(3) => set_name(client, args.get(2)),
        s if is(s, "SETNAME") => arity("setname"),
        s if is(s, "INFO") && takes(2) => Reply::bulk(info::client_line(client, now)),
        s if is(s, "INFO") => arity("info"),
        s if is(s, "SETINFO") && takes(4) => set_info(client, args.get(2), args.get(3)),
        s if is(s, "SETINFO") => arity("setinfo"),
        s if is(s, "NO-EVICT") || is(s, "NO-TOUCH") => {
            match (takes(3), is(args.get(2), "ON") || is(args.get(2), "OFF")) {
                (true, true) => Reply::Ok,
                (true, false) => Reply::error(SYNTAX_ERROR),
                (false, _) => arity(&String::from_utf8_lossy(s)),
            }
        }
        s if is(s, "REPLY") && takes(3) && is(args.get(2), "ON") => Reply::Ok,
        s if is(s, "REPLY") => Reply::error("ERR only CLIENT REPLY ON is supported"),
        s => unknown_subcommand("CLIENT", s),
    }
}

fn set_info(client: &mut Connection, attribute: &[u8], value: &[u8]) -> Reply {
    let place = match attribute {
        a if is(a, "LIB-NAME") => &mut client.library[0],
        a if is(a, "LIB-VER") => &mut client.library[1],
        a => {
            let a = String::from_utf8_lossy(&a[..a.len().min(128)]);
            return Reply::error(format!("ERR Unrecognized option '{a}'"));
        }
    };
    if !is_name(value) || value.len() > CLIENT_NAME_LEN_BYTES_MAX {
        let attribute = String::from_utf8_lossy(attribute).to_lowercase();
        return Reply::error(format!(
            "ERR {attribute} cannot contain spaces, newlines or special characters."
        ));
    }
    *place = value.to_vec();
    Reply::Ok
}

fn command_info(spec: &CommandSpec) -> Reply {
    let flags = spec
        .flags
        .iter()
        .map(|flag| Reply::Status((*flag).into()))
        .collect();
    let (first, last, step) = spec.keys;
    Reply::Array(vec![
        Reply::bulk(spec.name.to_lowercase()),
        Reply::Integer(spec.arity),
        Reply::Array(flags),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

fn command_command(args: Args<'_>) -> Reply {
    match args.get(1) {
        _ if args.len() == 1 => Reply::Array(COMMANDS.iter().map(command_info).collect()),
        s if is(s, "COUNT") && args.len() == 2 => Reply::Integer(COMMANDS.len() as i64),
        s if is(s, "LIST") && args.len() == 2 => {
            let names = COMMANDS
                .iter()
                .map(|spec| Reply::bulk(spec.name.to_lowercase()));
            Reply::Array(names.collect())
        }
        s if is(s, "INFO") && args.len() == 2 => {
            Reply::Array(COMMANDS.iter().map(command_info).collect())
        }
        s if is(s, "INFO") => {
            let infos = args
                .from(2)
                .map(|n| table::find(n).map_or(Reply::Nil, command_info));
            Reply::Array(infos.collect())
        }
        s if is(s, "DOCS") => {
            let is_asked = |spec: &&CommandSpec| {
                args.len() == 2 || args.from(2).any(|name| is(name, spec.name))
            };
            let pair = |key: &str, text: &str| (Reply::bulk(key), Reply::bulk(text));
            let docs = COMMANDS.iter().filter(is_asked).map(|spec| {
                let group = if spec.keys.0 > 0 { "string" } else { "server" };
                let summary = "See the Redis documentation; Inband answers alike.";
                let doc = vec![pair("summary", summary), pair("group", group)];
                (Reply::bulk(spec.name.to_lowercase()), Reply::Map(doc))
            });
            Reply::Map(docs.collect())
        }
        s => unknown_subcommand("COMMAND", s),
    }
}

fn config(args: Args<'_>, identity: &info::Identity, events: Option<EventClasses>) -> Reply {
    match args.get(1) {
        s if is(s, "GET") && args.len() > 2 => {
            let mut settings = identity.settings();
            settings.extend(events.map(|classes| (events::SETTING, classes.to_string())));
            let (work, mut asked) = (Work::default(), Vec::new());
            for (name, value) in &settings {
                for pattern in args.from(2) {
                    match work.is_key_match(&pattern.to_ascii_lowercase(), name.as_bytes()) {
                        Ok(false) => continue,
                        Ok(true) => asked.push((Reply::bulk(name), Reply::bulk(value))),
                        Err(refusal) => return refusal,
                    }
                    break;
                }
            }
            Reply::Map(asked)
        }
        s if is(s, "GET") => wrong_arity("config|get"),
        s if is(s, "SET") => Reply::error(
            "ERR CONFIG SET can only set notify-keyspace-events; for other settings, change the configuration file and \
             restart",
        ),
        s if is(s, "RESETSTAT") && args.len() == 2 => {
            Reply::error("ERR CONFIG RESETSTAT is not supported; counters only grow")
        }
        s => unknown_subcommand("CONFIG", s),
    }
}

/// Returns the cursor of a `SCAN`, if it is valid.
pub fn scan_cursor(args: Args<'_>) -> Option<u64> {
    std::str::from_utf8(args.get(1)).ok()?.parse().ok()
}

pub fn scan(args: Args<'_>, machine: &Machine) -> Result<Reply, Reply> {
    let cursor = scan_cursor(args).ok_or_else(|| Reply::error("ERR invalid cursor"))?;
    let (mut pattern, mut count, mut kind_name) = (None, SCAN_COUNT_DEFAULT, None);
    let mut at = 2;
    while at < args.len() {
        let (option, value) = (args.get(at), args.get(at + 1));
        if at + 1 >= args.len() {
            return Err(Reply::error(SYNTAX_ERROR));
        }
        match option {
            o if is(o, "MATCH") => pattern = Some(value),
            o if is(o, "COUNT") => match integer(value)? {
                number @ 1.. => count = usize::try_from(number).unwrap_or(SCAN_COUNT_MAX),
                _ => return Err(Reply::error(SYNTAX_ERROR)),
            },
            o if is(o, "TYPE") => kind_name = Some(value),
            _ => return Err(Reply::error(SYNTAX_ERROR)),
        }
        at += 2;
    }
    let page = machine
        .scan(cursor, count.min(SCAN_COUNT_MAX))
        .map_err(|e| store_error(&e))?;
    let is_asked = |kind| kind_name.is_none_or(|name| Kind::of_name(name) == Some(kind));
    let keys = page.keys.into_iter().zip(page.kinds);
    let keys = keys.filter(|(_, kind)| is_asked(*kind)).map(|(key, _)| key);
    let keys = Reply::Array(matching(keys, pattern)?);
    Ok(Reply::Array(vec![
        Reply::bulk(page.cursor.to_string()),
        keys,
    ]))
}
