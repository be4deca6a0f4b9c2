//! Clients that send SETs in datagrams. As the packet program does, a leader's role proposes them itself; all others are
//! for the process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_box::command::{decode, Command, Mode};
use inband_box::memcached::{parse, udp, Parsed, Request};
use inband_box::registers::{Client, ORIGIN_ROLE};
use inband_box::role::{Record, Role, Verdict};
use inband_box::soft::handle_set;
use inband_box::wire;
use inband_ground::wire::{checksum, PACKET_LEN_MAX_BYTES};

use super::hosts::{gate, PASS_NS};
use super::{Event, Host, Invariant, Process, Zab, MS, PLACES};
use crate::linearizable::{self, Act};
use crate::{Time, World};

/// Length of a datagram's checksum, here behind its text.
const SUM_LEN_BYTES: usize = 4;
/// One of this many datagrams is not exactly one SET.
const ODD_ONE_OF: u64 = 12;

/// What is known of the SETs that clients sent in datagrams.
#[derive(Default)]
pub(super) struct Datagrams {
    /// By token: its key, and when it was sent.
    sent: BTreeMap<u64, (u64, Time)>,
    /// Who proposed each record that a role made: its epoch and number there, the node and its start.
    proposed: BTreeMap<(u64, u64), (u8, u64)>,
    /// Records whose reply a client got.
    answered: BTreeSet<u64>,
}

/// The host of a client, which is no node's.
fn host_of(number: u8) -> Host {
    Host(PLACES + 1 + number)
}

impl Host {
    /// Returns the number of the client whose host it is.
    pub(super) fn client(self) -> Option<u8> {
        self.0.checked_sub(PLACES + 1)
    }
}

/// Returns the command that writes a token under a key.
pub(super) fn command(key: u64, token: u64, padding: usize) -> Vec<u8> {
    let value = value(token, padding);
    let mut stream = Vec::new();
    store(format!("k{key}").as_bytes(), &value).encode(&mut stream);
    stream
}

fn store<'a>(key: &'a [u8], value: &'a [u8]) -> Command<'a> {
    Command::Store {
        mode: Mode::Set,
        key,
        value,
        flags: 0,
        exptime_s: 0,
        cas: 0,
        may_be_stale: false,
        is_binary_key: false,
    }
}

fn value(token: u64, padding: usize) -> Vec<u8> {
    let mut value = token.to_be_bytes().to_vec();
    value.resize(value.len() + padding, 0);
    value
}

/// Returns key and token of a record that writes.
pub(super) fn written(record: &Record) -> Option<(u64, u64)> {
    let (command, len_bytes) = decode(&record.value).ok()??;
    let Command::Store { key, value, .. } = command else {
        return None;
    };
    let key = std::str::from_utf8(key).ok()?.strip_prefix('k')?;
    let token = value.first_chunk()?;
    let is_whole = len_bytes == record.value.len();
    is_whole.then_some((key.parse().ok()?, u64::from_be_bytes(*token)))
}

/// Returns the command of a request that begins with a SET, as the process submits it, and whether nothing follows.
fn submitted(text: &[u8]) -> Option<(Vec<u8>, bool)> {
    let Parsed::Whole {
        len_bytes,
        request:
            Request::Store {
                mode: Mode::Set,
                key,
                value,
                ..
            },
        ..
    } = parse(text)
    else {
        return None;
    };
    let mut stream = Vec::new();
    store(key, value).encode(&mut stream);
    Some((stream, len_bytes == text.len()))
}

/// The client's port and request id are the token's.
fn address_of(number: u8, token: u64) -> (SocketAddrV4, u16) {
    let address = Ipv4Addr::new(10, 0, 0, number);
    let port = (token >> 16) as u16;
    (SocketAddrV4::new(address, port), token as u16)
}

fn token_of(address: SocketAddrV4, request: u16) -> u64 {
    u64::from(address.port()) << 16 | u64::from(request)
}

fn with_sum(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(checksum(&bytes).to_be_bytes());
    bytes
}

/// Returns what a datagram carries, unless it was damaged.
fn without_sum(packet: &[u8]) -> Option<&[u8]> {
    let (bytes, sum) = packet.split_last_chunk::<SUM_LEN_BYTES>()?;
    (u32::from_be_bytes(*sum) == checksum(bytes)).then_some(bytes)
}

impl World<Zab> {
    /// A client sends a SET to a node.
    pub(super) fn client_sends(
        &mut self,
        number: u8,
        to: u8,
        key: u64,
        token: u64,
        padding: usize,
    ) {
        let from = self.now;
        self.system.datagrams.sent.insert(token, (key, from));
        let value = value(token, padding);
        let line = format!("set k{key} 0 0 {}\r\n", value.len());
        let mut text = [line.as_bytes(), &value, b"\r\n"].concat();
        if self.rng.hosts.below(ODD_ONE_OF) == 0 {
            match self.rng.hosts.below(3) {
                0 => text.truncate(text.len() - 1),
                1 => text.insert(line.len(), b'x'),
                _ => text.extend_from_slice(b"set k0 0 0 8\r\n00000000\r\n"),
            }
        }
        let (_, request) = address_of(number, token);
        let [high, low] = request.to_be_bytes();
        // The port is not in the datagram's own bytes.
        let port = ((token >> 16) as u16).to_be_bytes();
        let datagram = [&[high, low, 0, 0, 0, 1, 0, 0], &text[..], &port].concat();
        self.send(host_of(number), Host(to), with_sum(datagram));
    }

    /// A datagram arrives at a node.
    pub(super) fn datagram_arrives(&mut self, number: u8, id: u8, packet: &[u8]) {
        let Some((datagram, port)) = without_sum(packet).and_then(<[u8]>::split_last_chunk::<2>)
        else {
            return;
        };
        let Some((frame, text)) = udp::parse(datagram) else {
            return;
        };
        let now = self.local(Host(id));
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let token = u64::from(u16::from_be_bytes(*port)) << 16 | u64::from(frame.request);
        // With logs on disk the role is in the process, and gets no clients' datagrams.
        if self.system.is_durable {
            let event = Event::Datagram(Host(id), number, token, text.to_vec());
            let wait = self.rng.hosts.below(PASS_NS);
            return self.after(wait, event);
        }
        host.role.set_time_ms(now / MS);
        let (address, _) = address_of(number, token);
        let client = Client {
            address,
            request: 0,
            is_strong: false,
        };
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        let handled = handle_set(&host.role, &client, datagram, &mut buffer, now);
        let start = host.start;
        if handled.verdict != Verdict::ToOthers {
            let event = Event::Datagram(Host(id), number, token, text.to_vec());
            let wait = self.rng.hosts.below(PASS_NS);
            return self.after(wait, event);
        }
        let packet = &mut buffer[..handled.len_bytes];
        let (header, _) = wire::parse(packet).expect("it is ours");
        let session = (header.origin as u8, header.origin_session);
        self.note(&[22, id.into(), header.zxid, token], || {
            format!(
                "node/{id} proposes token {token} as {} of epoch {}",
                header.zxid, header.epoch
            )
        });
        self.stats.count("SETs proposed by roles", 1);
        let promise = self
            .system
            .stored
            .get(&id)
            .map_or(0, |stored| stored.promise);
        let (epoch, seq) = (header.epoch, header.origin_seq);
        let is_first = self
            .system
            .datagrams
            .proposed
            .insert((epoch, seq), (id, start))
            .is_none();
        if session != (ORIGIN_ROLE, epoch) || promise > epoch || !is_first {
            let what = format!(
                "node {id}, which has promised {promise}, proposes {seq} of {session:?} in {epoch}"
            );
            return self.broken(Invariant::Sets, what);
        }
        match submitted(text) {
            Some((value, true)) => self.system.ledger.submit(session, seq, value),
            other => {
                let what = format!("node {id} proposes what is not one SET: {other:?}");
                return self.broken(Invariant::Sets, what);
            }
        }
        gate().sign(packet);
        let packet = packet.to_vec();
        self.send_to_others(id, &packet);
        self.check_commits(id);
    }

    /// The process of a node gets a datagram that its role passed.
    pub(super) fn datagram_passed(&mut self, id: u8, number: u8, token: u64, text: Vec<u8>) {
        if let Some(until) = self.process_waits(id) {
            return self.at(until, Event::Datagram(Host(id), number, token, text));
        }
        let Some(Some(host)) = self.system.node.get_mut(&id) else {
            return;
        };
        let Some((value, _)) = submitted(&text) else {
            return;
        };
        let seq = host.node.submit(value.clone());
        host.datagrams.insert(seq, (number, token));
        let session = (id, host.node.session());
        self.system.ledger.submit(session, seq, value);
        self.stats.count("SETs of datagrams submitted", 1);
        self.process_acts(id, Process::Ticks);
    }

    /// A node has executed a record, which its role made for this client: the process answers.
    pub(super) fn answers_set(&mut self, id: u8, client: &Client, record: &Record) {
        let Some(Some(host)) = self.system.node.get(&id) else {
            return;
        };
        let number = client.address.ip().octets()[3];
        let token = token_of(client.address, client.request);
        let proposer = (record.origin_session, record.origin_seq);
        let proposer = self.system.datagrams.proposed.get(&proposer).copied();
        let is_of_it = written(record).is_some_and(|(_, written)| written == token);
        if !is_of_it || proposer != Some((id, host.start)) {
            let what =
                format!("node {id} acknowledges token {token} for {record:?} of {proposer:?}");
            return self.broken(Invariant::Sets, what);
        }
        self.replies(id, number, token, record.zxid);
    }

    /// A node sends a reply, which may be lost.
    pub(super) fn replies(&mut self, id: u8, number: u8, token: u64, zxid: u64) {
        let words = [token, zxid];
        let packet = with_sum(words.map(u64::to_be_bytes).concat());
        self.stats.count("datagrams answered", 1);
        self.send(Host(id), host_of(number), packet);
    }

    /// A client gets a reply.
    pub(super) fn client_gets(&mut self, number: u8, packet: &[u8]) {
        let Some(words) = without_sum(packet) else {
            return;
        };
        let word = |at: usize| u64::from_be_bytes(words[at..at + 8].try_into().expect("eight"));
        let (token, zxid) = (word(0), word(8));
        if self.is_asked(number, token) {
            self.system.datagrams.answered.insert(zxid);
            self.answered(number, token, None);
        }
    }

    /// Returns how many SETs roles have proposed that are not in the log, so far.
    pub fn sets_proposed_and_lost(&self) -> usize {
        let in_log = (1..=self.system.ledger.len()).filter(|zxid| {
            let (record, _) = self.system.ledger.entry(*zxid);
            record.origin == ORIGIN_ROLE
        });
        self.system.datagrams.proposed.len() - in_log.count()
    }

    /// Adds the SETs of datagrams whose clients got no reply to the history: each copy that was executed, until when.
    pub(super) fn remember_unanswered(&mut self) {
        let lost = self.sets_proposed_and_lost() as u64;
        self.stats.count("SETs proposed and lost", lost);
        let mut executed = BTreeSet::new();
        for zxid in 1..=self.system.ledger.len() {
            let (record, is_executed) = self.system.ledger.entry(zxid);
            let Some((_, token)) = written(record).filter(|_| is_executed) else {
                continue;
            };
            let Some((key, from)) = self.system.datagrams.sent.get(&token).copied() else {
                continue;
            };
            if !executed.insert(token) {
                self.stats.count("SETs of datagrams executed twice", 1);
            }
            if self.system.datagrams.answered.contains(&zxid) {
                continue;
            }
            let event = linearizable::Event {
                from,
                until: self.system.ledger.applied_at(zxid),
                act: Act::Put(token),
                saw: None,
            };
            self.stats.count("SETs executed unanswered", 1);
            self.system.history.entry(key).or_default().push(event);
        }
    }
}
