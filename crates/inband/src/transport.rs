//! TCP transport to other hosts, and `inband certificate`.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand};
use inband_paxos::config::{Config, TlsConfig};
use inband_transport::certificates::{
    self, Authority, CertificateFiles, Holder, AUTHORITY_CERTIFICATE, RENEW_BEFORE,
};
use inband_transport::tls::Transport;

use crate::exit_status::Unsuitable;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// With fewer days left, a host and `inband doctor` warn.
const RENEW_BEFORE_DAYS: i64 = (RENEW_BEFORE.as_secs() / DAY.as_secs()) as i64;

/// Paths of a host's certificate files.
pub fn certificate_files(tls: &TlsConfig) -> CertificateFiles {
    CertificateFiles {
        ca: tls.ca.clone(),
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
    }
}

/// Returns the configured transport; warns of a certificate that is about to expire.
pub fn of(config: &Config) -> Result<Transport> {
    check_holder(config)?;
    of_tls(config.host.tls.as_ref())
}

/// Peers refuse a host with another host's certificate; report it here, where it can be fixed.
pub fn check_holder(config: &Config) -> Result<()> {
    let Some(tls) = &config.host.tls else {
        return Ok(());
    };
    let certificate = &tls.certificate;
    let this = config.this();
    let holder = certificates::holder(certificate).context("host.tls")?;
    match holder {
        Some(holder) if holder.node != this.id => Err(Unsuitable(format!(
            "{} is the certificate of node {} of cluster {:?}, but this host is node {} ({:?}); \
             copy this host's own, or make it with `inband certificate new`",
            certificate.display(),
            holder.node,
            holder.cluster,
            this.id,
            this.name
        ))
        .into()),
        // Its control plane would be refused by the others, although it takes part in everything else.
        Some(holder) if holder.cluster != config.cluster.name => Err(Unsuitable(format!(
            "{} is a certificate of cluster {:?}, but [cluster] name is {:?}; correct the name, which is the same on \
             all hosts, or use this cluster's certificate",
            certificate.display(),
            holder.cluster,
            config.cluster.name
        ))
        .into()),
        // Issued by another CA: the handshake decides whether it is acceptable.
        _ => Ok(()),
    }
}

/// Returns the transport according to `[host.tls]`; warns of a certificate that is about to expire.
pub fn of_tls(tls: Option<&TlsConfig>) -> Result<Transport> {
    let Some(tls) = tls else {
        return Ok(Transport::plain());
    };
    let files = certificate_files(tls);
    let transport = Transport::mutual(&files).context("host.tls")?;
    expiry(&files)?;
    Ok(transport)
}

/// Returns until when a certificate is valid, in words; warns if it is about to expire.
pub fn expiry(files: &CertificateFiles) -> Result<String> {
    let left = days_left(files)?;
    let words = expiry_in_words(files, left);
    if left < RENEW_BEFORE_DAYS {
        tracing::warn!("{words}");
    }
    Ok(words)
}

/// Returns how many more days a certificate is valid; negative once it has expired.
pub fn days_left(files: &CertificateFiles) -> Result<i64> {
    let expires = files.expires()?;
    Ok(match expires.duration_since(SystemTime::now()) {
        Ok(left) => (left.as_secs() / DAY.as_secs()) as i64,
        Err(over) => -1 - (over.duration().as_secs() / DAY.as_secs()) as i64,
    })
}

/// Whether the certificate of the host with this configuration is in order, and a description.
pub fn health(config: &Config) -> Result<(bool, String)> {
    let Some(tls) = &config.host.tls else {
        let says =
            "none: checkpoints and the control plane go over plain TCP; see docs/security.md";
        return Ok((false, says.into()));
    };
    let files = certificate_files(tls);
    let usable = check_holder(config).and_then(|()| Ok(Transport::mutual(&files).map(drop)?));
    if let Err(error) = usable {
        return Ok((false, format!("{error:#}")));
    }
    let left = days_left(&files)?;
    Ok((left >= 0, expiry_in_words(&files, left)))
}

fn expiry_in_words(files: &CertificateFiles, days_left: i64) -> String {
    let certificate = files.certificate.display();
    match days_left {
        ..0 => format!(
            "{certificate} has expired; make another with `inband certificate new`, then reload or restart the host"
        ),
        days => format!("{certificate} is valid for {days} more days"),
    }
}

#[derive(Debug, Subcommand)]
pub enum CertificateCommand {
    /// Create the certificate of a host: in a separate directory with --out, otherwise at the paths that [host.tls] of
    /// its configuration names.
    New(NewArgs),
    /// Show to whom a host's certificate belongs and until when it is valid.
    Show(ShowArgs),
}

/// Options of `inband certificate new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The host's configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Directory of the cluster's CA, created if missing. Its key can create hosts of the cluster: keep it away from
    /// them.
    #[arg(long, value_name = "DIR")]
    authority: PathBuf,
    /// Write ca.pem, certificate.pem and key.pem to this directory. Use one directory per host, and copy its files to
    /// the host.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Make the host trust another CA from now on, instead of the one whose ca.pem it has.
    #[arg(long)]
    replace_authority: bool,
    /// Additional addresses at which Redis clients reach the host.
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

pub fn certificate(command: &CertificateCommand) -> Result<()> {
    match command {
        CertificateCommand::New(args) => new(args),
        CertificateCommand::Show(args) => {
            let (_, files) = configured(&args.config)?;
            let holder = certificates::holder(&files.certificate)?;
            let whose = holder.map_or_else(|| "not made by inband".into(), |h| in_words(&h));
            println!("{whose}: {}", expiry_in_words(&files, days_left(&files)?));
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

fn in_words(holder: &Holder) -> String {
    format!("node {} of cluster {:?}", holder.node, holder.cluster)
}

/// A certificate may be recreated at any time, but must not overwrite another host's.
fn check_place(files: &CertificateFiles, own: &Holder) -> Result<()> {
    let advice = "nothing was changed; use --out with a directory for each host";
    if !files.certificate.exists() {
        let key = files.key.display();
        ensure!(
            !files.key.exists(),
            "{key} exists, without a certificate beside it that says whose it is; {advice}"
        );
        return Ok(());
    }
    match certificates::holder(&files.certificate)? {
        Some(holder) if holder == *own => Ok(()),
        other => bail!(
            "{} is the certificate of {}, not of {}; {advice}",
            files.certificate.display(),
            other.map_or_else(|| "somebody else".into(), |holder| in_words(&holder)),
            in_words(own)
        ),
    }
}

/// A host keeps its cluster's CA unless told to change it: with another one, no other host talks to it.
fn check_authority(files: &CertificateFiles, args: &NewArgs) -> Result<()> {
    let (Ok(known), authority) = (fs::read(&files.ca), &args.authority) else {
        return Ok(());
    };
    let given = fs::read(authority.join(AUTHORITY_CERTIFICATE)).ok();
    ensure!(
        args.replace_authority || given.as_ref() == Some(&known),
        "{} is the certificate of another authority than the one in {}{}; nothing was changed; give the directory of the \
         cluster's authority, or --replace-authority if all hosts get a new one",
        files.ca.display(),
        authority.display(),
        if given.is_none() { ", which has none yet" } else { "" }
    );
    Ok(())
}

fn new(args: &NewArgs) -> Result<()> {
    let (config, files) = match &args.out {
        Some(dir) => (Config::load(&args.config)?, CertificateFiles::in_dir(dir)),
        None => configured(&args.config)?,
    };
    let own = Holder {
        node: config.this().id,
        cluster: config.cluster.name.clone(),
    };
    check_place(&files, &own)?;
    check_authority(&files, args)?;
    let is_new = !args.authority.join(AUTHORITY_CERTIFICATE).exists();
    let authority = Authority::open_or_make(&args.authority, &config.cluster.name)?;
    if is_new {
        println!("made a new authority in {}", args.authority.display());
    }
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
