//! What every host process and every command has, of whichever system.

pub mod backend;
pub mod config;
pub mod file_lock;
pub mod key_file;
pub mod line_json;
pub mod namespace;
pub mod output;
pub mod program;
pub mod role_process;
pub mod session;
#[allow(missing_docs)]
pub mod settings;
pub mod signals;
pub mod size;
pub mod state_dir;
pub mod wait;
