//! The work of tasks: what a client sends and a worker's runners execute.

use serde::{Deserialize, Serialize};

/// A task's work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Sleep, for measurements of schedulers. The result is empty.
    Sleep { micros: u64 },
    /// A function that was registered with the worker under this name. The result is what it returns.
    Function {
        name: String,
        #[serde(with = "serde_bytes")]
        argument: Vec<u8>,
    },
    /// A program. The result is a [`CommandOutput`].
    Command(Command),
    /// A pickled call for a Python interpreter. The result is pickled too.
    Python(#[serde(with = "serde_bytes")] Vec<u8>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program, found like by a shell, and its arguments.
    pub argv: Vec<String>,
    /// Added to the worker's environment.
    pub env: Vec<(String, String)>,
    /// Its working directory; `None`: the worker's.
    pub dir: Option<String>,
    #[serde(with = "serde_bytes")]
    pub stdin: Vec<u8>,
}

/// The result of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandOutput {
    /// Its exit status, or 128 plus the signal that ended it, as shells report it.
    pub status: i32,
    /// Its output, up to a limit.
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// Its error output, up to a limit.
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
    /// The output exceeded the limit.
    pub is_cut: bool,
}

/// Work that no runner understands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the work of the task cannot be decoded ({0}); do client and worker run the same version?")]
pub struct UnknownWork(String);

impl Call {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("it has no shape that cannot be encoded")
    }

    pub fn decode(bytes: &[u8]) -> Result<Call, UnknownWork> {
        postcard::from_bytes(bytes).map_err(|error| UnknownWork(error.to_string()))
    }
}

impl CommandOutput {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("it has no shape that cannot be encoded")
    }

    pub fn decode(bytes: &[u8]) -> Result<CommandOutput, UnknownWork> {
        postcard::from_bytes(bytes).map_err(|error| UnknownWork(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_travels_and_nonsense_is_refused() {
        let command = Command {
            argv: vec!["echo".into(), "hello".into()],
            dir: Some("/".into()),
            ..Command::default()
        };
        let calls = [
            Call::Sleep { micros: 10_000 },
            Call::Command(command),
            Call::Python(vec![1, 2, 3]),
        ];
        for call in calls {
            assert_eq!(Call::decode(&call.encode()), Ok(call));
        }
        assert!(Call::decode(&[200]).is_err());
        assert!(Call::decode(&[]).is_err());
    }
}
