//! Runs every entry of the corpora through its target without the fuzzer, so that a fixed crash stays fixed.

use inband_fuzz::TARGETS;

/// Runs the corpus through its target; a panic names the entry.
fn replay(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    for (entry, bytes) in inband_testing::corpus(target) {
        let ran = std::panic::catch_unwind(|| run(&bytes));
        assert!(ran.is_ok(), "{entry}");
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
