//! What a failed command's exit status says.

use std::fmt;
use std::process::ExitCode;

use anyhow::Error;
use inband_dataplane::xdp::XdpError;
use inband_falcon::scheduler_node::SchedulerError;
use inband_flair::switch_node::SwitchError;
use inband_paxos::config::ConfigError;
use inband_paxos::key_file::KeyFileError;
use inband_paxos::mtu::MtuError;
use inband_paxos::node::NodeError;
use inband_transport::certificates::CertificateError;

/// `EX_CONFIG` of sysexits.h: the same would happen at the next start, so systemd need not try it
/// (`RestartPreventExitStatus=78` in docs/deploy.md).
const CONFIGURATION: u8 = 78;

/// A host cannot start as it is configured.
#[derive(Debug)]
pub struct Unsuitable(pub String);

impl fmt::Display for Unsuitable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsuitable {}

/// Of a command that failed.
pub fn of(error: &Error) -> ExitCode {
    if error.chain().any(is_lasting) {
        ExitCode::from(CONFIGURATION)
    } else {
        ExitCode::FAILURE
    }
}

fn is_lasting(cause: &(dyn std::error::Error + 'static)) -> bool {
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
        || xdp.is_some_and(XdpError::is_lasting)
        || cause.downcast_ref().is_some_and(NodeError::is_lasting)
}
