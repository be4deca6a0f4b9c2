//! A scheduler's options, for `inband up falcon` and `inband falcon scheduler`.

use std::ffi::OsString;
use std::net::SocketAddrV4;

use anyhow::{anyhow, ensure, Context, Result};
use clap::Args;
use inband_falcon::dataplane::{FalconConfig, Policy, SLOTS_DEFAULT};
use inband_falcon::resources::ResourceNames;
use inband_falcon::scheduler_node::WORKER_LEASE_NS;
use inband_falcon::timing::{ClientTiming, ExecutorTiming};
use inband_host::settings::{built_in, of_up, Setting, BUILT_IN};

use super::parse_address;

/// Default number of workers that may join.
const WORKERS: usize = 64;
/// Default time that a task waits for its preferred worker.
const LOCALITY_WAIT_MS: u64 = 5;

#[derive(Debug, Clone, Args)]
pub struct SchedulerOptions {
    /// Which task is given to which executor: fifo (first come, first served), priority (0 to 7, 0 first), resources
    /// (to a worker that has what the task needs), fair (users take turns) or locality (to the preferred worker, after
    /// a while to any).
    #[arg(long, default_value_t)]
    policy: Policy,
    /// Total capacity of the queues, in tasks: a power of two.
    #[arg(long, default_value_t = SLOTS_DEFAULT)]
    slots: usize,
    /// Maximum number of queued tasks per user. The default is half of a queue: fifo has one queue, priority 8, the
    /// others 64.
    #[arg(long, value_name = "N")]
    user_tasks_max: Option<u32>,
    /// Maximum number of workers, 1 to 1024.
    #[arg(long, default_value_t = WORKERS, value_name = "N")]
    workers: usize,
    /// With --policy locality: how long a task waits for its preferred worker.
    #[arg(long, default_value_t = LOCALITY_WAIT_MS, value_name = "MS")]
    locality_wait_ms: u64,
    /// With --policy resources: names for the resources 1, 2, ..., which workers have and tasks need.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    resource_names: Vec<String>,
    /// Serve /metrics for Prometheus at this address: numbers only, to anyone who asks.
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub metrics: Option<SocketAddrV4>,
}

impl SchedulerOptions {
    /// Returns the scheduler's configuration, if the options are consistent.
    pub fn config(&self) -> Result<FalconConfig> {
        let queues = self.policy.queues();
        let half = (self.slots / queues / 2).max(1) as u32;
        let config = FalconConfig {
            slots: self.slots,
            workers: self.workers,
            user_tasks_max: self.user_tasks_max.unwrap_or(half),
            locality_wait_ns: self.locality_wait_ms * 1_000_000,
            ..FalconConfig::of(self.policy)
        };
        config.validate().map_err(|message| anyhow!(message))?;
        ensure!(
            config.user_tasks_max as usize <= config.slots,
            "--user-tasks-max {} is more than the --slots {} of all queues; a user can have no more than these",
            config.user_tasks_max,
            config.slots
        );
        ensure!(
            self.resource_names.is_empty() || self.policy == Policy::Resources,
            "--resource-names are for --policy resources; {} does not look at them",
            self.policy
        );
        ResourceNames::new(self.resource_names.clone()).context("--resource-names")?;
        Ok(config)
    }

    /// Returns the same options as arguments for another process.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = vec![
            format!("--policy={}", self.policy),
            format!("--slots={}", self.slots),
            format!("--workers={}", self.workers),
            format!("--locality-wait-ms={}", self.locality_wait_ms),
        ];
        if let Some(tasks) = self.user_tasks_max {
            args.push(format!("--user-tasks-max={tasks}"));
        }
        if let Some(address) = self.metrics {
            args.push(format!("--metrics={address}"));
        }
        if !self.resource_names.is_empty() {
            args.push(format!(
                "--resource-names={}",
                self.resource_names.join(",")
            ));
        }
        args.into_iter().map(OsString::from).collect()
    }

    /// Returns the timeouts and limits that these options set, and those that are fixed.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let queues = self.policy.queues();
        let half = (self.slots / queues / 2).max(1) as u32;
        let one = |name: &str, value: String, default: String| {
            let from = of_up(name, value == default);
            Setting::new(format!("--{name}"), value, default, from)
        };
        let user_tasks_max = self.user_tasks_max.unwrap_or(half);
        let mut all = vec![
            one(
                "policy",
                self.policy.to_string(),
                Policy::default().to_string(),
            ),
            one("slots", self.slots.to_string(), SLOTS_DEFAULT.to_string()),
            one(
                "user-tasks-max",
                user_tasks_max.to_string(),
                half.to_string(),
            ),
            one("workers", self.workers.to_string(), WORKERS.to_string()),
            one(
                "locality-wait-ms",
                self.locality_wait_ms.to_string(),
                LOCALITY_WAIT_MS.to_string(),
            ),
        ];
        let name = "scheduler.worker_lease_ns";
        let setting = Setting::new(name, WORKER_LEASE_NS, WORKER_LEASE_NS, BUILT_IN);
        all.push(setting);
        all.extend(built_in("client.", &ClientTiming::default()));
        all.extend(built_in("executor.", &ExecutorTiming::default()));
        all
    }

    /// Returns the resources' names.
    pub fn resource_names(&self) -> &[String] {
        &self.resource_names
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command::undocumented;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: SchedulerOptions,
    }

    #[test]
    fn settings_are_those_of_the_document() {
        let command = Command::try_parse_from(["scheduler", "--workers=7"]).unwrap();
        let settings = command.options.settings();
        let of = |name: &str| {
            let mut all = settings.iter();
            let setting = all.find(|setting| setting.name == name).unwrap();
            (&setting.value[..], &setting.default[..], &setting.from[..])
        };
        assert_eq!(of("--workers"), ("7", "64", "inband up"));
        assert_eq!(
            of("scheduler.worker_lease_ns"),
            ("2000000000", "2000000000", "built in")
        );
        assert_eq!(undocumented("Falcon", &settings), Vec::<String>::new());
    }
}
