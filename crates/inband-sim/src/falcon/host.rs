//! Hosts, and their packets as a test's filter sees them.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};

use inband_falcon::dataplane::wire::Type;

use crate::links;
use crate::system::Packet as _;

/// Every host's port.
const PORT: u16 = 7480;

/// A host, numbered within its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Scheduler(u8),
    Worker(u8),
    Client(u8),
}

impl Host {
    pub fn address(self) -> SocketAddrV4 {
        let (kind, number) = match self {
            Host::Scheduler(number) => (1, number),
            Host::Worker(number) => (2, number),
            Host::Client(number) => (3, number),
        };
        SocketAddrV4::new(Ipv4Addr::new(10, 0, kind, number), PORT)
    }

    /// Returns the host with this address.
    pub fn at(address: SocketAddrV4) -> Option<Host> {
        if address.port() != PORT {
            return None;
        }
        match address.ip().octets() {
            [10, 0, 1, number] => Some(Host::Scheduler(number)),
            [10, 0, 2, number] => Some(Host::Worker(number)),
            [10, 0, 3, number] => Some(Host::Client(number)),
            _ => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Scheduler(number) => write!(f, "scheduler/{number}"),
            Host::Worker(number) => write!(f, "worker/{number}"),
            Host::Client(number) => write!(f, "client/{number}"),
        }
    }
}

/// A packet as a test's filter sees it.
pub type Passing<'a> = links::Passing<'a, Host, Vec<u8>>;

impl Passing<'_> {
    pub fn is(&self, kind: Type) -> bool {
        self.packet.kind() == Some(kind as u8)
    }
}

/// Decides the fate of every packet, for directed tests.
pub type Filter = links::Filter<Host, Vec<u8>>;
