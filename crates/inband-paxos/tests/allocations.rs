//! No memory is allocated for a value on its way through the hosts' state machines, once their buffers have grown to
//! full size. Sans-I/O: every call caused by a value or by time is measured.

use std::collections::{BTreeMap, VecDeque};

use inband_ground::auth::Digest;
use inband_paxos::dataplane::soft::{Geometry, Roles};
use inband_paxos::dataplane::wire;
use inband_paxos::host::{Host, HostConfig, LogStart};
use inband_paxos::log::{Burst, SubmitError};
use inband_paxos::outbox::{Dest, Outbox};
use inband_paxos::timing::{Micros, Timing};

const LEADER: u8 = 1;
const ACCEPTORS: [u8; 3] = [2, 3, 4];
const REPLICAS: [u8; 2] = [5, 6];
const NODES: u8 = 6;
const RING_SLOTS: usize = 64;
/// Values that each replica submits per step, and the duration of a step.
const VALUES: usize = 2;
const STEP_US: Micros = 50;
const VALUE_LEN_BYTES: usize = 64;
/// More than enough to elect a leader and to fill all buffers.
const WARM_UP_STEPS: usize = 10_000;
const STEPS: usize = 10_000;

struct Cluster {
    now: Micros,
    hosts: Vec<Host>,
    bursts: Vec<Burst>,
    out: Outbox,
    /// Receiver, sender, packet.
    network: VecDeque<(u8, u8, Vec<u8>)>,
    /// Allocations since the last check, by the call that made them.
    made: BTreeMap<String, u64>,
    decided: u64,
}

fn host(node: u8) -> Host {
    Host::new(
        0,
        HostConfig {
            node,
            epoch: 1,
            logs: vec![LogStart {
                first_instance: 1,
                applied: 0,
            }],
            acceptors: ACCEPTORS.to_vec(),
            replicas: REPLICAS.to_vec(),
            leaders: vec![vec![LEADER]],
            soft_roles: Roles {
                leader: node == LEADER,
                acceptor: ACCEPTORS.contains(&node),
                quorum: REPLICAS.contains(&node),
            },
            kernel_roles: Roles::default(),
            geometry: Geometry {
                partitions: 1,
                ring_slots: RING_SLOTS,
            },
            timing: Timing::default(),
            log_values_max: 1, // no more than a ring
            packet_len_max_bytes: inband_paxos::dataplane::wire::PACKET_LEN_MAX_BYTES,
            incarnation: 1,
            digest: Digest::PLAIN,
            voting: true,
        },
    )
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            now: 0,
            hosts: (1..=NODES).map(host).collect(),
            bursts: vec![Burst::new()],
            out: Outbox::new(),
            network: VecDeque::new(),
            made: BTreeMap::new(),
            decided: 0,
        }
    }

    /// Calls a host, record its allocations and deliver what it sends. `from`: the sender of the packet being handled.
    fn call<R>(
        &mut self,
        node: u8,
        from: u8,
        what: impl FnOnce() -> String,
        act: impl FnOnce(&mut Host, Micros, &mut Outbox, &mut [Burst]) -> R,
    ) -> R {
        let host = &mut self.hosts[usize::from(node) - 1];
        let mut result = None;
        let made = allocation_counter::measure(|| {
            result = Some(act(host, self.now, &mut self.out, &mut self.bursts));
        });
        if made.count_total > 0 {
            *self.made.entry(what()).or_default() += made.count_total;
        }
        for (dest, packet) in self.out.iter() {
            let to = match dest {
                Dest::Node(node) => node,
                Dest::Sender => from,
                other => panic!("a host names nodes, not {other:?}"),
            };
            self.network.push_back((to, node, packet.to_vec()));
        }
        self.out.clear();
        result.expect("it was called")
    }

    fn deliver(&mut self) {
        while let Some((to, from, packet)) = self.network.pop_front() {
            let kind = || format!("{:?}", wire::parse(&packet).map(|(header, _)| header.kind));
            self.call(to, from, kind, |host, now, out, _| {
                host.on_packet(now, &packet, out);
            });
        }
    }

    fn step(&mut self) {
        self.now += STEP_US;
        for node in 1..=NODES {
            let tick = || format!("tick of {node}");
            self.call(node, node, tick, |host, now, out, _| {
                if host.due(now) <= now {
                    host.on_tick(now, out);
                }
            });
        }
        for node in REPLICAS {
            for _ in 0..VALUES {
                let value = [node; VALUE_LEN_BYTES];
                let submitted = self.call(
                    node,
                    node,
                    || "submit".into(),
                    |host, now, out, _| host.submit(now, 0, &value, out),
                );
                match submitted {
                    Ok(_) | Err(SubmitError::WindowFull(_)) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
        self.deliver();
        for node in REPLICAS {
            let apply = || "apply".to_owned();
            self.decided += self.call(node, node, apply, |host, _, _, bursts| {
                host.take_bursts(bursts);
                let decided = bursts[0].decided();
                let count = decided.len() as u64;
                let mut last = 0;
                for value in decided {
                    last = value.instance;
                    if let Some(ticket) = value.ticket {
                        host.answered(ticket);
                    }
                }
                if count > 0 {
                    host.applied(0, last);
                }
                bursts[0].clear();
                count
            });
        }
    }
}

#[test]
fn a_value_allocates_nothing_on_its_way() {
    let mut cluster = Cluster::new();
    (0..WARM_UP_STEPS).for_each(|_| cluster.step());
    assert!(cluster.decided > 0, "a leader is found");
    cluster.made.clear();
    cluster.decided = 0;
    (0..STEPS).for_each(|_| cluster.step());
    let submitted = (STEPS * VALUES * REPLICAS.len()) as u64;
    let delivered = cluster.decided / REPLICAS.len() as u64;
    assert!(
        delivered * 2 > submitted,
        "{delivered} of {submitted} values are delivered"
    );
    assert_eq!(cluster.made, BTreeMap::new());
}
