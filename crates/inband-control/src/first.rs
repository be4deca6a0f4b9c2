//! What the control plane reads in the hosts' configuration files.

use inband_paxos::config::{Config, NodeConfig, Role};

use crate::configuration::{Beginning, Configuration, Member, Parts};

/// Returns a node as the control plane knows it before it has heard from the host.
pub fn member_of(node: &NodeConfig) -> Member {
    Member {
        node: node.id,
        name: node.name.clone(),
        data: node.address,
        control: node.control_plane().into(),
        parts: Parts {
            acceptor: node.has(Role::Acceptor),
            replica: node.has(Role::Replica),
            leader: node.has(Role::Leader),
            controller: node.has(Role::Controller),
        },
        identity: None,
    }
}

/// Returns the cluster's first configuration.
pub fn configuration_of(config: &Config) -> Configuration {
    let members = config.nodes.iter().map(|node| (node.id, member_of(node)));
    Configuration {
        epoch: config.cluster.epoch,
        revision: 0,
        members: members.collect(),
        leaders: config.take_over_orders(),
        beginning: Beginning::Fresh(config.cluster.first_instances.clone()),
    }
}

/// Returns the settings that must be the same on all hosts. An acceptor with a smaller ring could not take over
/// another's votes, and one with a weaker durability would lose votes that others rely on.
pub fn settings_of(config: &Config) -> String {
    let cluster = &config.cluster;
    format!(
        "partitions = {}, ring_slots = {}, durability = {}, mtu = {}",
        cluster.partitions, cluster.ring_slots, cluster.durability, cluster.mtu
    )
}
