//! How clients and workers find their cluster: by its scheduler's address and key file, or through its directory on
//! this machine.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_ground::auth::{Digest, Keys};
use inband_host::key_file::KeyFile;
use inband_host::namespace::enter;

use inband_cluster::falcon::status::ClusterAddress;
use inband_cluster::falcon::{address_of, parse_address, Falcon};
use inband_cluster::system::System;

/// Options of commands that use a cluster.
#[derive(Debug, Args)]
pub struct ReachArgs {
    /// Address of the scheduler. Default: that of the cluster in --data.
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
    scheduler: Option<SocketAddrV4>,
    /// The cluster's key file: a copy of the one created by `inband up falcon`.
    #[arg(long, value_name = "FILE", requires = "scheduler")]
    key_file: Option<PathBuf>,
    /// Directory of a cluster of `inband up falcon` on this machine.
    #[arg(long, default_value = Falcon::DEFAULT_DATA, value_name = "DIR", conflicts_with = "scheduler")]
    data: PathBuf,
}

/// A cluster's address and keys.
pub struct Reached {
    pub scheduler: SocketAddrV4,
    /// `None`: packets are not authenticated.
    pub keys: Option<Keys>,
    /// How values are digested.
    pub digest: Digest,
    /// The key file; an absolute path.
    pub key_file: Option<PathBuf>,
}

impl ReachArgs {
    /// Finds the cluster. If it has its own network namespace, the calling thread enters it, so call this early.
    pub fn reach(&self) -> Result<Reached> {
        let address = match self.scheduler {
            Some(scheduler) => ClusterAddress {
                data: self.data.clone(),
                scheduler,
                key_file: self.key_file.clone(),
                namespace: None,
            },
            None => address_of(&self.data)
                .context("to use one on another machine, give --scheduler HOST:PORT")?,
        };
        if let Some(namespace) = &address.namespace {
            enter(namespace)?;
        }
        let file = address.key_file.as_deref().map(KeyFile::load).transpose()?;
        let (keys, digest) = opened(file.as_ref());
        let absolute = |path: &PathBuf| std::path::absolute(path);
        Ok(Reached {
            key_file: address.key_file.as_ref().map(absolute).transpose()?,
            scheduler: address.scheduler,
            keys,
            digest,
        })
    }
}

/// Reads the keys of a key file, if there is one.
pub fn opened(file: Option<&KeyFile>) -> (Option<Keys>, Digest) {
    match file {
        Some(file) => (Some(file.keys()), file.digest()),
        None => (None, Digest::PLAIN),
    }
}

/// Without keys, anyone who can send a packet to `what`'s process can run commands on the workers: beyond loopback the
/// user must explicitly allow that.
pub fn must_be_safe(
    what: &str,
    keys: Option<&Keys>,
    no_key: bool,
    addresses: &[Ipv4Addr],
) -> Result<()> {
    if keys.is_some() {
        return Ok(());
    }
    let outside = addresses.iter().find(|address| !address.is_loopback());
    if let Some(address) = outside {
        ensure!(
            no_key,
            "without a key, anyone who can send packets to {address} can run commands on the workers; give --key-file FILE (a copy of the \
             one that `inband up falcon` has made, or a new one of `inband key new`), or give --no-key to allow it"
        );
    }
    tracing::warn!(
        "{what}: no key; anyone who can send packets to it can run commands on the workers"
    );
    Ok(())
}
