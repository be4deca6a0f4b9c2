//! `inband-pages DIR` writes the man pages and the shell completions of `inband` to DIR, for scripts/deb.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use clap_complete::{generate_to, Shell};

/// Write the man pages and shell completions of the inband command line.
#[derive(Debug, Parser)]
#[command(name = "inband-pages", version)]
struct Cli {
    /// Where to write them: to DIR/man and DIR/completions.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

fn main() -> Result<()> {
    write_pages(&Cli::parse().dir)
}

fn write_pages(dir: &Path) -> Result<()> {
    let command = inband_program::command();
    let completions = made(dir.join("completions"))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command.clone(), "inband", &completions)
            .with_context(|| format!("writing to {}", completions.display()))?;
    }
    let man = made(dir.join("man"))?;
    clap_mangen::generate_to(command, &man).with_context(|| format!("writing to {}", man.display()))
}

fn made(dir: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every visible command below `command`, as the name of its page.
    fn pages(command: &clap::Command, name: &str, found: &mut Vec<String>) {
        found.push(name.to_owned());
        for below in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            pages(below, &format!("{name}-{}", below.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_a_page_and_is_completed() {
        let dir = tempfile::tempdir().expect("a directory");
        write_pages(dir.path()).expect("pages");
        let mut expected = Vec::new();
        pages(&inband_program::command(), "inband", &mut expected);
        for below in ["inband-member-replace", "inband-flair-up"] {
            assert!(expected.iter().any(|page| page == below), "{expected:?}");
        }
        for page in expected {
            let path = dir.path().join(format!("man/{page}.1"));
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
            assert!(text.contains(".SH SYNOPSIS"), "{page}");
        }
        // Of the programs in the package, lintian requires one each: their own, or a link to another.
        let deploy = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/debian"));
        let read = |file: &str| fs::read_to_string(deploy.join(file)).expect(file);
        let (installed, links) = (read("inband.install"), read("inband.links"));
        let programs = installed.lines().filter_map(|line| {
            let (from, to) = line.split_once(' ')?;
            (to == "/usr/bin").then(|| from.rsplit('/').next().unwrap_or(from))
        });
        let without: Vec<&str> = programs
            .filter(|name| !dir.path().join(format!("man/{name}.1")).exists())
            .filter(|name| !links.contains(&format!("man1/{name}.1.gz\n")))
            .collect();
        assert!(
            without.is_empty(),
            "no man page for {without:?}: inband.links makes one"
        );
        for file in ["inband.bash", "_inband", "inband.fish"] {
            let text = fs::read_to_string(dir.path().join("completions").join(file)).expect(file);
            assert!(text.contains("certificate"), "{file}");
        }
    }
}
