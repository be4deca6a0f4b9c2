//! A client of the control interface of bmv2's switches (`simple_switch`): registers, counters, tables and multicast
//! groups of the program that a switch runs. Thrift's binary protocol over TCP, one call at a time.
//!
//! The interface has signed numbers: of a register's word of 2^63 or more it shows 2^63 - 1. Writing has no such limit.

mod protocol;

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use protocol::{Fields, Value};

/// Tables, registers and counters.
const STANDARD: &str = "standard";
/// Multicast groups.
const GROUPS: &str = "simple_pre_lag";
/// The context of a switch with one program.
const CONTEXT: usize = 0;
/// Kind of a message that answers a call; the other is an exception of Thrift itself.
const REPLY: u8 = 2;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no switch answers at {address}: {source}; start simple_switch with --thrift-port {port}", port = address.port())]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    /// The switch has ended, or stands still.
    #[error("the connection to the switch failed: {0}; is simple_switch running?")]
    Connection(#[from] io::Error),
    #[error(
        "the switch refuses {call} {what}: does it run the right program, with the right sizes?"
    )]
    Refused {
        /// Method of the interface.
        call: &'static str,
        /// Table, register array, counter or group.
        what: String,
    },
    #[error("the switch's answer to {call} is not as expected; bmv2 1.15 is known to work")]
    Answer { call: &'static str },
}

impl Error {
    /// Whether the connection is of no more use, so that another one would be needed.
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Error::Refused { .. })
    }
}

/// A port of a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    pub number: u16,
    /// The interface that it is at.
    pub interface: String,
}

/// A connection to a switch. It does not outlive the switch's process, and is never renewed.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
}

impl Client {
    /// Connects. No call takes longer than `timeout`.
    pub fn connect(address: SocketAddr, timeout: Duration) -> Result<Client, Error> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, timeout)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(stream)
        };
        let stream = connect().map_err(|source| Error::Connect { address, source })?;
        Ok(Client { stream })
    }

    fn call(
        &mut self,
        service: &str,
        call: &'static str,
        what: &str,
        arguments: Fields,
    ) -> Result<Option<Value>, Error> {
        let name = format!("{service}:{call}");
        self.stream.write_all(&arguments.message(&name))?;
        let (kind, result) = protocol::message(&mut self.stream)?;
        match result.into_iter().next() {
            _ if kind != REPLY => Err(Error::Answer { call }),
            None => Ok(None),
            Some((0, value)) => Ok(Some(value)),
            Some(_) => Err(Error::Refused {
                call,
                what: what.to_owned(),
            }),
        }
    }

    fn number(
        &mut self,
        service: &str,
        call: &'static str,
        what: &str,
        arguments: Fields,
    ) -> Result<i64, Error> {
        match self.call(service, call, what, arguments)? {
            Some(Value::Number(number)) => Ok(number),
            _ => Err(Error::Answer { call }),
        }
    }

    /// Returns the switch's ports.
    pub fn ports(&mut self) -> Result<Vec<Port>, Error> {
        let call = "bm_dev_mgr_show_ports";
        let Some(Value::List(ports)) = self.call(STANDARD, call, "", Fields::default())? else {
            return Err(Error::Answer { call });
        };
        // struct DevMgrPortInfo { 1: number, 2: interface, 3: whether it is up, 4: others }
        let port = |value: Value| {
            let Value::Struct(fields) = value else {
                return None;
            };
            let mut fields = fields.into_iter();
            match (fields.next()?, fields.next()?) {
                ((1, Value::Number(number)), (2, Value::Text(name))) => Some(Port {
                    number: u16::try_from(number).ok()?,
                    interface: String::from_utf8_lossy(&name).into_owned(),
                }),
                _ => None,
            }
        };
        let ports: Option<Vec<_>> = ports.into_iter().map(port).collect();
        ports.ok_or(Error::Answer { call })
    }

    /// Empties all tables, registers and counters. Groups stay.
    pub fn reset(&mut self) -> Result<(), Error> {
        let call = "bm_reset_state";
        self.call(STANDARD, call, "", Fields::default()).map(drop)
    }

    /// Sets the action of a table for what has no entry.
    pub fn set_default(&mut self, table: &str, action: &str, data: &[&[u8]]) -> Result<(), Error> {
        let what = Fields::default().number(CONTEXT).text(table).text(action);
        let call = "bm_mt_set_default_action";
        self.call(STANDARD, call, table, what.texts(data)).map(drop)
    }

    /// Adds an entry with an exact key. Returns its handle.
    pub fn add_entry(
        &mut self,
        table: &str,
        key: &[u8],
        action: &str,
        data: &[&[u8]],
    ) -> Result<u64, Error> {
        // EXACT.
        let key = Fields::default()
            .number(0)
            .structure(Fields::default().text(key));
        let what = Fields::default().number(CONTEXT).text(table).one(key);
        let what = what.text(action).texts(data).structure(Fields::default());
        let handle = self.number(STANDARD, "bm_mt_add_entry", table, what)?;
        Ok(handle as u64)
    }

    pub fn delete_entry(&mut self, table: &str, handle: u64) -> Result<(), Error> {
        let what = Fields::default().number(CONTEXT).text(table).long(handle);
        let call = "bm_mt_delete_entry";
        self.call(STANDARD, call, table, what).map(drop)
    }

    /// Reads a register; see the module for words from 2^63.
    pub fn register(&mut self, array: &str, index: usize) -> Result<u64, Error> {
        let what = Fields::default().number(CONTEXT).text(array).number(index);
        let word = self.number(STANDARD, "bm_register_read", array, what)?;
        Ok(word as u64)
    }

    /// Reads a whole array.
    pub fn registers(&mut self, array: &str) -> Result<Vec<u64>, Error> {
        let call = "bm_register_read_all";
        let what = Fields::default().number(CONTEXT).text(array);
        let Some(Value::List(words)) = self.call(STANDARD, call, array, what)? else {
            return Err(Error::Answer { call });
        };
        let word = |value: Value| match value {
            Value::Number(word) => Ok(word as u64),
            _ => Err(Error::Answer { call }),
        };
        words.into_iter().map(word).collect()
    }

    /// Writes a register.
    pub fn write_register(&mut self, array: &str, index: usize, word: u64) -> Result<(), Error> {
        let what = Fields::default().number(CONTEXT).text(array).number(index);
        let call = "bm_register_write";
        self.call(STANDARD, call, array, what.long(word)).map(drop)
    }

    /// Reads the packets of a counter.
    pub fn packets(&mut self, counter: &str, index: usize) -> Result<u64, Error> {
        let call = "bm_counter_read";
        let what = Fields::default()
            .number(CONTEXT)
            .text(counter)
            .number(index);
        let value = self.call(STANDARD, call, counter, what)?;
        // struct BmCounterValue { 1: bytes, 2: packets }
        let Some(Value::Struct(fields)) = value else {
            return Err(Error::Answer { call });
        };
        match fields.into_iter().find(|(id, _)| *id == 2) {
            Some((_, Value::Number(packets))) => Ok(packets as u64),
            _ => Err(Error::Answer { call }),
        }
    }

    /// Makes an empty multicast group.
    pub fn create_group(&mut self, group: usize) -> Result<(), Error> {
        let what = Fields::default().number(CONTEXT).number(group);
        let call = "bm_mc_mgrp_create";
        self.call(GROUPS, call, "", what).map(drop)
    }

    /// Removes a group. Refused if there is none.
    pub fn destroy_group(&mut self, group: usize) -> Result<(), Error> {
        // The handle of a group is its number.
        let what = Fields::default().number(CONTEXT).number(group);
        let call = "bm_mc_mgrp_destroy";
        self.call(GROUPS, call, "", what).map(drop)
    }

    /// Adds a member: a copy with this number (`egress_rid`) leaves by this port. Returns its handle.
    pub fn add_member(&mut self, group: usize, copy: usize, port: usize) -> Result<usize, Error> {
        let ports = format!("{:b}", 1u128 << port);
        let node = Fields::default().number(CONTEXT).number(copy);
        let node = node.text(ports).text("");
        let handle = self.number(GROUPS, "bm_mc_node_create", "", node)? as usize;
        let join = Fields::default().number(CONTEXT).number(group);
        let call = "bm_mc_node_associate";
        self.call(GROUPS, call, "", join.number(handle))?;
        Ok(handle)
    }

    /// Removes a member.
    pub fn remove_member(&mut self, group: usize, handle: usize) -> Result<(), Error> {
        let leave = Fields::default().number(CONTEXT).number(group);
        let call = "bm_mc_node_dissociate";
        self.call(GROUPS, call, "", leave.number(handle))?;
        let node = Fields::default().number(CONTEXT).number(handle);
        let call = "bm_mc_node_destroy";
        self.call(GROUPS, call, "", node).map(drop)
    }
}
