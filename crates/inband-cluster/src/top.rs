//! `inband top`: a cluster's status, again and again.

use std::io::{stdout, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::command::SystemCommand;
use crate::socket;

/// Move the cursor to the top left of the screen, and erase what follows.
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";

/// Options of `top`.
#[derive(Debug, Args)]
pub struct TopArgs<S: SystemCommand> {
    /// Directory of the cluster.
    #[arg(long, default_value = S::DEFAULT_DATA, value_name = "DIR")]
    data: PathBuf,
    /// Interval between updates.
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..))]
    interval_ms: u64,
    /// Exit after this many updates.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    #[arg(skip)]
    system: std::marker::PhantomData<fn() -> S>,
}

impl<S: SystemCommand> TopArgs<S> {
    /// Prints until Ctrl-C, until the cluster ends, or until `--count` is reached.
    pub fn run(&self, mut in_words: impl FnMut(&S::Status) -> String) -> Result<()> {
        let mut out = stdout();
        let clear = if out.is_terminal() {
            HOME_AND_CLEAR
        } else {
            ""
        };
        for look in 1.. {
            let text = in_words(&self.status()?);
            write!(out, "{clear}{text}")?;
            out.flush()?;
            if self.count == Some(look) {
                break;
            }
            self.wait();
        }
        Ok(())
    }

    /// The status of the cluster now.
    pub(crate) fn status(&self) -> Result<S::Status> {
        socket::status::<S>(&self.data)
    }

    /// Wait until the next update.
    pub(crate) fn wait(&self) {
        std::thread::sleep(Duration::from_millis(self.interval_ms));
    }
}
