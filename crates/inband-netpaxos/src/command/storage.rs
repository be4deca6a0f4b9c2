//! `inband netpaxos storage`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{ensure, Result};
use clap::Args;
use inband_host::config::Dataplane;
use inband_netpaxos::control::Control;
use inband_netpaxos::request::Request;
use inband_netpaxos::status::{Ask, Reply, Status};
use inband_netpaxos::storage::{Config, Out, Storage, WINDOW};
use inband_netpaxos::wire::{intact, node, Type};

use super::kept::{self, Kept};
use super::process::{lock, named, ProcessArgs, Turn, PACKETS_OF_A_SYNC};

/// Options of a storage server.
#[derive(Debug, Args)]
pub struct StorageArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// The log is new: vote at once. Only if all storage servers start for the first time
    #[arg(long)]
    new: bool,
    /// With --new: start an empty log although there was one before. Must be given at all storage servers and learners
    #[arg(long, requires = "new")]
    accept_loss: bool,
}

fn counters_of(storage: &Storage) -> BTreeMap<String, u64> {
    let counts = storage.counts();
    named([
        ("votes_fast", counts.fast),
        ("votes_classic", counts.classic),
        ("numbers_refused", counts.refused),
        ("numbers_missing", counts.gaps),
        ("numbers_stale", counts.stale),
        ("base_moved", counts.aligned),
        ("window_full", counts.window_full),
        ("renumbered", counts.renumbered),
        ("generation", storage.generation().into()),
    ])
}

fn gauges_of(storage: &Storage) -> BTreeMap<String, u64> {
    let lengths = storage.lengths();
    named([
        ("instances_stored", lengths.instances as u64),
        ("instances_without_memory", lengths.silent),
        ("instances_floor", storage.floor()),
        ("gaps_open", lengths.gaps as u64),
        ("numbers_unreported", lengths.unsaid as u64),
    ])
}

impl StorageArgs {
    /// Runs the storage server.
    pub fn run(&self) -> Result<()> {
        let minion = self.process.number;
        let mut process = self.process.start("storage", |c| &c.storages)?;
        let config = Config {
            minion,
            sizes: process.cluster.sizes()?,
            learners: process.cluster.learners.len() as u8,
            window: WINDOW,
        };
        let data = &self.process.data;
        process.check_log(self.accept_loss)?;
        if self.accept_loss {
            kept::remove(data)?;
        }
        let is_marked = process.is_marked_new();
        let is_new = self.new || is_marked;
        if self.new && !is_marked {
            kept::check_empty(data, kept::exists(data))?;
            ensure!(
                self.accept_loss || process.last_incarnation()? == 0,
                "--new: the storage server in {} has run before, and its votes were lost: leave out --new to let it get them from the others; if those of all were lost, write another log_id to cluster.json, and give --new --accept-loss at all storage servers and learners to begin an empty log",
                data.display()
            );
        }
        process.claim_log()?;
        let (mut kept, records) = Kept::open(data, self.process.durability)?;
        process.incarnation(0)?;
        let nonce = rand::random();
        let (storage, how) = match (is_new, records.is_empty()) {
            (_, false) => (Storage::restored(config, records, nonce), "as before"),
            (true, true) => (Storage::new(config), "new"),
            (false, true) => (Storage::without_memory(config, nonce), "without memory"),
        };
        if how == "new" {
            // Records that nothing was lost, for after a restart.
            storage
                .snapshot()
                .iter()
                .try_for_each(|record| kept.append(record))?;
            kept.commit()?;
        }
        process.remove_mark()?;
        println!("{} at {}, {how}", process.name, process.listen);
        let storage = Arc::new(Mutex::new(storage));
        let (name, listen) = (process.name.clone(), process.listen);
        let _control = process.answer(&storage, move |storage, ask| match ask {
            Ask::Status => Reply::Status(Box::new(Status {
                name: name.clone(),
                listen,
                dataplane: Dataplane::Udp,
                why: "it is not a role".to_owned(),
                pid: std::process::id(),
                state: match (storage.is_serving(), storage.is_complete()) {
                    (false, _) => "recovering",
                    (true, false) => "incomplete",
                    (true, true) => "serving",
                }
                .to_owned(),
                position: storage.highest(),
                counters: counters_of(storage),
                gauges: gauges_of(storage),
            })),
            Ask::Log(_) => Reply::Error(format!("{name} is not a learner")),
        })?;
        let mut out = Out::default();
        process.serve(PACKETS_OF_A_SYNC, |process, turn| {
            let now = process.now();
            let mut storage = lock(&storage);
            if let Turn::Packet(packet, len_bytes) = turn {
                on_packet(&mut storage, now, &packet[..len_bytes], minion, &mut out);
                return Ok(0);
            }
            storage.tick(now, &mut out);
            // One sync for all packets that arrived together.
            for record in out.records.drain(..) {
                kept.append(&record)?;
            }
            kept.commit()?;
            if kept.is_long() {
                kept.begin_again(&storage.snapshot())?;
            }
            process.send_all(std::mem::take(&mut out).packets);
            Ok(storage.due())
        })
    }
}

fn on_packet(storage: &mut Storage, now: u64, packet: &[u8], minion: u8, out: &mut Out) {
    let Some((header, value)) = intact(packet) else {
        return;
    };
    match header.kind {
        Type::Numbered if header.node == u16::from(node::minion(minion)) => {
            let request = Request::of(&header, value);
            storage.on_numbered(header.incarnation, header.number, request, out);
        }
        Type::Control => {
            if let Some((from, control)) = Control::of(packet) {
                storage.on_control(now, from, control, out);
            }
        }
        _ => {}
    }
}
