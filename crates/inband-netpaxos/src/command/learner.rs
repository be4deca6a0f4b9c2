//! `inband netpaxos learner`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{ensure, Result};
use clap::Args;
use inband_host::config::Dataplane;
use inband_netpaxos::control::Control;
use inband_netpaxos::learner::{Config, Learner, Out};
use inband_netpaxos::request::{Request, Value};
use inband_netpaxos::status::{Ask, Reply, Status, LOG_MAX};
use inband_netpaxos::wire::{intact, node, Type};

use super::kept::{self, Kept};
use super::process::{lock, named, Process, ProcessArgs, Turn, PACKETS_OF_A_TURN};
use super::store;

/// Options of a learner.
#[derive(Debug, Args)]
pub struct LearnerArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// The log is new: refuse a directory that has a store or a journal of an earlier one
    #[arg(long)]
    new: bool,
    /// UNSAFE, for measurements: decide by the order of arrival alone, as the paper does, without votes of the storage
    /// servers. Learners may disagree
    #[arg(long)]
    faithful: bool,
    /// Permit --faithful for a store, which can then lose acknowledged writes and differ between learners
    #[arg(long, requires = "faithful")]
    unsafe_ordering: bool,
    /// With --new: remove what the directory has of an earlier log. Must be given at all storage servers and learners
    #[arg(long, requires = "new")]
    accept_loss: bool,
}

/// What a learner stores for an instance: the value decided, and whether it was applied.
type Entry = (Value, bool);

/// What an operator must know about `--faithful`.
const WARNING: &str = "WARNING: this learner decides by the order of arrival alone (--faithful): where packets are lost or reordered, learners disagree and acknowledged requests are lost";

/// A learner, and the values it has applied.
struct Shared {
    learner: Learner,
    applied: Vec<(u64, Vec<u8>)>,
}

pub fn counters_of(learner: &Learner) -> BTreeMap<String, u64> {
    let counts = learner.counts();
    named([
        ("decided_fast", counts.fast),
        ("decided_by_recovery", counts.recovered),
        ("decided_by_others", counts.told),
        ("conflicts", counts.conflicts),
        ("rounds_of_recovery", counts.rounds),
        ("holes_filled", counts.noops),
        ("requests_repeated", counts.duplicates),
        ("storages_aligned", counts.aligned),
        ("positions_asked", counts.asked),
        ("sessions", learner.sessions() as u64),
        ("incarnation", learner.incarnation().unwrap_or(0).into()),
    ])
}

pub fn gauges_of(learner: &Learner) -> BTreeMap<String, u64> {
    let lengths = learner.lengths();
    named([
        ("requests_unconfirmed", lengths.unconfirmed as u64),
        ("numbers_without_request", lengths.unknown as u64),
        ("instances_undecided", lengths.undecided as u64),
        ("instances_in_recovery", lengths.recovering as u64),
        ("instances_undelivered", lengths.undelivered as u64),
        ("instances_kept", lengths.kept as u64),
        ("instances_highest", learner.highest()),
        ("reads_waiting", lengths.reads as u64),
        ("unsafe_ordering", learner.is_by_order().into()),
    ])
}

impl LearnerArgs {
    /// Runs the learner.
    pub fn run(&self) -> Result<()> {
        let number = self.process.number;
        let mut process = self.process.start("learner", |c| &c.learners)?;
        let config = Config {
            number,
            sizes: process.cluster.sizes()?,
            nonce: rand::random(),
            incarnation: u32::try_from(process.last_incarnation()?)?.saturating_add(1),
        };
        let has_store = !process.cluster.resp.is_empty();
        ensure!(
            !self.faithful || !has_store || self.unsafe_ordering,
            "--faithful: learners of a store would disagree and lose acknowledged writes; leave it out, or give --unsafe-ordering if the data may be lost"
        );
        if self.faithful {
            eprintln!("{WARNING}");
        }
        let data = &self.process.data;
        process.check_log(self.accept_loss)?;
        if self.accept_loss {
            store::remove(data)?;
            kept::remove(data)?;
        }
        if self.new {
            kept::check_empty(data, kept::exists(data) || store::exists(data))?;
        }
        process.claim_log()?;
        if has_store {
            return store::run(&self.process, process, config, self.faithful);
        }
        let (mut kept, log) = Kept::open::<Entry>(&self.process.data, self.process.durability)?;
        println!(
            "{} at {}, {} instances",
            process.name,
            process.listen,
            log.len()
        );
        let applied = (1..).zip(&log).filter_map(|(instance, (value, applies))| {
            let request = value.as_ref().filter(|_| *applies)?;
            Some((instance, request.value.clone()))
        });
        let applied = applied.collect();
        let log = log.into_iter().map(|(value, _)| value).collect();
        let mut learner = Learner::restored(config, log);
        if self.faithful {
            learner = learner.by_order();
        }
        let shared = Arc::new(Mutex::new(Shared { learner, applied }));
        let (name, listen) = (process.name.clone(), process.listen);
        let _control = process.answer(&shared, move |shared, ask| match ask {
            Ask::Status => Reply::Status(Box::new(Status {
                name: name.clone(),
                listen,
                dataplane: Dataplane::Udp,
                why: "it is not a role".to_owned(),
                pid: std::process::id(),
                state: match shared.learner.position() == shared.learner.highest() {
                    true => "delivering",
                    false => "behind",
                }
                .to_owned(),
                position: shared.learner.position(),
                counters: counters_of(&shared.learner),
                gauges: gauges_of(&shared.learner),
            })),
            Ask::Log(from) => {
                let at = shared
                    .applied
                    .partition_point(|(instance, _)| *instance < from);
                let some: Vec<_> = shared.applied[at..].iter().take(LOG_MAX).cloned().collect();
                let next = match some.last() {
                    Some((last, _)) if some.len() == LOG_MAX => last + 1,
                    _ => (shared.learner.position() + 1).max(from),
                };
                Reply::Log(some, next)
            }
        })?;
        let mut out = Out::default();
        process.serve(PACKETS_OF_A_TURN, |process, turn| {
            let now = process.now();
            let mut shared = lock(&shared);
            let Shared { learner, applied } = &mut *shared;
            if let Turn::Packet(packet, len_bytes) = turn {
                on_packet(learner, now, process, &packet[..len_bytes], &mut out);
                return Ok(0);
            }
            learner.tick(now, &mut out);
            for delivered in &out.delivered {
                kept.append::<Entry>(&(delivered.value.clone(), delivered.applies))?;
            }
            kept.commit()?;
            for delivered in out.delivered.drain(..) {
                if let Some(request) = delivered.value.filter(|_| delivered.applies) {
                    applied.push((delivered.instance, request.value.clone()));
                }
            }
            let due = learner.due();
            process.send_all(std::mem::take(&mut out).packets);
            Ok(due)
        })
    }
}

pub fn on_packet(learner: &mut Learner, now: u64, process: &Process, packet: &[u8], out: &mut Out) {
    let Some((header, value)) = intact(packet) else {
        return;
    };
    match header.kind {
        Type::Numbered => {
            let minions = process.cluster.minions.len() as u8;
            if let Some(minion) = node::as_minion(header.node, minions) {
                let number = (header.incarnation, header.number);
                learner.on_numbered(now, minion, number, Request::of(&header, value), out);
            }
        }
        Type::Control => {
            if let Some((from, control)) = Control::of(packet) {
                learner.on_control(now, from, control, out);
            }
        }
        _ => {}
    }
}
