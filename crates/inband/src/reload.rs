//! SIGHUP: a host reads its certificates, its password, its packet keys and its log level again, while its connections stay.
//! A file that is no good is logged, and what was read before stays in use.

use std::path::PathBuf;

use anyhow::{Context, Result};
use inband_host::logging::{self, LogFormat};
use inband_host::reload::Reload;
use inband_kv::control::NewAccess;
use inband_paxos::config::Config;
use serde_json::Value;

use crate::replica::{clients_tls_of, password_of};
use crate::serve::HostView;
use crate::transport;

/// What a reload needs besides the host.
pub struct HostReload {
    pub config_path: PathBuf,
    /// The format of the log that the command line says.
    pub log_format: Option<LogFormat>,
}

impl HostReload {
    /// Starts the thread that waits for the signal.
    pub fn start(self, view: HostView) -> Result<()> {
        let of = |step: fn(&HostView) -> Result<Option<String>>| {
            let view = view.clone();
            move || step(&view)
        };
        let reload = Reload::new()
            .with("packet keys", of(keys))
            .with("certificates", of(certificates))
            .with("host.password_file", of(password));
        let for_configuration = view.clone();
        let reload = reload.with("configuration", move || {
            self.configuration(&for_configuration)
        });
        let (request, notifier) = (view.request.clone(), view.notifier.clone());
        reload.start(request, notifier, move || view.is_stopping())?;
        Ok(())
    }

    /// Applies what can be applied of the configuration file, and says what cannot.
    fn configuration(&self, view: &HostView) -> Result<Option<String>> {
        let fresh = Config::load(&self.config_path)?;
        logging::configure(fresh.log, self.log_format);
        let changed = changed(&view.config, &fresh)?;
        if !changed.is_empty() {
            tracing::warn!(
                "SIGHUP: {} has new values that take effect when the host is started again: {}",
                self.config_path.display(),
                changed.join(", ")
            );
        }
        Ok(None)
    }
}

fn keys(view: &HostView) -> Result<Option<String>> {
    let keys = view.reload_keys()?;
    Ok(keys.map(|keys| keys.in_words()))
}

fn certificates(view: &HostView) -> Result<Option<String>> {
    let Some(tls) = &view.config.host.tls else {
        return Ok(None);
    };
    transport::check_holder(&view.config)?;
    let files = transport::certificate_files(tls);
    // Both are made before either is used.
    let for_clients = clients_tls_of(&view.config)?;
    view.transport.reload(&files).context("host.tls")?;
    if let (Some(replica), Some(tls)) = (&view.replica, for_clients) {
        replica.set_access(NewAccess {
            tls: Some(tls),
            password: None,
        });
    }
    Ok(Some(transport::expiry(&files)?))
}

fn password(view: &HostView) -> Result<Option<String>> {
    let (Some(password), Some(replica)) = (password_of(&view.config)?, &view.replica) else {
        return Ok(None);
    };
    replica.set_access(NewAccess {
        password: Some(password),
        tls: None,
    });
    Ok(Some("clients that connect from now on must send it".into()))
}

/// Returns the names of the settings that differ, except for those of the log, which are applied.
fn changed(now: &Config, fresh: &Config) -> Result<Vec<String>> {
    let (now, fresh) = (serde_json::to_value(now)?, serde_json::to_value(fresh)?);
    let mut names = Vec::new();
    differences("", &now, &fresh, &mut names);
    names.retain(|name| !name.starts_with("log."));
    Ok(names)
}

fn differences(name: &str, now: &Value, fresh: &Value, into: &mut Vec<String>) {
    let (Value::Object(now), Value::Object(fresh)) = (now, fresh) else {
        if now != fresh {
            into.push(name.to_owned());
        }
        return;
    };
    let added = fresh.keys().filter(|key| !now.contains_key(*key));
    for key in now.keys().chain(added) {
        let name = match name.is_empty() {
            true => key.clone(),
            false => format!("{name}.{key}"),
        };
        let of = |all: &serde_json::Map<String, Value>| all.get(key).cloned().unwrap_or_default();
        differences(&name, &of(now), &of(fresh), into);
    }
}
