//! The socket of a cluster's supervisor: what `status`, `kill`, `restart` and `down` of other processes use.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use inband_host::line_json::{self, Server};
use serde::de::DeserializeOwned;
use serde::Serialize;

use super::Service;

/// Longer than anything that is done in one request.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// Where the supervisor of the cluster in a directory listens.
pub fn socket_in(data: &Path) -> PathBuf {
    data.join("supervisor.sock")
}

impl Service {
    /// Ask the cluster in a directory.
    pub fn ask<R: DeserializeOwned>(&self, data: &Path, request: &impl Serialize) -> Result<R> {
        match line_json::call(&socket_in(data), request, CALL_LIMIT) {
            Err(error) if error.nobody_listens() => bail!(
                "no {} cluster runs in {}; start one: inband up {}",
                self.name,
                data.display(),
                self.command
            ),
            answered => Ok(answered?),
        }
    }
}

/// An answer to another question.
pub fn unexpected<T>(reply: &impl Debug) -> Result<T> {
    bail!("an unexpected answer ({reply:?}); do both sides run the same version?")
}

/// Answer those who ask the cluster in a directory. `refusal` makes the answer to what could not be done.
pub fn serve<Q, R>(
    data: &Path,
    answer: impl Fn(Q) -> Result<R> + Send + Sync + 'static,
    refusal: fn(String) -> R,
) -> Result<Server>
where
    Q: DeserializeOwned + 'static,
    R: Serialize + 'static,
{
    let path = socket_in(data);
    let handle = move |request| answer(request).unwrap_or_else(|e| refusal(format!("{e:#}")));
    Server::start(&path, handle, refusal)
        .with_context(|| format!("cannot listen at {}", path.display()))
}
