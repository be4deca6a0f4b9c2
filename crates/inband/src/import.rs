//! `inband import`: loads a file written by `inband export` into a running cluster.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_kv::export::Summary;
use inband_kv::import::{self, ImportOptions};
use indicatif::{ProgressBar, ProgressStyle};

use crate::access::AccessArgs;
use crate::export::{address, at_ctrl_c, bar, keys, DEFAULT_RESP};

/// Options of `inband import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// Client address of a replica of the cluster.
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_RESP, value_parser = address)]
    host: SocketAddr,
    /// Import even if the cluster has keys; existing keys of the same name are overwritten.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    access: AccessArgs,
    /// A file written by `inband export`.
    file: PathBuf,
}

/// Verifies the whole file, then sets its keys.
pub fn import(args: &ImportArgs) -> Result<()> {
    let set = Arc::new(AtomicU64::new(0));
    let so_far = set.clone();
    at_ctrl_c(move || eprintln!("inband: interrupted; {}", how_far(&so_far)))?;
    let shown = args.file.display();
    let summary = check(&args.file).with_context(|| shown.to_string())?;
    let bar = bar(summary.keys, "importing");
    let options = ImportOptions {
        overwrite: args.overwrite,
        access: args.access.access()?,
    };
    let file = File::open(&args.file).with_context(|| shown.to_string())?;
    let progress = &mut |keys| {
        set.store(keys, Ordering::Relaxed);
        bar.set_position(keys);
    };
    let result = import::import(file, args.host, options, progress);
    bar.finish_and_clear();
    result.with_context(|| match set.load(Ordering::Relaxed) {
        0 => format!("importing into {}", args.host),
        _ => format!("importing into {}: {}", args.host, how_far(&set)),
    })?;
    println!(
        "imported {} from {shown} into {}; those that have expired meanwhile were not kept",
        keys(summary.keys),
        args.host
    );
    Ok(())
}

fn how_far(set: &AtomicU64) -> String {
    match set.load(Ordering::Relaxed) {
        0 => "nothing was imported".into(),
        some => format!("at least {} are set; continue with --overwrite", keys(some)),
    }
}

/// Nothing of a damaged file is imported.
fn check(path: &Path) -> Result<Summary> {
    let file = File::open(path)?;
    let described = file.metadata()?;
    ensure!(
        described.is_file(),
        "this is not a regular file, and an import reads its file twice; save the export to a file first"
    );
    let template = "checking {wide_bar} {bytes} of {total_bytes}";
    let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
    let bar = ProgressBar::new(described.len()).with_style(style);
    let result = import::read(bar.wrap_read(file), &mut |_| Ok(()));
    bar.finish_and_clear();
    Ok(result?)
}
