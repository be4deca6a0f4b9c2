//! `inband falcon top`: shows the status repeatedly.

use std::io::{stdout, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use inband_cluster::command::SystemCommand;
use inband_cluster::falcon::Falcon;
use inband_cluster::socket;
use inband_cluster::system::System;

/// Move the cursor to the top left of the screen, and erase what follows.
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";

/// Options of `inband falcon top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Directory of the cluster.
    #[arg(long, default_value = Falcon::DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Interval between updates.
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..))]
    interval_ms: u64,
    /// Exit after this many updates.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Prints until Ctrl-C, until the cluster ends, or until `--count` is reached.
pub fn top(args: &TopArgs) -> Result<()> {
    let mut out = stdout();
    let clear = if out.is_terminal() {
        HOME_AND_CLEAR
    } else {
        ""
    };
    for look in 1.. {
        let text = Falcon::in_words(&socket::status::<Falcon>(&args.data)?);
        write!(out, "{clear}{text}")?;
        out.flush()?;
        if args.count == Some(look) {
            break;
        }
        std::thread::sleep(Duration::from_millis(args.interval_ms));
    }
    Ok(())
}
