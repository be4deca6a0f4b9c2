//! What is counted, by name.

/// Packets that were refused before they touched anything: damaged ones.
pub const REFUSED: &str = "packets refused";
/// Hosts crashed.
pub const CRASHES: &str = "crashes";
/// Commands submitted.
pub const SUBMITTED: &str = "commands submitted";
/// Times a leader was activated.
pub const ACTIVATIONS: &str = "leaders activated";
/// Checkpoints installed.
pub const CHECKPOINTS: &str = "checkpoints installed";
/// BUSY packets: a window was full.
pub const BUSY: &str = "BUSY packets";
/// Changes of epoch begun.
pub const EPOCHS: &str = "epochs begun";
/// Recoveries of single instances by learners.
pub const RECOVERIES: &str = "instances recovered";
/// Commands that succeeded.
pub const SUCCESS: &str = "commands succeeded";
/// Commands of which nobody knows whether they succeeded.
pub const UNKNOWN: &str = "commands of unknown outcome";
/// Reads answered.
pub const READS: &str = "reads answered";
/// Instances applied.
pub const APPLIED: &str = "instances applied";
/// Seeds whose replicas run the real store.
pub const WITH_STORE: &str = "seeds with the real store";
