//! Files with secrets: keys, private keys, passwords.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::Uid;

/// Mode bits that must not be set: others could read or change the secret.
const FORBIDDEN_MODE: u32 = 0o077;
/// Maximum length of such a file.
pub const SECRET_FILE_LEN_BYTES_MAX: u64 = 1 << 20;

/// Why a file with a secret is not used. Messages never contain what is in the file.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    #[error("{path}: cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    /// A pipe or device; reading it could block.
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("{path}: others may read or change it (mode {mode:04o}); run `chmod 600 {path}`, and replace what is in it if anyone did")]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path} belongs to user {owner}, who may change it; run `chown {} {path}` if it is meant for this process", Uid::effective())]
    OtherOwner { path: PathBuf, owner: u32 },
    #[error("{path} has {len_bytes} bytes, a file with a secret at most {SECRET_FILE_LEN_BYTES_MAX}; is it the right file?")]
    TooLong { path: PathBuf, len_bytes: u64 },
}

/// Reads a regular file that only its owner can read, who is root or the user of this process. Root also reads the files of
/// a service that runs as another user, in that user's directory.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, SecretFileError> {
    let unreadable = |source| SecretFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let path = path.to_owned();
    // Opening a pipe must not wait for a writer.
    let flags = OFlag::O_NONBLOCK.bits();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags).open(&path);
    let file = file.map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(SecretFileError::NotAFile { path });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & FORBIDDEN_MODE != 0 {
        return Err(SecretFileError::Exposed { path, mode });
    }
    let owner = Uid::from_raw(metadata.uid());
    let is_trusted = owner.is_root() || owner == Uid::effective() || is_of_service(owner, &path);
    if !is_trusted {
        let owner = owner.as_raw();
        return Err(SecretFileError::OtherOwner { path, owner });
    }
    let len_bytes = metadata.len();
    if len_bytes > SECRET_FILE_LEN_BYTES_MAX {
        return Err(SecretFileError::TooLong { path, len_bytes });
    }
    let mut bytes = Vec::new();
    let mut limited = file.take(SECRET_FILE_LEN_BYTES_MAX);
    limited.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// Returns whether this process is root's, and the file is in a directory of its owner.
fn is_of_service(owner: Uid, path: &Path) -> bool {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = fs::metadata(dir.unwrap_or(Path::new(".")));
    Uid::effective().is_root() && dir.is_ok_and(|dir| dir.uid() == owner.as_raw())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{chown, PermissionsExt};

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn refused(path: &Path) -> String {
        read_secret(path).expect_err("refused").to_string()
    }

    #[test]
    fn a_file_of_its_owner_alone_is_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        fs::write(&path, "s3cret").expect("written");
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            let why = refused(&path);
            assert!(why.contains(&format!("mode {mode:04o}")), "{why}");
            assert!(why.contains("chmod 600"), "{why}");
        }
        for mode in [0o600, 0o400] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            assert_eq!(read_secret(&path).expect("read"), b"s3cret");
        }
        let long = vec![0; SECRET_FILE_LEN_BYTES_MAX as usize + 1];
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        fs::write(&path, long).expect("written");
        assert!(refused(&path).contains("1048577 bytes"));
        let why = refused(&dir.path().join("nosuch"));
        assert!(why.contains("cannot be read: No such file"), "{why}");
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pipe");
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
        assert!(refused(&path).contains("is not a regular file"));
        assert!(refused(dir.path()).contains("is not a regular file"));
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        if !Uid::effective().is_root() {
            return inband_testing::not_run("only root can give a file to another user");
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        fs::write(&path, "s3cret").expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        chown(&path, Some(65534), None).expect("given away");
        let why = refused(&path);
        assert!(why.contains("belongs to user 65534"), "{why}");
        // As in /etc/inband: root's commands read what the service does.
        chown(dir.path(), Some(65534), None).expect("given away");
        assert_eq!(read_secret(&path).expect("read"), b"s3cret");
        chown(dir.path(), Some(65533), None).expect("given away");
        let why = refused(&path);
        assert!(why.contains("belongs to user 65534"), "{why}");
    }
}
