//! `inband netpaxos serializer` and `minion`.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use inband_ground::soft::{Arrival, Soft};
use inband_ground::xdp::alone::HostSpec;
use inband_ground::xdp::multicast::Peer;
use inband_host::role_process::RoleArgs;
use inband_netpaxos::c::IB_NETPAXOS_TO_GROUP;
use inband_netpaxos::role::{soft, Kind};
use inband_netpaxos::status::{Ask, Reply, Status};
use inband_netpaxos::wire::node;
use inband_netpaxos::xdp::{attach, Attached};
use inband_netpaxos::NetPaxos;

use super::process::{lock, wall_clock, Process, ProcessArgs, Turn, PACKETS_OF_A_TURN};

/// How often the receivers' hardware addresses are confirmed.
const REFRESH: Duration = Duration::from_secs(1);

/// Options of a serializer and of a minion.
#[derive(Debug, Args)]
pub struct RoleCommand {
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    role: RoleArgs,
}

/// The role, run in this process or in the kernel.
enum Role {
    Soft(Box<Soft<NetPaxos>>),
    Kernel(Box<Attached>),
}

impl Role {
    fn passed(&self) -> u64 {
        match self {
            Role::Soft(soft) => soft.registers().passed(),
            Role::Kernel(program) => program.registers().passed(),
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = match self {
            Role::Soft(soft) => soft.counters(),
            Role::Kernel(program) => program.counters().unwrap_or_default(),
        };
        let named = counters.into_iter();
        named.map(|(name, n)| (name.to_owned(), n)).collect()
    }
}

impl RoleCommand {
    /// Runs a serializer.
    pub fn serializer(&self) -> Result<()> {
        let process = self.process.start("serializer", |c| &c.serializers)?;
        let minions = (1..).map(node::minion).zip(process.cluster.minions.clone());
        let id = node::serializer(self.process.number);
        let group = minions.collect();
        self.run(process, id, Kind::Serializer, group)
    }

    /// Runs a minion.
    pub fn minion(&self) -> Result<()> {
        let number = self.process.number;
        let process = self.process.start("minion", |c| &c.minions)?;
        let incarnation = process.incarnation(wall_clock().as_millis() as u64)?;
        let storage = process.cluster.storages[usize::from(number) - 1];
        let learners = (1..)
            .map(node::learner)
            .zip(process.cluster.learners.clone());
        let group = [(node::storage(number), storage)]
            .into_iter()
            .chain(learners);
        let group = group.collect();
        self.run(
            process,
            node::minion(number),
            Kind::Minion { incarnation },
            group,
        )
    }

    fn run(
        &self,
        mut process: Process,
        id: u8,
        kind: Kind,
        group: Vec<(u8, SocketAddrV4)>,
    ) -> Result<()> {
        let listen = process.listen;
        let keys = process.keys();
        let peers: Vec<Peer> = group
            .iter()
            .map(|(node, address)| Peer {
                node: *node,
                address: *address,
                local: false,
            })
            .collect();
        let attach = |mode, address, interface: &str| {
            let host = HostSpec {
                node: id,
                address,
                mode,
                keys,
            };
            attach(&host, kind, interface, &peers)
        };
        let trial = |mode, address, interface: &str| attach(mode, address, interface).map(drop);
        let (choice, place) =
            self.role
                .choose(listen, peers.iter().map(|peer| peer.address), trial)?;
        let role = match place {
            Some((mode, interface)) => Role::Kernel(attach(mode, listen, interface)?.into()),
            None => Role::Soft(soft(id, kind).into()),
        };
        println!(
            "{} at {listen}, {} ({})",
            process.name, choice.dataplane, choice.why
        );
        let role = Arc::new(Mutex::new(role));
        let name = process.name.clone();
        let _control = process.answer(&role, move |role, ask| match ask {
            Ask::Status => Reply::Status(Box::new(Status {
                name: name.clone(),
                listen,
                dataplane: choice.dataplane,
                why: choice.why.clone(),
                pid: std::process::id(),
                state: "passing".to_owned(),
                position: role.passed(),
                counters: role.counters(),
                gauges: BTreeMap::new(),
            })),
            Ask::Log(_) => Reply::Error(format!("{name} is not a learner")),
        })?;
        let mut refreshed: Option<Instant> = None;
        process.serve(PACKETS_OF_A_TURN, |process, turn| {
            match (&mut *lock(&role), turn) {
                (Role::Kernel(program), Turn::Keys(keys)) => program.set_keys(keys)?,
                (Role::Kernel(program), _) => {
                    if refreshed.is_none_or(|at| at.elapsed() >= REFRESH) {
                        let left = program.refresh_neighbours()?;
                        refreshed = left.is_empty().then(Instant::now);
                    }
                }
                (Role::Soft(soft), Turn::Packet(packet, len_bytes)) => {
                    let arrival = Arrival {
                        from: listen,
                        now_ns: 0,
                        random: 0,
                    };
                    let (result, len_bytes) = soft.handle(packet, len_bytes, arrival);
                    if result.verdict == IB_NETPAXOS_TO_GROUP {
                        let to = group.iter().map(|(_, address)| *address);
                        process.send(&mut packet[..len_bytes], to);
                    }
                }
                (Role::Soft(_), Turn::Tick | Turn::Keys(_)) => {}
            }
            Ok(u64::MAX)
        })
    }
}
