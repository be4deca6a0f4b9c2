//! What the models say that they speak of exists: files, functions, and the models in README's table.
#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = fs::read_dir(folder).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == ending))
        .collect()
}

/// A path to code, by its look: `crates/...` or `dataplane/...`.
fn is_code(word: &str) -> bool {
    (word.starts_with("crates/") || word.starts_with("dataplane/")) && word.contains('.')
}

fn defines(code: &str, function: &str) -> bool {
    ["(", "<"].iter().any(|open| {
        let rust = format!("fn {function}{open}");
        let c = format!(" {function}{open}");
        let is_c = |line: &str| line.starts_with("IB_INLINE") && line.contains(&c);
        code.contains(&rust) || code.lines().any(is_c)
    })
}

/// The words of the lines from "Speaks of:" to the next empty comment line.
fn spoken_of(text: &str) -> Vec<String> {
    let lines = text
        .lines()
        .skip_while(|line| !line.contains("Speaks of:"))
        .skip(1);
    let ends = |line: &&str| !line.trim_start_matches(['/', '!', '*', ' ']).is_empty();
    let is_part = |c: char| c.is_alphanumeric() || "_/.-".contains(c);
    let words = lines.take_while(ends).flat_map(|line| {
        let line = line.trim_start_matches(['/', '!', '*', ' ', '-']);
        line.split(move |c| !is_part(c))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    words.filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_code_that_models_speak_of_exists() {
    let mut models = files("spin", "pml");
    let speaks = |path: &PathBuf| read(path).contains("Speaks of:");
    models.extend(files("src", "rs").into_iter().filter(speaks));
    assert_eq!(models.len(), 8, "every model names its code: {models:?}");
    for model in models {
        let mut code = String::new();
        let mut functions = 0;
        for word in spoken_of(&read(&model)) {
            if is_code(&word) {
                code = read(&root().join(&word));
            } else {
                assert!(
                    defines(&code, &word),
                    "{}: no function {word}",
                    model.display()
                );
                functions += 1;
            }
        }
        assert!(
            functions > 5,
            "{}: {functions} functions named",
            model.display()
        );
    }
}

/// README's table, row by row: the code in backquotes exists.
#[test]
fn the_table_names_what_exists() {
    let readme = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let rows = readme
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains("crates/"));
    let mut names = 0;
    for row in rows {
        let mut code = String::new();
        for word in row.split('`').skip(1).step_by(2) {
            if is_code(word) {
                code = read(&root().join(word));
            } else if !code.is_empty() {
                assert!(defines(&code, word), "README: no function {word} in {row}");
            }
            names += 1;
        }
    }
    assert!(names > 20, "{names} names in the table");
}

/// Every fault in mutants/ can still be planted: its patch applies to this tree.
#[test]
fn mutants_apply() {
    let patches = files("../mutants", "patch");
    assert!(patches.len() >= 25, "{} mutants", patches.len());
    for patch in patches {
        let text = read(&patch);
        for head in ["rule: ", "from: ", "check: "] {
            assert!(
                text.lines().any(|line| line.starts_with(head)),
                "{}: no {head}",
                patch.display()
            );
        }
        must_apply(&patch);
    }
}

/// So can those of the programs that `make jepsen` must find out.
#[test]
fn broken_programs_apply() {
    let patches = files("../checker", "patch");
    assert_eq!(patches.len(), 2, "{patches:?}");
    patches.iter().for_each(|patch| must_apply(patch));
}

fn must_apply(patch: &Path) {
    let mut git = std::process::Command::new("git");
    let git = git
        .current_dir(root())
        .args(["apply", "--check"])
        .arg(patch);
    let output = git.output().expect("git is there");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{} no longer applies: {said}",
        patch.display()
    );
}
