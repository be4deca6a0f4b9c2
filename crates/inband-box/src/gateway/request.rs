//! What requests mean, independent of the transport.

use super::{Counters, Shared};
use crate::command::{Command, Mode};
use crate::limits::ALLOCATION_OVERHEAD_BYTES;
use crate::memcached::reply::{value, Awaited, MetaReply};
use crate::memcached::{Request, VERSION};

/// The keys of a `get` that waits, as they are in its line. As a string each, short keys would take many times that.
#[derive(Debug)]
pub struct Keys {
    text: Vec<u8>,
    /// Where the next key begins.
    at: usize,
}

impl Keys {
    /// Stores at least one key, none of them empty or with spaces.
    pub fn new(keys: &[&[u8]]) -> Keys {
        Keys {
            text: keys.join(&b' '),
            at: 0,
        }
    }

    /// Takes the next key.
    pub fn take_next(&mut self) -> Option<&[u8]> {
        let key = self.text.get(self.at..)?.split(|b| *b == b' ').next()?;
        self.at += key.len() + 1;
        Some(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.text.split(|b| *b == b' ')
    }

    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() + ALLOCATION_OVERHEAD_BYTES
    }
}

/// Returns the command for a request that needs exactly one, and what its client waits for.
pub fn command_of<'a>(request: &'a Request<'_>) -> Option<(Command<'a>, Awaited)> {
    let word = |done, is_quiet: bool| Awaited::Word { done, is_quiet };
    Some(match request {
        Request::Store {
            mode,
            key,
            flags,
            exptime_s,
            cas,
            value,
            is_quiet,
        } => {
            let command = Command::Store {
                mode: *mode,
                key,
                value,
                flags: *flags,
                exptime_s: *exptime_s,
                cas: if *mode == Mode::Cas { *cas } else { 0 },
                may_be_stale: false,
                is_binary_key: false,
            };
            (command, word("STORED", *is_quiet))
        }
        Request::Delete { key, is_quiet } => {
            let command = Command::Delete { key, cas: None };
            (command, word("DELETED", *is_quiet))
        }
        Request::Arithmetic {
            key,
            is_increment,
            delta,
            is_quiet,
        } => {
            let command = Command::Arithmetic {
                key,
                is_increment: *is_increment,
                delta: *delta,
                cas: 0,
                create: None,
                exptime_s: None,
            };
            (command, word("", *is_quiet))
        }
        Request::Touch {
            key,
            exptime_s,
            is_quiet,
        } => {
            let exptime_s = *exptime_s;
            let command = Command::Touch { key, exptime_s };
            (command, word("TOUCHED", *is_quiet))
        }
        Request::FlushAll {
            exptime_s,
            is_quiet,
        } => {
            let exptime_s = *exptime_s;
            (Command::FlushAll { exptime_s }, word("OK", *is_quiet))
        }
        Request::Meta(meta) if !meta.is_read() => {
            let awaited = Awaited::Meta(Box::new(MetaReply::new(meta)));
            (meta.command(), awaited)
        }
        _ => return None,
    })
}

pub fn count(request: &Request, counters: &Counters) {
    Counters::add(&counters.requests, 1);
    let counter = match request {
        Request::Store { .. } => &counters.cmd_set,
        Request::Touch { .. } => &counters.cmd_touch,
        Request::FlushAll { .. } => &counters.cmd_flush,
        _ => return,
    };
    Counters::add(counter, 1);
}

/// Appends the reply to `get` or `gets` for one key, if its item exists.
pub fn get(shared: &Shared, key: &[u8], with_cas: bool, out: &mut Vec<u8>) {
    let counters = &shared.counters;
    Counters::add(&counters.cmd_get, 1);
    let now_s = shared.reader.time_ms() / 1000;
    match shared.reader.get_and_mark(key, now_s) {
        Some(item) => {
            Counters::add(&counters.get_hits, 1);
            value(out, key, &item, with_cas);
        }
        None => Counters::add(&counters.get_misses, 1),
    }
}

/// Returns whether a request changes nothing that another request of this client could notice.
pub fn is_read(request: &Request) -> bool {
    match request {
        Request::Get { .. } | Request::Debug { .. } | Request::Stats(_) => true,
        Request::Say(_) | Request::Quit => true,
        Request::Meta(meta) => meta.is_read(),
        _ => false,
    }
}

pub fn stats(what: Option<&[u8]>, shared: &Shared) -> Vec<u8> {
    let counters = &shared.counters;
    let counter = |counter: &std::sync::atomic::AtomicU64| {
        counter
            .load(std::sync::atomic::Ordering::Relaxed)
            .to_string()
    };
    let (items, chunks) = shared.reader.used();
    let chunk_bytes = crate::store::CHUNK_BYTES as u64;
    let max_bytes = shared.reader.chunks() * chunk_bytes;
    let pairs = match what {
        None => vec![
            ("pid", std::process::id().to_string()),
            ("uptime", shared.started.elapsed().as_secs().to_string()),
            ("time", (shared.reader.time_ms() / 1000).to_string()),
            ("version", VERSION.to_owned()),
            ("pointer_size", "64".to_owned()),
            ("curr_connections", counter(&counters.connections)),
            ("total_connections", counter(&counters.connections_total)),
            (
                "rejected_connections",
                counter(&counters.connections_refused),
            ),
            ("cmd_get", counter(&counters.cmd_get)),
            ("cmd_set", counter(&counters.cmd_set)),
            ("cmd_flush", counter(&counters.cmd_flush)),
            ("cmd_touch", counter(&counters.cmd_touch)),
            ("get_hits", counter(&counters.get_hits)),
            ("get_misses", counter(&counters.get_misses)),
            ("limit_maxbytes", max_bytes.to_string()),
            ("bytes", (chunks * chunk_bytes).to_string()),
            ("curr_items", items.to_string()),
            ("evictions", "0".to_owned()),
            ("applied_zxid", shared.reader.applied().to_string()),
        ],
        Some(b"settings") => vec![
            ("maxbytes", max_bytes.to_string()),
            (
                "item_size_max",
                crate::limits::VALUE_LEN_BYTES_MAX.to_string(),
            ),
            ("evictions", "off".to_owned()),
            ("cas_enabled", "yes".to_owned()),
            ("flush_enabled", "yes".to_owned()),
        ],
        Some(b"reset") => return b"RESET\r\n".to_vec(),
        // There are no slabs.
        Some(b"items" | b"slabs" | b"sizes" | b"conns") => Vec::new(),
        Some(_) => return b"ERROR\r\n".to_vec(),
    };
    let lines = pairs
        .into_iter()
        .map(|(name, value)| format!("STAT {name} {value}\r\n"));
    let mut text: String = lines.collect();
    text += "END\r\n";
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `get` in a datagram of 690 keys.
    #[test]
    fn keys_that_wait_take_no_more_than_their_line() {
        let line = [b'k'; 690].map(|key| [key]);
        let line: Vec<&[u8]> = line.iter().map(<[u8; 1]>::as_slice).collect();
        let mut keys = Keys::new(&line);
        assert!(keys.heap_bytes() <= 2 * line.len() + ALLOCATION_OVERHEAD_BYTES);
        assert!(keys.iter().eq(line.iter().copied()));
        for key in line {
            assert_eq!(keys.take_next(), Some(key));
        }
        assert_eq!(keys.take_next(), None);
        let mut keys = Keys::new(&[b"a", b"long"]);
        let taken = [
            keys.take_next().map(<[u8]>::to_vec),
            keys.take_next().map(<[u8]>::to_vec),
        ];
        assert_eq!(taken, [Some(b"a".to_vec()), Some(b"long".to_vec())]);
    }
}
