//! The password that clients must send.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use inband_storage::{read_secret, SecretFileError};
use subtle::ConstantTimeEq;

use crate::limits::PASSWORD_LEN_BYTES_MAX;

/// Why a password could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    /// Its file cannot be read, or others can.
    #[error("password file {0}")]
    File(#[from] SecretFileError),
    /// There is no such file.
    #[error("there is no password file {path}; write the password into it, in one line, and run `chmod 600 {path}`")]
    Missing { path: PathBuf },
    /// Its length is invalid.
    #[error("{path}: a password has 1 to {PASSWORD_LEN_BYTES_MAX} bytes, this has {len_bytes}; write one into the file, in one line")]
    Length { path: PathBuf, len_bytes: usize },
}

/// A password that clients must send first.
#[derive(Clone)]
pub struct Password {
    bytes: [u8; PASSWORD_LEN_BYTES_MAX],
    len_bytes: usize,
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password")
    }
}

impl Password {
    /// Reads it from a file that only its owner may read; a trailing newline is not part of it.
    pub fn read(path: &Path) -> Result<Self, PasswordError> {
        let bytes = match read_secret(path) {
            Err(SecretFileError::Unreadable { path, source })
                if source.kind() == ErrorKind::NotFound =>
            {
                return Err(PasswordError::Missing { path });
            }
            read => read?,
        };
        let line = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Self::new(line).ok_or_else(|| PasswordError::Length {
            path: path.to_owned(),
            len_bytes: line.len(),
        })
    }

    fn new(password: &[u8]) -> Option<Self> {
        let len_bytes = password.len();
        (1..=PASSWORD_LEN_BYTES_MAX).contains(&len_bytes).then(|| {
            let mut bytes = [0; PASSWORD_LEN_BYTES_MAX];
            bytes[..len_bytes].copy_from_slice(password);
            Self { bytes, len_bytes }
        })
    }

    /// Returns the password itself, for clients that send it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len_bytes]
    }

    /// Returns whether `said` is the password. Takes constant time, so that the time reveals nothing.
    pub fn is(&self, said: &[u8]) -> bool {
        let Some(said) = Password::new(said) else {
            return false;
        };
        let is_as_long = self.len_bytes.ct_eq(&said.len_bytes);
        bool::from(self.bytes.ct_eq(&said.bytes) & is_as_long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_password_is_it() {
        let password = Password::new(b"secret").expect("a password");
        assert!(password.is(b"secret"));
        let long = [b'x'; PASSWORD_LEN_BYTES_MAX + 1];
        for other in [
            &b""[..],
            b"secre",
            b"secret\0",
            b"secreT",
            b"xsecret",
            &long,
        ] {
            assert!(!password.is(other), "{other:?}");
        }
        assert!(Password::new(b"").is_none() && Password::new(&long).is_none());
        assert_eq!(format!("{password:?}"), "Password");
    }

    #[test]
    fn it_is_read_from_a_file_of_its_owner() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("password");
        fs::write(&path, "a b\n").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set");
        let error = Password::read(&path).expect_err("others can read it");
        assert!(error.to_string().contains("chmod 600"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        assert!(Password::read(&path).expect("a password").is(b"a b"));
        fs::write(&path, "\n").expect("written");
        let error = Password::read(&path).expect_err("it is empty");
        assert!(error.to_string().contains("this has 0"), "{error}");
        let error = Password::read(&dir.path().join("nosuch")).expect_err("it is not there");
        let error = error.to_string();
        assert!(error.contains("write the password into it"), "{error}");
        assert!(!error.contains("certificate"), "{error}");
    }
}
