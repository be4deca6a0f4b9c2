//! What tasks do: the work that a client sends and a worker's runners understand.

use serde::{Deserialize, Serialize};

/// A task's work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Do nothing for so long: what schedulers are measured with. Gives nothing.
    Sleep {
        /// Microseconds.
        micros: u64,
    },
    /// A function that was registered with the worker under this name. Gives what it returns.
    Function {
        /// As it was registered.
        name: String,
        /// Given to it.
        #[serde(with = "serde_bytes")]
        argument: Vec<u8>,
    },
    /// A program. Gives a [`CommandOutput`].
    Command(Command),
    /// A pickled call for a Python interpreter. Gives the pickled result.
    Python(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// A program to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program, found as a shell finds it, and its arguments.
    pub argv: Vec<String>,
    /// Added to the worker's environment.
    pub env: Vec<(String, String)>,
    /// Where it runs; `None`: where the worker does.
    pub dir: Option<String>,
    /// What it reads.
    #[serde(with = "serde_bytes")]
    pub stdin: Vec<u8>,
}

/// What a program did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandOutput {
    /// Its exit status, or 128 and the signal that ended it, as shells say it.
    pub status: i32,
    /// What it wrote, up to a limit.
    #[serde(with = "serde_bytes")]
    pub stdout: Vec<u8>,
    /// What it wrote, up to a limit.
    #[serde(with = "serde_bytes")]
    pub stderr: Vec<u8>,
    /// It wrote more than that.
    pub is_cut: bool,
}

/// Work that no runner understands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no work of a version that this worker knows ({0}); do client and worker run the same version?")]
pub struct UnknownWork(String);

impl Call {
    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("it has no shape that cannot be encoded")
    }

    /// What has travelled.
    pub fn decode(bytes: &[u8]) -> Result<Call, UnknownWork> {
        postcard::from_bytes(bytes).map_err(|error| UnknownWork(error.to_string()))
    }
}

impl CommandOutput {
    /// As it travels.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("it has no shape that cannot be encoded")
    }

    /// What has travelled.
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
