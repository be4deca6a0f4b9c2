//! The configuration of a host: any text is refused or parsed, and what is parsed is written back with the same
//! meaning.

use inband_paxos::config::Config;

/// The input is a TOML file.
pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Config::parse(text, "host.toml") {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(config) => {
            let written = config.to_toml();
            let again = Config::parse(&written, "host.toml");
            assert_eq!(
                again.expect("what was written is right"),
                config,
                "{written}"
            );
        }
    }
}
