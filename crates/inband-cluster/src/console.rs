//! `up --console`: the console beside the cluster.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_host::program;

use crate::listeners::parse_address;
use crate::process::{ProcessSpec, SupervisedChild};

/// How long it may take to say where it is.
const START_LIMIT: Duration = Duration::from_secs(10);
/// What the line with its address contains.
const ADDRESS_MARK: &str = "http://";

/// The option of `up` that starts the console.
#[derive(Debug, Args)]
pub struct ConsoleArgs {
    /// Also start `inband console`, which ends with the cluster, and print its address
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address::<8390>, num_args = 0..=1, require_equals = true, default_missing_value = "127.0.0.1:8390", conflicts_with = "detach")]
    console: Option<SocketAddr>,
}

/// A console that is to be started.
pub struct Console {
    program: PathBuf,
    listen: SocketAddr,
    /// Its other options.
    options: Vec<OsString>,
}

/// A console that runs. It ends when this is dropped, or when this process ends.
pub struct RunningConsole {
    _child: SupervisedChild,
}

impl ConsoleArgs {
    /// Returns the console, if one is wanted. Fails if the program is missing: call this before the cluster is started.
    pub fn find(&self) -> Result<Option<Console>> {
        let console = |listen| {
            Ok(Console {
                program: program::find("inband-console").context("--console")?,
                listen,
                options: Vec::new(),
            })
        };
        self.console.map(console).transpose()
    }
}

impl Console {
    /// Adds an option with a file.
    #[must_use]
    pub fn with(mut self, option: &str, file: &Path) -> Console {
        self.options.extend([option.into(), file.into()]);
        self
    }

    /// Starts it for the cluster in a directory, and prints its address. The cluster goes on without one that does not
    /// start.
    pub fn start(&self, data: &Path) -> Option<RunningConsole> {
        self.try_start(data)
            .inspect_err(|error| eprintln!("--console: {error:#}; the cluster runs without it"))
            .ok()
    }

    fn try_start(&self, data: &Path) -> Result<RunningConsole> {
        let (said, log) = UnixStream::pair()?;
        said.set_read_timeout(Some(START_LIMIT))?;
        let mut spec = ProcessSpec::new(&self.program);
        spec.args = ["--listen".into(), self.listen.to_string().into()].into();
        spec.args.extend(["--data".into(), data.into()]);
        spec.args.extend(self.options.iter().cloned());
        spec.log = Some(File::from(OwnedFd::from(log)));
        let child = SupervisedChild::spawn(&spec, None)?;
        drop(spec);
        let mut said = BufReader::new(said);
        let mut line = String::new();
        said.read_line(&mut line)
            .context("it does not say where it is")?;
        let line = line.trim_end();
        ensure!(
            line.contains(ADDRESS_MARK),
            "{line} (--console=ADDR:PORT is its --listen)"
        );
        println!("{line}");
        said.get_ref().set_read_timeout(None)?;
        thread::Builder::new()
            .name("console".into())
            .spawn(move || {
                let lines = said.lines().map_while(Result::ok);
                lines.for_each(|line| eprintln!("{line}"));
            })?;
        Ok(RunningConsole { _child: child })
    }
}
