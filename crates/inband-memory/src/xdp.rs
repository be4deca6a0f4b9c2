//! Switch and server as XDP programs.

pub mod server;
pub mod switch;

use inband_ground::xdp::XdpError;

/// How many elements a map can have.
fn check_count(what: &str, count: usize) -> Result<(), XdpError> {
    match u32::try_from(count) {
        Ok(1..) => Ok(()),
        _ => Err(XdpError::Spec(format!(
            "{count} {what} are not from 1 to {}",
            u32::MAX
        ))),
    }
}
