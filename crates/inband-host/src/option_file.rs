//! Options of a program in a TOML file, by their names on the command line, which overrides the file.
//!
//! ```toml
//! node = 1
//! nodes = ["10.0.0.1:7001", "10.0.0.2:7001", "10.0.0.3:7001"]
//! data = "/var/lib/inband"
//! memcached-open = true
//! ```

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;

use anyhow::{bail, ensure, Context, Result};
use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

/// The option that names the file.
const CONFIG: &str = "config";
/// Options of clap itself.
const HELP: [&str; 2] = ["help", "version"];

/// Returns the arguments of a command with those of the file that `--config` names, if it is among them. An option that is
/// on the command line is not taken from the file.
///
/// # Errors
/// If the file cannot be read, has a name that is no option or is in `never`, or a value that no option has.
pub fn with_file(
    command: &Command,
    words: &[OsString],
    never: &[(&str, &str)],
) -> Result<Vec<OsString>> {
    let Some(path) = path_in(words) else {
        return Ok(words.to_vec());
    };
    let at = path.display();
    let text = fs::read_to_string(&path).with_context(|| format!("--config: cannot read {at}"))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("--config {at}"))?;
    let mut all = Vec::new();
    for (name, value) in &table {
        if let Some((_, why)) = never.iter().find(|(other, _)| other == name) {
            bail!("--config {at}: {name} belongs on the command line: {why}");
        }
        let option = option_named(command, name);
        let option = option.with_context(|| {
            format!(
                "--config {at}: there is no option {name:?}; there are {}",
                names(command, never)
            )
        })?;
        if !words.iter().any(|word| is_option(word, name)) {
            let word = argument(option, name, value);
            all.extend(word.with_context(|| format!("--config {at}: {name}"))?);
        }
    }
    all.extend_from_slice(words);
    Ok(all)
}

fn is_option(word: &OsStr, name: &str) -> bool {
    let option = word.to_str().and_then(|word| word.strip_prefix("--"));
    let rest = option.and_then(|option| option.strip_prefix(name));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Returns the file that the command line names.
fn path_in(words: &[OsString]) -> Option<PathBuf> {
    let at = words.iter().position(|word| is_option(word, CONFIG))?;
    let given = words[at].to_str()?.split_once('=');
    match given {
        Some((_, path)) => Some(path.into()),
        None => words.get(at + 1).map(PathBuf::from),
    }
}

fn options(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let named = command.get_arguments();
    let named = named.filter_map(|option| Some((option.get_long()?, option)));
    named.filter(|(name, _)| *name != CONFIG && !HELP.contains(name))
}

fn option_named<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut options = options(command);
    options
        .find(|(other, _)| *other == name)
        .map(|(_, option)| option)
}

fn names(command: &Command, never: &[(&str, &str)]) -> String {
    let names = options(command).map(|(name, _)| name);
    let names = names.filter(|name| never.iter().all(|(other, _)| other != name));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns the value as on the command line; nothing for `false`.
fn argument(option: &Arg, name: &str, value: &Value) -> Result<Option<OsString>> {
    let is_flag = matches!(option.get_action(), ArgAction::SetTrue);
    if let Value::Boolean(is_set) = value {
        ensure!(is_flag, "{is_set} is not a value of it");
        return Ok(is_set.then(|| format!("--{name}").into()));
    }
    ensure!(!is_flag, "{value}: give true or false");
    let text = match value {
        Value::Array(values) => {
            let is_list = matches!(option.get_action(), ArgAction::Append);
            ensure!(is_list, "{value} is a list, and it has one value");
            values
                .iter()
                .map(text_of)
                .collect::<Result<Vec<_>>>()?
                .join(",")
        }
        one => text_of(one)?,
    };
    Ok(Some(format!("--{name}={text}").into()))
}

fn text_of(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        _ => bail!("{value} is neither a text nor a whole number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let config = Arg::new(CONFIG).long(CONFIG);
        let nodes = Arg::new("nodes").long("nodes").action(ArgAction::Append);
        let open = Arg::new("open").long("open").action(ArgAction::SetTrue);
        let loss = Arg::new("loss").long("loss").action(ArgAction::SetTrue);
        let memory = Arg::new("memory").long("memory");
        Command::new("node").args([config, nodes, open, loss, memory])
    }

    fn expanded(text: &str, words: &[&str]) -> Result<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.toml");
        fs::write(&path, text).unwrap();
        let config = format!("--config={}", path.display());
        let mut all: Vec<OsString> = words.iter().map(OsString::from).collect();
        all.push(config.clone().into());
        let words = with_file(&command(), &all, &[("loss", "it would be lost again")])?;
        let words = words.into_iter().map(|word| word.into_string().unwrap());
        Ok(words.filter(|word| *word != config).collect())
    }

    #[test]
    fn options_are_those_of_the_file_and_the_command_line_comes_first() {
        let text = "nodes = ['a:1', 'b:2']\nopen = true\nmemory = 5\n";
        let all = expanded(text, &[]).unwrap();
        assert_eq!(all, ["--memory=5", "--nodes=a:1,b:2", "--open"]);
        for words in [&["--memory", "7"][..], &["--memory=7"]] {
            let all = expanded(text, words).unwrap();
            assert_eq!(all[..2], ["--nodes=a:1,b:2", "--open"]);
            assert_eq!(all[2..], *words);
        }
        assert_eq!(expanded("open = false", &[]).unwrap(), [""; 0]);
        let words = ["--memory".into()];
        assert_eq!(with_file(&command(), &words, &[]).unwrap(), words);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, says) in [
            (
                "memroy = 5",
                "no option \"memroy\"; there are nodes, open, memory",
            ),
            ("config = 'x'", "no option \"config\""),
            (
                "loss = true",
                "loss belongs on the command line: it would be lost again",
            ),
            ("open = 1", "open: 1: give true or false"),
            ("memory = true", "memory: true is not a value of it"),
            ("memory = ['a']", "is a list"),
            ("memory = 1.5", "1.5 is neither"),
            ("memory = ", "node.toml"),
            ("[host]\nmemory = 5", "no option \"host\""),
        ] {
            let error = format!("{:#}", expanded(text, &[]).unwrap_err());
            assert!(
                error.contains(says) && error.contains("node.toml"),
                "{text}: {error}"
            );
        }
        let missing = with_file(&command(), &["--config".into(), "/nowhere".into()], &[]);
        let error = missing.unwrap_err().to_string();
        assert!(error.contains("--config: cannot read /nowhere"), "{error}");
    }
}
