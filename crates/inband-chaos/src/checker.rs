//! Runs `inband-checker` and reads its verdict.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use serde::{Deserialize, Serialize};

const PROGRAM: &str = "inband-checker";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// `linearizable`, `violation` or `undecided`.
    pub verdict: String,
    pub operations: BTreeMap<String, u64>,
    pub groups: u64,
    pub largest_group: u64,
    pub duration_ms: u64,
    pub slowest_group_ms: u64,
    pub undecided: Vec<String>,
    pub violating: Vec<String>,
    pub violations: Vec<Violation>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Violation {
    pub group: String,
    /// Porcupine's visualizations, in the directory of the history.
    pub picture: String,
    pub whole_picture: String,
    /// A short history that is a violation by itself.
    pub operations: Vec<serde_json::Value>,
    pub words: Vec<String>,
}

impl Verdict {
    pub fn is_linearizable(&self) -> bool {
        self.verdict == "linearizable"
    }

    pub fn is_violation(&self) -> bool {
        self.verdict == "violation"
    }
}

/// Returns the path of the checker. The error says how to build it.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let beside = std::env::current_exe().context("finding this program")?;
    let path = match given {
        Some(path) => path.to_owned(),
        None => beside.with_file_name(PROGRAM),
    };
    ensure!(
        path.is_file(),
        "there is no checker at {}; `make checker` builds it (it needs Go), or name one with --checker",
        path.display()
    );
    Ok(path)
}

/// Checks a history. Visualizations of violations go to the directory of the history.
pub fn judge(checker: &Path, history: &Path) -> Result<Verdict> {
    let dir = history.parent().unwrap_or(Path::new("."));
    let output = Command::new(checker)
        .arg("-pictures")
        .arg(dir)
        .arg(history)
        .output()
        .with_context(|| format!("running {}", checker.display()))?;
    match serde_json::from_slice(&output.stdout) {
        Ok(verdict) => Ok(verdict),
        Err(_) => bail!(
            "{} ended with {}: {}",
            checker.display(),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ),
    }
}
