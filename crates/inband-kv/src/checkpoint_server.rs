//! Serves checkpoints to peers, on threads of its own.

use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use xxhash_rust::xxh3::Xxh3;

use crate::checkpoint::{
    read_array, read_u64, write_text, write_u64, TransferError, ANSWER_OK, ANSWER_REFUSED,
    CHUNK_LEN_BYTES, END_MAGIC, MAGIC,
};
use crate::limits::{CHECKPOINT_IO_TIMEOUT_MS, CHECKPOINT_TRANSFERS_MAX};
use crate::store::SharedDb;

/// Files of a checkpoint that the receiver makes for itself.
const NOT_SENT: [&str; 2] = ["LOG", "LOCK"];
/// Pause after accepting failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shared between the threads of a server.
struct Shared {
    db: SharedDb,
    /// Where checkpoints are made; on the disk of the store, so that they are hard links.
    outgoing: PathBuf,
    stop: AtomicBool,
    transfers: AtomicUsize,
    next_number: AtomicU64,
    served: Arc<AtomicU64>,
}

/// Serves checkpoints until it is dropped.
pub struct CheckpointServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl CheckpointServer {
    /// Serve checkpoints of `db` on `listener`; `outgoing` is a directory for its use. Adds to
    /// `served` for each checkpoint sent.
    pub fn start(
        listener: TcpListener,
        db: SharedDb,
        outgoing: PathBuf,
        served: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            db,
            outgoing,
            stop: AtomicBool::new(false),
            transfers: AtomicUsize::new(0),
            next_number: AtomicU64::new(0),
            served,
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("ib-ckpt-accept".into())
            .spawn(move || accept_loop(&listener, &for_thread))?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
        })
    }

    /// The address served on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for CheckpointServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Wakes the accepting thread; a wildcard address is reached over loopback.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let timeout = Duration::from_millis(CHECKPOINT_IO_TIMEOUT_MS);
        let is_woken = TcpStream::connect_timeout(&address, timeout).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| is_woken) {
            // It ends by itself; a panic in it was reported already.
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
                tracing::warn!("accepting a peer for a checkpoint: {error}");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if shared.transfers.fetch_add(1, Ordering::AcqRel) >= CHECKPOINT_TRANSFERS_MAX {
            shared.transfers.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!("{peer} asks for a checkpoint, too many are being sent already");
            continue;
        }
        let for_thread = shared.clone();
        let serve = move || {
            match serve(&stream, &for_thread) {
                Ok(bytes) => tracing::info!("sent a checkpoint of {bytes} bytes to {peer}"),
                Err(error) => tracing::warn!("sending a checkpoint to {peer}: {error}"),
            }
            for_thread.transfers.fetch_sub(1, Ordering::AcqRel);
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

/// Removes its directory when done, however that ends.
struct TemporaryDir(PathBuf);

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("removing {}: {error}", self.0.display());
            }
            _ => {}
        }
    }
}

fn serve(mut stream: &TcpStream, shared: &Shared) -> Result<u64, TransferError> {
    let timeout = Some(Duration::from_millis(CHECKPOINT_IO_TIMEOUT_MS));
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    if read_array(&mut stream)? != MAGIC {
        return Err(TransferError::Damaged("no request for a checkpoint"));
    }
    let wanted_above = read_u64(&mut stream)?;
    let mut to = BufWriter::with_capacity(CHUNK_LEN_BYTES, stream);
    to.write_all(&MAGIC)?;
    let number = shared.next_number.fetch_add(1, Ordering::Relaxed);
    let directory = TemporaryDir(shared.outgoing.join(number.to_string()));
    let made = fs::create_dir_all(&shared.outgoing)
        .map_err(|error| error.to_string())
        .and_then(|()| {
            shared
                .db
                .checkpoint(&directory.0)
                .map_err(|error| error.to_string())
        });
    let is_useful = |applied: u64| match applied > wanted_above {
        true => Ok(applied),
        false => Err(format!("it is itself at instance {applied} only")),
    };
    match made.and_then(is_useful) {
        Ok(applied) => {
            to.write_all(&[ANSWER_OK])?;
            write_u64(&mut to, applied)?;
        }
        Err(text) => {
            to.write_all(&[ANSWER_REFUSED])?;
            write_text(&mut to, &text)?;
            to.flush()?;
            return Err(TransferError::Refused(text));
        }
    }
    let bytes = send_files(&directory.0, &mut to, &shared.stop)?;
    shared.served.fetch_add(1, Ordering::Relaxed);
    Ok(bytes)
}

fn send_files(
    directory: &Path,
    to: &mut impl Write,
    stop: &AtomicBool,
) -> Result<u64, TransferError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && !NOT_SENT.iter().any(|no| name.starts_with(no)) {
            files.push((name, entry.metadata()?.len()));
        }
    }
    let total_bytes = files.iter().map(|(_, len)| len).sum();
    write_u64(to, files.len() as u64)?;
    write_u64(to, total_bytes)?;
    let mut all = Xxh3::new();
    let mut chunk = vec![0; CHUNK_LEN_BYTES];
    for (name, len) in files {
        write_text(to, &name)?;
        write_u64(to, len)?;
        let mut file = fs::File::open(directory.join(&name))?.take(len);
        let (mut hash, mut left) = (Xxh3::new(), len);
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
