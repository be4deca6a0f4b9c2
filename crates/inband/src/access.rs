//! How a command gets into a cluster that asks its clients for something.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use inband_kv::access::Access;
use inband_resp::password::Password;

/// Options of commands that talk to a replica as its clients do.
#[derive(Debug, Default, Args)]
pub struct AccessArgs {
    /// A file with the password that the cluster asks its clients for.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Speak TLS with the cluster, whose authority's certificate is in this file (of a cluster of
    /// `inband up`: authority/ca.pem in its directory).
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl AccessArgs {
    /// Read what they name.
    pub fn access(&self) -> Result<Access> {
        let password = self.password_file.as_deref().map(Password::read);
        Ok(Access {
            password: password.transpose().context("--password-file")?,
            ca: self.tls_ca.clone(),
        })
    }
}
