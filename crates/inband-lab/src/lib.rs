//! Hosts as network namespaces, an XDP switch between them, faults on their links; and the
//! supervisor that runs a whole cluster in such a lab, one `inband run` process a host.

pub mod certificates;
pub mod change;
pub mod cluster_dir;
pub mod control;
pub mod direct;
pub mod error;
pub mod faults;
mod injector;
pub mod lab;
pub mod layout;
pub mod memory;
pub mod netns;
mod owner;
mod pass;
pub mod preflight;
pub mod process;
pub mod queue;
pub mod restart;
pub mod supervisor;
mod switch;

pub use error::LabError;
pub use faults::{DropRule, DropRuleId, LinkCounters, LinkFaults};
pub use lab::{Host, Lab, LabSpec};
pub use layout::{AcceptorChoice, ClusterSpec, LeaderLayout, NetworkChoice};
pub use pass::PassProgram;
pub use supervisor::{ClusterStatus, DownReport, MemberKind, Supervisor, SupervisorError};
pub use switch::{DROP_RULES_MAX, PORTS_MAX};
