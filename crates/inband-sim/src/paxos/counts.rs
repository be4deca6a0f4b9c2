//! The names of the statistics.

/// Damaged packets that were dropped before they had any effect.
pub const REFUSED: &str = "packets refused";
pub const CRASHES: &str = "crashes";
pub const SUBMITTED: &str = "commands submitted";
pub const ACTIVATIONS: &str = "leaders activated";
pub const CHECKPOINTS: &str = "checkpoints installed";
/// BUSY packets: a window was full.
pub const BUSY: &str = "BUSY packets";
/// Reconfigurations begun.
pub const EPOCHS: &str = "epochs begun";
/// Recoveries of single instances by learners.
pub const RECOVERIES: &str = "instances recovered";
pub const SUCCESS: &str = "commands succeeded";
pub const UNKNOWN: &str = "commands of unknown outcome";
pub const READS: &str = "reads answered";
pub const APPLIED: &str = "instances applied";
/// Seeds whose replicas run the real store.
pub const WITH_STORE: &str = "seeds with the real store";
