//! Serves checkpoints to peers, on its own threads.

use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use inband_transport::accept::stop_listening;
use inband_transport::tls::{is_refused, Transport};
use xxhash_rust::xxh3::Xxh3;

use crate::checkpoint::{
    file_hash, pace, read_array, read_positions, write_positions, write_text, write_u64,
    TransferError, ANSWER_OK, ANSWER_REFUSED, CHUNK_LEN_BYTES, END_MAGIC, MAGIC,
};
use crate::clock_exchange::{SharedClock, CLOCK_MAGIC};
use crate::limit_hits::{LimitHit, LimitHits, RateLimit};
use crate::limits::{CHECKPOINT_REQUEST_MS_MAX, CHECKPOINT_TRANSFERS_MAX};
use crate::peer_exchange::{Peers, PEER_MAGIC};
use crate::store::{Position, SharedDbs};

/// Checkpoint files that the receiver creates itself.
const NOT_SENT: [&str; 2] = ["LOG", "LOCK"];
/// Pause after a failed `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shared between the server's threads.
struct Shared {
    dbs: SharedDbs,
    /// Where checkpoints are made, one directory per log. On the same disks as the stores, so that files can be hard
    /// links.
    outgoing: Vec<PathBuf>,
    stop: AtomicBool,
    transfers: AtomicUsize,
    next_number: AtomicU64,
    served: Arc<AtomicU64>,
    sending: Sending,
    hits: Arc<LimitHits>,
    /// For messages that any host can cause by connecting.
    log_limit: RateLimit,
    transport: Transport,
    /// Answer peers that ask for the time, or where clients connect.
    informants: Option<(SharedClock, Peers)>,
}

/// Whether checkpoints are being made or sent.
#[derive(Default)]
struct Sending {
    under_way: AtomicUsize,
    /// One has begun since the last question, and may have ended already.
    has_begun: AtomicBool,
}

impl Sending {
    /// Counts a checkpoint until the result is dropped.
    fn begin(&self) -> impl Drop + '_ {
        struct UnderWay<'a>(&'a AtomicUsize);
        impl Drop for UnderWay<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::AcqRel);
            }
        }
        self.under_way.fetch_add(1, Ordering::AcqRel);
        self.has_begun.store(true, Ordering::Release);
        UnderWay(&self.under_way)
    }
}

impl Shared {
    /// Count and log why a peer got no checkpoint. Rate-limited: anyone who can connect can cause this.
    fn failed(&self, peer: SocketAddr, error: &TransferError) {
        match error {
            // Counted by the transport.
            TransferError::Io(error) if is_refused(error) => {}
            TransferError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.hits.count(LimitHit::CheckpointPace);
            }
            TransferError::Damaged(_) => self.hits.count(LimitHit::CheckpointProtocol),
            _ => {}
        }
        if self.log_limit.is_due() {
            tracing::warn!("sending a checkpoint to {peer}: {error}");
        }
    }
}

/// Serves checkpoints until dropped.
pub struct CheckpointServer {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointServer {
    /// Serves checkpoints of `dbs` on `listener`. `outgoing` are scratch directories, one per log. Increments `served`
    /// for each checkpoint sent and a counter in `hits` for each refused or aborted transfer.
    pub fn start(
        listener: TcpListener,
        dbs: SharedDbs,
        outgoing: Vec<PathBuf>,
        served: Arc<AtomicU64>,
        hits: Arc<LimitHits>,
        transport: Transport,
        informants: Option<(SharedClock, Peers)>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            dbs,
            outgoing,
            stop: AtomicBool::new(false),
            transfers: AtomicUsize::new(0),
            next_number: AtomicU64::new(0),
            served,
            sending: Sending::default(),
            hits,
            log_limit: RateLimit::default(),
            transport,
            informants,
        });
        let for_thread = (listener.try_clone()?, shared.clone());
        let thread = std::thread::Builder::new()
            .name("ib-ckpt-accept".into())
            .spawn(move || accept_loop(&for_thread.0, &for_thread.1))?;
        Ok(Self {
            listener,
            address,
            shared,
            thread: Some(thread),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether a checkpoint is being made or sent, or was since the last call.
    pub fn has_sent(&self) -> bool {
        let sending = &self.shared.sending;
        let has_begun = sending.has_begun.swap(false, Ordering::AcqRel);
        has_begun || sending.under_way.load(Ordering::Acquire) > 0
    }
}

impl Drop for CheckpointServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        stop_listening(&self.listener);
        if let Some(thread) = self.thread.take() {
            // The thread exits by itself; a panic in it has already been reported.
            let _ = thread.join();
        }
    }
}

fn accept_loop(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let accepted = listener.accept();
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                shared.hits.count(LimitHit::Accept);
                if shared.log_limit.is_due() {
                    tracing::warn!("accepting a peer for a checkpoint: {error}");
                }
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if shared.transfers.fetch_add(1, Ordering::AcqRel) >= CHECKPOINT_TRANSFERS_MAX {
            shared.transfers.fetch_sub(1, Ordering::AcqRel);
            shared.hits.count(LimitHit::CheckpointTransfers);
            if shared.log_limit.is_due() {
                tracing::warn!("{peer} asks for a checkpoint, too many are being sent already");
            }
            continue;
        }
        let for_thread = shared.clone();
        let serve = move || {
            // Keeps the connection open until the end of this block: when the peer sees it closed, the failure has been
            // counted and the slot is free.
            let keeps_open = stream.try_clone();
            match serve(stream, &for_thread) {
                Ok(Some(bytes)) => tracing::info!("sent a checkpoint of {bytes} bytes to {peer}"),
                Ok(None) => {}
                Err(error) => for_thread.failed(peer, &error),
            }
            for_thread.transfers.fetch_sub(1, Ordering::AcqRel);
            drop(keeps_open);
        };
        if let Err(error) = std::thread::Builder::new()
            .name("ib-ckpt-send".into())
            .spawn(serve)
        {
            shared.transfers.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!("starting a thread to send a checkpoint: {error}");
        }
    }
}

/// Removes its directories on drop.
struct TemporaryDirs(Vec<PathBuf>);

impl Drop for TemporaryDirs {
    fn drop(&mut self) {
        for dir in &self.0 {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("removing {}: {error}", dir.display());
                }
                _ => {}
            }
        }
    }
}

fn make(shared: &Shared, dirs: &TemporaryDirs) -> Result<Vec<Position>, String> {
    for outgoing in &shared.outgoing {
        fs::create_dir_all(outgoing).map_err(|error| error.to_string())?;
    }
    let made = shared.dbs.checkpoint(&dirs.0);
    made.map_err(|error| error.to_string())
}

/// Returns the logs whose checkpoint is ahead of the client's positions `wanted_above`.
fn useful(positions: &[Position], wanted_above: &[Position]) -> Result<Vec<usize>, String> {
    if positions.len() != wanted_above.len() {
        return Err(format!(
            "it has {} logs, {} are asked for: the numbers of partitions differ",
            positions.len(),
            wanted_above.len()
        ));
    }
    let ahead: Vec<usize> = (0..positions.len())
        .filter(|log| positions[*log] > wanted_above[*log])
        .collect();
    if ahead.is_empty() {
        let applied: Vec<u64> = positions.iter().map(|p| p.applied).collect();
        return Err(format!("it is itself at instances {applied:?} only"));
    }
    Ok(ahead)
}

/// Answers a peer. Returns the number of bytes sent if it asked for a checkpoint.
fn serve(stream: TcpStream, shared: &Shared) -> Result<Option<u64>, TransferError> {
    let mut stream = shared.transport.accept(stream, pace())?;
    let request_max = Duration::from_millis(CHECKPOINT_REQUEST_MS_MAX);
    stream.paced_mut().must_end_in(Some(request_max));
    let asked = read_array(&mut stream)?;
    if let Some((clock, peers)) = &shared.informants {
        match asked {
            CLOCK_MAGIC => return Ok(clock.answer(&mut stream).map(|()| None)?),
            PEER_MAGIC => return Ok(peers.answer(&mut stream).map(|()| None)?),
            _ => {}
        }
    }
    if asked != MAGIC {
        return Err(TransferError::Damaged("no request for a checkpoint"));
    }
    let wanted_above = read_positions(&mut stream)?;
    stream.paced_mut().must_end_in(None);
    let _sending = shared.sending.begin();
    let mut to = BufWriter::with_capacity(CHUNK_LEN_BYTES, stream);
    to.write_all(&MAGIC)?;
    let number = shared.next_number.fetch_add(1, Ordering::Relaxed);
    let outgoing = shared.outgoing.iter();
    let dirs = TemporaryDirs(outgoing.map(|dir| dir.join(number.to_string())).collect());
    let made = make(shared, &dirs)
        .and_then(|positions| Ok((useful(&positions, &wanted_above)?, positions)));
    let logs = match made {
        Ok((logs, positions)) => {
            to.write_all(&[ANSWER_OK])?;
            write_positions(&mut to, &positions)?;
            logs
        }
        Err(text) => {
            to.write_all(&[ANSWER_REFUSED])?;
            write_text(&mut to, &text)?;
            to.flush()?;
            return Err(TransferError::Refused(text));
        }
    };
    to.get_mut().paced_mut().begin();
    let bytes = send_files(&dirs.0, &logs, &mut to, &shared.stop)?;
    shared.served.fetch_add(1, Ordering::Relaxed);
    Ok(Some(bytes))
}

fn send_files(
    dirs: &[PathBuf],
    logs: &[usize],
    to: &mut impl Write,
    stop: &AtomicBool,
) -> Result<u64, TransferError> {
    let mut files = Vec::new();
    for log in logs {
        for entry in fs::read_dir(&dirs[*log])? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() && !NOT_SENT.iter().any(|no| name.starts_with(no)) {
                files.push((*log, name, entry.metadata()?.len()));
            }
        }
    }
    let total_bytes = files.iter().map(|(.., len)| len).sum();
    write_u64(to, files.len() as u64)?;
    write_u64(to, total_bytes)?;
    let mut all = Xxh3::new();
    let mut chunk = vec![0; CHUNK_LEN_BYTES];
    for (log, name, len) in files {
        write_u64(to, log as u64)?;
        write_text(to, &name)?;
        write_u64(to, len)?;
        let mut file = fs::File::open(dirs[log].join(&name))?.take(len);
        let (mut hash, mut left) = (file_hash(log as u64, &name), len);
        while left > 0 {
            if stop.load(Ordering::Acquire) {
                return Err(TransferError::Stopping);
            }
            let read = file.read(&mut chunk)?;
            if read == 0 {
                return Err(TransferError::Damaged("a file of the checkpoint shrank"));
            }
            hash.update(&chunk[..read]);
            to.write_all(&chunk[..read])?;
            left -= read as u64;
        }
        write_u64(to, hash.digest())?;
        all.update(&hash.digest().to_be_bytes());
    }
    to.write_all(&END_MAGIC)?;
    write_u64(to, all.digest())?;
    to.flush()?;
    Ok(total_bytes)
}
