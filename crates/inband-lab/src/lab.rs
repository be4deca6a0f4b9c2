//! A lab: each host is a network namespace with one veth to an XDP switch.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::error::LabError;
use crate::faults::{DropRule, DropRuleId, LinkCounters, LinkFaults};
use crate::injector::Injector;
use crate::joints::Joint;
use crate::netns::{run_tool, Netns};
use crate::owner::{self, Owner};
use crate::pass::PassProgram;
use crate::switch::{self, RuleEntry, SwitchTables, IFINDEX_BASE, PORTS_MAX};

/// Name of every host's interface.
pub const HOST_INTERFACE: &str = "eth0";
/// Addresses of hosts start here, in their order.
pub const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PREFIX_BITS: u32 = 16;
/// Bound on names in lock file names and namespace names.
const NAME_MAX_BYTES: usize = 64;

/// Specification of a lab.
#[derive(Debug, Clone)]
pub struct LabSpec {
    /// Name of the lab. Labs with different names can coexist.
    pub name: String,
    /// Names of the hosts; `/` becomes `-` in namespace names.
    pub hosts: Vec<String>,
    /// Seeds the jitter of slow links.
    pub seed: u64,
}

#[derive(Debug)]
pub struct Host {
    name: String,
    /// Port of the switch.
    port: usize,
    address: Ipv4Addr,
    namespace: Netns,
}

impl Host {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its address on the lab's network.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub fn namespace(&self) -> &Netns {
        &self.namespace
    }

    /// Attaches a program that passes everything, as if the host had its own.
    pub fn attach_pass(&self) -> Result<PassProgram, LabError> {
        self.namespace.run(PassProgram::attach)
    }
}

/// Hosts, switch and links. All are removed on drop.
#[derive(Debug)]
pub struct Lab {
    name: String,
    // In drop order: the thread leaves the switch before the namespaces are removed.
    injector: Injector,
    tables: Mutex<SwitchTables>,
    hosts: Mutex<Hosts>,
    pub(crate) joints: Mutex<Vec<Joint>>,
    switch: Netns,
    owner: Mutex<Owner>,
}

#[derive(Debug)]
struct Hosts {
    list: Vec<Arc<Host>>,
    /// Ports without a host, the one free for longest first: neighbours may still send frames there that were meant for
    /// the previous host.
    free_ports: VecDeque<usize>,
}

impl Lab {
    /// Creates a lab whose hosts have consecutive addresses. Leftovers of crashed labs are removed first.
    pub fn create(spec: &LabSpec) -> Result<Self, LabError> {
        Self::with_queues(spec, 1)
    }

    /// Like [`Lab::create`], with this many receive and transmit queues at both ends of every link. A frame takes the
    /// queue of the CPU that sends it, so frames that several CPUs send may overtake each other.
    pub fn with_queues(spec: &LabSpec, queues: u32) -> Result<Self, LabError> {
        let first = u32::from(FIRST_ADDRESS);
        let addresses: Vec<Ipv4Addr> = (0..spec.hosts.len() as u32)
            .map(|host| Ipv4Addr::from(first + host))
            .collect();
        Self::create_with(spec, &addresses, queues)
    }

    /// Creates a lab with the given address for each host.
    pub fn create_at(spec: &LabSpec, addresses: &[Ipv4Addr]) -> Result<Self, LabError> {
        Self::create_with(spec, addresses, 1)
    }

    fn create_with(spec: &LabSpec, addresses: &[Ipv4Addr], queues: u32) -> Result<Self, LabError> {
        check(spec)?;
        check_addresses(spec, addresses)?;
        // Neither name may contain a dot, so namespaces of different labs cannot collide.
        let switch_name = format!("ib-{}.switch.", spec.name);
        let mut all_names: Vec<String> = spec
            .hosts
            .iter()
            .map(|host| namespace_of(&spec.name, host))
            .collect();
        all_names.push(switch_name.clone());
        let owner = Owner::claim(&spec.name, &all_names)?;
        let switch = Netns::create(&switch_name)?;
        let hosts = spec
            .hosts
            .iter()
            .zip(addresses)
            .enumerate()
            .map(|(port, (name, address))| {
                Ok(Arc::new(Host {
                    name: name.clone(),
                    port,
                    address: *address,
                    namespace: Netns::create(&namespace_of(&spec.name, name))?,
                }))
            })
            .collect::<Result<Vec<_>, LabError>>()?;
        switch.run(|| make_links(&hosts, queues))?;
        thread::scope(|scope| {
            let set_up: Vec<_> = hosts
                .iter()
                .map(|h| scope.spawn(|| set_up_host(h)))
                .collect();
            set_up.into_iter().try_for_each(|t| match t.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        let (injector, mut tables) = Injector::start(switch.handle()?, spec.seed)?;
        for host in &hosts {
            injector.open(host.port)?;
            tables.set_present(host.port, true)?;
        }
        Ok(Self {
            name: spec.name.clone(),
            injector,
            tables: Mutex::new(tables),
            hosts: Mutex::new(Hosts {
                free_ports: (hosts.len()..PORTS_MAX).collect(),
                list: hosts,
            }),
            joints: Mutex::default(),
            switch,
            owner: Mutex::new(owner),
        })
    }

    /// Adds a host to the running lab.
    pub fn add_host(&self, name: &str, address: Ipv4Addr) -> Result<Arc<Host>, LabError> {
        check_name(name, "host")?;
        let mut hosts = self.lock_hosts();
        let namespace = namespace_of(&self.name, name);
        let is_taken = |h: &Arc<Host>| h.namespace.name() == namespace || h.address == address;
        if hosts.list.iter().any(is_taken) {
            return Err(LabError::BadLayout(format!(
                "host {name:?} or its address {address} is in the lab already"
            )));
        }
        let Some(port) = hosts.free_ports.pop_front() else {
            return Err(LabError::BadLayout(format!(
                "a lab has at most {PORTS_MAX} hosts; remove one first"
            )));
        };
        match self.make_host(name, &namespace, port, address) {
            Ok(host) => {
                hosts.list.push(Arc::clone(&host));
                Ok(host)
            }
            Err(error) => {
                hosts.free_ports.push_back(port);
                Err(error)
            }
        }
    }

    fn make_host(
        &self,
        name: &str,
        namespace: &str,
        port: usize,
        address: Ipv4Addr,
    ) -> Result<Arc<Host>, LabError> {
        self.owner().add(namespace)?;
        let host = Arc::new(Host {
            name: name.to_owned(),
            port,
            address,
            namespace: Netns::create(namespace)?,
        });
        self.switch
            .run(|| make_links(std::slice::from_ref(&host), 1))?;
        let opened = set_up_host(&host)
            .and_then(|()| self.injector.open(port))
            .and_then(|()| self.tables().set_present(port, true));
        if let Err(error) = opened {
            // Otherwise the next host at this port could not get its interface.
            let _ = self.switch.run(|| remove_link(port));
            return Err(error);
        }
        Ok(host)
    }

    /// Removes a host from the running lab. Its processes must have ended.
    pub fn remove_host(&self, name: &str) -> Result<(), LabError> {
        self.forget_joints(name);
        let mut hosts = self.lock_hosts();
        let index = position(&hosts.list, name)?;
        let host = hosts.list.remove(index);
        self.tables().set_present(host.port, false)?;
        self.injector.close(host.port)?;
        self.switch.run(|| remove_link(host.port))?;
        hosts.free_ports.push_back(host.port);
        let namespace = host.namespace.name().to_owned();
        drop(host);
        self.owner().forget(&namespace)
    }

    /// Removes what killed owners of labs left behind: namespaces and the processes in them. [`create`](Self::create)
    /// does so as well.
    pub fn remove_leftovers() {
        owner::sweep();
    }

    /// Returns all hosts, in order of creation.
    pub fn hosts(&self) -> Vec<Arc<Host>> {
        self.lock_hosts().list.clone()
    }

    /// Returns the host with this name.
    pub fn host(&self, name: &str) -> Result<Arc<Host>, LabError> {
        let hosts = self.lock_hosts();
        Ok(Arc::clone(&hosts.list[position(&hosts.list, name)?]))
    }

    /// Replaces the faults of a host's link. Pairwise cuts and drop rules are not affected.
    ///
    /// Releasing a held link returns when the waiting frames have been sent.
    pub fn set_link(&self, host: &str, faults: LinkFaults) -> Result<(), LabError> {
        faults.check()?;
        let port = self.port(host)?;
        {
            let mut tables = self.tables();
            let entry = switch::LinkEntry {
                faults,
                ..tables.link(port)
            };
            tables.set_link(port, entry)?;
            self.injector.set_link(port, faults)?;
        }
        self.set_joints()
    }

    /// Returns the current faults of a host's link.
    pub fn link(&self, host: &str) -> Result<LinkFaults, LabError> {
        let port = self.port(host)?;
        Ok(self.tables().link(port).faults)
    }

    /// Sets the same faults on every link.
    pub fn set_all_links(&self, faults: LinkFaults) -> Result<(), LabError> {
        self.hosts()
            .iter()
            .try_for_each(|h| self.set_link(&h.name, faults))
    }

    /// Holds a host's packets, in both directions and in order.
    pub fn hold(&self, host: &str) -> Result<(), LabError> {
        self.set_link(
            host,
            LinkFaults {
                held: true,
                ..self.link(host)?
            },
        )
    }

    /// Releases a held host's packets.
    pub fn release(&self, host: &str) -> Result<(), LabError> {
        self.set_link(
            host,
            LinkFaults {
                held: false,
                ..self.link(host)?
            },
        )
    }

    /// Cuts (or restores) one direction between two hosts.
    pub fn cut_one_way(&self, from: &str, to: &str, cut: bool) -> Result<(), LabError> {
        let (from, to) = (self.port(from)?, self.port(to)?);
        {
            let mut tables = self.tables();
            let mut entry = tables.link(from);
            if cut {
                entry.cut_to_ports |= 1 << to;
            } else {
                entry.cut_to_ports &= !(1 << to);
            }
            tables.set_link(from, entry)?;
        }
        self.set_joints()
    }

    /// Cuts (or restores) both directions between two hosts.
    pub fn cut_between(&self, one: &str, other: &str, cut: bool) -> Result<(), LabError> {
        self.cut_one_way(one, other, cut)?;
        self.cut_one_way(other, one, cut)
    }

    /// Drops the messages that match a rule, until it is removed.
    pub fn add_drop_rule(&self, rule: &DropRule) -> Result<DropRuleId, LabError> {
        let entry = RuleEntry {
            from_ports: self.ports(&rule.from_hosts)?,
            to_ports: self.ports(&rule.to_hosts)?,
            udp_port: rule.udp_port,
            message_type: rule.message_type,
        };
        let index = self.tables().add_rule(entry)?;
        index
            .map(DropRuleId)
            .ok_or(LabError::TooManyDropRules(switch::DROP_RULES_MAX))
    }

    pub fn remove_drop_rule(&self, id: DropRuleId) -> Result<(), LabError> {
        self.tables().remove_rule(id.0)
    }

    /// Clears all faults and removes all rules; held frames are released.
    pub fn heal(&self) -> Result<(), LabError> {
        let hosts = self.hosts();
        {
            let mut tables = self.tables();
            tables.remove_all_rules()?;
            for host in hosts {
                tables.set_link(host.port, switch::LinkEntry::default())?;
                self.injector.set_link(host.port, LinkFaults::default())?;
            }
        }
        self.set_joints()
    }

    /// Returns whether packets between two hosts have any fault.
    pub(crate) fn is_faulty_between(&self, one: &str, other: &str) -> Result<bool, LabError> {
        let ports = [self.port(one)?, self.port(other)?];
        let tables = self.tables();
        let [one, other] = ports.map(|port| tables.link(port));
        let is_cut =
            one.cut_to_ports >> ports[1] & 1 == 1 || other.cut_to_ports >> ports[0] & 1 == 1;
        let is_perfect = |link: switch::LinkEntry| link.faults == LinkFaults::default();
        Ok(is_cut || !is_perfect(one) || !is_perfect(other))
    }

    /// Frame counters of a host's port since the lab was created.
    pub fn counters(&self, host: &str) -> Result<LinkCounters, LabError> {
        let port = self.port(host)?;
        let queue = self.injector.counts(port);
        Ok(LinkCounters {
            released: queue.released.load(Ordering::Relaxed),
            overflowed: queue.overflowed.load(Ordering::Relaxed),
            ..self.tables().counters(port)?
        })
    }

    fn port(&self, name: &str) -> Result<usize, LabError> {
        Ok(self.host(name)?.port)
    }

    /// Returns a mask of ports; an empty list means all.
    fn ports(&self, names: &[String]) -> Result<u64, LabError> {
        if names.is_empty() {
            return Ok(u64::MAX);
        }
        names
            .iter()
            .try_fold(0, |mask, name| Ok(mask | 1 << self.port(name)?))
    }

    fn tables(&self) -> MutexGuard<'_, SwitchTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_hosts(&self) -> MutexGuard<'_, Hosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn position(hosts: &[Arc<Host>], name: &str) -> Result<usize, LabError> {
    let names = || hosts.iter().map(|h| h.name.as_str());
    let found = names().position(|host| host == name);
    found.ok_or_else(|| LabError::UnknownHost {
        name: name.to_owned(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}

/// Returns the name of a host's namespace.
#[must_use]
pub fn namespace_of(lab: &str, host: &str) -> String {
    format!("ib-{lab}.{}", host.replace('/', "-"))
}

fn check_name(name: &str, what: &str) -> Result<(), LabError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_/".contains(c);
    if name.is_empty() || name.len() > NAME_MAX_BYTES || !name.chars().all(legal) {
        return Err(LabError::BadLayout(format!(
            "{name:?} is not a name for a {what}; use 1 to {NAME_MAX_BYTES} of a-z A-Z 0-9 - _ /"
        )));
    }
    Ok(())
}

fn check(spec: &LabSpec) -> Result<(), LabError> {
    check_name(&spec.name, "lab")?;
    let mut namespaces = HashSet::new();
    for name in &spec.hosts {
        check_name(name, "host")?;
        if !namespaces.insert(name.replace('/', "-")) {
            return Err(LabError::BadLayout(format!(
                "two hosts are called {name:?}"
            )));
        }
    }
    if spec.hosts.is_empty() || spec.hosts.len() > PORTS_MAX || spec.name.contains('/') {
        return Err(LabError::BadLayout(format!(
            "a lab has 1 to {PORTS_MAX} hosts and no '/' in its name; lab {:?} would have {}",
            spec.name,
            spec.hosts.len()
        )));
    }
    Ok(())
}

fn check_addresses(spec: &LabSpec, addresses: &[Ipv4Addr]) -> Result<(), LabError> {
    let distinct: HashSet<_> = addresses.iter().collect();
    if addresses.len() != spec.hosts.len() || distinct.len() != addresses.len() {
        return Err(LabError::BadLayout(format!(
            "{} hosts have {} different addresses; each needs one",
            spec.hosts.len(),
            distinct.len()
        )));
    }
    Ok(())
}

/// Runs in the switch's namespace: one veth per host, with its other end already in the host.
fn make_links(hosts: &[Arc<Host>], queues: u32) -> Result<(), LabError> {
    let mut batch = String::new();
    for host in hosts {
        let port = host.port;
        let mac = switch::mac_of(port)
            .map(|byte| format!("{byte:02x}"))
            .join(":");
        let _ = writeln!(
            batch,
            "link add name p{port} index {} numtxqueues {queues} numrxqueues {queues} type veth \
             peer name {HOST_INTERFACE} numtxqueues {queues} numrxqueues {queues} address {mac} \
             netns {}\nlink set p{port} up",
            IFINDEX_BASE + port,
            host.namespace.name(),
        );
    }
    run_tool("ip", "iproute2", &["-batch", "-"], &batch)
}

/// Runs in the switch's namespace.
fn remove_link(port: usize) -> Result<(), LabError> {
    let batch = format!("link del p{port}\n");
    run_tool("ip", "iproute2", &["-batch", "-"], &batch)
}

fn set_up_host(host: &Host) -> Result<(), LabError> {
    host.namespace.run(|| {
        let batch = format!(
            "link set lo up\naddr add {}/{PREFIX_BITS} dev {HOST_INTERFACE}\n\
             link set {HOST_INTERFACE} up\n",
            host.address
        );
        run_tool("ip", "iproute2", &["-batch", "-"], &batch)?;
        // Checksums must be complete: a frame that is redirected past the stack is never completed. GRO gives the veth
        // its receive ring, without which redirected frames are silently lost; a program that the host attaches itself
        // has the same effect, and neither excludes the other. The driver informs the other end only when GRO is
        // enabled while the link is up.
        run_tool(
            "ethtool",
            "ethtool",
            &["-K", HOST_INTERFACE, "tx", "off", "gro", "on"],
            "",
        )
    })
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
