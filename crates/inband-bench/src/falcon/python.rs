//! A Python environment with the systems that Inband is compared with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{ensure, Context, Result};

/// The load generator of `peers`.
pub const PEER: &str = include_str!("../../../../bench/falcon/peer.py");
/// The load generator of `python`.
pub const TASKS: &str = include_str!("../../../../bench/falcon/tasks.py");
const REQUIREMENTS: &str = include_str!("../../../../bench/falcon/requirements.txt");

/// A Python interpreter and its packages.
pub struct Environment {
    python: PathBuf,
    /// It was given, so its packages are left alone.
    is_given: bool,
}

impl Environment {
    /// Uses the interpreter that was given. Otherwise creates an environment in the user's cache directory, unless it
    /// exists.
    pub fn of(given: Option<&Path>) -> Result<Environment> {
        match given {
            Some(python) => Ok(Environment {
                python: python.to_owned(),
                is_given: true,
            }),
            None => Environment::make(),
        }
    }

    fn make() -> Result<Environment> {
        let dir = cache_dir()?.join("inband").join("falcon-peers");
        let environment = Environment {
            python: dir.join("bin").join("python"),
            is_given: false,
        };
        let installed = dir.join("requirements.txt");
        if fs::read_to_string(&installed).is_ok_and(|text| text == REQUIREMENTS) {
            return Ok(environment);
        }
        eprintln!(
            "installing Ray and Dask into {} (once; some 300 MB)",
            dir.display()
        );
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let made = Command::new("python3")
            .args(["-m", "venv"])
            .arg(&dir)
            .output();
        said("python3 -m venv", made)?;
        let wanted = dir.join("wanted.txt");
        fs::write(&wanted, REQUIREMENTS)?;
        environment.pip(&["--requirement".as_ref(), wanted.as_path()])?;
        // Marks the environment as complete.
        fs::rename(&wanted, &installed)?;
        Ok(environment)
    }

    /// Installs Inband's package as `make wheel` has built it, replacing another build of it. An interpreter that was
    /// given must have it.
    pub fn install_inband(&self) -> Result<()> {
        if self.is_given {
            return Ok(());
        }
        let wheel = wheel()?;
        self.pip(&["--force-reinstall".as_ref(), "--no-deps".as_ref(), &wheel])
    }

    fn pip(&self, arguments: &[&Path]) -> Result<()> {
        let mut pip = Command::new(&self.python);
        pip.args([
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "install",
        ]);
        said("pip install", pip.args(arguments).output()).map(drop)
    }

    /// Runs a script. Returns the lines that it prints.
    pub fn run(&self, script: &str, arguments: &[String]) -> Result<Vec<String>> {
        let mut python = Command::new(&self.python);
        let output = python.args(["-c", script]).args(arguments).output();
        let output = said(&self.python.display().to_string(), output)?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(str::to_owned).collect())
    }
}

/// Inband's Python package, as built by `make wheel`.
fn wheel() -> Result<PathBuf> {
    let wheels = Path::new("target/wheels");
    let found = fs::read_dir(wheels).into_iter().flatten().flatten();
    let mut found = found.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("inband-") && name.ends_with(".whl")
    });
    let wheel = found.next();
    wheel.with_context(|| {
        format!(
            "no inband-*.whl in {}; make it with `make wheel`",
            wheels.display()
        )
    })
}

fn cache_dir() -> Result<PathBuf> {
    let of = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let dir = of("XDG_CACHE_HOME").map(PathBuf::from);
    let dir = dir.or_else(|| Some(PathBuf::from(of("HOME")?).join(".cache")));
    dir.context("neither XDG_CACHE_HOME nor HOME is set; set one of them, or give --python")
}

/// Returns the output of a successful run. Otherwise its last line is the error.
fn said(what: &str, output: std::io::Result<Output>) -> Result<Output> {
    let output = output.with_context(|| format!("cannot run {what}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    ensure!(
        output.status.success(),
        "{what}: {}",
        last.unwrap_or("it failed")
    );
    Ok(output)
}
