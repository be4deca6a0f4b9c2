//! A client of replicated memory: it keeps several requests in flight, each for one line or for several lines of a
//! chunk. Each line is checked on its own, as a register, so each line of a request is one operation in the history.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{bail, ensure, Result};
use inband_memory::client::{Op, Outcome};
use inband_memory::lines::{Chunk, Lines, CHUNK_LINES, LINE_LEN_BYTES};
use inband_memory::memory::{Memory, MemoryConfig};
use inband_memory::wire::lines_of;
use inband_sim::Rng;

use super::lines;
use crate::history::{Command, Verb};
use crate::stale_proxy::StaleReplies;
use crate::workload::{Asked, End, Operate, Scribe, Shared, ANSWER_LIMIT, CLIENTS_MAX};

/// Maximum requests in flight.
const REQUESTS_MAX: u64 = 4;
/// Maximum lines of a request.
const LINES_MAX: usize = 4;
/// Slots of a session: few, so that they are reused within milliseconds.
const WINDOW: u32 = 8;
/// A session ends after this many requests, with a goodbye or without one.
const REQUESTS_PER_CONNECTION: u64 = 400;
/// One in this many batches of writes is not waited for, as if the client had been killed.
const BATCHES_PER_DEATH: u64 = 150;

pub struct MemoryClient {
    number: usize,
    rng: Rng,
    scribe: Scribe,
    config: MemoryConfig,
    /// The source of some answers in a control run.
    stale: Option<Arc<StaleReplies>>,
    connection: Option<Memory>,
    requests: u64,
    values: u64,
}

/// A request in flight.
struct Request {
    call_ns: u64,
    op: Op,
}

impl Operate for MemoryClient {
    fn operate(&mut self) -> bool {
        if self.connection.is_none() && !self.connect() {
            return false;
        }
        let count = match self.rng.chance_ppm(500_000) {
            true => 1,
            false => self.rng.between(2, REQUESTS_MAX),
        };
        let dies = self.rng.below(BATCHES_PER_DEATH) == 0;
        let ops: Vec<Op> = (0..count).map(|_| self.draw(dies)).collect();
        self.perform(ops, dies);
        true
    }
}

impl MemoryClient {
    pub fn new(
        number: usize,
        shared: Shared,
        mut config: MemoryConfig,
        stale: Option<Arc<StaleReplies>>,
        seed: u64,
    ) -> MemoryClient {
        config.deadline = ANSWER_LIMIT;
        config.window = WINDOW;
        MemoryClient {
            number,
            rng: Rng::new(seed, 1_000 + number as u64),
            scribe: Scribe::new(number, shared),
            config,
            stale,
            connection: None,
            requests: 0,
            values: 0,
        }
    }

    fn connect(&mut self) -> bool {
        self.requests = 0;
        self.connection = Memory::connect(self.config.clone()).ok();
        self.connection.is_some()
    }

    fn draw(&mut self, only_writes: bool) -> Op {
        let chunks = self.connection.as_ref().map_or(1, Lines::chunks);
        let chunk = lines::one(self.rng.next_u64(), self.scribe.now_ns(), chunks);
        let most = if self.rng.chance_ppm(600_000) {
            1
        } else {
            LINES_MAX
        };
        let lines = lines::some(self.rng.next_u64(), most);
        if !only_writes && self.rng.chance_ppm(550_000) {
            return Op::Read { chunk, lines };
        }
        let mut from: Box<Chunk> = Box::new([[0; LINE_LEN_BYTES]; CHUNK_LINES]);
        for line in lines_of(lines) {
            // Each value is written once.
            self.values += 1;
            from[line] = lines::stored(self.values * CLIENTS_MAX + self.number as u64);
        }
        Op::Write {
            chunk,
            lines,
            from,
            sole_writer: false,
        }
    }

    /// Sends all requests and waits for the answers, or leaves without waiting.
    fn perform(&mut self, ops: Vec<Op>, dies: bool) {
        let Some(memory) = &mut self.connection else {
            return;
        };
        self.requests += ops.len() as u64;
        let mut under_way = BTreeMap::new();
        for op in ops {
            let call_ns = self.scribe.now_ns();
            let ticket = memory.submit(op.clone());
            under_way.insert(ticket, Request { call_ns, op });
        }
        let mut error = "the client died".to_owned();
        while !dies && !under_way.is_empty() {
            match memory.wait_done() {
                Ok(Some((ticket, outcome))) => {
                    if let Some(request) = under_way.remove(&ticket) {
                        note(
                            &mut self.scribe,
                            self.stale.as_deref(),
                            request,
                            Ok(&outcome),
                        );
                    }
                }
                Ok(None) => unreachable!("requests are under way"),
                Err(io) => {
                    error = format!("socket: {io}");
                    break;
                }
            }
        }
        let is_broken = !under_way.is_empty();
        for request in under_way.into_values() {
            note(&mut self.scribe, None, request, Err(&error));
        }
        if is_broken {
            if let Some(memory) = self.connection.take() {
                memory.abandon();
            }
        } else if self.requests >= REQUESTS_PER_CONNECTION {
            self.connection = None;
        }
    }

    /// Reads all lines of these chunks.
    pub fn read_all(&mut self, chunks: &[u64]) -> Result<()> {
        for some in chunks.chunks(REQUESTS_MAX as usize) {
            ensure!(
                self.connection.is_some() || self.connect(),
                "no switch answers"
            );
            let memory = self.connection.as_mut().expect("connected");
            let mut under_way = BTreeMap::new();
            for chunk in some {
                let (call_ns, lines) = (self.scribe.now_ns(), lines::all());
                let op = Op::Read {
                    chunk: *chunk,
                    lines,
                };
                under_way.insert(memory.submit(op.clone()), Request { call_ns, op });
            }
            while let Some((ticket, outcome)) = memory.wait_done()? {
                let Some(request) = under_way.remove(&ticket) else {
                    continue;
                };
                if !matches!(outcome, Outcome::Read(..)) {
                    bail!("reading a chunk: {outcome:?}");
                }
                note(&mut self.scribe, None, request, Ok(&outcome));
            }
        }
        Ok(())
    }
}

/// Records the outcome of a request, for each of its lines.
fn note(
    scribe: &mut Scribe,
    stale: Option<&StaleReplies>,
    request: Request,
    ended: Result<&Outcome, &str>,
) {
    let (chunk, lines, written) = match &request.op {
        Op::Read { chunk, lines } => (*chunk, *lines, None),
        Op::Write {
            chunk, lines, from, ..
        } => (*chunk, *lines, Some(from)),
    };
    for line in lines_of(lines) {
        let key = lines::name(chunk, line);
        let end = match ended {
            Ok(Outcome::Read(read, _)) => {
                let value = lines::value_of(&read[line]);
                End::Ok(vec![match stale {
                    Some(stale) => stale.of(&key, value),
                    None => value,
                }])
            }
            Ok(Outcome::Written) => End::Ok(vec![Some("OK".into())]),
            Ok(Outcome::Unknown) => End::Unknown("outcome unknown".into()),
            Ok(Outcome::TimedOut) => End::Unknown("timed out".into()),
            Ok(Outcome::OutOfRange(chunks)) => {
                End::Failed(format!("chunk {chunk} is out of range: there are {chunks}"))
            }
            Err(why) => End::Unknown(why.to_owned()),
        };
        let value = written.and_then(|from| lines::value_of(&from[line]));
        let asked = Asked {
            group: key.clone(),
            call_ns: request.call_ns,
            commands: vec![Command {
                verb: if written.is_some() {
                    Verb::Set
                } else {
                    Verb::Get
                },
                key,
                value,
            }],
            replica: "memory".into(),
            reads: if lines.count_ones() > 1 {
                "vector"
            } else {
                "line"
            },
        };
        scribe.write_down(asked, &end);
    }
}
