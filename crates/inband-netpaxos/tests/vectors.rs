//! The packet vectors of serializer and minion, through the native roles and, as real frames, through the kernel's
//! programs; random packets, which both builds must handle alike; and threads.
#![allow(missing_docs)]

use std::collections::BTreeSet;

use crate::common::{rig, Rig, Tested};
use inband_ground::auth::{Gate, Keys};
use inband_ground::c::IB_DROP;
use inband_ground::soft::{Arrival, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_netpaxos::c::IB_NETPAXOS_TO_GROUP;
use inband_netpaxos::role::{soft, Kind, Registers};
use inband_netpaxos::wire::{emit, parse, Header, Type};
use inband_netpaxos::{NetPaxos, LOGS};
use inband_testing::frame::{may_load_bpf, NODE, THERE};
use inband_testing::random::{seed, Prng};
use inband_testing::role::{sign_at_random, two_keys, Pair};
use inband_testing::vector::{self, Step};
use serde::Deserialize;

pub const INCARNATION: u64 = 77;
pub const MINION: Kind = Kind::Minion {
    incarnation: INCARNATION,
};
const TYPE_AT: usize = 5;
pub const ARRIVAL: Arrival = Arrival {
    from: THERE,
    now_ns: 0,
    random: 0,
};

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Serializer,
    Minion,
}

impl Role {
    fn kind(self) -> Kind {
        match self {
            Role::Serializer => Kind::Serializer,
            Role::Minion => MINION,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    name: String,
    pub role: Role,
    passed: [u64; 2],
    packet: Vec<Packet>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Packet {
    r#in: (u8, u16, usize),
    reason: String,
    number: Option<u64>,
}

impl vector::Case for Case {
    type System = Tested;
    type Expected = ();

    fn name(&self) -> &str {
        &self.name
    }

    fn packets(&self) -> usize {
        self.packet.len()
    }

    fn reason(&self, at: usize) -> &str {
        &self.packet[at].reason
    }

    fn step(&self, at: usize, keys: Option<&Keys>) -> Step<u32> {
        let packet = &self.packet[at];
        let (kind, node, len_bytes) = packet.r#in;
        let came = Header {
            node,
            client: 7,
            request: at as u64 + 100,
            low: 3,
            reply_to: 5,
            instance: 9,
            ..Header::of(Type::Request)
        };
        let gate = Gate::of::<NetPaxos>(keys.copied(), LOGS);
        let value = vec![0xa5; len_bytes];
        let signed = |header: &Header, kind: u8| {
            let mut packet = emit(header, &value);
            packet[TYPE_AT] = kind;
            gate.sign(&mut packet);
            packet
        };
        let leaves = packet.number.map(|number| {
            let sent = Header {
                node: NODE.into(),
                number,
                ..came
            };
            match self.role {
                Role::Serializer => (sent, Type::Request),
                Role::Minion => {
                    let incarnation = INCARNATION;
                    (
                        Header {
                            incarnation,
                            ..sent
                        },
                        Type::Numbered,
                    )
                }
            }
        });
        let out = leaves.map(|(header, kind)| signed(&header, kind as u8));
        Step {
            packet: signed(&came, kind),
            frame: None,
            arrival: ARRIVAL,
            verdict: match out {
                Some(_) => IB_NETPAXOS_TO_GROUP,
                None => IB_DROP,
            },
            reason: packet.reason.clone(),
            out: out.unwrap_or_default(),
        }
    }

    fn native(&self) -> (Box<Soft<NetPaxos>>, usize) {
        (Box::new(soft(NODE, self.role.kind())), LOGS)
    }

    fn rig(&self, keys: Option<Keys>) -> Rig {
        rig(self.role.kind(), keys)
    }

    fn shares_rig(&self, other: &Case) -> bool {
        self.role == other.role
    }

    fn prepare(&self, registers: &Registers) {
        registers.clear();
        registers.restore(self.passed[0]);
    }

    fn check(&self, at: usize, registers: &Registers, (): &mut ()) {
        if at + 1 == self.packet.len() {
            assert_eq!(registers.passed(), self.passed[1]);
        }
    }
}

#[test]
fn every_vector_runs_natively() {
    vector::run_natively::<Case>("netpaxos");
}

#[test]
fn every_vector_runs_in_the_kernel() {
    vector::run_in_kernel::<Case>("netpaxos", None);
    vector::run_in_kernel::<Case>("netpaxos", Some(1));
}

#[test]
fn every_reason_has_a_vector() {
    vector::every_reason_has_a_vector::<Case>("netpaxos", "netpaxos_", &[]);
}

/// A packet of a few sessions, without a tag. One in fifty is of another log.
pub fn random_packet(random: &mut Prng) -> Vec<u8> {
    let came = Header {
        log: u16::from(random.below(50) == 0),
        node: random.below(3) as u16,
        client: random.below(5),
        request: random.below(5000),
        ..Header::of(Type::ALL[random.below(2) as usize])
    };
    let value = vec![random.below(256) as u8; random.below(1300) as usize];
    emit(&came, &value)
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    if !may_load_bpf() {
        return;
    }
    let what = seed();
    let mut random = Prng(what);
    let keys = Some(two_keys());
    for kind in [Kind::Serializer, MINION] {
        let mut pair = Pair::<Tested>::new(Box::new(soft(NODE, kind)), rig(kind, keys), keys, LOGS);
        for _ in 0..20_000 {
            let mut packet = random_packet(&mut random);
            sign_at_random(&mut random, &mut packet);
            pair.step(&packet, ARRIVAL, &format_args!("INBAND_SEED={what}"));
        }
        let [native, kernel] = pair.registers().map(Registers::passed);
        assert_eq!(native, kernel, "INBAND_SEED={what}");
        pair.compare_counters("at the end");
    }
}

/// No number may be given twice, however many threads handle packets.
#[test]
fn threads_get_different_numbers() {
    const EACH: usize = 20_000;
    let minion = soft(NODE, MINION);
    let came = emit(&Header::of(Type::Request), b"x");
    let pass = || {
        let numbers = (0..EACH).map(|_| {
            let mut buffer = [0; PACKET_LEN_MAX_BYTES];
            buffer[..came.len()].copy_from_slice(&came);
            let (result, len_bytes) = minion.handle(&mut buffer, came.len(), ARRIVAL);
            assert_eq!(result.verdict, IB_NETPAXOS_TO_GROUP);
            parse(&buffer[..len_bytes]).unwrap().0.number
        });
        numbers.collect::<Vec<u64>>()
    };
    let all = std::thread::scope(|scope| {
        let threads = [(); 4].map(|()| scope.spawn(pass));
        threads.map(|thread| thread.join().unwrap()).concat()
    });
    let different: BTreeSet<u64> = all.iter().copied().collect();
    assert_eq!(different.len(), 4 * EACH);
}
