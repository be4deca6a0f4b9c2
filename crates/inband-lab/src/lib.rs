//! Hosts as network namespaces, an XDP switch between them, and faults on their links.

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
pub mod process;
pub mod queue;
mod switch;

pub use error::LabError;
pub use faults::{DropRule, DropRuleId, LinkCounters, LinkFaults};
pub use lab::{Host, Lab, LabSpec};
pub use pass::PassProgram;
pub use switch::{DROP_RULES_MAX, PORTS_MAX};
