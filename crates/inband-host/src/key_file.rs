//! The file with a cluster's keys. Anyone who can read it can forge the cluster's packets, so only its owner may read
//! it; all hosts have the same file.
//!
//! ```toml
//! digest_key = "32 hexadecimal digits"   # as long as the cluster has its data
//! active = 2                             # the key that this host sends with
//!
//! [[key]]                                # every key that it accepts
//! id = 2
//! secret = "32 hexadecimal digits"
//! ```

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use inband_ground::auth::{Digest, Keys, Secret, KEYS_MAX};
use inband_storage::{read_secret, replace, SecretFileError};
use serde::{Deserialize, Serialize};

const MODE: u32 = 0o600;
const HEX_DIGITS: usize = 32;

const COMMENT: &str = "\
# Keys of an Inband cluster. Anyone who can read this file can forge the cluster's packets: keep it to its
# owner (mode 0600), and the same on all hosts. `inband key` changes it.
";

/// Why a key file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// It could not be read.
    #[error("key file {path}: cannot be read: {source}; check the path, or make one with `inband key new`")]
    Unreadable { path: PathBuf, source: io::Error },
    /// It could not be written.
    #[error("key file {path}: cannot be written: {source}")]
    Unwritable { path: PathBuf, source: io::Error },
    /// Others may read or change it.
    #[error("key file {0}")]
    Refused(SecretFileError),
    /// Its contents are invalid.
    #[error("key file {path}: {message}")]
    Malformed { path: PathBuf, message: String },
    /// The digest key differs; it must not change because votes and logs depend on it.
    #[error("key file {path}: the digest key is another than before; values could not be read any more. Put the old one back: only `active` and the [[key]]s may change")]
    OtherDigestKey { path: PathBuf },
}

/// The keys with which a host authenticates packets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeyStatus {
    /// Id of the key that it sends with.
    pub active: u16,
    /// Ids of the keys that it accepts, ascending.
    pub accepted: Vec<u16>,
}

impl KeyStatus {
    pub fn of(keys: &Keys) -> KeyStatus {
        KeyStatus {
            active: keys.active(),
            accepted: keys.ids(),
        }
    }

    /// As a line of a log.
    pub fn in_words(&self) -> String {
        format!("sends with {}, accepts {:?}", self.active, self.accepted)
    }
}

/// Why a change of the keys was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// There is no room for another key.
    #[error("there are {KEYS_MAX} keys already; drop old ones first")]
    TooMany,
    /// All ids have been used.
    #[error("all key ids up to 65535 have been used; begin a new cluster")]
    NoIdLeft,
    /// There is no such key.
    #[error("there is no key {0} in the file")]
    Unknown(u16),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    digest_key: String,
    active: u16,
    #[serde(default)]
    key: Vec<RawKey>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKey {
    id: u16,
    secret: String,
}

/// The contents of a key file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    digest_key: Secret,
    active: u16,
    keys: Vec<(u16, Secret)>,
}

fn to_hex(secret: &Secret) -> String {
    format!("{:0HEX_DIGITS$x}", u128::from_be_bytes(secret.0))
}

fn from_hex(name: &str, text: &str) -> Result<Secret, String> {
    let is_hex = text.len() == HEX_DIGITS && text.chars().all(|c| c.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex);
    let number = number.ok_or_else(|| format!("{name} is not {HEX_DIGITS} hexadecimal digits"))?;
    Ok(Secret(number.to_be_bytes()))
}

fn random_secret() -> io::Result<Secret> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(Secret(bytes))
}

/// Says where a file is wrong. The parser's own message may quote a secret, as a value or as a name.
fn not_understood(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    format!(
        "line {line} does not belong in a key file, which has digest_key = \"HEX\", active = ID, and for each key [[key]], \
         id = ID and secret = \"HEX\"; `inband key new` makes one"
    )
}

impl KeyFile {
    /// Generates keys for a new cluster.
    pub fn generate() -> io::Result<KeyFile> {
        Ok(KeyFile {
            digest_key: random_secret()?,
            active: 1,
            keys: vec![(1, random_secret()?)],
        })
    }

    /// Reads and validates a file.
    pub fn load(path: &Path) -> Result<KeyFile, KeyFileError> {
        let bytes = read_secret(path).map_err(|error| match error {
            SecretFileError::Unreadable { path, source } => {
                KeyFileError::Unreadable { path, source }
            }
            other => KeyFileError::Refused(other),
        })?;
        // What is not UTF-8 is not TOML either.
        let text = String::from_utf8_lossy(&bytes);
        KeyFile::parse(&text).map_err(|message| KeyFileError::Malformed {
            path: path.to_owned(),
            message,
        })
    }

    fn parse(text: &str) -> Result<KeyFile, String> {
        let raw: RawFile = toml::from_str(text).map_err(|error| not_understood(text, &error))?;
        let keys = raw
            .key
            .iter()
            .map(|key| {
                Ok((
                    key.id,
                    from_hex(&format!("secret of key {}", key.id), &key.secret)?,
                ))
            })
            .collect::<Result<Vec<_>, String>>()?;
        let file = KeyFile {
            digest_key: from_hex("digest_key", &raw.digest_key)?,
            active: raw.active,
            keys,
        };
        match Keys::new(file.active, &file.keys) {
            Ok(_) => Ok(file),
            Err(error) => Err(error.to_string()),
        }
    }

    fn to_toml(&self) -> String {
        let key = |(id, secret): &(u16, Secret)| RawKey {
            id: *id,
            secret: to_hex(secret),
        };
        let raw = RawFile {
            digest_key: to_hex(&self.digest_key),
            active: self.active,
            key: self.keys.iter().map(key).collect(),
        };
        let text = toml::to_string(&raw).expect("strings and numbers are TOML");
        format!("{COMMENT}{text}")
    }

    /// Writes the file atomically and durably, accessible only to its owner.
    pub fn save(&self, path: &Path) -> Result<(), KeyFileError> {
        replace(path, self.to_toml().as_bytes(), MODE).map_err(|source| KeyFileError::Unwritable {
            path: path.to_owned(),
            source,
        })
    }

    /// Returns the keys for packets.
    pub fn keys(&self) -> Keys {
        Keys::new(self.active, &self.keys).expect("checked when it was read or changed")
    }

    /// Returns the digest for values.
    pub fn digest(&self) -> Digest {
        Digest::keyed(self.digest_key)
    }

    /// Id of the key to send with.
    pub fn active(&self) -> u16 {
        self.active
    }

    /// Ids of all keys, in the file's order.
    pub fn ids(&self) -> Vec<u16> {
        self.keys.iter().map(|(id, _)| *id).collect()
    }

    /// Generates and accepts another key, whose id is one above the highest. Returns the id.
    pub fn add(&mut self) -> Result<u16, ChangeError> {
        let highest = self.ids().into_iter().max().unwrap_or(0);
        let id = highest.checked_add(1).ok_or(ChangeError::NoIdLeft)?;
        let secret = random_secret().expect("every Linux has /dev/urandom");
        let place = |id: u16| usize::from(id) % KEYS_MAX;
        if self
            .keys
            .iter()
            .any(|(other, _)| place(*other) == place(id))
        {
            return Err(ChangeError::TooMany);
        }
        self.keys.push((id, secret));
        Ok(id)
    }

    /// Sends with this key.
    pub fn activate(&mut self, id: u16) -> Result<(), ChangeError> {
        if !self.ids().contains(&id) {
            return Err(ChangeError::Unknown(id));
        }
        self.active = id;
        Ok(())
    }

    /// Removes all keys but the active one.
    pub fn drop_others(&mut self) {
        let active = self.active;
        self.keys.retain(|(id, _)| *id == active);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("inband-keys-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir.join("keys.toml")
    }

    #[test]
    fn a_file_is_written_for_its_owner_and_read_back() {
        let path = scratch("back");
        let mut keys = KeyFile::generate().unwrap();
        keys.save(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o600);
        assert_eq!(KeyFile::load(&path).unwrap(), keys);
        assert_eq!(keys.add(), Ok(2));
        keys.activate(2).unwrap();
        keys.save(&path).unwrap();
        let read = KeyFile::load(&path).unwrap();
        assert_eq!((read.active(), read.ids()), (2, vec![1, 2]));
        assert_eq!(read.keys().ids(), [1, 2]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = KeyFile::load(&path).unwrap_err().to_string();
        assert!(
            error.contains("mode 0640") && error.contains("chmod 600"),
            "{error}"
        );
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn keys_are_rotated_for_ever_and_never_more_than_fit() {
        let mut keys = KeyFile::generate().unwrap();
        let (first, digest) = (keys.keys.clone(), keys.digest());
        for id in 2..=4 {
            assert_eq!(keys.add(), Ok(id));
        }
        assert_eq!(keys.add(), Err(ChangeError::TooMany));
        assert_eq!(keys.activate(9), Err(ChangeError::Unknown(9)));
        keys.activate(4).unwrap();
        keys.drop_others();
        assert_eq!((keys.active(), keys.ids()), (4, vec![4]));
        assert_eq!(keys.add(), Ok(5));
        keys.activate(5).unwrap();
        keys.keys();
        assert_ne!(keys.keys[1].1, first[0].1);
        assert_eq!(keys.digest(), digest, "as long as the data");
        keys.keys = vec![(u16::MAX, first[0].1)];
        assert_eq!(keys.add(), Err(ChangeError::NoIdLeft));
    }

    #[test]
    fn mistakes_are_named_and_secrets_are_not() {
        let secret = "00112233445566778899aabbccddeeff";
        let good = format!(
            "digest_key = \"{secret}\"\nactive = 3\n[[key]]\nid = 3\nsecret = \"{secret}\"\n"
        );
        let file = KeyFile::parse(&good).unwrap();
        assert_eq!(file.keys[0].1 .0[..3], [0, 0x11, 0x22]);
        for (from, to, expected) in [
            ("active = 3", "active = 4", "active key 4"),
            ("id = 3", "id = 0", "key id 0"),
            ("eeff\"\nactive", "ee\"\nactive", "digest_key is not 32"),
            (
                "secret = \"00",
                "secret = \"+0",
                "secret of key 3 is not 32",
            ),
            ("[[key]]", "[[keys]]", "line 3"),
            ("secret = \"00", "secret \"00", "line 5"),
            ("active = 3", &format!("active = \"{secret}\""), "line 2"),
            ("active = 3", &format!("{secret} = 3"), "line 2"),
            ("active = 3", &format!("active = 0x{secret}"), "line 2"),
            ("id = 3", &format!("id = \"{secret}\""), "line 4"),
            ("id = 3", &format!("id = {secret}"), "line 4"),
            ("id = 3\n", &format!("id = 3\n\"{secret}\" = 1\n"), "line 5"),
            ("[[key]]", &format!("[[{secret}]]"), "line 3"),
        ] {
            let error = KeyFile::parse(&good.replace(from, to)).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(
                !error.contains("2233") && !error.contains("eeff"),
                "{error}"
            );
        }
    }
}
