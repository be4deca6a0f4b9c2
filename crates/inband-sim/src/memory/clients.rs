//! Clients: their requests, the answers, and whether the answers are possible.

use std::collections::{BTreeMap, BTreeSet};

use inband_memory::client::{Client, ClientConfig, Op, Out, Outcome, Ticket};
use inband_memory::lines::{Chunk, CHUNK_LINES, LINE_LEN_BYTES};
use inband_memory::wire::{self, lines_of};

use super::hosts::gate;
use super::{
    Event, Host, Invariant, Memory, Mistake, CHUNKS, CLIENTS, LINES, OWN_CHUNK, SOLE_WRITER,
    SWITCHES,
};
use crate::linearizable::{self, Act};
use crate::{Time, World};

/// A request in flight.
struct Asked {
    chunk: u64,
    lines: u16,
    from: Time,
    /// By line; empty for a read.
    written: BTreeMap<usize, u64>,
}

pub(super) struct ClientHost {
    pub client: Client,
    pub done: u64,
    asked: BTreeMap<Ticket, Asked>,
    out: Out,
    /// Since when the client has not taken packets that it should have taken, by its clock.
    away_since: Option<Time>,
}

/// The values that the sole writer may read from one of its lines.
#[derive(Default)]
struct Own {
    last: u64,
    /// Later writes that timed out.
    or: BTreeSet<u64>,
    /// Those of `or` that an earlier process of the client wrote: their packets may still be in flight.
    gone: BTreeSet<u64>,
    is_busy: bool,
}

/// The sole writer's lines. This knowledge survives its restarts.
#[derive(Default)]
pub(super) struct OwnLines(BTreeMap<usize, Own>);

fn line(value: u64) -> [u8; LINE_LEN_BYTES] {
    let mut line = [0; LINE_LEN_BYTES];
    for (n, word) in line.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(value << 8 | n as u64).to_be_bytes());
    }
    if value == 0 {
        return [0; LINE_LEN_BYTES];
    }
    line
}

/// The value in a line; `None` if the line is torn.
fn value(bytes: &[u8; LINE_LEN_BYTES]) -> Option<u64> {
    let first = u64::from_be_bytes(bytes[..8].try_into().expect("eight"));
    (line(first >> 8) == *bytes).then_some(first >> 8)
}

impl World<Memory> {
    /// Starts a client. Requests of an earlier process have an unknown outcome.
    pub(super) fn start_client(&mut self, number: u8) {
        let host = Host::Client(number);
        if let Some(gone) = self.system.client.remove(&number) {
            for asked in gone.asked.into_values() {
                self.ended(number, &asked, None);
            }
        }
        let random = self.rng.hosts.next_u64();
        let defaults = ClientConfig::new(SWITCHES.into());
        let config = ClientConfig {
            window: 4,
            suspect_after_max_ns: match self.system.fixed_suspicion {
                true => defaults.suspect_after_min_ns,
                false => defaults.suspect_after_max_ns,
            },
            deadline_ns: self.system.deadline_ns,
            first_switch: self.rng.hosts.below(SWITCHES.into()) as usize,
            ..defaults
        };
        let mut out = Out::default();
        let client = Client::new(config, self.local(host), random, &mut out);
        let started = ClientHost {
            client,
            done: 0,
            asked: BTreeMap::new(),
            out,
            away_since: None,
        };
        self.system.client.insert(number, started);
        self.note(&[6, number.into()], || format!("{host} starts"));
        self.client_acted(number);
        for _ in 0..self.system.outstanding {
            let think = self.rng.hosts.wait(self.system.think_ns);
            self.after(think, Event::Request(host));
        }
    }

    /// A client is paused from now on: see `stand_still`.
    pub(super) fn client_is_away(&mut self, number: u8, computes: bool) {
        let now = self.local(Host::Client(number));
        let host = self.system.client.get_mut(&number).expect("a client");
        let due = match computes {
            true => now,
            false => host.client.due().max(now),
        };
        host.away_since.get_or_insert(due);
    }

    /// The pause is over: the client learns how long it took no packets.
    pub(super) fn client_is_back(&mut self, number: u8) {
        let now = self.local(Host::Client(number));
        let host = self.system.client.get_mut(&number).expect("a client");
        if let Some(since) = host.away_since.take().filter(|since| *since < now) {
            host.client.was_away(since..now);
            self.stats.count("clients were away", 1);
        }
    }

    pub(super) fn at_client(&mut self, from: Host, number: u8, packet: &[u8]) {
        let Host::Switch(switch) = from else {
            return;
        };
        self.client_is_back(number);
        let now = self.local(Host::Client(number));
        if !gate().admits(packet) {
            return;
        }
        let Ok((header, value)) = wire::parse(packet) else {
            return;
        };
        let host = self.system.client.get_mut(&number).expect("a client");
        let ClientHost { client, out, .. } = host;
        client.on_packet(now, switch.into(), &header, value, out);
        self.client_acted(number);
    }

    pub(super) fn client_ticks(&mut self, number: u8) {
        self.client_is_back(number);
        let now = self.local(Host::Client(number));
        let host = self.system.client.get_mut(&number).expect("a client");
        host.client.tick(now, &mut host.out);
        self.client_acted(number);
    }

    /// Sends the client's packets and handles the requests that have ended.
    fn client_acted(&mut self, number: u8) {
        let own = Host::Client(number);
        let leave_open = self.system.mistake == Some(Mistake::SessionLeftOpen);
        let host = self.system.client.get_mut(&number).expect("a client");
        let gate = gate();
        let mut packets = Vec::new();
        host.out.drain(|switch, packet| {
            let mut packet = packet.to_vec();
            if leave_open && packet[5] == wire::HELLO {
                let (header, _) = wire::parse(&packet).expect("its own");
                packet.clear();
                wire::emit(
                    &wire::Header {
                        session: 0,
                        ..header
                    },
                    &[],
                    &mut packet,
                );
            }
            gate.sign(&mut packet);
            packets.push((Host::Switch(*switch as u8), packet));
        });
        let mut ended = Vec::new();
        while let Some((ticket, outcome)) = host.client.take_done() {
            let asked = host.asked.remove(&ticket).expect("it was asked");
            host.done += u64::from(matches!(outcome, Outcome::Read(..) | Outcome::Written));
            ended.push((asked, outcome));
        }
        let due = host.client.due();
        for (to, packet) in packets {
            self.send(own, to, packet);
        }
        for (asked, outcome) in ended {
            self.note(&[7, number.into()], || {
                format!(
                    "{own} {outcome:.0?} of chunk {} lines {:x}",
                    asked.chunk, asked.lines
                )
            });
            self.ended(number, &asked, Some(&outcome));
            let think = self.rng.hosts.wait(self.system.think_ns);
            self.after(think, Event::Request(own));
        }
        self.sleep(own, due);
    }

    pub(super) fn client_thinks(&mut self, number: u8) {
        let host = Host::Client(number);
        let is_busy = self.system.client[&number].asked.len() >= self.system.outstanding;
        if !self.system.is_loaded || is_busy {
            return;
        }
        let rng = &mut self.rng.hosts;
        let is_sole = number == SOLE_WRITER;
        let chunk = match rng.below(4) {
            0..=2 if is_sole => OWN_CHUNK,
            _ => rng.below(CHUNKS),
        };
        let mut lines = (1 + rng.below((1 << LINES) - 1)) as u16;
        let mut writes = rng.below(2) == 0;
        if chunk == OWN_CHUNK {
            writes &= is_sole;
            if is_sole {
                let own = &self.system.own.0;
                lines = lines_of(lines)
                    .filter(|n| !own.get(n).is_some_and(|own| own.is_busy))
                    .fold(0, |all, n| all | 1 << n);
            }
        }
        if lines == 0 {
            let think = self.rng.hosts.wait(self.system.think_ns);
            return self.after(think, Event::Request(host));
        }
        let mut asked = Asked {
            chunk,
            lines,
            from: self.now,
            written: BTreeMap::new(),
        };
        let op = if writes {
            let mut from: Box<Chunk> = Box::new([[0; LINE_LEN_BYTES]; CHUNK_LINES]);
            for n in lines_of(lines) {
                self.system.values += 1;
                from[n] = line(self.system.values);
                asked.written.insert(n, self.system.values);
            }
            Op::Write {
                chunk,
                lines,
                from,
                sole_writer: chunk == OWN_CHUNK,
            }
        } else {
            Op::Read { chunk, lines }
        };
        if is_sole && chunk == OWN_CHUNK {
            for n in lines_of(lines) {
                self.system.own.0.entry(n).or_default().is_busy = true;
            }
        }
        let values = asked.written.values().copied().collect::<Vec<_>>();
        self.note(&[8, number.into(), chunk, lines.into()], || {
            format!("{host} asks for chunk {chunk} lines {lines:x}, writes {values:?}")
        });
        let now = self.local(host);
        let own = self.system.client.get_mut(&number).expect("a client");
        let ticket = own.client.submit(now, op, &mut own.out);
        own.asked.insert(ticket, asked);
        self.client_acted(number);
    }

    /// A request has ended; with `None`, because its client is gone.
    fn ended(&mut self, number: u8, asked: &Asked, outcome: Option<&Outcome>) {
        let is_own = number == SOLE_WRITER && asked.chunk == OWN_CHUNK;
        for n in lines_of(asked.lines) {
            let written = asked.written.get(&n).copied();
            let mut event = linearizable::Event {
                from: asked.from,
                until: self.now,
                act: written.map_or(Act::Get, Act::Put),
                saw: None,
            };
            let mut read = None;
            match outcome {
                Some(Outcome::Read(lines, timestamps)) => {
                    let Some(saw) = value(&lines[n]) else {
                        let what = format!("line {n} of chunk {} is torn", asked.chunk);
                        return self.broken(Invariant::Whole, what);
                    };
                    event.saw = Some(saw).filter(|saw| *saw != 0);
                    read = Some(saw);
                    self.check_majority(asked.chunk, n, saw, Some(timestamps[n]));
                }
                Some(Outcome::Written) => {
                    let value = written.expect("it was a write");
                    self.check_majority(asked.chunk, n, value, None);
                }
                Some(Outcome::OutOfRange(chunks)) => {
                    let has_missed_it = self.system.small_switch.is_some();
                    if !has_missed_it || *chunks != CHUNKS - 1 || asked.chunk < *chunks {
                        return self.broken(Invariant::Whole, format!("{chunks} chunks"));
                    }
                    // The request was never sent, because the client did not know the other switch's size.
                    if is_own {
                        self.system.own.0.entry(n).or_default().is_busy = false;
                    }
                    continue;
                }
                Some(Outcome::Unknown) if is_own => {
                    return self.broken(Invariant::OwnWrites, "a write was not repeated");
                }
                Some(Outcome::Unknown | Outcome::TimedOut) | None => {
                    if written.is_none() {
                        if is_own {
                            self.system.own.0.entry(n).or_default().is_busy = false;
                        }
                        continue;
                    }
                    event.until = Time::MAX;
                }
            }
            if is_own {
                self.own_line(
                    n,
                    written,
                    event.until != Time::MAX,
                    read,
                    outcome.is_none(),
                );
            }
            self.system
                .history
                .entry((asked.chunk, n as u16))
                .or_default()
                .push(event);
        }
        let how = match outcome {
            Some(Outcome::Read(..)) => "reads",
            Some(Outcome::Written) => "writes",
            Some(Outcome::Unknown) => "unknown outcomes",
            Some(Outcome::TimedOut) => "timed out",
            Some(Outcome::OutOfRange(_)) => "out of range",
            None => "client gone",
        };
        self.stats.count(how, 1);
    }

    /// The sole writer has written or read one of its lines.
    fn own_line(
        &mut self,
        n: usize,
        written: Option<u64>,
        is_done: bool,
        read: Option<u64>,
        is_gone: bool,
    ) {
        let own = self.system.own.0.entry(n).or_default();
        own.is_busy = false;
        match (written, read) {
            (Some(value), _) if is_done => {
                own.last = value;
                // The new process cannot recall the packets of an earlier one.
                own.or.retain(|value| own.gone.contains(value));
            }
            (Some(value), _) => {
                own.or.insert(value);
                if is_gone {
                    let unknown = own.or.clone();
                    own.gone.extend(unknown);
                }
            }
            (None, Some(saw)) if saw != own.last && !own.or.contains(&saw) => {
                let what = format!(
                    "line {n}: {saw} was read; {} was written last, then perhaps {:?}",
                    own.last, own.or
                );
                self.broken(Invariant::OwnWrites, what);
            }
            _ => {}
        }
    }

    /// A value that a client was told of must be held by a majority of servers, or a newer one must be. A server that
    /// has lost its memory must have recovered it before it serves again.
    fn check_majority(&mut self, chunk: u64, n: usize, value: u64, timestamp: Option<u64>) {
        let bytes = line(value);
        let mut missing = Vec::new();
        let found: Vec<(u8, u64, bool)> = self
            .system
            .server
            .iter()
            .filter_map(|(node, server)| Some((node, server.as_ref()?)))
            .filter(|(_, server)| server.host.is_serving())
            .map(|(node, server)| {
                let registers = server.role.registers();
                if chunk as usize >= registers.chunks() {
                    return (*node, 0, false);
                }
                let (timestamps, lines) = registers.chunk(chunk as usize);
                (*node, timestamps[n], lines[n] == bytes)
            })
            .collect();
        let holding = found
            .iter()
            .filter(|(_, _, has)| *has)
            .map(|(_, t, _)| *t)
            .max();
        let Some(timestamp) = timestamp.or(holding) else {
            return; // a newer value is everywhere
        };
        for (node, has, _) in found {
            if has < timestamp {
                missing.push(node);
            }
        }
        let servers = usize::from(self.system.servers);
        if servers - missing.len() < self.system.majority() {
            let what = format!(
                "{value} of line {n} of chunk {chunk}, timestamp {timestamp:x}, is not at servers {missing:?}"
            );
            self.broken(Invariant::AtMajority, what);
        }
    }

    pub(super) fn check_history(&mut self) {
        for number in 0..CLIENTS {
            let host = self.system.client.get_mut(&number).expect("a client");
            let counts = host.client.counts();
            let asked = std::mem::take(&mut host.asked);
            self.stats.count("sent again", counts.resent);
            self.stats.count("sessions", counts.sessions);
            for asked in asked.into_values() {
                self.ended(number, &asked, None);
            }
        }
        for (key, events) in std::mem::take(&mut self.system.history) {
            if let Err(what) = linearizable::check(events) {
                self.broken(Invariant::Linearizable, format!("line {key:?}: {what}"));
            }
        }
    }
}
