//! Fetches a checkpoint from a peer.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use inband_transport::tls::Transport;
use xxhash_rust::xxh3::Xxh3;

use crate::checkpoint::{
    file_hash, pace, read_array, read_positions, read_text, read_u64, write_positions,
    TransferError, ANSWER_OK, ANSWER_REFUSED, CHUNK_LEN_BYTES, END_MAGIC, MAGIC,
};
use crate::limits::{
    CHECKPOINT_FILES_MAX, CHECKPOINT_FILE_NAME_LEN_BYTES_MAX, CHECKPOINT_IO_TIMEOUT_MS,
};
use crate::store::Position;

/// Interval between progress lines in the program's log.
const PROGRESS_LOG_PERIOD: Duration = Duration::from_secs(2);

/// One checkpoint transfer and its progress.
#[derive(Debug)]
pub struct Fetch<'a> {
    /// Peers to ask, in order.
    pub peers: &'a [SocketAddr],
    /// Only checkpoints beyond these positions are useful; one per log.
    pub positions: &'a [Position],
    /// Destination directories, one per log; emptied first.
    pub into: &'a [PathBuf],
    /// Updated with the number of bytes received so far.
    pub received_bytes: &'a AtomicU64,
    /// Updated with the size of the checkpoint in bytes.
    pub total_bytes: &'a AtomicU64,
    pub transport: &'a Transport,
    /// The transfer stops when this is set.
    pub stop: &'a AtomicBool,
}

impl Fetch<'_> {
    /// Fetches from the first peer that delivers a complete checkpoint.
    pub fn run(&self) -> Result<(), TransferError> {
        let mut last_error = TransferError::NoPeers;
        for peer in self.peers {
            if self.stop.load(Ordering::Acquire) {
                return Err(TransferError::Stopping);
            }
            match self.fetch_from(*peer) {
                Ok(()) => return Ok(()),
                Err(TransferError::Stopping) => return Err(TransferError::Stopping),
                Err(error) => {
                    tracing::warn!("fetching a checkpoint from {peer}: {error}");
                    last_error = error;
                }
            }
        }
        Err(last_error)
    }

    fn fetch_from(&self, peer: SocketAddr) -> Result<(), TransferError> {
        self.received_bytes.store(0, Ordering::Relaxed);
        self.total_bytes.store(0, Ordering::Relaxed);
        for into in self.into.iter().filter(|into| into.exists()) {
            fs::remove_dir_all(into)?;
        }
        let timeout = Duration::from_millis(CHECKPOINT_IO_TIMEOUT_MS);
        let mut stream = self.transport.connect(peer, timeout, pace())?;
        stream.write_all(&MAGIC)?;
        write_positions(&mut stream, self.positions)?;
        stream.flush()?;
        let mut from = BufReader::with_capacity(CHUNK_LEN_BYTES, stream);
        if read_array(&mut from)? != MAGIC {
            return Err(TransferError::Damaged("the peer speaks another version"));
        }
        match read_array(&mut from)? {
            [ANSWER_OK] => {}
            [ANSWER_REFUSED] => return Err(TransferError::Refused(read_text(&mut from)?)),
            _ => return Err(TransferError::Damaged("unknown answer")),
        }
        let theirs = read_positions(&mut from)?;
        if theirs.len() != self.positions.len() {
            return Err(TransferError::Damaged("another number of logs"));
        }
        if theirs
            .iter()
            .zip(self.positions)
            .all(|(theirs, ours)| theirs <= ours)
        {
            return Err(TransferError::Damaged(
                "the checkpoint is not ahead of this replica",
            ));
        }
        from.get_mut().paced_mut().begin();
        self.receive_files(&mut from, peer)
    }

    fn receive_files(&self, from: &mut impl Read, peer: SocketAddr) -> Result<(), TransferError> {
        let files = read_u64(from)?;
        let total_bytes = read_u64(from)?;
        if files > u64::from(CHECKPOINT_FILES_MAX) {
            return Err(TransferError::Damaged("too many files"));
        }
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        let mut received_bytes = 0u64;
        let mut last_log = Instant::now();
        let mut all = Xxh3::new();
        let mut chunk = vec![0; CHUNK_LEN_BYTES];
        for _ in 0..files {
            let log = read_u64(from)?;
            let place = usize::try_from(log).ok();
            let into = place.and_then(|place| self.into.get(place));
            let into = into.ok_or(TransferError::Damaged("a log that there is not"))?;
            fs::create_dir_all(into)?;
            let name = read_text(from)?;
            if !is_plain_name(&name) {
                return Err(TransferError::Damaged("a file name that is none"));
            }
            let len = read_u64(from)?;
            if len > total_bytes - received_bytes {
                return Err(TransferError::Damaged("files longer than announced"));
            }
            let mut file = fs::File::options()
                .write(true)
                .create_new(true)
                .open(into.join(&name))?;
            let (mut hash, mut left) = (file_hash(log, &name), len);
            while left > 0 {
                if self.stop.load(Ordering::Acquire) {
                    return Err(TransferError::Stopping);
                }
                let piece = left.min(CHUNK_LEN_BYTES as u64) as usize;
                from.read_exact(&mut chunk[..piece])?;
                hash.update(&chunk[..piece]);
                file.write_all(&chunk[..piece])?;
                left -= piece as u64;
                received_bytes += piece as u64;
                self.received_bytes.store(received_bytes, Ordering::Relaxed);
                if last_log.elapsed() >= PROGRESS_LOG_PERIOD {
                    last_log = Instant::now();
                    tracing::info!(
                        "checkpoint from {peer}: {received_bytes} of {total_bytes} bytes"
                    );
                }
            }
            if read_u64(from)? != hash.digest() {
                return Err(TransferError::Damaged("a file's hash differs"));
            }
            file.sync_all()?;
            all.update(&hash.digest().to_be_bytes());
        }
        if read_array(from)? != END_MAGIC || read_u64(from)? != all.digest() {
            return Err(TransferError::Damaged("the end mark differs"));
        }
        if received_bytes != total_bytes {
            return Err(TransferError::Damaged("files shorter than announced"));
        }
        tracing::info!("checkpoint from {peer}: all {total_bytes} bytes in {files} files received");
        Ok(())
    }
}

/// Returns whether this is a file name that cannot escape its directory.
fn is_plain_name(name: &str) -> bool {
    (1..=CHECKPOINT_FILE_NAME_LEN_BYTES_MAX).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::is_plain_name;

    #[test]
    fn names_stay_in_their_directory() {
        for name in ["CURRENT", "000012.sst", "MANIFEST-000005", "OPTIONS-000007"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/b",
            "a\0b",
            ".hidden",
        ] {
            assert!(!is_plain_name(name), "{name}");
        }
    }
}
