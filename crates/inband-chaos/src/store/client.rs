//! A client of the store: one operation at a time, on one or several keys, to a random replica.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{anyhow, Result};
use inband_sim::Rng;

use super::keys::{self, Group};
use crate::history::{Command, Outcome, Verb};
use crate::workload::{Asked, End, Operate, Scribe, Shared, ANSWER_LIMIT, CLIENTS_MAX};
use inband_cluster::client::{Answer, Client};

/// Distance between the values that are set: more than the number of increments a key ever gets, so that no value is
/// written twice.
const VALUES_APART: u64 = 100_000;
/// After this many operations a client reconnects, so that clients move between replicas.
const OPERATIONS_PER_CONNECTION: u64 = 200;
/// In quiet times one in this many clients reads whole groups; the others write their keys one by one.
const READERS_EVERY: usize = 4;

/// Replicas that clients may talk to; the nemesis keeps the list up to date.
pub type Addresses = Arc<RwLock<Vec<SocketAddr>>>;

/// How commands are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A single command.
    Alone,
    Mset,
    Mget,
    /// MULTI to EXEC. If the first command is a CHECK, its key has already been watched and read.
    Transaction,
}

#[derive(Debug)]
struct Connection {
    client: Client,
    address: SocketAddr,
    reads: &'static str,
    operations: u64,
}

#[derive(Debug)]
pub struct StoreClient {
    number: usize,
    rng: Rng,
    scribe: Scribe,
    addresses: Addresses,
    partitions: usize,
    connection: Option<Connection>,
    values: u64,
}

impl Operate for StoreClient {
    fn operate(&mut self) -> bool {
        if !self.connect() {
            return false;
        }
        let now_ns = self.scribe.now_ns();
        if keys::is_quiet(now_ns) {
            let groups: Vec<usize> = keys::spread().collect();
            let index = *self.rng.pick(&groups).expect("there are some");
            self.operate_quietly(&keys::group(index, now_ns, self.partitions));
            return true;
        }
        let index = self.rng.below(keys::groups() as u64) as usize;
        let group = keys::group(index, now_ns, self.partitions);
        match self.rng.below(100) {
            0..=9 => self.checked_write(&group),
            _ => {
                let (form, commands) = self.choose(&group);
                self.perform(&group, form, commands);
            }
        }
        true
    }
}

impl StoreClient {
    pub fn new(
        number: usize,
        shared: Shared,
        addresses: Addresses,
        partitions: usize,
        seed: u64,
    ) -> StoreClient {
        StoreClient {
            number,
            rng: Rng::new(seed, 1000 + number as u64),
            scribe: Scribe::new(number, shared),
            addresses,
            partitions,
            connection: None,
            values: 0,
        }
    }

    fn connect(&mut self) -> bool {
        let is_worn = |c: &Connection| c.operations >= OPERATIONS_PER_CONNECTION;
        if self.connection.as_ref().is_some_and(is_worn) {
            self.connection = None;
        }
        if self.connection.is_some() {
            return true;
        }
        let addresses = self.addresses.read();
        let addresses = addresses.unwrap_or_else(PoisonError::into_inner).clone();
        let Some(&address) = self.rng.pick(&addresses) else {
            return false;
        };
        let reads = ["position", "log"][self.rng.below(2) as usize];
        self.connection = connect(address, reads).ok();
        self.connection.is_some()
    }

    fn value(&mut self) -> String {
        self.values += 1;
        let number = self.values * CLIENTS_MAX + self.number as u64;
        (number * VALUES_APART).to_string()
    }

    fn command(&mut self, verb: Verb, key: &str) -> Command {
        Command {
            verb,
            key: key.to_owned(),
            value: (verb == Verb::Set).then(|| self.value()),
        }
    }

    /// Returns the same command for every key of the group.
    fn each(&mut self, verb: Verb, group: &Group) -> Vec<Command> {
        let keys = group.keys.iter();
        keys.map(|key| self.command(verb, key)).collect()
    }

    fn choose(&mut self, group: &Group) -> (Form, Vec<Command>) {
        let key = &group.keys[self.rng.below(group.keys.len() as u64) as usize];
        let verb = match self.rng.below(100) {
            0..=44 => Verb::Get,
            45..=74 => Verb::Set,
            75..=96 => Verb::Incr,
            _ => Verb::Del,
        };
        if group.keys.len() == 1 || self.rng.chance_ppm(400_000) {
            return match verb {
                // Mostly read the key first: the reply to a DEL alone tells the checker little.
                Verb::Del if self.rng.chance_ppm(800_000) => {
                    let commands = [Verb::Get, Verb::Del].map(|verb| self.command(verb, key));
                    (Form::Transaction, commands.into())
                }
                _ => (Form::Alone, vec![self.command(verb, key)]),
            };
        }
        match self.rng.below(4) {
            0 => (Form::Mset, self.each(Verb::Set, group)),
            1 => (Form::Mget, self.each(Verb::Get, group)),
            2 => (Form::Transaction, self.each(Verb::Get, group)),
            _ => {
                let mut commands = Vec::new();
                for key in &group.keys {
                    let verb = [Verb::Get, Verb::Set, Verb::Incr][self.rng.below(3) as usize];
                    commands.push(self.command(verb, key));
                }
                (Form::Transaction, commands)
            }
        }
    }

    /// Reads the whole group at once, or sets its keys one after the other: a reader that sees the last write must see
    /// all earlier ones.
    fn operate_quietly(&mut self, group: &Group) {
        if self.number % READERS_EVERY == 0 {
            let form = [Form::Mget, Form::Transaction][self.rng.below(2) as usize];
            let commands = self.each(Verb::Get, group);
            self.perform(group, form, commands);
            return;
        }
        for key in &group.keys {
            let set = self.command(Verb::Set, key);
            let end = self.perform(group, Form::Alone, vec![set]);
            if !matches!(end, Some(End::Ok(_))) {
                return;
            }
        }
    }

    /// Watches a key and writes it if it has not changed. The key is read both before and after the WATCH, and the
    /// transaction is sent only if both reads agree: then the value read is the value watched. (The store considers a
    /// missing key unchanged if it is missing again at EXEC, even if it existed in between and a read returned its
    /// value.)
    fn checked_write(&mut self, group: &Group) {
        let key = &group.keys[self.rng.below(group.keys.len() as u64) as usize];
        let before = self.read(group, key);
        let Some(connection) = &mut self.connection else {
            return;
        };
        let watched = connection.client.call(&["WATCH", key]);
        if !matches!(watched, Ok(reply) if reply == "+OK") {
            // The answer may still arrive, so this connection cannot be used for anything else.
            return self.connection = None;
        }
        let (Some(before), Some(after)) = (before, self.read(group, key)) else {
            // The key may still be watched.
            return self.connection = None;
        };
        if before != after {
            return self.connection = None;
        }
        let mut check = self.command(Verb::Check, key);
        check.value = after;
        let mut commands = vec![check, self.command(Verb::Set, key)];
        if let Some(other) = group.keys.iter().find(|other| *other != key) {
            commands.push(self.command(Verb::Set, other));
        }
        self.perform(group, Form::Transaction, commands);
    }

    /// Returns the value of a key; the outer `None` means that the read failed.
    fn read(&mut self, group: &Group, key: &str) -> Option<Option<String>> {
        let get = self.command(Verb::Get, key);
        match self.perform(group, Form::Alone, vec![get])? {
            End::Ok(replies) => replies.into_iter().next(),
            End::Failed(_) | End::Unknown(_) => None,
        }
    }

    fn perform(&mut self, group: &Group, form: Form, commands: Vec<Command>) -> Option<End> {
        let connection = self.connection.as_mut()?;
        connection.operations += 1;
        let begun_ns = self.scribe.now_ns();
        let (call_ns, end) = match form {
            Form::Transaction => match queue(&mut connection.client, &commands) {
                Ok(()) => {
                    let call_ns = self.scribe.now_ns();
                    (call_ns, execute(&mut connection.client, &commands))
                }
                // EXEC was not sent, so nothing takes effect.
                Err(error) => (begun_ns, End::Failed(error.to_string())),
            },
            form => (begun_ns, send(&mut connection.client, form, &commands)),
        };
        let asked = Asked {
            group: group.name.clone(),
            call_ns,
            commands,
            replica: connection.address.to_string(),
            reads: connection.reads,
        };
        if self.scribe.write_down(asked, &end) != Outcome::Ok {
            self.connection = None;
        }
        Some(end)
    }

    /// Reads all keys of these groups from one replica, in both read modes. The checker verifies that all replicas
    /// return the same final values.
    pub fn read_all(&mut self, address: SocketAddr, groups: &[Group]) -> Result<()> {
        for reads in ["position", "log"] {
            self.connection = Some(connect(address, reads)?);
            for group in groups {
                let gets = self.each(Verb::Get, group);
                let form = if gets.len() == 1 {
                    Form::Alone
                } else {
                    Form::Mget
                };
                match self.perform(group, form, gets) {
                    Some(End::Ok(_)) | None => {}
                    Some(End::Failed(why) | End::Unknown(why)) => {
                        return Err(anyhow!("{address}, reading by {reads}: {why}"));
                    }
                }
            }
        }
        Ok(())
    }
}

fn connect(address: SocketAddr, reads: &'static str) -> Result<Connection> {
    let mut client = Client::connect(address, ANSWER_LIMIT)?;
    client.call(&["INBAND.READS", reads])?;
    Ok(Connection {
        client,
        address,
        reads,
        operations: 0,
    })
}

/// MULTI and what follows, without EXEC.
fn queue(client: &mut Client, commands: &[Command]) -> Result<()> {
    let expect = |reply: String, expected: &str| match reply {
        reply if reply == expected => Ok(()),
        reply => Err(anyhow!("{}", reply.trim_start_matches('-').to_owned())),
    };
    expect(client.call(&["MULTI"])?, "+OK")?;
    for command in commands.iter().filter(|c| c.verb != Verb::Check) {
        expect(client.call(&words(command))?, "+QUEUED")?;
    }
    Ok(())
}

fn execute(client: &mut Client, commands: &[Command]) -> End {
    match client.ask(&["EXEC"]) {
        Ok(Answer::Nil) => End::Failed("not executed: a watched key has changed".into()),
        Ok(Answer::Array(answers)) => {
            let mut answers = answers.iter().map(reply);
            let replies = commands.iter().map(|command| match command.verb {
                Verb::Check => None,
                _ => answers.next().unwrap_or_else(|| Some("nothing".into())),
            });
            End::Ok(replies.collect())
        }
        other => end(other, |answer| vec![reply(answer); commands.len()]),
    }
}

fn send(client: &mut Client, form: Form, commands: &[Command]) -> End {
    match form {
        Form::Mset => end(client.ask(&joined("MSET", commands)), |answer| {
            vec![reply(answer); commands.len()]
        }),
        Form::Mget => end(client.ask(&joined("MGET", commands)), replies_of_array),
        _ => end(client.ask(&words(&commands[0])), |a| vec![reply(a)]),
    }
}

fn words(command: &Command) -> Vec<&str> {
    let verb = match command.verb {
        Verb::Get | Verb::Check => "GET",
        Verb::Set => "SET",
        Verb::Incr => "INCR",
        Verb::Del => "DEL",
        Verb::Add | Verb::Append | Verb::IncrExisting => unreachable!("memcached's"),
    };
    let value = command.value.as_deref();
    [verb, &command.key].into_iter().chain(value).collect()
}

/// One command with the arguments of all these commands.
fn joined<'a>(verb: &'a str, commands: &'a [Command]) -> Vec<&'a str> {
    let arguments = commands.iter().flat_map(|c| words(c).split_off(1));
    [verb].into_iter().chain(arguments).collect()
}

/// Returns how the operation with this answer ended; `replies` extracts the replies from an answer that is not an
/// error.
fn end(answer: Result<Answer>, replies: impl FnOnce(&Answer) -> Vec<Option<String>>) -> End {
    match answer {
        // All messages of the store for an unknown outcome contain this.
        Ok(Answer::Error(text)) if text.contains("outcome unknown") => End::Unknown(text),
        Ok(Answer::Error(text)) => End::Failed(text),
        Ok(answer) => End::Ok(replies(&answer)),
        Err(error) => End::Unknown(in_words(&error)),
    }
}

fn in_words(error: &anyhow::Error) -> String {
    let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    match io {
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            format!("no answer within {ANSWER_LIMIT:?}")
        }
        _ => format!("{error:#}"),
    }
}

fn replies_of_array(answer: &Answer) -> Vec<Option<String>> {
    match answer {
        Answer::Array(answers) => answers.iter().map(reply).collect(),
        other => vec![reply(other)],
    }
}

fn reply(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Status(text) | Answer::Text(text) | Answer::Error(text) => Some(text.clone()),
        Answer::Integer(number) => Some(number.to_string()),
        Answer::Nil => None,
        Answer::Array(_) => Some(format!("{answer:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_say_how_an_operation_ended() {
        let ended = |answer| match end(answer, |a| vec![reply(a)]) {
            End::Ok(replies) => format!("ok {replies:?}"),
            End::Failed(_) => "failed".into(),
            End::Unknown(_) => "unknown".into(),
        };
        let error = |text: &str| Ok(Answer::Error(text.into()));
        assert_eq!(ended(error("TRYAGAIN not read: x")), "failed");
        assert_eq!(ended(error("UNKNOWN outcome unknown: x")), "unknown");
        assert_eq!(ended(Err(anyhow!("closed"))), "unknown");
        assert_eq!(ended(Ok(Answer::Nil)), "ok [None]");
        assert_eq!(ended(Ok(Answer::Integer(5))), r#"ok [Some("5")]"#);
    }

    #[test]
    fn commands_are_joined() {
        let set = |key: &str| Command {
            verb: Verb::Set,
            key: key.into(),
            value: Some("1".into()),
        };
        let commands = [set("a"), set("b")];
        assert_eq!(joined("MSET", &commands), ["MSET", "a", "1", "b", "1"]);
    }
}
