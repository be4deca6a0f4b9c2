//! Requests to the control plane, through any running host.

use std::time::Duration;

use inband_control::service::{Request, Response, Status};
use inband_paxos::config::Role;

use super::Shared;
use crate::paxos::change::{self, PlaneError};
use crate::paxos::control::{self, ControlError};
use inband_host::line_json::CallError;

/// Longer than a host itself waits for the control plane.
const PLANE_LIMIT: Duration = Duration::from_secs(8);

impl Shared {
    /// Returns the control plane's answer; a refusal is an error.
    pub(super) fn ask_plane(&self, request: &Request) -> Result<Response, PlaneError> {
        let mut hosts = self.hosts();
        hosts.retain(|host| host.is_running());
        // A controller knows best who leads them.
        hosts.sort_by_key(|host| !host.plan.has(Role::Controller));
        let mut last = PlaneError::NoHost;
        for host in hosts {
            match control::control(&host.socket(), request.clone(), PLANE_LIMIT) {
                Ok(Response::Refused(refusal)) => return Err(refusal.into()),
                Ok(Response::OutcomeUnknown) => return Err(PlaneError::Unknown),
                Ok(Response::Elsewhere(_)) => {
                    last = PlaneError::Silent("the controllers have no leader".into())
                }
                Ok(response) => return Ok(response),
                // The request was not received: the host has just died, or does not listen yet.
                Err(ControlError::Call(error @ CallError::Unreachable { .. })) => {
                    last = PlaneError::Silent(error.to_string());
                }
                Err(ControlError::Refused(message)) => return Err(PlaneError::Silent(message)),
                Err(error) if *request == Request::Status => {
                    last = PlaneError::Silent(error.to_string());
                }
                Err(_) => return Err(PlaneError::Unknown),
            }
        }
        Err(last)
    }

    /// Returns the control plane's status.
    pub(super) fn plane_status(&self) -> Result<Status, PlaneError> {
        match self.ask_plane(&Request::Status)? {
            Response::Status(status) => Ok(*status),
            other => Err(PlaneError::Silent(format!(
                "an unexpected answer: {other:?}"
            ))),
        }
    }

    /// Returns the control plane's status, in words.
    pub(super) fn plane_in_words(&self) -> String {
        change::in_words(&self.plane_status())
    }
}
