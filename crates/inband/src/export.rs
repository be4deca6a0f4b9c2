//! `inband export`: all keys of a cluster into a file; from a running cluster over its client port, from a stopped one
//! out of a replica's data.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::Args;
use inband_cluster::paxos::cluster_dir::{ClusterDir, ClusterRecord};
use inband_cluster::paxos::supervisor::{remote, SupervisorError};
use inband_host::output::quoted;
use inband_host::signals::StopSignals;
use inband_host::text::counted;
use inband_kv::export::{ExportError, Summary};
use inband_kv::import::{self, ImportError};
use inband_kv::machine::{Machine, MachineConfig};
use inband_paxos::config::Durability;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use tempfile::NamedTempFile;

use crate::access::AccessArgs;

/// Default client address of a cluster.
pub const DEFAULT_RESP: &str = "127.0.0.1:6379";
/// Exit status that shells expect of a process ended by Ctrl-C.
pub const EXIT_INTERRUPTED: i32 = 130;
const SIGNAL_POLL: Duration = Duration::from_millis(500);
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// Options of `inband export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Client address of a replica of a running cluster.
    #[arg(long, value_name = "ADDR:PORT", default_value = DEFAULT_RESP, value_parser = address)]
    host: SocketAddr,
    /// Instead of --host: the directories given to `inband up`, whether the cluster runs or not; or the data
    /// directories of a stopped replica.
    #[arg(
        long,
        value_name = "DIR[,DIR...]",
        value_delimiter = ',',
        conflicts_with = "host"
    )]
    data: Vec<PathBuf>,
    /// Export even if the data was not stopped cleanly: what no replica had applied is missing.
    #[arg(long, requires = "data")]
    accept_loss: bool,
    #[command(flatten)]
    access: AccessArgs,
    /// The output file. It appears only when complete, and replaces an existing one.
    file: PathBuf,
}

/// Parses an address, or a name and a port.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().map_err(|error| error.to_string())?;
    let mut found: Vec<SocketAddr> = found.collect();
    // A cluster listens on one address, while `localhost` has two.
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(|| "no address".into())
}

/// An export in progress.
struct Source {
    stream: Box<dyn Read>,
    /// Approximate number of keys.
    keys: u64,
    /// The thread that writes the stream, if it is in this process.
    writer: Option<JoinHandle<Result<Summary, ExportError>>>,
}

/// Exports to a temporary file, verify it, and only then renames it.
pub fn export(args: &ExportArgs) -> Result<()> {
    let file = target(&args.file)?;
    let (directory, name) = place_of(&file)?;
    let temporary = tempfile::Builder::new()
        .prefix(&format!(".{name}."))
        .suffix(".partial")
        .tempfile_in(&directory)
        .with_context(|| format!("cannot create a file in {}", directory.display()))?;
    let path = temporary.path().to_path_buf();
    at_ctrl_c(move || {
        // Errors are ignored: the process is exiting.
        let _ = std::fs::remove_file(path);
        eprintln!("inband: interrupted; nothing was exported");
    })?;
    let source = match args.data.first() {
        None => live(args.host, &args.access)?,
        Some(_) => of_directories(args)?,
    };
    let summary = receive(source, &temporary, &file)?;
    let finish = || -> io::Result<()> {
        temporary.as_file().sync_all()?;
        temporary.persist(&file)?;
        File::open(&directory)?.sync_all()
    };
    finish().with_context(|| args.file.display().to_string())?;
    println!(
        "exported {} of {} to {} ({})",
        keys(summary.keys),
        counted(summary.partitions, "partition"),
        args.file.display(),
        HumanBytes(summary.len_bytes)
    );
    Ok(())
}

/// Returns the file to write: that at the end of a symlink, also if it does not exist yet. Anything that is not a regular
/// file, such as a device or a pipe, is refused: a rename would replace it by one.
fn target(file: &Path) -> Result<PathBuf> {
    let shown = || file.display().to_string();
    match file.metadata() {
        Ok(found) => {
            // The links in /proc to open files lead to more than their names say.
            ensure!(
                found.is_file() || found.is_dir(),
                "{} is not a regular file, and would be replaced by one; name a file",
                file.display()
            );
            file.canonicalize().with_context(shown)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => match file.read_link() {
            Ok(to) => target(&file.parent().unwrap_or(Path::new("")).join(to)),
            Err(_) => Ok(file.to_path_buf()),
        },
        Err(error) => Err(error).with_context(shown),
    }
}

/// Returns the directory and the name of an output file.
fn place_of(file: &Path) -> Result<(PathBuf, String)> {
    let name = file.file_name().filter(|_| !file.is_dir());
    let name = name.with_context(|| format!("{} is no name for a file", file.display()))?;
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    Ok((directory.to_path_buf(), name.to_string_lossy().into_owned()))
}

/// On SIGINT and similar signals, call `last` and exit. Must be called before other threads are started.
pub fn at_ctrl_c(last: impl FnOnce() + Send + 'static) -> Result<()> {
    let signals = StopSignals::take()?;
    let wait = move || {
        while !signals.wait(SIGNAL_POLL) {}
        last();
        std::process::exit(EXIT_INTERRUPTED);
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)?;
    Ok(())
}

/// Returns a progress bar for `keys` keys; hidden if the output is not a terminal.
pub fn bar(keys: u64, doing: &'static str) -> ProgressBar {
    let template = "{prefix} {wide_bar} {human_pos} of {human_len} keys, {per_sec}, {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
    ProgressBar::new(keys).with_prefix(doing).with_style(style)
}

/// Returns a number of keys, with the right plural.
pub fn keys(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} key{plural}", HumanCount(count))
}

fn live(address: SocketAddr, access: &AccessArgs) -> Result<Source> {
    let asked = import::ask_for_export(address, &access.access()?);
    let (keys, stream) = asked.with_context(|| {
        format!("{address} (of a cluster that does not run, name the directory with --data)")
    })?;
    Ok(Source {
        stream: Box::new(stream),
        keys,
        writer: None,
    })
}

fn of_directories(args: &ExportArgs) -> Result<Source> {
    let (dirs, accept_loss) = (&args.data, args.accept_loss);
    if Machine::partitions_in(&dirs[0])?.is_some() {
        return stopped(open(dirs)?);
    }
    match remote::status(&dirs[0]) {
        Ok(status) => live(status.resp, &args.access),
        Err(SupervisorError::NotRunning { .. }) => stopped(best_replica(dirs, accept_loss)?),
        Err(error) => Err(error.into()),
    }
}

/// Opens a replica's data.
fn open(dirs: &[PathBuf]) -> Result<Machine> {
    let first = dirs[0].display();
    let partitions = Machine::partitions_in(&dirs[0])?;
    Machine::open(MachineConfig {
        dirs: dirs.to_vec(),
        partitions: partitions.with_context(|| format!("{first} holds no data of a replica"))?,
        sync: false,
    })
    .with_context(|| first.to_string())
}

/// Returns the most advanced replica of a stopped cluster.
fn best_replica(dirs: &[PathBuf], accept_loss: bool) -> Result<Machine> {
    let shown = dirs[0].display();
    // Opening a directory that is not a cluster's would turn it into one.
    ensure!(
        dirs[0].join("hosts").is_dir(),
        "{shown} is neither a cluster's directory nor a replica's data"
    );
    let cluster = ClusterDir::open(&dirs[0], &dirs[1..])?;
    let record = cluster.record()?;
    let record = record.with_context(|| format!("{shown} holds no cluster"))?;
    ensure!(
        record.data_dirs == dirs.len(),
        "the cluster in {shown} has its partitions in {} directories, --data names {}; name the \
         same ones as for `inband up`, in their order",
        record.data_dirs,
        dirs.len()
    );
    let mut best: Option<(u64, Vec<PathBuf>)> = None;
    for host in std::fs::read_dir(cluster.path().join("hosts"))? {
        let data = cluster.data_dirs(&host?.file_name().to_string_lossy());
        if Machine::partitions_in(&data[0])?.is_some() {
            let applied = open(&data)?.applied().iter().sum();
            if best.as_ref().is_none_or(|(most, _)| applied > *most) {
                best = Some((applied, data));
            }
        }
    }
    let (_, data) = best.with_context(|| format!("no replica in {shown} has data"))?;
    let machine = open(&data)?;
    let has = |at: &Vec<u64>| machine.applied().iter().zip(at).all(|(has, at)| has >= at);
    let is_whole = record.clean_at.as_ref().is_some_and(has);
    if !is_whole && !accept_loss {
        let data: Vec<String> = dirs.iter().map(|dir| quoted(dir)).collect();
        let data = data.join(",");
        bail!(
            "the cluster in {shown} was not stopped cleanly: its replicas' data may lack writes that were acknowledged; \
             {}, or export what the most advanced replica has: inband export --data {data} --accept-loss FILE",
            whole_again(&record, &data)
        );
    }
    Ok(machine)
}

/// Says how all acknowledged writes can be exported after an unclean stop.
fn whole_again(record: &ClusterRecord, data: &str) -> String {
    match record.durability {
        Durability::Sync => format!(
            "to export all of them, start it (inband up --data {data} --durability sync) and export while it runs"
        ),
        Durability::Memory => format!(
            "those that only the acceptors had, in memory, are lost: continue from the most advanced replica (inband up \
             --data {data} --accept-loss) and export while it runs"
        ),
    }
}

/// Exports in a thread, so that the stream is verified as if it came over a network.
fn stopped(machine: Machine) -> Result<Source> {
    let (stream, to) = UnixStream::pair()?;
    let keys = machine.keys();
    let write = move || machine.shared().export(BufWriter::new(to));
    let thread = std::thread::Builder::new().name("export".into());
    Ok(Source {
        stream: Box::new(stream),
        keys,
        writer: Some(thread.spawn(write)?),
    })
}

/// Writes the stream to the file, and verifies it.
fn receive(source: Source, to: &NamedTempFile, file: &Path) -> Result<Summary> {
    let bar = bar(source.keys, "exporting");
    let mut tee = Tee {
        from: source.stream,
        to: BufWriter::with_capacity(WRITE_BUFFER_BYTES, to),
        file,
    };
    let count = &mut |_: import::ExportedKey<'_>| {
        bar.inc(1);
        Ok(())
    };
    let result = import::read(&mut tee, count);
    let written = tee.to.flush().map_err(|error| writing(file, error));
    drop(tee);
    bar.finish_and_clear();
    if let Some(writer) = source.writer {
        let written = writer.join();
        let written = written.map_err(|_| anyhow!("the export has panicked"))?;
        // Without the reader, the writer gets a broken pipe, so the reader's error takes precedence.
        if !matches!(result, Err(ImportError::Io(_))) {
            written?;
        }
    }
    let summary = result.map_err(|error| match error {
        ImportError::Damaged(what) => anyhow!("the export broke off ({what}); export again"),
        other => other.into(),
    })?;
    written?;
    Ok(summary)
}

fn writing(file: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("writing {}: {error}", file.display()))
}

/// Writes everything that is read to a file.
struct Tee<'a, W: Write> {
    from: Box<dyn Read>,
    to: BufWriter<W>,
    file: &'a Path,
}

impl<W: Write> Read for Tee<'_, W> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.from.read(into)?;
        let written = self.to.write_all(&into[..len]);
        written.map_err(|error| writing(self.file, error))?;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symlink_is_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "").expect("written");
        std::os::unix::fs::symlink(at("file"), at("link")).expect("made");
        let file = at("file").canonicalize().expect("it exists");
        assert_eq!(target(&at("link")).expect("a file"), file);
        assert_eq!(target(&at("new")).expect("a new file"), at("new"));
        std::fs::remove_file(at("file")).expect("removed");
        assert_eq!(target(&at("link")).expect("a new file"), at("file"));
        std::os::unix::fs::symlink("link", at("relative")).expect("made");
        assert_eq!(target(&at("relative")).expect("a new file"), at("file"));
        std::os::unix::fs::symlink("circle", at("circle")).expect("made");
        assert!(target(&at("circle")).is_err());
    }

    #[test]
    fn what_is_no_regular_file_is_refused() {
        use std::os::fd::AsRawFd;
        let (pipe, _other) = UnixStream::pair().expect("a pair");
        // As /dev/stdout of `inband export /dev/stdout | cat`.
        let open = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        for path in ["/dev/null", &open] {
            let refused = target(Path::new(path)).expect_err("no file").to_string();
            assert!(refused.contains("is not a regular file"), "{refused}");
        }
    }
}
