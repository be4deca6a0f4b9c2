//! `inband-sim SYSTEM`: seeded schedules of faults over the real roles and the real host code.

use std::process::ExitCode;

fn main() -> ExitCode {
    sigpipe::reset();
    match inband_sim::command::main(inband_sim::SYSTEMS, std::env::args_os().collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("inband-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}
