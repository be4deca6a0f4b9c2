//! Client access options of commands: password and TLS.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use inband_kv::access::Access;
use inband_resp::password::Password;

/// Options of commands that connect to a replica as a client.
#[derive(Debug, Default, Args)]
pub struct AccessArgs {
    /// File with the password that the cluster requires of its clients.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Connect with TLS, trusting the CA certificate in this file (for a cluster of `inband up`: authority/ca.pem in
    /// its directory).
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl AccessArgs {
    /// Reads the files that the options name.
    pub fn access(&self) -> Result<Access> {
        let password = self.password_file.as_deref().map(Password::read);
        Ok(Access {
            password: password.transpose().context("--password-file")?,
            ca: self.tls_ca.clone(),
        })
    }
}
