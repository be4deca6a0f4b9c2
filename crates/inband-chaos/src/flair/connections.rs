//! The two ways to FLAIR: as a Redis client through the gateway, and with the Rust client straight to the switches.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use inband_flair::client::{Op, Outcome};
use inband_flair::client_node::ClientNode;
use inband_flair::config::ClusterConfig;
use inband_flair::timing::ClientTiming;
use inband_lab::Host;

use super::keys::{stored, value_of};
use crate::history::{Command, Verb};
use crate::workload::{End, ANSWER_LIMIT};
use inband_cluster::client::{Answer, Client};
use inband_host::wait::wait;

pub trait Connection: Send {
    /// Executes the command and waits for the outcome.
    fn perform(&mut self, command: &Command) -> End;
    /// Returns the address that the history records for its operations.
    fn address(&self) -> String;
    fn kind(&self) -> &'static str;
}

pub type Opener = Box<dyn Fn() -> Result<Box<dyn Connection>> + Send>;

/// The reply to a SET that the checker expects.
const DONE: &str = "OK";

/// Returns the reply to a write that the checker expects: for a DEL, the number of keys deleted.
fn done(verb: Verb, has_existed: bool) -> String {
    match verb {
        Verb::Del => u8::from(has_existed).to_string(),
        _ => DONE.into(),
    }
}

struct Gateway {
    client: Client,
    address: SocketAddr,
}

/// Opens connections to the gateway.
pub fn gateway(address: Arc<RwLock<SocketAddr>>) -> Opener {
    Box::new(move || {
        let address = *address.read().unwrap_or_else(PoisonError::into_inner);
        let client = Client::connect(address, ANSWER_LIMIT)?;
        Ok(Box::new(Gateway { client, address }))
    })
}

impl Connection for Gateway {
    fn perform(&mut self, command: &Command) -> End {
        let value = command.value.as_deref().map(stored);
        let answer = match (command.verb, &value) {
            (Verb::Get, _) => self.client.ask(&["GET", &command.key]),
            (Verb::Set, Some(value)) => self.client.ask(&["SET", &command.key, value]),
            (Verb::Del, _) => self.client.ask(&["DEL", &command.key]),
            other => Err(anyhow!("clients of FLAIR do no {other:?}")),
        };
        end_of(answer)
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn kind(&self) -> &'static str {
        "gateway"
    }
}

/// Prefix of the gateway's errors for an unknown outcome.
const UNKNOWN: &str = "UNKNOWN";

fn end_of(answer: Result<Answer>) -> End {
    match answer {
        Ok(Answer::Error(text)) if text.starts_with(UNKNOWN) => End::Unknown(text),
        Ok(Answer::Error(text)) => End::Failed(text),
        Ok(Answer::Text(text)) => End::Ok(vec![Some(value_of(&text))]),
        Ok(Answer::Nil) => End::Ok(vec![None]),
        // The reply to a DEL: the number of keys deleted.
        Ok(Answer::Integer(count)) => End::Ok(vec![Some(count.to_string())]),
        Ok(_) => End::Ok(vec![Some(DONE.into())]),
        Err(error) => End::Unknown(in_words(&error)),
    }
}

fn in_words(error: &anyhow::Error) -> String {
    let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    match io {
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            format!("the gateway gives no answer within {ANSWER_LIMIT:?}")
        }
        _ => format!("{error:#}"),
    }
}

struct Direct {
    node: ClientNode,
    address: Ipv4Addr,
}

/// Opens clients of this cluster on a lab host, or on loopback if there is none.
pub fn direct(cluster: ClusterConfig, host: Option<Arc<Host>>) -> Opener {
    Box::new(move || {
        let timing = ClientTiming {
            deadline_ns: ANSWER_LIMIT.as_nanos() as u64,
            ..ClientTiming::default()
        };
        let address = host.as_ref().map_or(Ipv4Addr::LOCALHOST, |h| h.address());
        let open = || ClientNode::open(&cluster, address, timing);
        let node = match &host {
            Some(host) => host.namespace().run(|| Ok(open()))?,
            None => open(),
        };
        let node = node.with_context(|| format!("opening a client at {address}"))?;
        Ok(Box::new(Direct { node, address }))
    })
}

impl Direct {
    fn outcome(&mut self, op: Op) -> Result<Outcome> {
        self.node.submit(op)?;
        loop {
            if let Some((_, outcome)) = self.node.take_ended() {
                return Ok(outcome);
            }
            let timeout = self.node.poll_timeout();
            wait(&[self.node.fd()], timeout.max(Duration::from_micros(1)));
            self.node.poll()?;
        }
    }
}

impl Connection for Direct {
    fn perform(&mut self, command: &Command) -> End {
        let key = command.key.clone().into_bytes();
        let op = match (command.verb, &command.value) {
            (Verb::Set, Some(value)) => Op::Put(key, stored(value).into_bytes()),
            (Verb::Del, _) => Op::Delete(key),
            _ => Op::Get(key),
        };
        match self.outcome(op) {
            Ok(Outcome::Value(data)) => {
                let value = data.map(|data| value_of(&String::from_utf8_lossy(&data)));
                End::Ok(vec![value])
            }
            Ok(Outcome::Written) => End::Ok(vec![Some(done(command.verb, true))]),
            Ok(Outcome::Missing) => End::Ok(vec![Some(done(command.verb, false))]),
            Ok(Outcome::Failed(why)) => End::Failed(why.to_string()),
            Ok(Outcome::Unknown) => {
                End::Unknown(format!("the client gets no answer within {ANSWER_LIMIT:?}"))
            }
            Err(error) => End::Unknown(format!("{error:#}")),
        }
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn kind(&self) -> &'static str {
        "client"
    }
}
