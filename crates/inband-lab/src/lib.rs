//! Hosts as network namespaces, an XDP switch between them, faults on their links; and the
//! supervisor that runs a whole cluster in such a lab, one `inband run` process a host.

pub mod error;
pub mod faults;
mod injector;
pub mod lab;
pub mod netns;
mod owner;
mod pass;
pub mod process;
pub mod queue;
mod switch;

pub use error::LabError;
pub use faults::{DropRule, DropRuleId, LinkCounters, LinkFaults};
pub use lab::{Host, Lab, LabSpec};
pub use pass::PassProgram;
pub use switch::{DROP_RULES_MAX, PORTS_MAX};
