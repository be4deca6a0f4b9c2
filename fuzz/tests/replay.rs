//! Runs every entry of the corpora through its target without the fuzzer, so that a fixed crash stays fixed.

use inband_fuzz::targets::scripts;
use inband_fuzz::TARGETS;
use inband_lua::Ended;
use inband_resp::reply::Reply;

const SCRIPTS: usize = 500;
/// Bytes from which a script is generated.
const SCRIPT_BYTES: usize = 200;

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

/// The fuzzer's scripts, without the fuzzer.
#[test]
fn generated_scripts_are_equal_on_two_replicas() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let mut answered = 0;
    for _ in 0..SCRIPTS {
        let bytes: Vec<u8> = (0..SCRIPT_BYTES).map(|_| next()).collect();
        let ended = scripts::compare(scripts::of_bytes(&bytes).as_bytes());
        answered += usize::from(matches!(ended, Ended::Reply(Reply::Array(_))));
    }
    // Not all of them end at once with an error.
    assert!(answered > SCRIPTS / 20, "{answered} of {SCRIPTS}");
}

replay!(c_api checkpoint config connection control export falcon flair flair_hosts host journal machine memcached raft records resp roles scripts values);
