//! `inband sim`: what `inband-sim` does, under its older name.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;

/// Handed on as they are.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct SimArgs {
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "SYSTEM [OPTIONS]"
    )]
    args: Vec<OsString>,
}

/// Play, report, and fail if a seed violates an invariant.
pub fn sim(args: &SimArgs) -> Result<()> {
    let program = OsString::from("inband sim");
    let args = [program].into_iter().chain(args.args.iter().cloned());
    inband_sim::command::main(inband_sim::SYSTEMS, args.collect())
}
