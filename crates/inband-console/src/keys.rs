//! A client of the cluster's store: RESP, or memcached's protocol for the box.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use inband_cluster::client::{Answer, Client};
use inband_kv::access::Access;
use serde_json::Value;

/// Time limit for a reply; then the next address is asked. Longer than a leader takes to be replaced.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Replicas of which a key is read at the same time.
const REPLICAS_MAX: usize = 16;
/// Longest key; memcached's limit.
pub const KEY_LEN_MAX: usize = 250;
/// Longest value that the page may write.
pub const VALUE_LEN_MAX: usize = 4096;

/// Where clients of a cluster's store connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store {
    Resp(Vec<SocketAddr>),
    Memcached(Vec<SocketAddr>),
}

fn addresses(value: &Value, into: &mut Vec<SocketAddr>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| addresses(item, into)),
        Value::String(text) => into.extend(text.parse::<SocketAddr>().ok()),
        _ => (),
    }
    into.dedup();
}

impl Store {
    /// Finds the store in a cluster's status. `None`: this system has none.
    pub fn of(status: &Value) -> Option<Store> {
        let mut resp = Vec::new();
        for host in status["hosts"].as_array().into_iter().flatten() {
            addresses(&host["resp"], &mut resp);
        }
        if resp.is_empty() {
            addresses(&status["resp"], &mut resp);
        }
        addresses(&status["cluster"]["resp"], &mut resp);
        if !resp.is_empty() {
            return Some(Store::Resp(resp));
        }
        let mut memcached = Vec::new();
        addresses(&status["memcached"], &mut memcached);
        (!memcached.is_empty()).then_some(Store::Memcached(memcached))
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        match self {
            Store::Resp(addresses) | Store::Memcached(addresses) => addresses,
        }
    }

    /// Connects to one of its addresses. `access`: what a store that speaks RESP requires.
    pub fn connect(&self, access: &Access, address: SocketAddr) -> Result<Session> {
        Ok(match self {
            Store::Resp(_) => Session::Resp(Client::connect_with(access, address, REPLY_TIMEOUT)?),
            Store::Memcached(_) => {
                let stream = TcpStream::connect_timeout(&address, REPLY_TIMEOUT)?;
                stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
                stream.set_nodelay(true)?;
                Session::Memcached(BufReader::new(stream))
            }
        })
    }

    /// Reads a key at every replica, at the same time; what each says.
    pub fn at_each(&self, access: &Access, key: &str) -> Vec<(SocketAddr, Result<Option<String>>)> {
        let read = |address: SocketAddr| self.connect(access, address)?.get(key);
        thread::scope(|scope| {
            let asked: Vec<_> = self
                .addresses()
                .iter()
                .take(REPLICAS_MAX)
                .map(|address| (*address, scope.spawn(move || read(*address))))
                .collect();
            let answers = asked.into_iter().map(|(address, asked)| {
                let answer = asked.join();
                (
                    address,
                    answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                )
            });
            answers.collect()
        })
    }

    /// Does something at the first address that answers. A request that got no answer is repeated at the next one.
    pub fn with_any<T>(
        &self,
        access: &Access,
        mut ask: impl FnMut(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let mut last = None;
        for address in self.addresses() {
            match self
                .connect(access, *address)
                .and_then(|mut session| ask(&mut session))
            {
                Ok(answer) => return Ok(answer),
                Err(error) => last = Some(error.context(format!("{address}"))),
            }
        }
        Err(last.context("the store has no address")?)
    }
}

/// A connection. After an error it must be dropped: the reply to an earlier request may still come.
#[derive(Debug)]
pub enum Session {
    Resp(Client),
    Memcached(BufReader<TcpStream>),
}

/// Checks a key before it becomes a part of a request.
pub fn check_key(key: &str) -> Result<()> {
    let len = key.len();
    ensure!(
        (1..=KEY_LEN_MAX).contains(&len),
        "the key has {len} bytes; 1 to {KEY_LEN_MAX} are allowed"
    );
    let is_plain = key.bytes().all(|b| b.is_ascii_graphic());
    ensure!(
        is_plain,
        "the key may have visible ASCII characters only, and no spaces"
    );
    Ok(())
}

/// Checks a value before it becomes a part of a request.
pub fn check_value(value: &str) -> Result<()> {
    let len = value.len();
    ensure!(
        len <= VALUE_LEN_MAX,
        "the value has {len} bytes; at most {VALUE_LEN_MAX} are allowed"
    );
    ensure!(
        !value.contains(['\r', '\n']),
        "the value may have no line breaks"
    );
    Ok(())
}

fn line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    ensure!(
        stream.read_line(&mut line)? > 0,
        "the connection was closed"
    );
    Ok(line.trim_end().to_owned())
}

impl Session {
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let said = match self {
            Session::Resp(client) => client.call(&["SET", key, value])?,
            Session::Memcached(stream) => {
                let request = format!("set {key} 0 0 {}\r\n{value}\r\n", value.len());
                stream.get_mut().write_all(request.as_bytes())?;
                line(stream)?
            }
        };
        ensure!(said == "+OK" || said == "STORED", "{said}");
        Ok(())
    }

    /// `None`: there is no such key.
    pub fn get(&mut self, key: &str) -> Result<Option<String>> {
        match self {
            Session::Resp(client) => match client.ask(&["GET", key])? {
                Answer::Text(value) => Ok(Some(value)),
                Answer::Nil => Ok(None),
                Answer::Error(why) => bail!("{why}"),
                other => bail!("{other:?}"),
            },
            Session::Memcached(stream) => {
                stream
                    .get_mut()
                    .write_all(format!("get {key}\r\n").as_bytes())?;
                let first = line(stream)?;
                if first == "END" {
                    return Ok(None);
                }
                let len = first
                    .strip_prefix("VALUE ")
                    .and_then(|rest| rest.rsplit(' ').next()?.parse::<usize>().ok());
                let len = len.with_context(|| first.clone())?;
                let mut value = vec![0; len + 2];
                stream.read_exact(&mut value)?;
                ensure!(line(stream)? == "END", "the reply does not end");
                value.truncate(len);
                Ok(Some(String::from_utf8_lossy(&value).into_owned()))
            }
        }
    }

    /// Whether the key was there.
    pub fn delete(&mut self, key: &str) -> Result<bool> {
        let said = match self {
            Session::Resp(client) => client.call(&["DEL", key])?,
            Session::Memcached(stream) => {
                stream
                    .get_mut()
                    .write_all(format!("delete {key}\r\n").as_bytes())?;
                line(stream)?
            }
        };
        match &*said {
            ":1" | "DELETED" => Ok(true),
            ":0" | "NOT_FOUND" => Ok(false),
            _ => bail!("{said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stores_of_systems() {
        let kv = json!({"resp": "127.0.0.1:6379", "hosts": [{"resp": null}, {"resp": "127.0.0.1:6380"}]});
        let resp = |port| Some(Store::Resp(vec![([127, 0, 0, 1], port).into()]));
        assert_eq!(Store::of(&kv), resp(6380));
        assert_eq!(
            Store::of(&json!({"resp": "127.0.0.1:6479", "hosts": []})),
            resp(6479)
        );
        assert_eq!(
            Store::of(&json!({"cluster": {"resp": ["127.0.0.1:6381"]}})),
            resp(6381)
        );
        let memcached = Store::of(&json!({"memcached": ["127.0.0.1:11211"]}));
        assert!(
            matches!(memcached, Some(Store::Memcached(_))),
            "{memcached:?}"
        );
        assert_eq!(Store::of(&json!({"scheduler": {}})), None);
    }

    #[test]
    fn a_key_or_value_is_no_command() {
        assert!(check_key("a\r\nflush_all").is_err());
        assert!(check_key("a b").is_err());
        assert!(check_key(&"k".repeat(KEY_LEN_MAX + 1)).is_err());
        assert!(check_key(&"k".repeat(KEY_LEN_MAX)).is_ok());
        assert!(check_value("a\nb").is_err());
        assert!(check_value(&"v".repeat(VALUE_LEN_MAX)).is_ok());
    }
}
