//! Counts primes: registers a Rust function with workers and maps it over a cluster.
//!
//! ```text
//! cargo run --release -p inband-falcon --example primes                            # a cluster in this process
//!
//! inband up falcon --executors 0                                                   # or a separate one:
//! cargo run --release -p inband-falcon --example primes -- worker 127.0.0.1:7480 .inband-falcon/keys.toml
//! cargo run --release -p inband-falcon --example primes -- map 127.0.0.1:7480 .inband-falcon/keys.toml
//! ```

use std::error::Error;
use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

use inband_falcon::client_node::{self, local_address, ClientNode, Event};
use inband_falcon::local::{Access, LocalCluster};
use inband_falcon::runner::{Function, Tools};
use inband_falcon::task::{TaskSpec, Work};
use inband_falcon::timing::ExecutorTiming;
use inband_falcon::work::Call;
use inband_falcon::worker_node::{self, WorkerNode};
use inband_ground::auth::{Digest, Keys, Secret};
use inband_host::key_file::KeyFile;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const EXECUTORS: u8 = 4;
/// Numbers checked per task.
const STEP: u64 = 10_000;
const BELOW: u64 = 1_000_000;

/// The functions that tasks can name. A function takes bytes and returns bytes or an error.
fn tools() -> Tools {
    let count_primes: Function = Box::new(|argument| {
        let from = argument.try_into().map(u64::from_le_bytes);
        let from = from.map_err(|_| format!("{} bytes are not a number", argument.len()))?;
        let is_prime = |n: &u64| *n >= 2 && (2..).take_while(|d| d * d <= *n).all(|d| n % d != 0);
        let count = (from..from + STEP).filter(is_prime).count() as u64;
        Ok(count.to_le_bytes().into())
    });
    let mut tools = Tools::default();
    tools.functions.insert("count_primes".into(), count_primes);
    tools
}

/// Runs the function for every step and adds up the results.
fn map(client: &ClientNode) -> Result<u64> {
    let task = |from: u64| {
        TaskSpec::new(Work::Kept(
            Call::Function {
                name: "count_primes".into(),
                argument: from.to_le_bytes().into(),
            }
            .encode(),
        ))
    };
    let tasks: Vec<TaskSpec> = (0..BELOW).step_by(STEP as usize).map(task).collect();
    let mut left = tasks.len();
    client.submit(tasks, &[], Some(Duration::from_secs(60)))?;
    let mut sum = 0;
    while left > 0 {
        for event in client.wait(Duration::from_secs(1)) {
            if let Event::Done(_, outcome) = event {
                // An error of Falcon (past the deadline, or executors lost), or of the function itself.
                let output =
                    outcome?.map_err(|error| String::from_utf8_lossy(&error).into_owned())?;
                sum += u64::from_le_bytes(output[..].try_into()?);
                left -= 1;
            }
        }
    }
    Ok(sum)
}

fn cluster_in_this_process() -> Result<u64> {
    let access = Access {
        keys: Some(Keys::new(1, &[(1, Secret(rand::random()))])?),
        digest: Digest::keyed(Secret(rand::random())),
    };
    let cluster = LocalCluster::start(EXECUTORS.into(), access, |_| tools())?;
    map(&cluster.client()?)
}

fn map_over(scheduler: SocketAddrV4, keys: &KeyFile) -> Result<u64> {
    let client = ClientNode::open(client_node::Config {
        keys: Some(keys.keys()),
        digest: keys.digest(),
        ..client_node::Config::new(scheduler)
    })?;
    map(&client)
}

fn work_for(scheduler: SocketAddrV4, keys: &KeyFile) -> Result<()> {
    let mut worker = WorkerNode::open(worker_node::Config {
        scheduler,
        address: SocketAddrV4::new(local_address(scheduler)?, 0),
        name: "primes".into(),
        executors: EXECUTORS,
        resources: 1,
        tools: tools(),
        keys: Some(keys.keys()),
        digest: keys.digest(),
        timing: ExecutorTiming::default(),
    })?;
    loop {
        worker.turn()?;
    }
}

/// Returns the text to print; a worker runs until it is killed.
pub fn run(arguments: &[&str]) -> Result<String> {
    let count = match arguments {
        [] => cluster_in_this_process()?,
        ["map", scheduler, keys] => map_over(scheduler.parse()?, &KeyFile::load(Path::new(keys))?)?,
        ["worker", scheduler, keys] => {
            work_for(scheduler.parse()?, &KeyFile::load(Path::new(keys))?)?;
            return Ok(String::new());
        }
        _ => return Err("usage: primes [worker|map ADDR:PORT KEY_FILE]".into()),
    };
    Ok(format!("{count} primes below {BELOW}"))
}

#[allow(dead_code)] // The test calls `run`.
fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    println!("{}", run(&arguments)?);
    Ok(())
}
