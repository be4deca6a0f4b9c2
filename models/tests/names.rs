//! Checks that what documents, models and mutants refer to exists: files, functions, rules, schedules.

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

/// Whether a word looks like a path to code: `crates/...` or `dataplane/...`.
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
    assert_eq!(models.len(), 11, "every model names its code: {models:?}");
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

/// The code in backquotes in each row of README's table exists.
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

/// Every patch in mutants/ applies to this tree.
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

/// So does every patch of a broken program that `make chaos` must detect.
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

/// The lines that git prints for these arguments.
fn git(arguments: &[&str]) -> Vec<String> {
    let output = std::process::Command::new("git")
        .current_dir(root())
        .args(arguments)
        .output()
        .expect("git is there");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

/// The numbers of a document's headings, such as `## 7. Trim`.
fn numbered(document: &str) -> Vec<u32> {
    let text = read(&root().join("docs").join(document));
    let heads = text.lines().filter_map(|line| line.strip_prefix("## "));
    let numbers = heads.map(|head| head.split('.').next().and_then(|n| n.parse().ok()));
    numbers
        .map(|number| number.unwrap_or_else(|| panic!("{document}: a heading without a number")))
        .collect()
}

#[test]
fn cited_rules_and_schedules_exist() {
    const NUMBERS: &str = "[0-9]+((, | and )[0-9]+)*";
    let by_name = |document: &str| format!("{document}, {NUMBERS}");
    let schedule = format!("\\b[Ss]chedules? {NUMBERS}\\b");
    let rule = format!("\\bRules? {NUMBERS}\\b");
    let cases = [
        ("protocol.md", by_name("protocol\\.md"), "."),
        ("schedules.md", by_name("schedules\\.md"), "."),
        ("schedules.md", schedule.clone(), "docs/protocol.md"),
        ("schedules.md", schedule, "crates/*/tests/*"),
        ("protocol.md", rule, "docs/schedules.md"),
    ];
    for (document, pattern, within) in cases {
        let numbers = numbered(document);
        let cited = git(&["grep", "-noE", &pattern, "--", within]);
        assert!(cited.len() > 10, "{pattern} in {within}: {cited:?}");
        for citation in cited {
            let (_, words) = citation.split_once(':').expect("a path");
            let (_, words) = words.split_once(':').expect("a line");
            let digits = words.split(|c: char| !c.is_ascii_digit());
            for number in digits.filter_map(|word| word.parse().ok()) {
                assert!(numbers.contains(&number), "{citation}: {document} has none");
            }
        }
    }
}

/// The tests and mutants that a document lists for its rules or schedules exist.
#[test]
fn what_covers_rules_and_schedules_exists() {
    let tracked = git(&["ls-files"]);
    for (document, least) in [("protocol.md", 60), ("schedules.md", 40)] {
        let text = read(&root().join("docs").join(document));
        let is_file = |word: &str| [".rs", ".h", ".pml"].iter().any(|end| word.ends_with(end));
        let mut names = 0;
        for part in text.split("\n\n") {
            let covers = ["Covered by", "layed by", "utant"]
                .iter()
                .any(|w| part.contains(w));
            for word in part.split('`').skip(1).step_by(2) {
                let in_snake_case = |c: char| c.is_lowercase() || c.is_numeric() || c == '_';
                let is_there = if word.contains('/') {
                    root().join(word).exists()
                } else if is_file(word) {
                    tracked
                        .iter()
                        .any(|path| path.rsplit('/').next() == Some(word))
                } else if covers && word.contains('-') && !word.contains(' ') {
                    root().join(format!("mutants/{word}.patch")).exists()
                } else if covers && word.contains('_') && word.chars().all(in_snake_case) {
                    !git(&["grep", "-lE", &format!("fn {word}\\(")]).is_empty()
                } else {
                    continue;
                };
                assert!(is_there, "docs/{document}: there is no {word}");
                names += 1;
            }
        }
        assert!(names >= least, "docs/{document}: {names} names");
    }
}

/// The tests that docs/bugs.md names exist. A name may be shortened with `...`.
#[test]
fn tests_of_bugs_exist() {
    let tracked = git(&["ls-files"]);
    let is_code = |path: &&String| {
        [".rs", ".py", ".toml", ".h", ".c"]
            .iter()
            .any(|end| path.ends_with(end))
    };
    let code: Vec<String> = tracked
        .iter()
        .filter(is_code)
        .map(|path| read(&root().join(path)))
        .collect();
    let text = read(&root().join("docs/bugs.md"));
    let mut names = 0;
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let covered_by = row
            .trim_end_matches(['|', ' '])
            .rsplit(" | ")
            .next()
            .expect("a column");
        let quoted = covered_by.split('`').skip(1).step_by(2);
        for word in quoted.flat_map(|words| words.split([' ', ':', ',', '(', ')'])) {
            let word = word.trim_end_matches("...");
            let is_there = if word.ends_with(".rs") {
                tracked.iter().any(|path| path.ends_with(word))
            } else if word.matches('_').count() >= 2 && !word.contains(['/', '.', '-']) {
                code.iter().any(|code| code.contains(word))
            } else {
                continue;
            };
            assert!(is_there, "docs/bugs.md: there is no {word} ({row})");
            names += 1;
        }
    }
    assert!(names > 250, "{names} names");
}
