//! The scripts that a replica knows by their digests.
//!
//! The log carries the text of a script with every `EVAL` and `EVALSHA`, so the cache is no part of the replicated
//! state: it is in memory, and each replica remembers the scripts that it has applied. After a restart `EVALSHA` fails
//! with NOSCRIPT, as in Redis, and clients send the text again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::limits::{SCRIPTS_BYTES_MAX, SCRIPTS_MAX};

/// The reply to `EVALSHA` for a script that is not known.
pub const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

#[derive(Debug, Clone, Default)]
pub struct Scripts(Arc<Mutex<Cache>>);

#[derive(Debug, Default)]
struct Cache {
    /// By digest, in lower case.
    known: HashMap<String, Known>,
    len_bytes: usize,
    uses: u64,
}

#[derive(Debug)]
struct Known {
    text: Arc<[u8]>,
    /// When it was last used.
    used: u64,
}

fn name_of(sha1: &[u8]) -> String {
    String::from_utf8_lossy(sha1).to_ascii_lowercase()
}

impl Scripts {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remember a script. Returns its digest.
    pub fn remember(&self, text: &[u8]) -> String {
        let sha1 = inband_lua::sha1_hex(text);
        let mut cache = self.cache();
        cache.uses += 1;
        let used = cache.uses;
        if let Some(known) = cache.known.get_mut(&sha1) {
            known.used = used;
            return sha1;
        }
        cache.len_bytes += text.len();
        let text = text.into();
        cache.known.insert(sha1.clone(), Known { text, used });
        while cache.known.len() > SCRIPTS_MAX || cache.len_bytes > SCRIPTS_BYTES_MAX {
            let oldest = cache.known.iter().min_by_key(|(_, known)| known.used);
            let Some(oldest) = oldest.map(|(sha1, _)| sha1.clone()) else {
                break;
            };
            if let Some(gone) = cache.known.remove(&oldest) {
                cache.len_bytes -= gone.text.len();
            }
        }
        sha1
    }

    /// The text of a script; the case of the digest does not matter.
    pub fn text(&self, sha1: &[u8]) -> Option<Arc<[u8]>> {
        let mut cache = self.cache();
        cache.uses += 1;
        let used = cache.uses;
        let known = cache.known.get_mut(&name_of(sha1))?;
        known.used = used;
        Some(known.text.clone())
    }

    pub fn knows(&self, sha1: &[u8]) -> bool {
        self.cache().known.contains_key(&name_of(sha1))
    }

    pub fn forget_all(&self) {
        *self.cache() = Cache::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_forgotten() {
        let scripts = Scripts::default();
        let first = scripts.remember(b"return 0");
        let second = scripts.remember(b"return 'second'");
        for number in 2..SCRIPTS_MAX {
            scripts.remember(format!("return {number}").as_bytes());
        }
        assert!(scripts.text(first.to_uppercase().as_bytes()).is_some());
        scripts.remember(b"one more");
        assert!(scripts.knows(first.as_bytes()) && !scripts.knows(second.as_bytes()));
        let long = scripts.remember(&vec![b' '; SCRIPTS_BYTES_MAX - 8]);
        assert!(scripts.knows(long.as_bytes()));
        assert!(scripts.cache().known.len() <= 2);
        scripts.forget_all();
        assert!(!scripts.knows(long.as_bytes()));
        assert_eq!(scripts.cache().len_bytes, 0);
    }
}
