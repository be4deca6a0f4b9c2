//! How this host talks to others over TCP, and `inband certificate`.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use inband_paxos::config::{Config, TlsConfig};
use inband_transport::certificates::{Authority, CertificateFiles, RENEW_BEFORE};
use inband_transport::tls::Transport;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// With less left a host and `inband doctor` warn.
const RENEW_BEFORE_DAYS: i64 = (RENEW_BEFORE.as_secs() / DAY.as_secs()) as i64;

/// Where a host's certificate is.
pub fn certificate_files(tls: &TlsConfig) -> CertificateFiles {
    CertificateFiles {
        ca: tls.ca.clone(),
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
    }
}

/// As the configuration says; warns of a certificate that is about to expire.
pub fn of(config: &Config) -> Result<Transport> {
    of_tls(config.host.tls.as_ref())
}

/// As `[host.tls]` says; warns of a certificate that is about to expire.
pub fn of_tls(tls: Option<&TlsConfig>) -> Result<Transport> {
    let Some(tls) = tls else {
        return Ok(Transport::plain());
    };
    let files = certificate_files(tls);
    let transport = Transport::mutual(&files).context("host.tls")?;
    let left = days_left(&files)?;
    if left < RENEW_BEFORE_DAYS {
        tracing::warn!("{}", expiry_in_words(&files, left));
    }
    Ok(transport)
}

/// How many days a certificate is valid yet; negative once it has expired.
pub fn days_left(files: &CertificateFiles) -> Result<i64> {
    let expires = files.expires()?;
    Ok(match expires.duration_since(SystemTime::now()) {
        Ok(left) => (left.as_secs() / DAY.as_secs()) as i64,
        Err(over) => -1 - (over.duration().as_secs() / DAY.as_secs()) as i64,
    })
}

/// How it stands with the certificate of the host with this configuration, and whether that is well.
pub fn health(config: &Path) -> Result<(bool, String)> {
    let config = Config::load(config)?;
    let Some(tls) = &config.host.tls else {
        let says =
            "none: checkpoints and the control plane go over plain TCP; see docs/security.md";
        return Ok((false, says.into()));
    };
    let files = certificate_files(tls);
    if let Err(error) = Transport::mutual(&files) {
        return Ok((false, error.to_string()));
    }
    let left = days_left(&files)?;
    Ok((left >= RENEW_BEFORE_DAYS, expiry_in_words(&files, left)))
}

fn expiry_in_words(files: &CertificateFiles, days_left: i64) -> String {
    let certificate = files.certificate.display();
    match days_left {
        ..0 => format!(
            "{certificate} has expired; make another with `inband certificate new`, then restart the host"
        ),
        days => format!("{certificate} is valid for {days} more days"),
    }
}

/// `inband certificate`.
#[derive(Debug, Subcommand)]
pub enum CertificateCommand {
    /// Make the certificate of a host, at the places that [host.tls] of its configuration names.
    New(NewArgs),
    /// Until when the certificate of a host is valid.
    Show(ShowArgs),
}

/// Options of `inband certificate new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The host's configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Directory of the cluster's authority, made if there is none. Its key makes hosts of the cluster:
    /// keep it away from them.
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// Further addresses at which Redis clients reach the host.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
}

/// Options of `inband certificate show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The host's configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Carry it out.
pub fn certificate(command: &CertificateCommand) -> Result<()> {
    match command {
        CertificateCommand::New(args) => new(args),
        CertificateCommand::Show(args) => {
            let (_, files) = configured(&args.config)?;
            println!("{}", expiry_in_words(&files, days_left(&files)?));
            Ok(())
        }
    }
}

fn configured(config: &Path) -> Result<(Config, CertificateFiles)> {
    let config = Config::load(config)?;
    let tls = config.host.tls.as_ref().context(
        "the configuration has no [host.tls]; add one with ca, certificate and key, the files to be made",
    )?;
    let files = certificate_files(tls);
    Ok((config, files))
}

fn new(args: &NewArgs) -> Result<()> {
    let (config, files) = configured(&args.config)?;
    let authority = Authority::open_or_make(&args.authority, &config.cluster.name)?;
    let this = config.this();
    let mut addresses = vec![IpAddr::from([127, 0, 0, 1]), (*this.address.ip()).into()];
    addresses.extend(config.host.resp.iter().map(|address| address.ip()));
    addresses.extend(&args.address);
    addresses.retain(|address| !address.is_unspecified());
    addresses.dedup();
    authority.issue(this.id, &addresses, &files)?;
    println!(
        "{}: {}",
        this.name,
        expiry_in_words(&files, days_left(&files)?)
    );
    Ok(())
}
