//! Hosts connected by their own veth pairs, without a switch, addresses or faults: for measuring programs on the links.

use std::fmt::Write as _;

use crate::error::LabError;
use crate::netns::{run_tool, Netns};
use crate::owner::Owner;

/// One end of a link: the index of the host in the list, and the index of its interface there.
pub type End = (usize, u32);

/// Namespaces and the links between them. Removed on drop.
#[derive(Debug)]
pub struct DirectLinks {
    hosts: Vec<Netns>,
    _owner: Owner,
}

impl DirectLinks {
    /// Creates the namespaces and links. The name must not be that of a running lab; leftovers of a killed owner are
    /// removed.
    pub fn create(
        name: &str,
        hosts: &[&str],
        links: &[(End, End)],
    ) -> Result<DirectLinks, LabError> {
        let names: Vec<String> = hosts.iter().map(|h| format!("ib-{name}.{h}")).collect();
        let owner = Owner::claim(name, &names)?;
        let hosts = names
            .iter()
            .map(|name| Netns::create(name))
            .collect::<Result<Vec<_>, _>>()?;
        for ((from, from_index), (to, to_index)) in links {
            let make = format!(
                "link add name l{from_index} index {from_index} type veth \
                 peer name l{to_index} index {to_index} netns {}\nlink set l{from_index} up\n",
                names[*to]
            );
            hosts[*from].run(|| ip(&make))?;
        }
        for (at, host) in hosts.iter().enumerate() {
            let mut up = String::new();
            for (_, (_, index)) in links.iter().filter(|link| link.1 .0 == at) {
                let _ = writeln!(up, "link set l{index} up");
            }
            host.run(|| ip(&up))?;
        }
        Ok(DirectLinks {
            hosts,
            _owner: owner,
        })
    }

    /// Returns the namespaces, in the order of the hosts.
    pub fn hosts(&self) -> &[Netns] {
        &self.hosts
    }
}

pub(crate) fn ip(batch: &str) -> Result<(), LabError> {
    run_tool("ip", "iproute2", &["-batch", "-"], batch)
}
