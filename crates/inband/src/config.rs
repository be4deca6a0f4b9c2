//! `inband config show`: every timeout and limit in force.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context, Result};
use clap::{Args, Subcommand};
use inband_cluster::flair::settings as flair_settings;
use inband_cluster::paxos::cluster_dir::ClusterDir;
use inband_host::settings::{self, built_in, of_fields, of_hosts, Setting, DEFAULT};
use inband_paxos::config::{
    Config, Limits, LogConfig, Timing, DEFAULT_MTU, DEFAULT_PORT, DEFAULT_RING_SLOTS,
};
use inband_paxos::timing::Timing as ProtocolTiming;

use crate::grammar;

/// Commands about configurations.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show every timeout and limit in force: its value, its default and its source.
    Show(ShowArgs),
}

/// Options of `inband config show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Directory of a cluster of `inband up`, of any system. Default: that of the running cluster, or the store's.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Configuration file of a host, as for `inband run` or `inband flair run`.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn config(command: &ConfigCommand) -> Result<()> {
    let ConfigCommand::Show(args) = command;
    let settings = match &args.config {
        Some(file) => in_file(file)?,
        None => in_force(args.data.as_deref())?,
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&settings)?),
        false => print!("{}", settings::table(&settings)),
    }
    Ok(())
}

/// Settings of a host, from its configuration file.
fn in_file(file: &Path) -> Result<Vec<Setting>> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("config {}: cannot be read", file.display()))?;
    let shown = file.display();
    let from = |name: &str, _: bool| match settings::line_of(&text, name) {
        Some(line) => format!("{shown} line {line}"),
        None => DEFAULT.to_owned(),
    };
    let table: toml::Table = toml::from_str(&text).with_context(|| format!("config {shown}"))?;
    let is_flair = table
        .get("cluster")
        .is_some_and(|c| c.get("switches").is_some());
    if is_flair {
        let config = inband_flair::config::Config::load(file)?;
        return Ok(flair_settings::of(&config, from));
    }
    Ok(of_store(&Config::load(file)?, from))
}

/// Settings of a cluster of `inband up`.
fn in_force(data: Option<&Path>) -> Result<Vec<Setting>> {
    let (system, data) = match data {
        Some(data) => (grammar::system_in(data), data),
        None => {
            let system = grammar::only(grammar::systems_that_run())?;
            (system, grammar::default_data(system))
        }
    };
    ensure!(
        data.is_dir(),
        "{} is not the directory of a cluster; name one with --data DIR or --config FILE",
        data.display()
    );
    if let Some(system) = grammar::named(system) {
        return system.settings(data);
    }
    let files = ClusterDir::host_configs_in(data)
        .with_context(|| format!("cannot read {}", data.display()))?;
    let mut hosts = Vec::new();
    for file in files {
        let config = Config::load(&file)?;
        hosts.push((
            config.this().name.clone(),
            of_store(&config, settings::of_up),
        ));
    }
    if hosts.is_empty() {
        bail!("{} holds no cluster of `inband up`", data.display());
    }
    Ok(of_hosts(hosts))
}

/// Settings of a host of the store.
fn of_store(config: &Config, from: impl Fn(&str, bool) -> String) -> Vec<Setting> {
    let cluster = &config.cluster;
    let one = |name: &str, value: String, default: String| {
        let name = format!("cluster.{name}");
        let from = from(&name, value == default);
        Setting::new(name, value, default, from)
    };
    let must_be_set = "(must be set)".to_owned();
    let mut all = vec![
        one("partitions", cluster.partitions.to_string(), "1".into()),
        one(
            "ring_slots",
            cluster.ring_slots.to_string(),
            DEFAULT_RING_SLOTS.to_string(),
        ),
        one("port", cluster.port.to_string(), DEFAULT_PORT.to_string()),
        one("mtu", cluster.mtu.to_string(), DEFAULT_MTU.to_string()),
        one(
            "leader_balance",
            cluster.leader_balance.to_string(),
            "true".into(),
        ),
        one("durability", cluster.durability.to_string(), must_be_set),
    ];
    all.extend(of_fields("log.", &config.log, &LogConfig::default(), &from));
    let host = &config.host;
    all.extend(of_fields(
        "host.timing.",
        &host.timing,
        &Timing::default(),
        &from,
    ));
    all.extend(of_fields(
        "host.limits.",
        &host.limits,
        &Limits::default(),
        &from,
    ));
    // Those from the configuration file are among them, in other units.
    let is_own = |setting: &Setting| {
        ![
            "submit_deadline_us",
            "probe_interval_us",
            "suspect_after_us",
        ]
        .iter()
        .any(|name| setting.name.ends_with(name))
    };
    let protocol = built_in("paxos.", &ProtocolTiming::default());
    all.extend(protocol.into_iter().filter(is_own));
    all.extend(built_in(
        "control.",
        &inband_control::timing::Timing::default(),
    ));
    all
}
