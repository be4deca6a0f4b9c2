//! Asking the control plane, by way of any host that runs.

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
    /// The control plane's answer; a refusal is an error.
    pub(super) fn ask_plane(&self, request: &Request) -> Result<Response, PlaneError> {
        let mut hosts = self.hosts();
        hosts.retain(|host| host.is_running());
        // One that is a controller itself knows best who leads.
        hosts.sort_by_key(|host| !host.plan.has(Role::Controller));
        let mut last = PlaneError::NoHost;
        for host in hosts {
            match control::control(&host.socket(), request.clone(), PLANE_LIMIT) {
                Ok(Response::Refused(refusal)) => return Err(refusal.into()),
                Ok(Response::OutcomeUnknown) => return Err(PlaneError::Unknown),
                Ok(Response::Elsewhere(_)) => last = PlaneError::Silent("nobody leads".into()),
                Ok(response) => return Ok(response),
                // It has not been asked: the host has just died, or does not listen yet.
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

    /// How the control plane says things are.
    pub(super) fn plane_status(&self) -> Result<Status, PlaneError> {
        match self.ask_plane(&Request::Status)? {
            Response::Status(status) => Ok(*status),
            other => Err(PlaneError::Silent(format!(
                "an unexpected answer: {other:?}"
            ))),
        }
    }

    /// How the control plane says things are, in words.
    pub(super) fn plane_in_words(&self) -> String {
        change::in_words(&self.plane_status())
    }
}
