//! The switch and the server as XDP programs.

pub mod server;
pub mod switch;

use inband_ground::xdp::XdpError;

/// Checks a map's number of elements.
fn check_count(what: &str, count: usize) -> Result<(), XdpError> {
    match u32::try_from(count) {
        Ok(1..) => Ok(()),
        _ => Err(XdpError::Spec(format!(
            "{count} {what} are not from 1 to {}",
            u32::MAX
        ))),
    }
}
