//! Scripts for the test benches of Paxos's roles on other targets than this machine: the packet vectors, and random packets
//! with the results of the native build.

use super::sequence::{self, Sequence};
use super::vectors::{self, expected_packet, packet_of, verdict_of, Case};
use super::{Outcome, Prng, Registers, HERE, NODE, THERE};
use inband_ground::auth::Gate;
use inband_ground::xdp::rig::udp_frame;
use inband_paxos::dataplane::soft::{Roles, SoftSwitch, Verdict};
use inband_paxos::dataplane::wire::Type;
use inband_paxos::dataplane::Paxos;
use inband_testing::script::{Script, To, Words};
use inband_testing::vector;

/// A role on a target, by its name there, and the number of cases that it may fail. These numbers may only become
/// smaller.
pub struct Block {
    pub name: &'static str,
    /// The folder next to the role's C code.
    pub target: &'static str,
    pub roles: Roles,
    /// Random packets from which the role would read a longer value get a shorter one.
    pub value_len_max_bytes: usize,
    pub unsupported_max: usize,
}

pub const NO_ROLES: Roles = Roles {
    leader: false,
    acceptor: false,
    quorum: false,
};

pub const ACCEPTOR: Roles = Roles {
    acceptor: true,
    ..NO_ROLES
};

pub const LEADER: Roles = Roles {
    leader: true,
    ..NO_ROLES
};

pub const QUORUM: Roles = Roles {
    quorum: true,
    ..NO_ROLES
};

/// A random run goes on until it has met every reason that it must, but at most this many times its packets.
const MET_WITHIN: usize = 20;
/// Packets between two comparisons of registers.
const COMPARE_EVERY: usize = 40;

impl Block {
    /// The words accessible through the host's port: a role's registers; for an acceptor also votes and values.
    fn words(&self, registers: &Registers) -> Words {
        if self.roles.quorum {
            return of_quorum(registers);
        }
        let words = |p| match (self.roles.leader, self.roles.acceptor) {
            (true, _) => registers.leader.words(p)[..4].to_vec(),
            (_, true) => registers.acceptor.words(p)[..5].to_vec(),
            _ => Vec::new(),
        };
        let slots = match self.roles.acceptor {
            true => registers.ring.slots().count(),
            false => 0,
        };
        let slots: Vec<_> = (0..slots).map(|i| registers.ring.words(i)).collect();
        let value = |slot: &Vec<u64>| {
            let bytes: Vec<u8> = slot[9..].iter().flat_map(|w| w.to_le_bytes()).collect();
            bytes[..usize::from(slot[8] as u16)].to_vec()
        };
        Words {
            values: slots.iter().map(value).collect(),
            spaces: [
                (0..registers.leader.count()).map(words).collect(),
                slots.iter().map(|slot| slot[1..9].to_vec()).collect(),
                Vec::new(),
            ],
        }
    }
}

/// A quorum counter's settings (epoch and majority), its counts, and the bits of the nodes.
fn of_quorum(registers: &Registers) -> Words {
    let config = registers.quorum.words(0);
    let bits = config[2..].iter().flat_map(|word| word.to_ne_bytes());
    let counts = 0..registers.counts.count();
    Words {
        values: Vec::new(),
        spaces: [
            vec![config[..2].to_vec()],
            counts
                .map(|i| registers.counts.words(i)[1..7].to_vec())
                .collect(),
            bits.map(|bit| vec![u64::from(bit)]).collect(),
        ],
    }
}

fn add_frame(script: &mut Script, frame: &[u8], outcome: &Outcome) {
    let to = match outcome.verdict {
        Verdict::Drop => To::Nobody,
        Verdict::Pass | Verdict::Deliver => To::Host,
        Verdict::Reply => To::Sender,
        _ => To::Group,
    };
    script.frame(frame, to, &outcome.packet, outcome.reason);
}

/// The cases of hosts with this role.
fn cases_of(block: &Block) -> Vec<(String, Case)> {
    let mut cases = vectors::cases();
    cases.retain(|(_, case)| match block.name {
        "none" => case.roles.is_empty(),
        name => case.roles.iter().any(|role| role == name),
    });
    cases
}

/// Adds a case to the bench's script.
fn add_case(block: &Block, script: &mut Script, name: &str, case: &Case) {
    let roles = vectors::roles_of(&case.roles);
    let expected = SoftSwitch::new(NODE, roles, vectors::GEOMETRY);
    case.before.apply(expected.registers());
    script.set(block.words(expected.registers()));
    for (i, step) in case.packet.iter().enumerate() {
        script.note(format!("{name}, packet {i}: {}", case.why));
        let frame = udp_frame(THERE, HERE, &packet_of(step).2);
        let frame = step
            .frame
            .as_ref()
            .map_or(frame.clone(), |damage| damage.of(frame));
        // A frame that is not the role's is not counted.
        let reason = match step.verdict.as_str() {
            "untouched" => "",
            _ => Box::leak(step.reason.clone().into_boxed_str()),
        };
        let outcome = Outcome {
            verdict: verdict_of(&step.verdict),
            reason,
            packet: expected_packet(case, step),
        };
        add_frame(script, &frame, &outcome);
        step.after.apply(expected.registers());
        script.compare(block.words(expected.registers()));
    }
    script.compare_all(block.words(expected.registers()));
}

/// What a long random run must cover for any role.
const MET: [&str; 10] = [
    "bad_instance",
    "bad_length",
    "bad_magic",
    "bad_node",
    "bad_partition",
    "bad_round",
    "bad_tag",
    "bad_truncated",
    "bad_version",
    "passed_up",
];
/// ... and for roles that read values and have a floor.
const MET_BY_LEADER_AND_ACCEPTOR: [&str; 4] = [
    "bad_checksum",
    "floor_known",
    "floor_raised",
    "position_answered",
];
const MET_BY_LEADER: [&str; 4] = [
    "leader_deposed",
    "leader_not_active",
    "leader_stamped",
    "leader_window_full",
];
const MET_BY_ACCEPTOR: [&str; 12] = [
    "acceptor_below_floor",
    "acceptor_beyond_ring",
    "acceptor_learn_answered",
    "acceptor_learn_no_vote",
    "acceptor_nack",
    "acceptor_nack_slot",
    "acceptor_promised",
    "acceptor_promised_slot",
    "acceptor_recovering",
    "acceptor_vote_repeated",
    "acceptor_voted",
    "wrong_epoch",
];
const MET_BY_QUORUM: [&str; 6] = [
    "quorum_counted",
    "quorum_duplicate",
    "quorum_late",
    "quorum_lower_round",
    "quorum_old_instance",
    "quorum_reached",
];

/// Whether the block can hold the values of this step.
fn fits(block: &Block, step: &sequence::Step) -> bool {
    let len_bytes = match step {
        sequence::Step::Packet(packet) if packet.len() >= 14 => {
            let read = [
                (Type::Request, block.roles.leader),
                (Type::Phase2A, block.roles.acceptor),
            ];
            let is_read = read.iter().any(|(t, on)| *on && packet[5] == *t as u8);
            usize::from(u16::from_be_bytes([packet[12], packet[13]])) * usize::from(is_read)
        }
        sequence::Step::Host(_, sequence::HostStep::Adopt { slot, .. }) => slot.value.len(),
        _ => 0,
    };
    len_bytes <= block.value_len_max_bytes
}

/// What a long random run of a host with these roles must meet.
pub fn met_by(roles: Roles) -> Vec<&'static str> {
    let lists: [(bool, &[&str]); 5] = [
        (true, &MET),
        (roles.leader || roles.acceptor, &MET_BY_LEADER_AND_ACCEPTOR),
        (roles.leader, &MET_BY_LEADER),
        (roles.acceptor, &MET_BY_ACCEPTOR),
        (roles.quorum, &MET_BY_QUORUM),
    ];
    let mine = lists.iter().filter(|(mine, _)| *mine);
    mine.flat_map(|(_, list)| list.iter().copied()).collect()
}

/// At least this many random packets and steps of the host, with the results of the native build; more until all the
/// reasons `met` have occurred.
pub fn random_script(block: &Block, packets: usize, met: &[&str], seed: u64) -> Script {
    let partitions = sequence::GEOMETRY.partitions;
    // The sequence is derived from an acceptor's registers, whichever role it is for.
    let native = SoftSwitch::new(NODE, block.roles, sequence::GEOMETRY);
    let registers = native.registers();
    sequence::restart_all(registers);
    let mut gate = Gate::of::<Paxos>(None, partitions);
    let (mut prng, mut sequence) = (Prng(seed), Sequence::default());
    let mut script = Script::new(partitions);
    script.set(block.words(registers));
    let lacks = |script: &Script| met.iter().any(|r| !script.reasons.contains_key(*r));
    while script.frames < packets || lacks(&script) {
        assert!(
            script.frames < MET_WITHIN * packets,
            "not met: {met:?} {:?}",
            script.reasons
        );
        let mut record = prng.record();
        let mut step = sequence.step(&record, registers);
        if !fits(block, &step) {
            // The same with a value of less than 64 bytes.
            record[11] %= 128;
            step = sequence.step(&record, registers);
        }
        if !fits(block, &step) {
            continue;
        }
        match step {
            sequence::Step::Host(partition, step) => {
                script.compare(block.words(registers));
                step.apply(partition, registers);
                script.set(block.words(registers));
            }
            sequence::Step::Packet(mut packet) => {
                // Some are damaged in transit.
                super::tag(&mut packet);
                if record[15] >= 0xfc && !packet.is_empty() {
                    let at = usize::from(record[14]) % packet.len();
                    packet[at] ^= 1 << (record[13] % 8);
                }
                let frame = udp_frame(THERE, HERE, &packet);
                let outcome = super::native_behind(&mut gate, &native, &packet);
                script.note(format!("packet {} of INBAND_SEED={seed}", script.frames));
                add_frame(&mut script, &frame, &outcome);
                if !matches!(outcome.verdict, Verdict::Drop | Verdict::Pass) {
                    sequence.answered(&outcome.packet);
                }
                if script.frames % COMPARE_EVERY == 0 {
                    script.compare(block.words(registers));
                }
            }
        }
    }
    script.compare_all(block.words(registers));
    script
}

/// All cases of the block's role but those that it is known to fail, and what to print about them.
pub fn vectors_script(block: &Block) -> (Script, String) {
    let cases = cases_of(block);
    let names: Vec<&str> = cases.iter().map(|(name, _)| name.as_str()).collect();
    let listed = vector::unsupported("paxos", block.target, block.name, &names);
    assert!(
        listed.len() <= block.unsupported_max,
        "the list may only become shorter"
    );
    let mut script = Script::new(vectors::GEOMETRY.partitions);
    for (name, case) in &cases {
        if !listed.contains(name) {
            add_case(block, &mut script, name, case);
        }
    }
    let passed = cases.len() - listed.len();
    let summary = format!("{}: {passed} of {} vectors", block.name, cases.len());
    (script, summary)
}
