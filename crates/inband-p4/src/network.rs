//! What the switch knows of the network: the hardware addresses of the members, and who gets the votes.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use anyhow::{Context, Result};
use inband_bmv2::Client;
use inband_control::configuration::{Configuration, NodeId};

use crate::switch::{Switch, SwitchError};

/// Multicast group of the answers for a group, in `ground/p4/frame.p4`.
const GROUP: usize = 1;
/// This host's neighbours: address, ..., hardware address, ..., interface.
const NEIGHBOURS: &str = "/proc/net/arp";

type Mac = [u8; 6];

/// A learner as the switch addresses its copies: by this number, in this entry.
struct Learner {
    address: SocketAddrV4,
    mac: Mac,
    member: usize,
    entry: u64,
}

/// The part of the switch's tables that depends on the network.
pub struct Network {
    own: SocketAddrV4,
    node: NodeId,
    /// The interface to the switch, and its hardware address.
    interface: String,
    mac: Mac,
    /// The port to the other hosts.
    uplink: u16,
    forwarded: BTreeMap<Mac, u64>,
    learners: BTreeMap<NodeId, Learner>,
    unresolved: Vec<Ipv4Addr>,
}

impl Network {
    /// Makes the group in an emptied switch.
    pub fn new(
        switch: &Switch,
        (node, own): (NodeId, SocketAddrV4),
        interface: &str,
        uplink: u16,
    ) -> Result<Network> {
        let path = format!("/sys/class/net/{interface}/address");
        let text = fs::read_to_string(&path).context(path.clone())?;
        let mac = mac_of(text.trim());
        let mac = mac.with_context(|| format!("{path} has no hardware address"))?;
        switch.with(|client| {
            // Refused if the switch has just been started.
            match client.destroy_group(GROUP) {
                Err(error) if error.is_lasting() => return Err(error),
                _ => {}
            }
            client.create_group(GROUP)
        })?;
        Ok(Network {
            own,
            node,
            interface: interface.to_owned(),
            mac,
            uplink,
            forwarded: BTreeMap::new(),
            learners: BTreeMap::new(),
            unresolved: Vec::new(),
        })
    }

    /// Brings the tables up to date with the configuration and with this host's neighbours.
    pub fn update(&mut self, switch: &Switch, configuration: &Configuration) -> Result<()> {
        let text = fs::read_to_string(NEIGHBOURS).context(NEIGHBOURS)?;
        let known = neighbours(&text, &self.interface);
        self.unresolved.clear();
        let own = self.node;
        let members = configuration.members.values();
        for member in members.filter(|member| member.node != own) {
            let mut addresses = vec![*member.data.ip()];
            if let IpAddr::V4(control) = member.control.ip() {
                addresses.push(control);
            }
            addresses.dedup();
            for address in addresses {
                match known.get(&address) {
                    Some(mac) => self.forward(switch, *mac)?,
                    None => self.unresolved.push(address),
                }
            }
        }
        let replicas = configuration.replicas();
        let gone = self.learners.keys().filter(|node| !replicas.contains(node));
        for node in gone.copied().collect::<Vec<_>>() {
            self.forget(switch, node)?;
        }
        for node in replicas.into_iter().filter(|node| *node != own) {
            let address = configuration.members[&node].data;
            if let Some(mac) = known.get(address.ip()) {
                self.learner(switch, node, address, *mac)?;
            }
        }
        Ok(())
    }

    /// Members whose hardware addresses are not known.
    pub fn unresolved(&self) -> &[Ipv4Addr] {
        &self.unresolved
    }

    fn forward(&mut self, switch: &Switch, mac: Mac) -> Result<(), SwitchError> {
        if self.forwarded.contains_key(&mac) {
            return Ok(());
        }
        let port = self.uplink.to_be_bytes();
        let add = |client: &mut Client| client.add_entry("forward", &mac, "to_port", &[&port]);
        self.forwarded.insert(mac, switch.with(add)?);
        Ok(())
    }

    fn learner(
        &mut self,
        switch: &Switch,
        node: NodeId,
        address: SocketAddrV4,
        mac: Mac,
    ) -> Result<(), SwitchError> {
        let known = self.learners.get(&node);
        if known.is_some_and(|known| (known.address, known.mac) == (address, mac)) {
            return Ok(());
        }
        self.forget(switch, node)?;
        let (to, from) = (address.ip().octets(), self.own.ip().octets());
        let (to_port, from_port) = (address.port().to_be_bytes(), self.own.port().to_be_bytes());
        let data: [&[u8]; 6] = [&mac, &self.mac, &to, &from, &to_port, &from_port];
        let (entry, member) = switch.with(|client| {
            // The entry first: a copy without one would leave as the packet came.
            let entry = client.add_entry("members", &[0, node], "address", &data)?;
            let port = usize::from(self.uplink);
            Ok((entry, client.add_member(GROUP, node.into(), port)?))
        })?;
        let learner = Learner {
            address,
            mac,
            member,
            entry,
        };
        self.learners.insert(node, learner);
        Ok(())
    }

    fn forget(&mut self, switch: &Switch, node: NodeId) -> Result<(), SwitchError> {
        let Some(learner) = self.learners.remove(&node) else {
            return Ok(());
        };
        switch.with(|client| {
            client.remove_member(GROUP, learner.member)?;
            client.delete_entry("members", learner.entry)
        })
    }
}

fn mac_of(text: &str) -> Option<Mac> {
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = bytes.next()?.ok()?;
    }
    (bytes.next().is_none() && mac != [0; 6]).then_some(mac)
}

/// The complete entries for this interface.
fn neighbours(text: &str, interface: &str) -> BTreeMap<Ipv4Addr, Mac> {
    let entry = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [address, _, _, mac, _, device] = words[..] else {
            return None;
        };
        let is_here = device == interface;
        Some((address.parse().ok()?, mac_of(mac)?)).filter(|_| is_here)
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_neighbours_on_the_interface_count() {
        let text =
            "IP address       HW type     Flags       HW address            Mask     Device\n\
                    10.0.0.1         0x1         0x6         02:49:42:00:00:01     *        host0\n\
                    10.0.0.2         0x1         0x0         00:00:00:00:00:00     *        host0\n\
                    10.0.0.3         0x1         0x2         02:49:42:00:00:03     *        eth0\n";
        let known = neighbours(text, "host0");
        let first = (Ipv4Addr::new(10, 0, 0, 1), [2, 0x49, 0x42, 0, 0, 1]);
        assert_eq!(known, BTreeMap::from([first]));
    }
}
