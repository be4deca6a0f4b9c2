//! The network of a cluster: a namespace for each host, or loopback.
//!
//! `inband up` puts a cluster on one machine, and a program in the kernel needs an interface for each host and a switch
//! between them. That is what the lab of the tests creates, so this module uses it, and the rest of the crate uses only
//! what this module imports (`scripts/lint-layout` checks it). A host of `inband run` needs no lab.

use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::Arc;

use crate::loopback_ports::{free_loopback_ports, HeldPort};
use anyhow::{Context, Result};
use inband_host::config::Dataplane;
pub use inband_lab::preflight;
pub(crate) use inband_lab::{
    lab::{FIRST_ADDRESS, HOST_INTERFACE},
    netns::{Netns, NETNS_DIR},
    Host, Lab, LabError, LabSpec, LinkCounters, LinkFaults,
};
use inband_paxos::config::DEFAULT_PORT;

use crate::system::Plan;

pub struct Network {
    lab: Option<Lab>,
    why: String,
    hosts: Vec<String>,
    addresses: Vec<SocketAddrV4>,
    /// On loopback: the same addresses.
    _held: Vec<HeldPort>,
}

impl Network {
    /// Namespaces if roles are to run in the kernel and that works, otherwise loopback. `name` must be unique among the
    /// clusters on this machine.
    pub(crate) fn create(name: &str, plan: Plan) -> Result<Network> {
        let (lab, why) = match plan.dataplane {
            Dataplane::Udp => (None, "--dataplane is udp".to_owned()),
            dataplane => match create_lab(name, dataplane, &plan.hosts)? {
                Ok(lab) => (Some(lab), "XDP works here".to_owned()),
                Err(why) => (None, why.to_string()),
            },
        };
        let mut held = Vec::new();
        let addresses = match &lab {
            Some(lab) => {
                let hosts = lab.hosts();
                let address = |host: &Arc<Host>| SocketAddrV4::new(host.address(), DEFAULT_PORT);
                hosts.iter().map(address).collect()
            }
            None => {
                let (count, listeners) = (plan.hosts.len(), &plan.listener_ports);
                held = free_loopback_ports(name, count, &[], listeners)?;
                held.iter().map(|held| held.address).collect()
            }
        };
        Ok(Network {
            lab,
            why,
            hosts: plan.hosts,
            addresses,
            _held: held,
        })
    }

    /// Returns the namespaces, if there are any. Packet roles can run in the kernel there.
    pub fn lab(&self) -> Option<&Lab> {
        self.lab.as_ref()
    }

    /// Returns why there are namespaces, or none.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// `namespaces` or `loopback`.
    pub fn kind(&self) -> &'static str {
        match self.lab {
            Some(_) => "namespaces",
            None => "loopback",
        }
    }

    /// Returns where packets of a host go. On loopback, the next port is free as well.
    pub fn address(&self, host: &str) -> Result<SocketAddrV4> {
        let place = self.hosts.iter().position(|name| name == host);
        let place = place.with_context(|| format!("the network has no host {host:?}"))?;
        Ok(self.addresses[place])
    }

    /// Returns the hosts' packet addresses, in the plan's order.
    pub fn addresses(&self) -> &[SocketAddrV4] {
        &self.addresses
    }

    /// Returns a host's namespace; `None` on loopback.
    pub(crate) fn namespace(&self, host: &str) -> Result<Option<Arc<Host>>> {
        let namespace = self.lab.as_ref().map(|lab| lab.host(host));
        Ok(namespace.transpose()?)
    }
}

/// Creates a network with a namespace for each host, in which the first host's role can run in the kernel. The inner
/// error says why that failed and the roles run in user space.
fn create_lab(name: &str, dataplane: Dataplane, hosts: &[String]) -> Result<Result<Lab, LabError>> {
    let spec = LabSpec {
        name: name.to_owned(),
        hosts: hosts.to_vec(),
        seed: 1,
    };
    match try_namespaces(|| Lab::create(&spec)) {
        Err(error @ (LabError::InUse { .. } | LabError::BadLayout(_))) => Err(error.into()),
        Err(error) if dataplane != Dataplane::Auto => Err(error.into()),
        created => Ok(created),
    }
}

/// Creates namespaces in whose first host a role can run in the kernel.
pub(crate) fn try_namespaces(
    create: impl FnOnce() -> Result<Lab, LabError>,
) -> Result<Lab, LabError> {
    preflight::check_lab()?;
    let lab = create()?;
    // Try the way in which the role will attach its program.
    drop(lab.hosts()[0].attach_pass()?);
    Ok(lab)
}

/// Returns how the names of a network's namespaces begin.
pub(crate) fn namespace_prefix(lab: &str) -> String {
    inband_lab::lab::namespace_of(lab, "")
}

/// Returns a name for the network of the cluster in a directory.
pub(crate) fn name_for(command: &str, data: &Path) -> String {
    let digest = inband_paxos::dataplane::wire::digest(data.as_os_str().as_encoded_bytes());
    format!("{command}-{:08x}", digest as u32)
}
