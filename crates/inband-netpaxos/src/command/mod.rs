//! The command line.

mod clients;
mod kept;
mod learner;
mod log;
mod metrics;
mod process;
mod role;
mod storage;
mod store;

use anyhow::Result;
use clap::Parser;

/// A replicated log by NetPaxos: switches number requests, storage servers vote, learners deliver.
#[derive(Debug, Parser)]
#[command(name = "inband netpaxos", version)]
pub enum Command {
    /// Append values to the log, and print the instances that decided them
    Submit(clients::SubmitArgs),
    /// Print the log as a learner has delivered it
    Deliver(clients::DeliverArgs),
    /// Run a serializer until Ctrl-C
    Serializer(role::RoleCommand),
    /// Run a minion until Ctrl-C
    Minion(role::RoleCommand),
    /// Run a minion's storage server until Ctrl-C
    Storage(storage::StorageArgs),
    /// Run a learner until Ctrl-C
    Learner(learner::LearnerArgs),
}

impl Command {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self {
            Command::Submit(args) => args.run(),
            Command::Deliver(args) => args.run(),
            Command::Serializer(args) => args.serializer(),
            Command::Minion(args) => args.minion(),
            Command::Storage(args) => args.run(),
            Command::Learner(args) => args.run(),
        }
    }
}
