//! The `inband` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    inband_program::main()
}
