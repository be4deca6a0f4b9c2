//! `inband up box`, `status` and `config show`: what they print, and the check of a cluster that has just started.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use inband_box::durable::Durability;
use inband_box::limits::{
    CLIENTS_MEMORY_BYTES_MAX, DATAGRAMS_UNDER_WAY_MAX, INCOMPLETE_REQUEST_MS_MAX,
    UNANSWERED_MS_MAX, UNREAD_MS_MAX,
};
use inband_box::membership::ids;
use inband_box::process::{socket_of, status_at, Status};
use inband_host::settings::{of_up, Setting, BUILT_IN};

use super::change::{membership_of, progress_of};
use super::spec::FILE;
use super::{
    leader_of, name_of, node_number, BoxCluster, ClusterStatus, Options, Quorum, Spec, FOLLOWING,
    LEADING, RECOVERING,
};
use crate::command::{
    counters_of, data_option, node_status_of, nodes_in_words, NodeInWords, SystemCommand,
};
use crate::socket;

const SELF_CHECK_KEY: &str = "inband-self-check";
const SELF_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

impl NodeInWords for Status {
    fn name(&self) -> &str {
        &self.name
    }

    fn in_words(&self) -> String {
        let memcached: Vec<String> = self.memcached.iter().map(ToString::to_string).collect();
        let state = match &self.state[..] {
            LEADING => "leader",
            FOLLOWING => "follower",
            other => other,
        };
        let zxid = match self.applied == self.committed {
            true => format!("zxid {}", self.applied),
            false => format!("zxid {} of {} applied", self.applied, self.committed),
        };
        format!(
            "{state:<10}  {:<11}  epoch {:<6}  {zxid:<12}  {:>7} items  memcached {}  {}",
            self.dataplane.to_string(),
            self.epoch,
            self.items,
            memcached.join(", local reads "),
            self.notes.join(", ")
        )
        .trim_end()
        .to_owned()
    }
}

impl SystemCommand for BoxCluster {
    const ABOUT: &'static str = "A replicated memcached: consensus in a box, by ZAB";
    const ABOUT_UP: &'static str = "Start the nodes of a replicated memcached on this machine";
    const ABOUT_ROLES: &'static str = "node/1, ..., or leader: the node that leads now; for restart and resume, the one that was killed or paused under this name";
    const OTHER_COMMANDS: &'static str =
        "One node on a machine of its own: `inband box node`. It has its --help.";
    type Options = Options;

    fn spec(options: &Options, data: &Path) -> Result<Spec> {
        Ok(Spec {
            data: data.to_owned(),
            options: options.clone(),
            program: None,
        })
    }

    fn node_status(data: &Path, json: bool) -> Option<String> {
        node_status_of(&status_at(&socket_of(data)).ok()?, json)
    }

    fn in_words(status: &ClusterStatus) -> String {
        let mut text = nodes_in_words(&status.processes, &status.nodes);
        let serves = |node: &&Status| [LEADING, FOLLOWING].contains(&&node.state[..]);
        let is_member = |node: &&Status| {
            let id = node_number(&node.name);
            id.is_some_and(|id| membership_of(&status.nodes).is_member(id))
        };
        let serving = status.nodes.iter().filter(serves).filter(is_member).count();
        let membership = membership_of(&status.nodes);
        text += &format!("{membership}\n");
        let need = match membership.quorum {
            Quorum::Majority => membership.majority(),
            Quorum::All => membership.count().into(),
        };
        if let Some((node, address)) = status.metrics.first_key_value() {
            text += &format!(
                "Prometheus finds {node} at http://{address}/metrics, and the others at the addresses in `inband status --json`\n"
            );
        }
        if leader_of(&status.nodes).is_none() {
            text += "no node leads: reads and writes wait\n";
        } else if serving < need {
            text += &format!(
                "{serving} of {} nodes are up to date, and a quorum of {} needs {need}: writes wait\n",
                membership.count(),
                membership.quorum.name()
            );
        }
        text
    }

    fn counters(status: &ClusterStatus) -> Vec<(&str, &str, u64)> {
        counters_of(status.nodes.iter().map(|node| (&node.name, &node.counters)))
    }

    fn self_check(_: &Options, status: &ClusterStatus) -> Result<Option<String>> {
        let members = ids(membership_of(&status.nodes).members);
        let at = |node: u8| status.memcached[usize::from(node) - 1];
        let (first, last) = (members.clone().next(), members.last());
        let (first, last) = first.zip(last).context("no node answers")?;
        let (first, last) = (at(first), at(last));
        let began = Instant::now();
        let set = format!("set {SELF_CHECK_KEY} 0 0 5\r\nhello\r\n");
        ask(first, &set, &["STORED"])?;
        let value = format!("VALUE {SELF_CHECK_KEY} 0 5");
        let get = format!("get {SELF_CHECK_KEY}\r\n");
        ask(last, &get, &[&value, "hello", "END"])?;
        let took = began.elapsed();
        ask(last, &format!("delete {SELF_CHECK_KEY}\r\n"), &["DELETED"])?;
        Ok(Some(format!(
            "a value set at {first} was read at {last}, {:.1} ms for both",
            took.as_secs_f64() * 1000.0
        )))
    }

    fn notice(status: &ClusterStatus) -> String {
        let membership = membership_of(&status.nodes);
        let keys = match status.key_file {
            Some(_) => "packets are authenticated",
            None => "packets are not authenticated",
        };
        format!(
            "{} nodes {}; quorum: {}; {keys}",
            membership.count(),
            status.place,
            membership.quorum.name()
        )
    }

    fn next_steps(_: &Options, status: &ClusterStatus, data: &Path) -> String {
        let first = status.memcached[0];
        let data = data_option(data);
        format!(
            "ready: printf 'set k 0 0 5\\r\\nhello\\r\\nget k\\r\\nquit\\r\\n' | nc {} {}\n\
             try:   inband kill{data} leader | inband status{data} | inband restart{data} leader\n",
            first.ip(),
            first.port()
        )
    }

    fn settings(data: &Path) -> Result<Vec<Setting>> {
        let path = data.join(FILE);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let options: Options =
            serde_json::from_slice(&text).with_context(|| format!("{}", path.display()))?;
        let defaults = Options::default();
        let one = |name: &str, of: fn(&Options) -> String| {
            let (value, default) = (of(&options), of(&defaults));
            let from = of_up(name, value == default);
            Setting::new(format!("--{name}"), value, default, from)
        };
        // The default depends on the durability.
        let default_us = options.durability.suspect_after_ns() / 1000;
        let is_default = options.suspect_after_us() == default_us;
        let suspect_after = Setting::new(
            "--suspect-after-us",
            options.suspect_after_us(),
            default_us,
            of_up("suspect-after-us", is_default),
        );
        let mut all = vec![
            one("nodes", |options| options.nodes.to_string()),
            one("quorum", |options| options.quorum.name().to_owned()),
            one("durability", |options| options.durability.name().to_owned()),
            one("memcached", |options| options.memcached.to_string()),
            one("memcached-local", |options| {
                or_none(options.memcached_local)
            }),
            one("dataplane", |options| options.dataplane.to_string()),
            one("memory", |options| options.memory.to_string()),
            one("log-records", |options| options.log_records.to_string()),
            one("memcached-udp", |options| or_none(options.memcached_udp)),
            one("memcached-local-udp", |options| {
                or_none(options.memcached_local_udp)
            }),
            one("memcached-udp-from", |options| {
                or_none(options.memcached_udp_from)
            }),
            one("clients-max", |options| options.clients_max.to_string()),
            suspect_after,
            one("metrics-port", |options| options.metrics_port.to_string()),
            one("direct", |options| options.direct.to_string()),
            one("no-key", |options| options.no_key.to_string()),
        ];
        let gateway = [
            ("unanswered_ms", UNANSWERED_MS_MAX),
            ("unread_ms", UNREAD_MS_MAX),
            ("incomplete_request_ms", INCOMPLETE_REQUEST_MS_MAX),
            ("clients_memory_bytes", CLIENTS_MEMORY_BYTES_MAX as u64),
            ("datagrams_under_way_max", DATAGRAMS_UNDER_WAY_MAX as u64),
        ];
        all.extend(
            gateway.map(|(name, value)| {
                Setting::new(format!("gateway.{name}"), value, value, BUILT_IN)
            }),
        );
        // The operator may have changed it since the start.
        let status = socket::status::<BoxCluster>(data).ok();
        if let Some(now) = status.map(|status| membership_of(&status.nodes).quorum) {
            if now != options.quorum {
                let name = now.name();
                all[1] = Setting::new("--quorum", name, defaults.quorum.name(), "inband quorum");
            }
        }
        Ok(all)
    }

    /// The leader last: one election suffices.
    fn hosts_to_roll(status: &ClusterStatus) -> Option<Vec<String>> {
        let membership = membership_of(&status.nodes);
        let leader = leader_of(&status.nodes).map(|node| &node.name);
        let mut names: Vec<String> = ids(membership.members).map(name_of).collect();
        names.sort_by_key(|name| Some(name) == leader);
        Some(names)
    }

    /// The others' logs grow whatever the nodes without a log do.
    fn progress(status: &ClusterStatus) -> u64 {
        let recovering = status.nodes.iter().filter(|node| node.state == RECOVERING);
        recovering.map(progress_of).fold(0, u64::wrapping_add)
    }

    fn what_stays(status: &ClusterStatus) -> &'static str {
        match status.options.durability {
            Durability::Memory => "The table is in memory, and gone then.",
            Durability::Sync => "The table is on disk, and stays.",
        }
    }

    fn what_stayed(status: &ClusterStatus) -> &'static str {
        match status.options.durability {
            Durability::Memory => "the table was in memory, and is gone",
            Durability::Sync => {
                "the table is on disk; `inband up box --durability sync` goes on with it"
            }
        }
    }
}

fn or_none(given: Option<impl ToString>) -> String {
    given.map_or_else(|| "none".to_owned(), |given| given.to_string())
}

/// Sends a request to a node and compares the lines of its reply.
fn ask(address: SocketAddr, request: &str, lines: &[&str]) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, SELF_CHECK_TIMEOUT)
        .with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(SELF_CHECK_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    for expected in lines {
        let mut line = String::new();
        let read = reader.read_line(&mut line);
        read.with_context(|| format!("{address}: no reply to {request:?}"))?;
        ensure!(
            line.trim_end() == *expected,
            "{address} replies {line:?} to {request:?}, not {expected:?}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::parse_options;

    fn options(args: &[&str]) -> Options {
        parse_options(args)
    }

    #[test]
    fn settings_are_those_of_the_cluster_s_file() {
        let dir = tempfile::tempdir().unwrap();
        let text = serde_json::to_vec(&options(&["--nodes=5", "--quorum=all"])).unwrap();
        fs::write(dir.path().join(FILE), text).unwrap();
        let settings = BoxCluster::settings(dir.path()).unwrap();
        let of = |name: &str| {
            let mut all = settings.iter();
            let setting = all.find(|setting| setting.name == name).unwrap();
            (&setting.value[..], &setting.default[..], &setting.from[..])
        };
        assert_eq!(of("--nodes"), ("5", "3", "inband up"));
        assert_eq!(of("--quorum"), ("all", "majority", "inband up"));
        assert_eq!(of("--memory"), ("67108864", "67108864", "default"));
        assert_eq!(of("--suspect-after-us"), ("10000", "10000", "default"));
        assert_eq!(of("gateway.unanswered_ms"), ("10000", "10000", "built in"));
        let missing = crate::command::undocumented("Consensus in a box", &settings);
        assert_eq!(missing, Vec::<String>::new());

        let sync = serde_json::to_vec(&options(&["--durability=sync"])).unwrap();
        fs::write(dir.path().join(FILE), sync).unwrap();
        let settings = BoxCluster::settings(dir.path()).unwrap();
        let suspect = settings
            .iter()
            .find(|setting| setting.name == "--suspect-after-us")
            .unwrap();
        assert_eq!(
            (&suspect.value[..], &suspect.default[..], &suspect.from[..]),
            ("50000", "50000", "default")
        );
    }
}
