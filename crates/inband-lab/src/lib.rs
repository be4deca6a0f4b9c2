//! Hosts as network namespaces, an XDP switch between them, and faults on their links.
//!
//! A [`Lab`] creates a namespace and a veth pair for each [`Host`] of its [`LabSpec`], and removes them when dropped;
//! those of a process that was killed are removed by the next lab. It needs root; [`preflight`] tells what is missing.
//! It knows no system and starts no programs: callers run them in a host's [`netns`].
//!
//! Packets pass a program of the [`lab`]'s own between the hosts. Faults are applied there: [`LinkFaults`] delay, lose,
//! duplicate or reorder all packets of a link, [`DropRule`]s drop chosen ones, and a held link keeps its packets in a
//! [`queue`] until it is released. [`direct`] links join two hosts without the switch.

pub mod direct;
pub mod error;
pub mod faults;
mod injector;
mod joints;
pub mod lab;
pub mod netns;
mod owner;
mod pass;
pub mod preflight;
pub mod queue;
mod switch;

pub use error::LabError;
pub use faults::{DropRule, DropRuleId, LinkCounters, LinkFaults};
pub use lab::{Host, Lab, LabSpec};
pub use pass::PassProgram;
pub use switch::{DROP_RULES_MAX, PORTS_MAX};
