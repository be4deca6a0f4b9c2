//! Programs of Redis, as clients of a replica.

use std::process::{Command, Stdio};

use crate::sockets::one;

/// Returns whether a program is on the PATH.
pub fn has(program: &str) -> bool {
    let version = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    version.is_ok_and(|status| status.success())
}

#[test]
fn a_real_redis_cli() {
    if !has("redis-cli") {
        inband_testing::not_run("redis-cli is not on the PATH");
        return;
    }
    let one = one();
    let port = one.served.address.port().to_string();
    let cli = |args: &[&str]| {
        let output = Command::new("redis-cli")
            .args(["-p", &port])
            .args(args)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_string()
    };
    assert_eq!(cli(&["SET", "key", "a value"]), "OK");
    assert_eq!(cli(&["GET", "key"]), "a value");
    assert_eq!(cli(&["-3", "GET", "key"]), "a value");
    assert_eq!(cli(&["-3", "GET", "nosuch"]), "");
    assert_eq!(cli(&["SET", "key", "v", "EX", "100"]), "OK");
    assert_eq!(cli(&["TTL", "key"]), "100");
    assert_eq!(cli(&["MGET", "key", "nosuch"]), "v");
    assert_eq!(cli(&["-n", "0", "DBSIZE"]), "1");
    assert_eq!(cli(&["--scan", "--pattern", "k*"]), "key");
    assert!(cli(&["INFO", "server"]).contains("redis_version"));
    assert_eq!(
        cli(&["COMMAND", "COUNT"]),
        inband_kv::table::COMMANDS.len().to_string()
    );
    assert!(cli(&["COMMAND", "DOCS", "get"]).contains("summary"));
}

#[test]
fn a_real_redis_benchmark() {
    if !has("redis-benchmark") {
        inband_testing::not_run("redis-benchmark is not on the PATH");
        return;
    }
    let one = one();
    let port = one.served.address.port().to_string();
    let run = Command::new("redis-benchmark")
        .args([
            "-p", &port, "-c", "20", "-P", "8", "-d", "64", "-r", "1000", "-n", "4000", "--csv",
        ])
        .args(["-t", "ping_inline,ping_mbulk,set,get,incr,mset"])
        .output()
        .unwrap();
    let (text, errors) = (
        String::from_utf8_lossy(&run.stdout),
        String::from_utf8_lossy(&run.stderr),
    );
    assert!(run.status.success(), "{text}{errors}");
    for test in ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET"] {
        assert!(
            text.contains(&format!("\"{test}")),
            "{test} is missing in {text}{errors}"
        );
    }
    assert!(!errors.contains("ERR"), "{errors}");
}
