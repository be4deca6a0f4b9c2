//! What every host process and every command has, of whichever system.

pub mod namespace;
pub mod output;
pub mod program;
pub mod wait;
