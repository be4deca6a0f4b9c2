//! Every entry of the corpora through its target: what the fuzzer has once found stays found, without
//! the fuzzer.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

use inband_fuzz::TARGETS;

fn entries(target: &str) -> Vec<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let mut entries: Vec<PathBuf> = std::fs::read_dir(&corpus)
        .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    entries
}

/// Put the corpus through its target; a panic names the entry.
fn replay(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let entries = entries(target);
    assert!(!entries.is_empty(), "fuzz/corpus/{target} is empty");
    for entry in &entries {
        let bytes = std::fs::read(entry).unwrap();
        let ran = std::panic::catch_unwind(|| run(&bytes));
        assert!(ran.is_ok(), "{}", entry.display());
    }
    run(&[]);
}

macro_rules! replay {
    ($($target:ident)*) => {
        $(#[test]
        fn $target() {
            replay(stringify!($target));
        })*

        #[test]
        fn no_target_is_left_out() {
            let replayed = [$(stringify!($target)),*];
            let all: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(replayed[..], all[..]);
        }
    };
}

replay!(c_api checkpoint config connection control export falcon flair flair_hosts host journal machine raft records resp roles values);
