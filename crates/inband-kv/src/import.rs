//! Requests the stream of [`crate::export`] from a replica, reads it, and puts its keys into a cluster with ordinary
//! commands, so the target may have a different number of partitions or replicas, or hold data already.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use xxhash_rust::xxh3::Xxh3;

use crate::access::{Access, ClientStream};
use crate::export::{
    block_hash, Summary, BLOCK, END, KEY_LEN_BITS, MAGIC, MAGIC_2, MAGIC_3, RECORD_HEADER_LEN_BYTES,
};
use crate::limits::{COMMAND_LEN_BYTES_MAX, EXPORT_IO_TIMEOUT_MS, STORED_VALUE_LEN_BYTES_MAX};
use crate::types::Kind;

/// Maximum number of commands in flight.
const PIPELINE_COMMANDS: usize = 64;
/// The same limit in bytes.
const PIPELINE_BYTES: usize = 256 * 1024;
/// How often to retry a key after a temporary error.
const RETRIES: usize = 20;
/// Pause before a retry.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Longest block: a full one plus one record.
const BLOCK_LEN_BYTES_MAX: u32 = (STORED_VALUE_LEN_BYTES_MAX + COMMAND_LEN_BYTES_MAX) as u32;
/// Timeout for reads from and writes to the cluster.
const IO_TIMEOUT: Duration = Duration::from_millis(EXPORT_IO_TIMEOUT_MS);

/// Why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The stream could not be read, or the cluster could not be reached. Repeating the import is safe.
    #[error("{0}; resolve this and run the command again")]
    Io(#[from] io::Error),
    /// The stream is not a complete, undamaged export.
    #[error("the export is damaged or cut off ({0}); import from another copy")]
    Damaged(&'static str),
    /// A newer program wrote it.
    #[error("the export is of another version than this program knows; import with the program that wrote it, or a newer one")]
    Version,
    /// The cluster already has keys.
    #[error("the cluster has {0} keys already; import into an empty one, or with --overwrite")]
    NotEmpty(u64),
    #[error("the cluster answered {reply:?} to SET of a key of {key_len_bytes} bytes with {value_len_bytes} bytes")]
    Refused {
        /// The error reply.
        reply: String,
        key_len_bytes: usize,
        value_len_bytes: usize,
    },
    /// The replica did not start the export.
    #[error("the replica answered {0:?} to INBAND.EXPORT{hint}", hint = if_unknown(.0))]
    NoExport(String),
    /// The cluster does not speak RESP.
    #[error("the cluster answered {0:?}, which is not a reply of RESP; is this the address of a replica?")]
    Protocol(String),
    /// The cluster sent a TLS alert.
    #[error("the cluster requires TLS; name its CA with --tls-ca (of `inband up`: authority/ca.pem in the cluster's directory)")]
    Tls,
    /// The cluster has a password.
    #[error("the cluster requires a password; name its file with --password-file")]
    Password,
}

/// The beginning of an alert in TLS 1.0 to 1.3.
pub(crate) const TLS_ALERT: &str = "\x15\x03";
const NO_PASSWORD: &str = "-NOAUTH";

/// One key of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportedKey<'a> {
    /// Expiry as a Unix time in milliseconds; 0: never.
    pub expire_at_ms: u64,
    pub key: &'a [u8],
    pub kind: Kind,
    /// Packed, unless it is a string.
    pub value: &'a [u8],
}

/// Reads and verifies a whole stream. `visit` gets each key after its block has been verified.
pub fn read(
    from: impl Read,
    visit: &mut dyn FnMut(ExportedKey<'_>) -> Result<(), ImportError>,
) -> Result<Summary, ImportError> {
    let mut reader = Reader {
        from: BufReader::new(from),
        summary: Summary::default(),
    };
    let magic: [u8; 8] = reader.array()?;
    if ![MAGIC, MAGIC_2, MAGIC_3].contains(&magic) {
        let is_other_version = magic[..6] == MAGIC[..6];
        return Err(match is_other_version {
            true => ImportError::Version,
            false => ImportError::Damaged("it is none"),
        });
    }
    reader.summary.partitions = u64::from_be_bytes(reader.array()?);
    reader.summary.time_ms = u64::from_be_bytes(reader.array()?);
    let (mut hashes, mut block) = (Xxh3::new(), Vec::new());
    loop {
        match reader.array()? {
            [BLOCK] => {
                let (count, hash) = reader.block(&mut block)?;
                hashes.update(&hash.to_be_bytes());
                visit_block(&block, count, visit)?;
                reader.summary.keys += u64::from(count);
            }
            [END] => break,
            _ => return Err(ImportError::Damaged("a part of unknown kind")),
        }
    }
    if u64::from_be_bytes(reader.array()?) != reader.summary.keys {
        return Err(ImportError::Damaged("another number of keys than written"));
    }
    if u64::from_be_bytes(reader.array()?) != hashes.digest() {
        return Err(ImportError::Damaged("the hash at the end differs"));
    }
    if !reader.from.fill_buf()?.is_empty() {
        return Err(ImportError::Damaged("something follows the end"));
    }
    Ok(reader.summary)
}

struct Reader<R> {
    from: BufReader<R>,
    summary: Summary,
}

impl<R: Read> Reader<R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ImportError> {
        let mut bytes = [0; N];
        self.exact(&mut bytes)?;
        Ok(bytes)
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), ImportError> {
        self.summary.len_bytes += bytes.len() as u64;
        match self.from.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ImportError::Damaged("it ends too early"))
            }
            result => Ok(result?),
        }
    }

    /// Reads a block after its first byte: the number of its records, and its hash.
    fn block(&mut self, block: &mut Vec<u8>) -> Result<(u32, u64), ImportError> {
        let mut header = [BLOCK; 9];
        self.exact(&mut header[1..])?;
        let word = |at: usize| {
            header[at..]
                .first_chunk()
                .map_or(0, |w| u32::from_be_bytes(*w))
        };
        let (count, len) = (word(1), word(5));
        if len > BLOCK_LEN_BYTES_MAX {
            return Err(ImportError::Damaged("a block is too long"));
        }
        block.resize(len as usize, 0);
        self.exact(block)?;
        let hash = u64::from_be_bytes(self.array()?);
        if hash != block_hash(&header, block) {
            return Err(ImportError::Damaged("a block's hash differs"));
        }
        Ok((count, hash))
    }
}

fn visit_block(
    mut block: &[u8],
    count: u32,
    visit: &mut dyn FnMut(ExportedKey<'_>) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let damaged = || ImportError::Damaged("a record is longer than its block");
    for _ in 0..count {
        let (header, rest) = block
            .split_first_chunk::<RECORD_HEADER_LEN_BYTES>()
            .ok_or_else(damaged)?;
        let word = |at: usize| {
            header[at..]
                .first_chunk()
                .map_or(0, |w| u32::from_be_bytes(*w))
        };
        let time = header[8..]
            .first_chunk()
            .map_or(0, |t| u64::from_be_bytes(*t));
        let kind = Kind::of_byte((word(0) >> KEY_LEN_BITS) as u8)
            .ok_or(ImportError::Damaged("a value of unknown kind"))?;
        let (key, rest) = rest
            .split_at_checked((word(0) & ((1 << KEY_LEN_BITS) - 1)) as usize)
            .ok_or_else(damaged)?;
        let (value, rest) = rest
            .split_at_checked(word(4) as usize)
            .ok_or_else(damaged)?;
        visit(ExportedKey {
            expire_at_ms: time,
            key,
            kind,
            value,
        })?;
        block = rest;
    }
    if !block.is_empty() {
        return Err(ImportError::Damaged("a block is longer than its records"));
    }
    Ok(())
}

/// Requests an export from the replica that listens for clients at `address`. Returns the stream, to be [read](read),
/// and the approximate number of keys in it. The export includes every write that any replica acknowledged before this
/// call.
pub fn ask_for_export(
    address: SocketAddr,
    access: &Access,
) -> Result<(u64, impl Read), ImportError> {
    let mut client = Client::connect(address, access)?;
    // The count involves all partitions: once this replica has answered it, it has applied everything that was decided
    // before.
    let keys = client.count_keys()?;
    let reply = client.ask_again(&[b"INBAND.EXPORT"])?;
    match reply.as_str() {
        "+OK" => Ok((keys, client.from)),
        _ => Err(ImportError::NoExport(reply)),
    }
}

/// What to ask about a replica that does not know the command. Other refusals say what to do.
fn if_unknown(reply: &str) -> &'static str {
    match reply.starts_with("-ERR") {
        true => "; is it one of Inband's, of this version?",
        false => "",
    }
}

#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Import even if the cluster has keys; existing keys of the same name are overwritten.
    pub overwrite: bool,
    /// How to authenticate.
    pub access: Access,
}

/// Sets all keys of a stream in the cluster whose replica listens for clients at `address`. `progress` is called with
/// the number of keys set so far. Repeating an import is safe.
pub fn import(
    from: impl Read,
    address: SocketAddr,
    options: ImportOptions,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary, ImportError> {
    let mut client = Client::connect(address, &options.access)?;
    if !options.overwrite {
        match client.count_keys()? {
            0 => {}
            keys => return Err(ImportError::NotEmpty(keys)),
        }
    }
    let mut set = 0;
    let mut visit = |key: ExportedKey<'_>| {
        client.set(key)?;
        if client.is_full() {
            set += client.flush()?;
            progress(set);
        }
        Ok(())
    };
    let summary = read(from, &mut visit)?;
    set += client.flush()?;
    progress(set);
    Ok(summary)
}

/// A `SET` in flight.
struct Sent {
    request: Vec<u8>,
    key_len_bytes: usize,
    value_len_bytes: usize,
}

/// The part of a RESP client that an import needs.
struct Client {
    from: BufReader<ClientStream>,
    out: BytesMut,
    sent: Vec<Sent>,
    len_bytes: usize,
}

impl Client {
    fn connect(address: SocketAddr, access: &Access) -> Result<Self, ImportError> {
        Ok(Self {
            from: access.connect(address, IO_TIMEOUT)?,
            out: BytesMut::new(),
            sent: Vec::new(),
            len_bytes: 0,
        })
    }

    fn set(&mut self, key: ExportedKey<'_>) -> Result<(), ImportError> {
        let at = key.expire_at_ms.to_string();
        let plain: [&[u8]; 3] = [b"SET", key.key, key.value];
        let expiring: [&[u8]; 5] = [b"SET", key.key, key.value, b"PXAT", at.as_bytes()];
        let kind = key.kind.name().as_bytes();
        let request = match (key.kind, key.expire_at_ms) {
            (Kind::String, 0) => encode(&plain),
            (Kind::String, _) => encode(&expiring),
            _ => encode(&[b"INBAND.RESTORE", key.key, kind, at.as_bytes(), key.value]),
        };
        self.len_bytes += request.len();
        self.sent.push(Sent {
            request,
            key_len_bytes: key.key.len(),
            value_len_bytes: key.value.len(),
        });
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.sent.len() >= PIPELINE_COMMANDS || self.len_bytes >= PIPELINE_BYTES
    }

    /// Sends the pending commands and waits for their replies. Returns the number of keys set.
    fn flush(&mut self) -> Result<u64, ImportError> {
        let mut sent = std::mem::take(&mut self.sent);
        let count = sent.len() as u64;
        self.len_bytes = 0;
        for attempt in 0.. {
            self.out.clear();
            for sent in &sent {
                self.out.extend_from_slice(&sent.request);
            }
            self.from.get_mut().write_all(&self.out)?;
            self.from.get_mut().flush()?;
            let mut again = Vec::new();
            for sent in sent {
                let reply = self.line()?;
                match reply.as_str() {
                    "+OK" => {}
                    // Setting a key to the same value again is safe.
                    text if is_for_the_moment(text) && attempt < RETRIES => again.push(sent),
                    _ => {
                        return Err(ImportError::Refused {
                            reply,
                            key_len_bytes: sent.key_len_bytes,
                            value_len_bytes: sent.value_len_bytes,
                        });
                    }
                }
            }
            if again.is_empty() {
                break;
            }
            std::thread::sleep(RETRY_PAUSE);
            sent = again;
        }
        Ok(count)
    }

    fn count_keys(&mut self) -> Result<u64, ImportError> {
        let reply = self.ask_again(&[b"DBSIZE"])?;
        let keys = reply.strip_prefix(':').and_then(|n| n.parse().ok());
        keys.ok_or(ImportError::Protocol(reply))
    }

    /// Retries until there is an answer that is not a temporary error. Returns the last answer: an export that fails
    /// ends the connection after it.
    fn ask_again(&mut self, words: &[&[u8]]) -> Result<String, ImportError> {
        let mut reply = self.ask(words)?;
        for _ in 0..RETRIES {
            if !is_for_the_moment(&reply) {
                break;
            }
            std::thread::sleep(RETRY_PAUSE);
            match self.ask(words) {
                Ok(next) => reply = next,
                Err(_) => break,
            }
        }
        Ok(reply)
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<String, ImportError> {
        self.from.get_mut().write_all(&encode(words))?;
        self.from.get_mut().flush()?;
        self.line()
    }

    fn line(&mut self) -> Result<String, ImportError> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let text = line.trim_end();
        if text.starts_with(TLS_ALERT) {
            return Err(ImportError::Tls);
        }
        if text.starts_with(NO_PASSWORD) {
            return Err(ImportError::Password);
        }
        if !text.starts_with(['+', '-', ':']) {
            return Err(ImportError::Protocol(text.into()));
        }
        Ok(text.into())
    }
}

/// Returns whether a command with this reply may succeed when retried.
fn is_for_the_moment(reply: &str) -> bool {
    ["-TRYAGAIN", "-LOADING", "-UNKNOWN"]
        .iter()
        .any(|start| reply.starts_with(start))
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}
