//! The acceptor in `sync` mode: whatever happens to disk and power, it never contradicts an answer that it has sent.

mod schedules;

use inband_paxos::dataplane::registers::{AcceptorView, SlotView};
use inband_paxos::dataplane::soft::{Geometry, Roles, SoftSwitch};
use inband_paxos::dataplane::wire::{self, flag, Header, Type, PACKET_LEN_MAX_BYTES};
use inband_paxos::journal::{
    AcceptorDisk, AcceptorJournal, AcceptorStart, DiskLimits, Holds, Reconfigured, RestoreError,
    Restored, StartError, Synced,
};
use inband_paxos::outbox::Dest;
use inband_storage::{Cut, JournalConfig, SimulatedDisk, Storage};
use inband_testing::random::chooser;

const EPOCH: u32 = 3;
const FIRST: u64 = 10;
const NODE: u8 = 2;
const ASKER: u16 = 9;
const GEOMETRY: Geometry = Geometry {
    partitions: 2,
    ring_slots: 64,
};
const ACCEPTOR: Roles = Roles {
    leader: false,
    acceptor: true,
    quorum: false,
};
const LIMITS: DiskLimits = DiskLimits {
    journal: JournalConfig {
        segment_bytes: 64 << 10,
        extend_bytes: 8 << 10,
        snapshot_commit_bytes: 16 << 10,
        witness_sync_commits: 4,
    },
    compact_min_bytes: 128 << 10,
};
const CUTS: [Cut; 3] = [Cut::Unsynced, Cut::Torn, Cut::Scattered];

type Answer = (Dest, Vec<u8>);

struct Process {
    switch: SoftSwitch,
    journal: AcceptorJournal,
    disk: AcceptorDisk,
}

/// What outlives a process: its disk, and the note of the epoch, which is on a separate disk.
#[derive(Default)]
struct Machine {
    storage: SimulatedDisk,
    noted_epoch: u32,
}

impl Machine {
    fn open(&self, epoch: u32) -> Result<(AcceptorDisk, AcceptorStart), StartError> {
        let mut storage = || Ok(Box::new(self.storage.clone()) as Box<dyn Storage>);
        let has_entered = self.noted_epoch >= epoch;
        AcceptorDisk::open(&mut storage, LIMITS, GEOMETRY, epoch, has_entered)
    }

    fn start(&mut self, epoch: u32) -> Result<Process, StartError> {
        let (mut disk, start) = self.open(epoch)?;
        let switch = SoftSwitch::new(NODE, ACCEPTOR, GEOMETRY);
        let journal = AcceptorJournal::new(GEOMETRY);
        match &start.restored {
            Some(restored) => restored.install(GEOMETRY, switch.registers()),
            None => {
                for partition in 0..GEOMETRY.partitions {
                    let acceptor = &switch.registers().acceptor;
                    acceptor.start(partition, u64::from(epoch), FIRST, start.voting);
                }
                disk.enter(&journal, switch.registers())?;
            }
        }
        self.noted_epoch = self.noted_epoch.max(epoch);
        Ok(Process {
            switch,
            journal,
            disk,
        })
    }
}

impl Process {
    fn receive(&mut self, packet: &[u8]) {
        let (header, _) = wire::parse(packet).unwrap();
        assert!(AcceptorJournal::is_for_acceptor(&header));
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        buffer[..packet.len()].copy_from_slice(packet);
        self.journal
            .handle(&self.switch, &header, &mut buffer, packet.len());
    }

    fn sync(&mut self, now: u64) -> Option<Synced> {
        let wants = self.journal.wants_sync(now);
        wants.then(|| {
            self.disk
                .sync(now, &mut self.journal, self.switch.registers())
        })
    }

    fn answers(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.journal
            .release(&mut |dest, packet| answers.push((dest, packet.to_vec())));
        answers
    }

    /// Receive, sync, answer.
    fn ask(&mut self, packet: &[u8]) -> Vec<Answer> {
        self.receive(packet);
        self.sync(0);
        self.answers()
    }

    fn acceptor(&self, partition: usize) -> AcceptorView {
        self.switch.registers().acceptor.acceptor(partition)
    }

    fn slot(&self, partition: usize, instance: u64) -> SlotView {
        let at = partition * GEOMETRY.ring_slots + (instance % 64) as usize;
        self.switch.registers().ring.slot(at).unwrap()
    }

    /// The live state: registers, and slots from the floor on.
    fn state(&self) -> Vec<(AcceptorView, Vec<SlotView>)> {
        (0..GEOMETRY.partitions)
            .map(|partition| {
                let view = self.acceptor(partition);
                let window = view.floor..view.floor + 64;
                let slots = window
                    .map(|instance| (instance, self.slot(partition, instance)))
                    .filter(|(instance, slot)| slot.instance == *instance)
                    .map(|(_, slot)| slot);
                (view, slots.collect())
            })
            .collect()
    }
}

fn packet(kind: Type, change: impl FnOnce(&mut Header), value: &[u8]) -> Vec<u8> {
    let mut header = Header::new(kind, ASKER, EPOCH);
    header.client_id = 77;
    header.client_seq = 5;
    header.client_low = 4;
    change(&mut header);
    header.digest = wire::digest(value);
    let mut bytes = Vec::new();
    wire::emit(&header, value, &mut bytes);
    bytes
}

fn phase2a(partition: u16, instance: u64, round: u64, value: &[u8]) -> Vec<u8> {
    let change = |h: &mut Header| {
        h.partition = partition;
        h.instance = instance;
        h.round = round;
    };
    packet(Type::Phase2A, change, value)
}

fn phase1a(partition: u16, instance: Option<u64>, round: u64) -> Vec<u8> {
    let change = |h: &mut Header| {
        h.partition = partition;
        h.round = round;
        if let Some(instance) = instance {
            h.instance = instance;
            h.flags = flag::SLOT;
        }
    };
    packet(Type::Phase1A, change, b"")
}

fn trim(partition: u16, floor: u64) -> Vec<u8> {
    let change = |h: &mut Header| {
        h.partition = partition;
        h.floor = floor;
    };
    packet(Type::Trim, change, b"")
}

fn about(kind: Type, partition: u16, instance: u64) -> Vec<u8> {
    let change = |h: &mut Header| {
        h.partition = partition;
        h.instance = instance;
    };
    packet(kind, change, b"")
}

fn kinds(answers: &[Answer]) -> Vec<Type> {
    let headers = answers.iter().map(|(_, p)| wire::parse(p).unwrap().0);
    headers.map(|header| header.kind).collect()
}

#[test]
fn an_answer_leaves_when_all_before_it_is_synced_repeats_included() {
    let mut machine = Machine::default();
    let mut process = machine.start(EPOCH).unwrap();
    let before = machine.storage.syncs();
    process.receive(&phase2a(0, 10, 7, b"value"));
    process.receive(&about(Type::Learn, 0, 10));
    process.receive(&about(Type::Position, 0, 0));
    process.receive(&phase2a(0, 11, 6, b"late"));
    process.receive(&phase1a(0, None, 9));
    process.receive(&phase2a(0, 12, 8, b"refused"));
    assert_eq!(process.answers(), []);
    assert!(matches!(process.sync(0), Some(Synced::Done)));
    let answers = process.answers();
    let expected = [
        Type::Phase2B,
        Type::Phase2B,
        Type::Position,
        Type::Phase2B,
        Type::Phase1B,
        Type::Nack,
    ];
    assert_eq!(kinds(&answers), expected);
    assert_eq!(answers[0].0, Dest::Learners);
    assert_eq!(answers[1].0, Dest::Node(ASKER as u8));
    assert_eq!(machine.storage.syncs() - before, 1, "one commit for all");
    // Nothing has changed since: a retransmission may be sent at once, without a sync.
    process.receive(&about(Type::Learn, 0, 10));
    assert_eq!(kinds(&process.answers()), [Type::Phase2B]);
    assert!(process.sync(0).is_none());
}

#[test]
fn a_restarted_acceptor_is_what_it_was_and_votes_in_the_same_epoch() {
    let mut machine = Machine::default();
    let mut process = machine.start(EPOCH).unwrap();
    process.ask(&phase1a(0, None, 5));
    process.ask(&phase1a(1, Some(14), 6));
    let noop = packet(
        Type::Phase2A,
        |h| {
            h.instance = 13;
            h.round = 8;
            h.flags = flag::NOOP;
        },
        b"",
    );
    process.ask(&noop);
    process.ask(&phase2a(0, 11, 7, &[9; wire::VALUE_LEN_MAX_BYTES]));
    process.ask(&phase2a(1, 40, 7, b"x"));
    process.ask(&trim(1, 20));
    process.ask(&phase2a(1, 83, 7, b"in the slot of 19"));
    let state = process.state();
    assert!(state[0].0.promise == 5 && state[1].0.floor == 20 && state[0].1.len() == 2);
    drop(process);
    machine.storage.power_cut(Cut::Unsynced, &mut chooser(1));
    let mut process = machine.start(EPOCH).unwrap();
    assert_eq!(process.state(), state);
    assert_eq!(
        kinds(&process.ask(&phase2a(0, 12, 4, b"late"))),
        [Type::Nack]
    );
    assert_eq!(
        kinds(&process.ask(&phase2a(0, 12, 9, b"new"))),
        [Type::Phase2B]
    );
}

#[test]
fn a_full_disk_stops_votes_and_loses_nothing() {
    let mut machine = Machine::default();
    let mut process = machine.start(EPOCH).unwrap();
    assert_eq!(
        kinds(&process.ask(&phase2a(0, 10, 7, b"before"))),
        [Type::Phase2B]
    );
    machine.storage.set_free_bytes(Some(0));
    let big = [3; wire::VALUE_LEN_MAX_BYTES];
    let mut instance = 11;
    // Preallocated space still suffices for some votes.
    while kinds(&process.ask(&phase2a(0, instance, 7, &big))) == [Type::Phase2B] {
        instance += 1;
        assert!(instance < 40);
    }
    assert!(process.journal.is_stalled() && process.disk.failures() == 1);
    assert_eq!(process.ask(&phase2a(0, instance + 1, 7, b"refused")), []);
    assert_eq!(process.ask(&about(Type::Learn, 0, instance)), []);
    assert_eq!(process.journal.refused(), 2);
    let again = process.journal.due();
    assert!(matches!(process.sync(again), Some(Synced::FailedAgain(_))));
    assert_eq!(process.answers(), []);
    machine.storage.set_free_bytes(None);
    let again = process.journal.due();
    assert!(matches!(process.sync(again), Some(Synced::Again)));
    // The pending vote is sent; refused packets were never seen.
    let answers = process.answers();
    assert_eq!(kinds(&answers), [Type::Phase2B]);
    assert_eq!(wire::parse(&answers[0].1).unwrap().0.instance, instance);
    assert_eq!(
        kinds(&process.ask(&phase2a(0, instance + 1, 7, b"on"))),
        [Type::Phase2B]
    );
    let state = process.state();
    drop(process);
    machine.storage.power_cut(Cut::Unsynced, &mut chooser(1));
    assert_eq!(machine.start(EPOCH).unwrap().state(), state);
}

/// Returns whether the acceptor votes, and still does after a restart.
fn votes(machine: &mut Machine, epoch: u32) -> bool {
    let mut vote = phase2a(0, 15, 7, b"x");
    vote[wire_epoch()].copy_from_slice(&epoch.to_be_bytes());
    let first = !machine.start(epoch).unwrap().ask(&vote).is_empty();
    assert_eq!(!machine.start(epoch).unwrap().ask(&vote).is_empty(), first);
    first
}

/// Position of the epoch in a packet.
fn wire_epoch() -> std::ops::Range<usize> {
    let with = |epoch| {
        let mut bytes = Vec::new();
        wire::emit(&Header::new(Type::Request, 1, epoch), b"", &mut bytes);
        bytes
    };
    let (zero, ones) = (with(0), with(u32::MAX));
    let start = (0..zero.len()).find(|at| zero[*at] != ones[*at]).unwrap();
    start..start + 4
}

#[test]
fn a_damaged_journal_means_recovering_until_the_next_epoch() {
    let mut machine = Machine::default();
    machine.start(EPOCH).unwrap().ask(&phase2a(0, 10, 7, b"x"));
    let segment = machine.storage.list().unwrap()[0].clone();
    machine.storage.corrupt(&segment, 100, 1);
    let (_, start) = machine.open(EPOCH).unwrap();
    assert!(start.damage.is_some() && !start.voting);
    assert!(!votes(&mut machine, EPOCH));
    assert!(votes(&mut machine, EPOCH + 1));
}

#[test]
fn an_emptied_journal_means_recovering_until_the_next_epoch() {
    let mut machine = Machine::default();
    machine.start(EPOCH).unwrap().ask(&phase2a(0, 10, 7, b"x"));
    machine.storage = SimulatedDisk::new();
    assert!(!votes(&mut machine, EPOCH));
    assert!(votes(&mut machine, EPOCH + 1));
}

#[test]
fn a_power_cut_before_the_epoch_is_entered_forgets_nothing() {
    for off_at in 0.. {
        let mut machine = Machine::default();
        machine.storage.power_off_at(off_at);
        let started = machine.start(EPOCH).is_ok();
        let cut = CUTS[off_at as usize % 3];
        machine.storage.power_cut(cut, &mut chooser(off_at));
        assert!(votes(&mut machine, EPOCH), "off at {off_at}");
        if started {
            assert!(off_at > 5);
            return;
        }
    }
}

#[test]
fn a_new_epoch_begins_with_an_empty_ring() {
    let mut machine = Machine::default();
    machine.start(EPOCH).unwrap().ask(&phase2a(0, 10, 7, b"x"));
    let process = machine.start(EPOCH + 1).unwrap();
    assert_eq!(process.acceptor(0).epoch, u64::from(EPOCH) + 1);
    assert_eq!(process.slot(0, 10).vround, 0);
    drop(process);
    assert_eq!(machine.start(EPOCH + 1).unwrap().slot(0, 10).vround, 0);
    let old = machine.open(EPOCH).err();
    assert!(matches!(
        old,
        Some(StartError::Epoch {
            journal: 4,
            config: 3
        })
    ));
}

#[test]
fn a_configuration_that_does_not_fit_is_refused() {
    let mut machine = Machine::default();
    machine.start(EPOCH).unwrap().ask(&phase2a(1, 73, 7, b"x"));
    let open = |partitions, ring_slots| {
        let geometry = Geometry {
            partitions,
            ring_slots,
        };
        let mut storage = || Ok(Box::new(machine.storage.clone()) as Box<dyn Storage>);
        AcceptorDisk::open(&mut storage, LIMITS, geometry, EPOCH, true).err()
    };
    assert!(open(2, 64).is_none() && open(2, 128).is_none());
    let error = open(1, 64).unwrap();
    assert!(matches!(
        error,
        StartError::Restore(RestoreError::Partitions {
            partition: 1,
            logs: 1
        })
    ));
    let error = open(2, 32).unwrap();
    assert!(matches!(
        error,
        StartError::Restore(RestoreError::Ring { instance: 73, .. })
    ));
}

#[test]
fn the_journal_stays_short() {
    let mut machine = Machine::default();
    let mut process = machine.start(EPOCH).unwrap();
    let mut longest = 0;
    for instance in FIRST..5_000 {
        process.receive(&phase2a((instance % 2) as u16, instance, 7, &[1; 200]));
        if instance % 8 == 0 {
            process.receive(&trim(0, instance.saturating_sub(20)));
            process.receive(&trim(1, instance.saturating_sub(20)));
            process.sync(0);
            assert!(process.answers().len() >= 4);
        }
        longest = longest.max(machine.storage.used_bytes());
    }
    assert!(longest < 400 << 10, "{longest}");
    process.sync(0);
    let state = process.state();
    drop(process);
    assert_eq!(machine.start(EPOCH).unwrap().state(), state);
}

/// The state that a reconfiguration leaves is written atomically, whenever the power fails, and nothing of the previous
/// state comes back.
#[test]
fn a_reconfiguration_is_kept_whole_or_not_at_all() {
    let holds = |epoch, base| Some(Holds { epoch, base });
    let prepare = || {
        let mut machine = Machine::default();
        let mut process = machine.start(EPOCH).unwrap();
        for instance in FIRST..FIRST + 40 {
            process.ask(&phase2a((instance % 2) as u16, instance, 7, &[1; 1000]));
        }
        (machine, process)
    };
    let reconfigure = |process: &mut Process| {
        let registers = process.switch.registers().clone();
        for log in 0..GEOMETRY.partitions {
            registers.acceptor.seal(log, u64::from(EPOCH + 1));
            registers.acceptor.adopt(log, 9, FIRST, FIRST + 60);
            for instance in FIRST..FIRST + 64 {
                let vote = SlotView {
                    instance,
                    promise: 9,
                    vround: 8,
                    digest: wire::digest(&[2; 1000]),
                    value: vec![2; 1000],
                    ..SlotView::default()
                };
                let is_empty = instance % 3 == 0;
                let view = if is_empty { SlotView::default() } else { vote };
                let at = log * GEOMETRY.ring_slots + (instance % 64) as usize;
                assert!(registers.ring.replace(at, &view));
            }
            registers.acceptor.adopted(log, FIRST + 60);
        }
        let journal = &mut process.journal;
        journal.reconfigured(Reconfigured::Slots, holds(EPOCH + 1, EPOCH));
    };
    let resume = |machine: &Machine| {
        let mut storage = || Ok(Box::new(machine.storage.clone()) as Box<dyn Storage>);
        let (_, start) = AcceptorDisk::resume(&mut storage, LIMITS, GEOMETRY).unwrap();
        assert!(start.damage.is_none() && !start.voting);
        start.restored.unwrap()
    };
    let state_of = |restored: &Restored| {
        let switch = SoftSwitch::new(NODE, ACCEPTOR, GEOMETRY);
        restored.install(GEOMETRY, switch.registers());
        let (disk, _) = Machine::default().open(EPOCH).unwrap();
        let journal = AcceptorJournal::new(GEOMETRY);
        Process {
            switch,
            journal,
            disk,
        }
        .state()
    };
    let (machine, mut process) = prepare();
    let old = process.state();
    let first_operation = machine.storage.operations();
    reconfigure(&mut process);
    let new = process.state();
    assert!(matches!(process.sync(0), Some(Synced::Done)));
    let operations = machine.storage.operations() - first_operation;
    let restored = resume(&machine);
    assert_eq!(restored.holds(), holds(EPOCH + 1, EPOCH));
    assert_eq!(state_of(&restored), new);
    let mut seen = [0; 2];
    for operation in 0..operations {
        for cut in CUTS {
            let (mut machine, mut process) = prepare();
            let at = machine.storage.operations() + operation;
            machine.storage.power_off_at(at);
            reconfigure(&mut process);
            process.sync(0);
            drop(process);
            machine.storage.power_cut(cut, &mut chooser(operation));
            let restored = resume(&machine);
            let is_new = restored.holds() == holds(EPOCH + 1, EPOCH);
            assert!(is_new || restored.holds() == holds(EPOCH, 0));
            let state = state_of(&restored);
            assert_eq!(state, if is_new { new.clone() } else { old.clone() });
            seen[usize::from(is_new)] += 1;
            if !is_new {
                // Later records are not taken for a part of what was cut off.
                let mut process = machine.start(EPOCH).unwrap();
                process.ask(&phase2a(0, FIRST + 50, 7, b"later"));
                let state = process.state();
                drop(process);
                machine.storage.power_cut(cut, &mut chooser(operation));
                assert_eq!(machine.start(EPOCH).unwrap().state(), state);
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
