//! `inband falcon submit`: runs a command as one task or many.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read, Write};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::Args;
use inband_falcon::client_node::{self, ClientError, ClientNode, Event};
use inband_falcon::limits::{
    BLOBS_LEN_BYTES_MAX, CLIENT_TASKS_MAX, PRIORITY_MAX, SUBMIT_TASKS_MAX,
};
use inband_falcon::packets::ClusterInfo;
use inband_falcon::task::{Failure, JobId, TaskId, TaskSpec, Work};
use inband_falcon::work::{Call, Command, CommandOutput};
use inband_host::signals::StopSignals;
use indicatif::{ProgressBar, ProgressStyle};

use super::reach::ReachArgs;

/// Time limit for the scheduler to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// After this long without news, the scheduler is probed, and again at this interval.
const QUIET: Duration = Duration::from_secs(5);
const QUIET_ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// How soon a Ctrl-C is noticed.
const SIGNAL_POLL: Duration = Duration::from_millis(50);
/// With more tasks than this, several tasks are sent per packet.
const FEW_TASKS: u32 = 64;
/// Exit statuses of this command that are not a task's, as with `timeout` and similar tools.
const EXIT_LATE: i32 = 124;
const EXIT_FAILED: i32 = 125;
const EXIT_CANNOT_RUN: i32 = 126;
const EXIT_INTERRUPTED: i32 = 130;

/// Options of `inband falcon submit`.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    #[command(flatten)]
    reach: ReachArgs,
    /// Run the command this many times; INBAND_TASK in its environment is its number, from 0.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=CLIENT_TASKS_MAX as i64))]
    count: u32,
    /// Priority from 0 (first) to 7 (last), with --policy priority.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(0..=i64::from(PRIORITY_MAX)))]
    priority: Option<u8>,
    /// The resource that it needs, by name or number, with --policy resources.
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// The preferred worker's number, with --policy locality.
    #[arg(long, value_name = "NUMBER")]
    worker: Option<u16>,
    /// The user to whom it is attributed, with --policy fair. Default: a unique number.
    #[arg(long, value_name = "NUMBER")]
    user: Option<u32>,
    /// Tasks that are not done by then fail.
    #[arg(long, value_name = "MS")]
    deadline_ms: Option<u64>,
    /// How often it may be started: its executor may die or be lost.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempts: u32,
    /// Pass this command's standard input to it, up to the end.
    #[arg(long)]
    stdin: bool,
    /// Working directory. Default: that of its worker.
    #[arg(long, value_name = "DIR")]
    dir: Option<String>,
    /// Add a variable to its environment.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    argv: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or("give NAME=VALUE")?;
    Ok((name.into(), value.into()))
}

impl SubmitArgs {
    /// Rejects options that the scheduler's policy ignores.
    fn check(&self, cluster: &ClusterInfo) -> Result<()> {
        let wishes = [
            ("--priority", self.priority.is_some(), "priority"),
            ("--resource", self.resource.is_some(), "resources"),
            ("--worker", self.worker.is_some(), "locality"),
        ];
        for (option, is_wished, policy) in wishes {
            ensure!(
                !is_wished || cluster.policy == policy,
                "{option} is for schedulers with --policy {policy}; this one has {}",
                cluster.policy
            );
        }
        Ok(())
    }

    fn specs(&self, cluster: &ClusterInfo) -> Result<Vec<TaskSpec>> {
        let resource = self.resource.as_ref();
        let resource = resource.map(|said| cluster.resource_names.number(said));
        let resource = resource.transpose()?.unwrap_or(0);
        let mut stdin = Vec::new();
        if self.stdin {
            io::stdin().read_to_end(&mut stdin).context("--stdin")?;
        }
        let len_bytes = stdin.len().saturating_mul(self.count as usize);
        ensure!(
            len_bytes <= BLOBS_LEN_BYTES_MAX,
            "{} bytes for each of {} tasks are more than {BLOBS_LEN_BYTES_MAX} together; put them into a file that \
             the workers reach",
            stdin.len(),
            self.count
        );
        let spec = |number: u32| {
            let mut env = self.env.clone();
            env.push(("INBAND_TASK".into(), number.to_string()));
            let command = Command {
                argv: self.argv.clone(),
                env,
                dir: self.dir.clone(),
                stdin: stdin.clone(),
            };
            TaskSpec {
                priority: self.priority.unwrap_or(0),
                resource,
                worker: self.worker,
                // The command is fetched when the task starts, so a cancelled one never starts.
                ..TaskSpec::new(Work::Kept(Call::Command(command).encode()))
            }
        };
        Ok((0..self.count).map(spec).collect())
    }
}

/// Runs it, and exit with its status.
pub fn submit(args: &SubmitArgs) -> Result<()> {
    let reached = args.reach.reach()?;
    let signals = StopSignals::take()?;
    let client = ClientNode::open(client_node::Config {
        user: args.user,
        losses_max: args.attempts - 1,
        tasks_per_submit: if args.count > FEW_TASKS {
            SUBMIT_TASKS_MAX
        } else {
            1
        },
        keys: reached.keys,
        digest: reached.digest,
        key_file: reached.key_file,
        ..client_node::Config::new(reached.scheduler)
    })?;
    let cluster = properties(&client, &signals)?;
    args.check(&cluster)?;
    let specs = args.specs(&cluster)?;
    if cluster.executors == 0 {
        eprintln!(
            "inband: there are no executors now; waiting for a worker (inband falcon worker)"
        );
    }
    let limit = args.deadline_ms.map(Duration::from_millis);
    let job = client.submit(specs, &[], limit)?;
    let mut watch = Watch::new(args.count);
    let scheduler = Scheduler::new(reached.scheduler);
    watch.until_done(&client, job, &signals, scheduler)?;
    let status = watch.finish();
    drop(client);
    std::process::exit(status);
}

/// Asks the scheduler for the cluster's properties. Ctrl-C ends the process.
fn properties(client: &ClientNode, signals: &StopSignals) -> Result<ClusterInfo> {
    let until = Instant::now() + ANSWER_LIMIT;
    loop {
        match client.ask(SIGNAL_POLL) {
            Err(ClientError::NoScheduler(_)) if Instant::now() < until => {}
            answered => return Ok(answered?),
        }
        if signals.wait(Duration::ZERO) {
            eprintln!("inband: interrupted; nothing was submitted");
            std::process::exit(EXIT_INTERRUPTED);
        }
    }
}

/// Monitors whether the scheduler is alive, to inform waiting users.
struct Scheduler {
    address: SocketAddrV4,
    asked_at: Instant,
    is_silent: bool,
}

impl Scheduler {
    fn new(address: SocketAddrV4) -> Scheduler {
        Scheduler {
            address,
            asked_at: Instant::now(),
            is_silent: false,
        }
    }

    /// Probes it if nothing has happened for long. Returns a message if its state has changed.
    fn look(&mut self, client: &ClientNode, has_happened: bool) -> Option<String> {
        // Once it is silent, only its own answer counts: workers continue without it.
        if has_happened && !self.is_silent {
            self.asked_at = Instant::now();
        }
        if self.asked_at.elapsed() < QUIET {
            return None;
        }
        let is_silent = client.ask(QUIET_ANSWER_LIMIT).is_err();
        self.asked_at = Instant::now();
        let was_silent = std::mem::replace(&mut self.is_silent, is_silent);
        let address = self.address;
        match (was_silent, is_silent) {
            (false, true) => Some(format!(
                "the scheduler at {address} does not answer; waiting for it (Ctrl-C gives up what has not begun)"
            )),
            (true, false) => Some(format!("the scheduler at {address} answers again")),
            _ => None,
        }
    }
}

/// Tasks in progress, and the results of the others.
struct Watch {
    count: u32,
    done: u32,
    /// Non-zero exit statuses, and how often they occurred.
    failed: BTreeMap<i32, u32>,
    interrupts: u32,
    began: Instant,
    bar: ProgressBar,
}

impl Watch {
    fn new(count: u32) -> Watch {
        let template = "{wide_bar} {human_pos} of {human_len} tasks, {per_sec}, {eta} left{msg}";
        let style = ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar());
        let bar = match count {
            1 => ProgressBar::hidden(),
            _ => ProgressBar::new(count.into()).with_style(style),
        };
        Watch {
            count,
            done: 0,
            failed: BTreeMap::new(),
            interrupts: 0,
            began: Instant::now(),
            bar,
        }
    }

    fn until_done(
        &mut self,
        client: &ClientNode,
        job: JobId,
        signals: &StopSignals,
        mut scheduler: Scheduler,
    ) -> Result<()> {
        while self.done < self.count {
            let events = client.wait(SIGNAL_POLL);
            if let Some(change) = scheduler.look(client, !events.is_empty()) {
                self.say(&change);
            }
            for event in events {
                if let Event::Done(id, outcome) = event {
                    let told = self.tell(id.task, outcome);
                    if told.is_err() {
                        // The output's reader is gone.
                        self.each(job, client, ClientNode::kill);
                    }
                    told.context("writing what a task wrote")?;
                }
            }
            if signals.wait(Duration::ZERO) {
                self.interrupt(client, job);
            }
        }
        Ok(())
    }

    /// First cancel the tasks that have not started; the second time, all of them.
    fn interrupt(&mut self, client: &ClientNode, job: JobId) {
        self.interrupts += 1;
        let give_up = match self.interrupts {
            1 => ClientNode::cancel,
            _ => ClientNode::kill,
        };
        self.each(job, client, give_up);
        let left = client.tasks_left();
        if self.interrupts == 1 && left > 0 {
            self.say(&format!("{left} still run; Ctrl-C again ends them"));
        }
    }

    fn each(&self, JobId(job): JobId, client: &ClientNode, act: fn(&ClientNode, TaskId) -> bool) {
        let user = client.user();
        for task in 0..self.count {
            act(client, TaskId { user, job, task });
        }
    }

    /// Prints to stderr without disturbing the progress bar.
    fn say(&self, what: &str) {
        self.bar.suspend(|| eprintln!("inband: {what}"));
    }

    /// Prints a task's output.
    fn tell(
        &mut self,
        task: u32,
        outcome: Result<Result<Vec<u8>, Vec<u8>>, Failure>,
    ) -> io::Result<()> {
        self.done += 1;
        let status = match outcome {
            Ok(Ok(output)) => match CommandOutput::decode(&output) {
                Ok(output) => {
                    self.bar.suspend(|| write_out(&output))?;
                    if output.is_cut {
                        self.say(&format!("task {task} wrote more than is kept of it"));
                    }
                    output.status
                }
                Err(error) => {
                    self.say(&format!("task {task}: {error}"));
                    EXIT_FAILED
                }
            },
            Ok(Err(error)) => {
                let error = String::from_utf8_lossy(&error);
                self.say(&format!("task {task}: {error}"));
                EXIT_CANNOT_RUN
            }
            Err(Failure::Cancelled) => EXIT_INTERRUPTED,
            Err(failure) => {
                self.say(&format!("task {task}: {failure}"));
                match failure {
                    Failure::Deadline(_) => EXIT_LATE,
                    _ => EXIT_FAILED,
                }
            }
        };
        if status != 0 {
            *self.failed.entry(status).or_default() += 1;
        }
        self.bar.set_position(self.done.into());
        Ok(())
    }

    /// Prints a summary. Returns the exit status: the highest of the tasks'.
    fn finish(self) -> i32 {
        self.bar.finish_and_clear();
        let failed: u32 = self.failed.values().sum();
        if self.count > 1 && (failed > 0 || io::stderr().is_terminal()) {
            let statuses: Vec<String> = self
                .failed
                .iter()
                .map(|(status, count)| format!(", {count} with status {status}"))
                .collect();
            eprintln!(
                "inband: {} of {} tasks succeeded in {:.1} s{}",
                self.count - failed,
                self.count,
                self.began.elapsed().as_secs_f64(),
                statuses.concat()
            );
        }
        self.failed
            .last_key_value()
            .map_or(0, |(status, _)| *status)
    }
}

fn write_out(output: &CommandOutput) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(&output.stdout)?;
    stdout.flush()?;
    io::stderr().lock().write_all(&output.stderr)
}
