//! Random schedules of packets, failures and power cuts: the answers that an acceptor has sent are compared with what it
//! remembers.

use std::collections::BTreeMap;

use inband_paxos::dataplane::wire::{self, flag, Type};
use inband_paxos::journal::StartError;
use inband_storage::{Failure, StorageError};
use inband_testing::random::chooser;

use super::{about, phase1a, phase2a, trim, Machine, Process, CUTS, EPOCH, FIRST};

/// What the sent answers say.
#[derive(Default)]
struct Said {
    promises: BTreeMap<u16, u64>,
    slot_promises: BTreeMap<(u16, u64), u64>,
    floors: BTreeMap<u16, u64>,
    votes: BTreeMap<(u16, u64), (u64, u64)>,
}

impl Said {
    /// An answer is sent. It must not contradict an earlier one.
    fn hear(&mut self, packet: &[u8]) -> Result<(), String> {
        let (header, _) = wire::parse(packet).unwrap();
        let partition = header.partition;
        let key = (partition, header.instance);
        let said = self.promises.entry(partition).or_default();
        let contradiction = |what: &str| Err(format!("{what}: {header:?}"));
        match header.kind {
            Type::Phase1B if !header.has(flag::SLOT) => *said = header.round.max(*said),
            Type::Nack if !header.has(flag::SLOT) && header.round < *said => {
                return contradiction("a lower promise");
            }
            Type::Position if header.round < *said => return contradiction("a lower promise"),
            Type::Phase1B => {
                let vote = self.votes.get(&key).copied().unwrap_or_default();
                if header.vround < vote.0 {
                    return contradiction("an older vote, or none");
                }
                let slot = self.slot_promises.entry(key).or_default();
                *slot = header.round.max(*slot);
            }
            Type::Phase2B => {
                let promised = self.slot_promises.get(&key).copied().unwrap_or_default();
                let (round, digest) = self.votes.get(&key).copied().unwrap_or_default();
                let old = header.round < promised.max(*said) && round != header.round;
                if old && !header.has(flag::REPEAT) {
                    return contradiction("a vote below a promise");
                }
                if header.round < round || (header.round == round && header.digest != digest) {
                    return contradiction("another vote");
                }
                self.votes.insert(key, (header.round, header.digest));
            }
            _ => {}
        }
        let floor = self.floors.entry(partition).or_default();
        if header.floor < *floor {
            return contradiction("a lower floor");
        }
        *floor = header.floor;
        Ok(())
    }

    /// Checks that an acceptor that has just started remembers its answers.
    fn check(&self, process: &Process) -> Result<(), String> {
        for (partition, said) in &self.promises {
            let promise = process.acceptor(usize::from(*partition)).promise;
            if promise < *said {
                return Err(format!("promised {said}, remembers {promise}"));
            }
        }
        for (partition, said) in &self.floors {
            let floor = process.acceptor(usize::from(*partition)).floor;
            if floor < *said {
                return Err(format!("said floor {said}, remembers {floor}"));
            }
        }
        let slot = |key: &(u16, u64)| {
            let (partition, instance) = (usize::from(key.0), key.1);
            let live = instance >= process.acceptor(partition).floor;
            live.then(|| process.slot(partition, instance))
        };
        for (key, said) in &self.slot_promises {
            let Some(slot) = slot(key) else { continue };
            if slot.instance != key.1 || slot.promise < *said {
                return Err(format!("promised {said} for {key:?}, remembers {slot:?}"));
            }
        }
        for (key, (round, digest)) in &self.votes {
            let Some(slot) = slot(key) else { continue };
            let same = slot.vround == *round && slot.digest == *digest;
            if slot.instance != key.1 || !(same || slot.vround > *round) {
                return Err(format!("voted {round} for {key:?}, remembers {slot:?}"));
            }
            if wire::digest(&slot.value) != slot.digest {
                return Err(format!("the value of {key:?} is damaged: {slot:?}"));
            }
        }
        Ok(())
    }
}

/// Deliberate faults that the checker must detect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// The disk reports a sync that did not happen.
    LyingDisk,
    /// Answers are sent although their changes are not written.
    NotWritten,
}

fn random_packet(choose: &mut impl FnMut(u64) -> u64, floors: &mut [u64; 2]) -> Vec<u8> {
    let partition = choose(2) as u16;
    let floor = &mut floors[usize::from(partition)];
    let instance = (*floor + choose(24)).saturating_sub(3);
    let round = 1 + choose(12) + *floor / 4;
    match choose(16) {
        0 => phase1a(partition, None, round),
        1..=3 => phase1a(partition, Some(instance), round),
        4 => {
            *floor += choose(6);
            trim(partition, *floor)
        }
        5 | 6 => about(Type::Learn, partition, instance),
        7 => about(Type::Position, partition, 0),
        _ => {
            let len = if choose(6) == 0 {
                wire::VALUE_LEN_MAX_BYTES
            } else {
                choose(40) as usize
            };
            let value = vec![choose(200) as u8; len];
            phase2a(partition, instance, round, &value)
        }
    }
}

fn schedule(seed: u64, wrong: Wrong) -> Result<(), String> {
    let mut choose = chooser(seed);
    let mut machine = Machine::default();
    let mut floors = [FIRST; 2];
    let mut said = Said::default();
    let mut process = machine.start(EPOCH).map_err(|e| e.to_string())?;
    machine.storage.lie_about_sync(wrong == Wrong::LyingDisk);
    let mut now = 0;
    for _ in 0..200 {
        match choose(32) {
            0 => {
                drop(process);
                if choose(3) > 0 {
                    machine
                        .storage
                        .power_cut(CUTS[choose(3) as usize], &mut choose);
                }
                machine.storage.set_free_bytes(None);
                process = restart(&mut machine, &mut choose)?;
                said.check(&process)?;
            }
            1 => machine
                .storage
                .power_off_at(machine.storage.operations() + choose(5)),
            2 => {
                let failure = [Failure::Io, Failure::NoSpace][choose(2) as usize];
                machine
                    .storage
                    .fail_at(machine.storage.operations() + choose(4), failure);
            }
            3 => machine.storage.set_free_bytes(Some(choose(30_000))),
            4 => machine.storage.set_free_bytes(None),
            5..=12 => {
                now += 600_000;
                if wrong == Wrong::NotWritten {
                    let changes = process
                        .journal
                        .record(process.switch.registers(), &mut |_| {});
                    process.journal.synced(changes);
                }
                process.sync(now);
                for (_, packet) in process.answers() {
                    said.hear(&packet)?;
                }
            }
            _ => process.receive(&random_packet(&mut choose, &mut floors)),
        }
    }
    Ok(())
}

fn restart(machine: &mut Machine, choose: &mut impl FnMut(u64) -> u64) -> Result<Process, String> {
    loop {
        match machine.start(EPOCH) {
            Ok(process) if process.acceptor(0).voting => return Ok(process),
            Ok(_) => return Err("it is recovering".into()),
            Err(StartError::Storage(_)) => {
                machine.storage.power_cut(CUTS[choose(3) as usize], choose);
            }
            Err(other) => return Err(other.to_string()),
        }
    }
}

#[test]
fn no_schedule_makes_an_acceptor_contradict_itself() {
    for seed in 0..6_000 {
        if let Err(what) = schedule(seed, Wrong::Nothing) {
            panic!("seed {seed}: {what}");
        }
    }
}

#[test]
fn the_checker_notices_a_lying_disk_and_records_not_written() {
    for wrong in [Wrong::LyingDisk, Wrong::NotWritten] {
        let caught = (0..500)
            .filter(|seed| schedule(*seed, wrong).is_err())
            .count();
        assert!(caught > 250, "{caught} of 500");
    }
}

/// Cut the power at every operation between receiving, writing, syncing and answering.
#[test]
fn the_power_may_fail_at_any_operation() {
    let script = |machine: &mut Machine, said: &mut Said| -> Result<(), StorageError> {
        let Ok(mut process) = machine.start(EPOCH) else {
            return Ok(());
        };
        let mut choose = chooser(7);
        let mut floors = [FIRST; 2];
        for step in 0..200 {
            process.receive(&random_packet(&mut choose, &mut floors));
            if step % 3 == 0 {
                process.sync(0);
                for (_, packet) in process.answers() {
                    said.hear(&packet).unwrap();
                }
            }
        }
        Ok(())
    };
    let whole = Machine::default();
    script(
        &mut Machine {
            storage: whole.storage.clone(),
            noted_epoch: 0,
        },
        &mut Said::default(),
    )
    .unwrap();
    let operations = whole.storage.operations();
    assert!(operations > 100);
    for off_at in 0..operations {
        for cut in CUTS {
            let mut machine = Machine::default();
            let mut said = Said::default();
            machine.storage.power_off_at(off_at);
            script(&mut machine, &mut said).unwrap();
            machine.storage.power_cut(cut, &mut chooser(off_at));
            let process = restart(&mut machine, &mut chooser(off_at)).unwrap();
            said.check(&process)
                .unwrap_or_else(|what| panic!("off at {off_at}, {cut:?}: {what}"));
        }
    }
}
