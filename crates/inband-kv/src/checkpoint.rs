//! Checkpoint transfer between replicas over TCP: the wire format.
//!
//! ```text
//! client:  magic | count of logs | positions of the client
//! server:  magic | 0 | count of logs | positions | file count | total bytes
//!          then per file: log | name length u16 | name | length | contents | xxh3 of log, name, contents
//!          then: end magic | xxh3 over all the files' hashes
//!      or  magic | 1 | length u16 | text: why not
//! ```
//!
//! Numbers are 64 bits, big-endian, unless stated otherwise. A position is an applied instance and the last
//! cross-partition command executed at its marker. The server makes fresh checkpoints of all logs for each request and
//! sends those that are ahead of the client. The client trusts nothing before the end mark: it writes into directories
//! that are not part of its stores. The connection uses [`Transport`](inband_transport::tls::Transport): with
//! certificates, only replicas can connect.

use std::io::{self, Read, Write};
use std::time::Duration;

use inband_transport::paced::Pace;
use xxhash_rust::xxh3::Xxh3;

use crate::limits::{
    CHECKPOINT_BYTES_PER_S_MIN, CHECKPOINT_IO_TIMEOUT_MS, CHECKPOINT_PACE_GRACE_MS,
};
use crate::partition::{logs_of, PARTITIONS_MAX};
use crate::store::Position;

/// First bytes in both directions; the digit is the version.
pub const MAGIC: [u8; 8] = *b"IBCKPT2\n";
/// First bytes of the end mark.
pub const END_MAGIC: [u8; 8] = *b"IBCKEND\n";
/// The server sends a checkpoint.
pub const ANSWER_OK: u8 = 0;
/// The server refuses; the reason follows.
pub const ANSWER_REFUSED: u8 = 1;
pub const CHUNK_LEN_BYTES: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The network or a disk failed.
    #[error("{0}; the next peer is tried")]
    Io(#[from] io::Error),
    /// The peer has no checkpoint for us.
    #[error("the peer refused: {0}; the next peer is tried")]
    Refused(String),
    /// The stream failed a length, range or hash check.
    #[error("damaged stream: {0}; it is fetched again")]
    Damaged(&'static str),
    /// The replica is shutting down.
    #[error("the replica is stopping")]
    Stopping,
    /// No peers are configured.
    #[error("no peer serves checkpoints; configure the other replicas' addresses")]
    NoPeers,
}

/// Returns how slow a peer may be.
pub fn pace() -> Pace {
    Pace {
        silence_max: Duration::from_millis(CHECKPOINT_IO_TIMEOUT_MS),
        grace: Duration::from_millis(CHECKPOINT_PACE_GRACE_MS),
        bytes_per_s_min: CHECKPOINT_BYTES_PER_S_MIN,
    }
}

pub fn file_hash(log: u64, name: &str) -> Xxh3 {
    let mut hash = Xxh3::new();
    hash.update(&log.to_be_bytes());
    hash.update(name.as_bytes());
    hash
}

pub fn write_u64(to: &mut impl Write, number: u64) -> io::Result<()> {
    to.write_all(&number.to_be_bytes())
}

/// Writes one position per log.
pub fn write_positions(to: &mut impl Write, positions: &[Position]) -> io::Result<()> {
    write_u64(to, positions.len() as u64)?;
    for position in positions {
        write_u64(to, position.applied)?;
        write_u64(to, position.entry)?;
    }
    Ok(())
}

pub fn read_positions(from: &mut impl Read) -> Result<Vec<Position>, TransferError> {
    let count = read_u64(from)?;
    if count > logs_of(PARTITIONS_MAX) as u64 {
        return Err(TransferError::Damaged("too many logs"));
    }
    let mut position = || {
        let applied = read_u64(from)?;
        let entry = read_u64(from)?;
        Ok(Position { applied, entry })
    };
    (0..count).map(|_| position()).collect()
}

/// Writes a string, truncated to 65535 bytes.
pub fn write_text(to: &mut impl Write, text: &str) -> io::Result<()> {
    let text = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    to.write_all(&(text.len() as u16).to_be_bytes())?;
    to.write_all(text)
}

pub fn read_array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub fn read_u64(from: &mut impl Read) -> io::Result<u64> {
    read_array(from).map(u64::from_be_bytes)
}

/// Reads a string of at most 65535 bytes.
pub fn read_text(from: &mut impl Read) -> io::Result<String> {
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(read_array(from)?))];
    from.read_exact(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
