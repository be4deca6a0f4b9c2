//! Timeouts and limits of a FLAIR host.

use std::path::Path;

use crate::paxos::cluster_dir::ClusterDir;
use anyhow::{ensure, Result};
use inband_flair::config::{Balance, Config};
use inband_flair::reads::Reads;
use inband_flair::timing::{default_step_down_ms, ClientTiming, Timing, HEARTBEAT_MS, TUNING};
use inband_host::settings::{built_in, of_hosts, of_up, Setting};

/// Returns the settings of one host. `from` is called with a setting's name and whether its value is the default.
pub fn of(config: &Config, from: impl Fn(&str, bool) -> String) -> Vec<Setting> {
    let cluster = &config.cluster;
    let one = |name: &str, value: String, default: String| {
        let name = format!("cluster.{name}");
        let from = from(&name, value == default);
        Setting::new(name, value, default, from)
    };
    let step_down_ms = default_step_down_ms(cluster.durability);
    let mut all = vec![
        one(
            "heartbeat_ms",
            cluster.heartbeat_ms.to_string(),
            HEARTBEAT_MS.to_string(),
        ),
        one(
            "step_down_ms",
            cluster.step_down_ms.to_string(),
            step_down_ms.to_string(),
        ),
        one(
            "groups",
            cluster.groups.to_string(),
            super::command::GROUPS.to_string(),
        ),
        one(
            "reads",
            cluster.reads.to_string(),
            Reads::default().to_string(),
        ),
        one(
            "balance",
            cluster.balance.to_string(),
            Balance::default().to_string(),
        ),
        one(
            "durability",
            cluster.durability.to_string(),
            "memory".into(),
        ),
    ];
    // These are in the configuration too, in other units.
    let is_own = |setting: &Setting| {
        !["heartbeat_ns", "step_down_ns"]
            .iter()
            .any(|name| setting.name.ends_with(name))
    };
    let replica = built_in("replica.", &Timing::default());
    all.extend(replica.into_iter().filter(is_own));
    all.extend(built_in("client.", &ClientTiming::default()));
    all.extend(built_in("raft.", &TUNING));
    all
}

/// Returns the settings of the cluster in a directory.
pub(super) fn in_directory(data: &Path) -> Result<Vec<Setting>> {
    let mut hosts = Vec::new();
    for file in ClusterDir::host_configs_in(data)? {
        let config = Config::load(&file)?;
        hosts.push((config.host.name.clone(), of(&config, of_up)));
    }
    ensure!(
        !hosts.is_empty(),
        "{} holds no cluster of FLAIR",
        data.display()
    );
    Ok(of_hosts(hosts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::undocumented;

    const CONFIG: &str = r#"
        [cluster]
        name = "c"
        groups = 4096
        heartbeat_ms = 10
        step_down_ms = 60
        replicas = [{ name = "replica/0", address = "10.77.0.3:7400", raft = "10.77.0.3:7401" }]
        switches = [{ name = "switch/0", address = "10.77.0.1:7400" }]
        [host]
        name = "replica/0"
        socket = "/tmp/s"
    "#;

    #[test]
    fn settings_are_those_of_the_document() {
        let settings = of(&toml::from_str(CONFIG).unwrap(), of_up);
        let of = |name: &str| {
            let mut all = settings.iter();
            let setting = all.find(|setting| setting.name == name).unwrap();
            (&setting.value[..], &setting.default[..], &setting.from[..])
        };
        assert_eq!(of("cluster.step_down_ms"), ("60", "50", "inband up"));
        assert_eq!(of("raft.election_ticks"), ("10", "10", "built in"));
        assert_eq!(undocumented("FLAIR", &settings), Vec::<String>::new());
    }
}
