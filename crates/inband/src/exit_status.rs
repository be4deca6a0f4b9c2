//! Exit status of a failed command.

use std::fmt;
use std::process::ExitCode;

use anyhow::Error;
use inband_control::service::{FilesError, ServiceError};
use inband_falcon::scheduler_node::SchedulerError;
use inband_flair::switch_node::SwitchError;
use inband_ground::xdp::XdpError;
use inband_host::key_file::KeyFileError;
use inband_host::program::EXIT_CONFIGURATION;
use inband_host::state_dir::StateError;
use inband_kv::replica::ReplicaError;
use inband_kv::store::StoreError;
use inband_paxos::config::ConfigError;
use inband_paxos::durable::DurableError;
use inband_paxos::mtu::MtuError;
use inband_paxos::node::NodeError;
use inband_resp::password::PasswordError;
use inband_transport::certificates::CertificateError;

/// A host cannot start with its configuration.
#[derive(Debug)]
pub struct Unsuitable(pub String);

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsuitable {}

/// Returns the exit status for an error.
pub fn of(error: &Error) -> ExitCode {
    if is_lasting(error) {
        ExitCode::from(EXIT_CONFIGURATION)
    } else {
        ExitCode::FAILURE
    }
}

/// Whether only a change of the configuration or of the data cures it.
pub fn is_lasting(error: &Error) -> bool {
    error.chain().any(is_lasting_cause)
}

fn is_lasting_cause(cause: &(dyn std::error::Error + 'static)) -> bool {
    let xdp = match cause.downcast_ref() {
        Some(SwitchError::Xdp(error)) => Some(error),
        _ => match cause.downcast_ref() {
            Some(SchedulerError::Xdp(error)) => Some(error),
            _ => cause.downcast_ref::<XdpError>(),
        },
    };
    cause.is::<Unsuitable>()
        || cause.is::<ConfigError>()
        || matches!(cause.downcast_ref(), Some(MtuError::TooSmall { .. }))
        || cause.is::<KeyFileError>()
        || cause.is::<CertificateError>()
        || cause.is::<PasswordError>()
        || xdp.is_some_and(XdpError::is_lasting)
        || cause.downcast_ref().is_some_and(NodeError::is_lasting)
        || cause.downcast_ref().is_some_and(StateError::is_lasting)
        || cause.downcast_ref().is_some_and(DurableError::is_lasting)
        || cause.downcast_ref().is_some_and(StoreError::is_lasting)
        || matches!(cause.downcast_ref(), Some(ReplicaError::Store(error)) if error.is_lasting())
        || matches!(
            cause.downcast_ref(),
            Some(ServiceError::Files(FilesError::Damaged { .. }))
        )
}
