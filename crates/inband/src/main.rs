//! The inband command-line program.
fn main() {}
