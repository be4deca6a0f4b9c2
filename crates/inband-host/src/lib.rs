//! Shared by the host processes and commands of all systems.
//!
//! A process acquires, in this order: [`signals::StopSignals`], so that no signal is lost; its directory and the lock
//! in it ([`state_dir`]), and which system it belongs to ([`system_file`]); its key file ([`key_file`]); its data plane ([`backend`]); its control socket
//! ([`line_json`]). [`role_process`] does all of this for a process with a single role that only answers requests.
//!
//! Every command runs inside [`program::main`] and prints with this crate's `println!`, which ends the program quietly
//! when its output is closed.
//!
//! ```
//! use inband_host::size::{parse_size, size};
//!
//! assert_eq!(parse_size("64MiB"), Ok(64 << 20));
//! assert_eq!(size(64 << 20), "64 MiB");
//! assert!(parse_size("64 megabytes").is_err());
//! ```

pub mod backend;
pub mod config;
pub mod file_error;
pub mod file_lock;
pub mod key_drops;
pub mod key_file;
pub mod key_watch;
pub mod line_json;
pub mod live_keys;
pub mod log;
pub mod logging;
pub mod namespace;
pub mod notify;
pub mod option_file;
pub mod output;
pub mod program;
pub mod reload;
pub mod role_process;
pub mod session;
#[allow(missing_docs)]
pub mod settings;
pub mod signals;
pub mod size;
pub mod state_dir;
pub mod system_file;
pub mod text;
pub mod wait;
