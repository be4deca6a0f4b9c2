//! Every mistake in a configuration is reported with its line, the value and what is allowed.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use inband_paxos::config::{
    Config, ConfigError, Dataplane, Durability, LogConfig, LogFormat, LogLevel, Role,
};

const GOOD: &str = r#"[cluster]
name = "inband"
epoch = 1
first_instance = 1
partitions = 1
ring_slots = 4096
port = 7400
durability = "memory"

[host]
node = 3
state_dir = "/var/lib/inband"
data_dir = "/var/lib/inband/data"
dataplane = "xdp"
interface = "eth0"
control = "/run/inband/x.sock"
metrics = "127.0.0.1:9464"
resp = ["127.0.0.1:6379"]

[host.limits]
max_clients = 100

[host.timing]
suspect_after_ms = 200

[[node]]
id = 1
name = "leader"
address = "10.77.0.1:7400"
roles = ["leader"]

[[node]]
id = 2
name = "acceptor/0"
address = "10.77.0.2"
roles = ["acceptor"]

[[node]]
id = 3
name = "replica/0"
address = "10.77.0.3:7401"
roles = ["replica", "leader"]
"#;

fn line_and_message(text: &str) -> (usize, String) {
    match Config::parse(text, "x.toml") {
        Err(ConfigError::Mistake {
            file,
            line,
            message,
        }) => {
            assert_eq!(file, "x.toml");
            assert!(!message.contains('\n'), "one line: {message}");
            (line, message)
        }
        other => panic!("expected a mistake, got {other:?}\n{text}"),
    }
}

/// Replaces `from` (which must occur once) with `to`. The mistake must be reported on the line that contains `mark` in
/// the new text, with a message that contains all of `says`.
fn mistake(from: &str, to: &str, mark: &str, says: &[&str]) {
    assert_eq!(GOOD.matches(from).count(), 1, "{from:?} must occur once");
    let text = GOOD.replace(from, to);
    let at = text
        .find(mark)
        .unwrap_or_else(|| panic!("{mark:?} not in the text"));
    let (line, message) = line_and_message(&text);
    assert_eq!(
        line,
        text[..at].matches('\n').count() + 1,
        "line of: {message}"
    );
    for part in says {
        assert!(message.contains(part), "{message:?} should say {part:?}");
    }
}

fn wrong_value(from: &str, to: &str, says: &[&str]) {
    mistake(from, to, to, says);
}

#[test]
fn the_log_is_text_of_level_info_unless_it_is_set() {
    let config = Config::parse(GOOD, "x.toml").expect("good");
    assert_eq!(config.log, LogConfig::default());
    let text = format!("{GOOD}\n[log]\nformat = \"json\"\nlevel = \"debug\"\n");
    let config = Config::parse(&text, "x.toml").expect("good");
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.log.level, LogLevel::Debug);
    let again = Config::parse(&config.to_toml(), "generated").expect("generated text is good");
    assert_eq!(again, config);
    for (wrong, says) in [
        ("format = \"xml\"", "log.format: unknown log format \"xml\""),
        ("level = \"loud\"", "log.level: unknown log level \"loud\""),
    ] {
        let text = format!("{GOOD}\n[log]\n{wrong}\n");
        let (line, message) = line_and_message(&text);
        assert_eq!(line, text.lines().count(), "{message}");
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn a_good_file_is_understood() {
    let config = Config::parse(GOOD, "x.toml").expect("good");
    assert_eq!(config.cluster.name, "inband");
    assert_eq!(config.cluster.durability, Durability::Memory);
    assert_eq!(config.host.dataplane, Dataplane::Xdp);
    assert_eq!(config.host.limits.max_clients, 100);
    assert_eq!(config.host.timing.suspect_after_ms, 200);
    assert_eq!(config.host.timing.submit_deadline_ms, 5000);
    assert_eq!(config.this().name, "replica/0");
    assert_eq!(config.this().roles, [Role::Replica, Role::Leader]);
    let names = |nodes: Vec<&inband_paxos::config::NodeConfig>| {
        nodes.iter().map(|n| n.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(config.leaders().collect()), ["leader", "replica/0"]);
    assert_eq!(names(config.acceptors().collect()), ["acceptor/0"]);
    assert_eq!(names(config.replicas().collect()), ["replica/0"]);
    assert_eq!(config.majority(), 1);
    let address: SocketAddrV4 = "10.77.0.2:7400".parse().expect("address");
    assert_eq!(
        config.node(2).expect("node 2").address,
        address,
        "the default port"
    );
}

#[test]
fn what_is_left_out_has_defaults() {
    let text = r#"
        [cluster]
        name = "c"
        epoch = 4
        first_instance = 77
        durability = "memory"
        [host]
        node = 1
        state_dir = "/s"
        [[node]]
        id = 1
        name = "all"
        address = "127.0.0.1"
        roles = ["leader", "acceptor", "replica"]
    "#;
    let config = Config::parse(text, "x.toml").expect("good");
    assert_eq!(config.cluster.ring_slots, 4096);
    assert_eq!(config.host.dataplane, Dataplane::Auto);
    assert_eq!(config.host.data_dirs, [Path::new("/s/data")]);
    assert_eq!(config.host.control, Path::new("/s/control.sock"));
    assert!(config.host.resp.is_empty() && config.host.metrics.is_none());
    assert_eq!(config.this().address.port(), 7400);
}

#[test]
fn several_partitions_have_one_log_more() {
    let text = GOOD.replace("partitions = 1", "partitions = 3\nleader_balance = false");
    let config = Config::parse(&text, "x.toml").expect("good");
    assert_eq!((config.cluster.partitions, config.logs()), (3, 4));
    assert_eq!(config.cluster.first_instances, [1, 1, 1, 1]);
    assert!(!config.cluster.leader_balance);
    let text = text.replace("first_instance = 1", "first_instances = [5, 6, 7, 8]");
    let config = Config::parse(&text, "x.toml").expect("good");
    assert_eq!(config.cluster.first_instances, [5, 6, 7, 8]);
    let again = Config::parse(&config.to_toml(), "generated").expect("generated text is good");
    assert_eq!(config, again);
}

#[test]
fn partitions_are_spread_over_data_directories() {
    let one = "data_dir = \"/var/lib/inband/data\"";
    let text = GOOD.replace(one, "data_dirs = [\"/a\", \"/b\"]");
    let config = Config::parse(&text, "x.toml").expect("good");
    assert_eq!(config.host.data_dirs, [Path::new("/a"), Path::new("/b")]);
    let again = Config::parse(&config.to_toml(), "generated").expect("generated text is good");
    assert_eq!(config, again);
    wrong_value(one, "data_dirs = []", &["names no directory"]);
    wrong_value(one, "data_dirs = [\"/a\", \"/a\"]", &["\"/a\" twice"]);
    mistake(
        one,
        &format!("{one}\ndata_dirs = [\"/a\"]"),
        one,
        &["both set"],
    );
}

#[test]
fn durability_is_said() {
    mistake(
        "durability = \"memory\"\n",
        "",
        "epoch = 1",
        &["durability = \"memory\"", "durability = \"sync\""],
    );
}

#[test]
fn redis_clients_of_other_machines_need_a_password_or_tls() {
    let local = "resp = [\"127.0.0.1:6379\"]";
    let open = "resp = [\"0.0.0.0:6379\"]";
    let says = [
        "0.0.0.0:6379",
        "password_file",
        "tls.resp",
        "protected_mode",
    ];
    wrong_value(local, open, &says);
    wrong_value(
        local,
        "resp = [\"127.0.0.1:1\", \"[::]:6379\"]",
        &["[::]:6379"],
    );
    let good = |more: &str| {
        let text = GOOD.replace(local, &format!("{open}\n{more}"));
        Config::parse(&text, "x.toml").expect("good")
    };
    assert!(good("password_file = \"/p\"").host.protected_mode);
    assert!(!good("protected_mode = false").host.protected_mode);
    good("tls = { ca = \"/a\", certificate = \"/b\", key = \"/c\", resp = true }");
    let without = "tls = { ca = \"/a\", certificate = \"/b\", key = \"/c\" }";
    wrong_value(local, &format!("{open}\n{without}"), &["protected_mode"]);
}

#[test]
fn what_clients_that_look_for_replicas_are_told() {
    let resp = "resp = [\"127.0.0.1:6379\"]";
    let with = |more: &str| format!("{resp}\n{more}");
    let good = |more: &str| Config::parse(&GOOD.replace(resp, &with(more)), "x.toml");
    let config = good("").expect("good").host;
    assert!(config.announce.is_none() && !config.redis_cluster && !config.redis_cluster_redirect);
    for announce in ["192.0.2.1:1", "[2001:db8::1]:6379", "host-1.example:6379"] {
        let host = good(&format!("announce = \"{announce}\""))
            .expect("good")
            .host;
        assert_eq!(host.announce.expect("set").to_string(), announce);
    }
    let both = "redis_cluster = true\nredis_cluster_redirect = true";
    let host = good(both).expect("good").host;
    assert!(host.redis_cluster && host.redis_cluster_redirect);
    for (announce, says) in [
        ("192.0.2.1", "no port"),
        ("192.0.2.1:0", "port from 1"),
        ("host:70000", "1 to 65535"),
        (
            "0.0.0.0:6379",
            "not an address that a client can connect to",
        ),
        ("[::]:6379", "not an address that a client can connect to"),
        (":6379", "no host name or IP address"),
        ("192.0.2.256:6379", "no host name or IP address"),
        ("a host:6379", "no host name or IP address"),
    ] {
        let wrong = format!("announce = \"{announce}\"");
        mistake(
            resp,
            &with(&wrong),
            "announce",
            &[announce, says, "ADDRESS:PORT"],
        );
    }
    let redirect = "redis_cluster_redirect = true";
    let says = ["needs redis_cluster = true"];
    mistake(resp, &with(redirect), "redis_cluster_redirect", &says);
    // Node 1 only leads.
    let elsewhere = |setting: &str| {
        let text = GOOD.replace(resp, setting).replace("node = 3", "node = 1");
        Config::parse(&text, "x.toml")
            .expect_err(setting)
            .to_string()
    };
    for setting in ["announce = \"192.0.2.1:1\"", "redis_cluster = true"] {
        assert!(elsewhere(setting).contains("is not a replica"), "{setting}");
    }
}

#[test]
fn an_mtu_below_the_floor_is_refused() {
    let with = |mtu: &str| format!("durability = \"memory\"\nmtu = {mtu}");
    let from = "durability = \"memory\"";
    for mtu in ["1279", "1501", "9000"] {
        let to = with(mtu);
        mistake(from, &to, &format!("mtu = {mtu}"), &["1280 to 1500"]);
    }
    let config = Config::parse(&GOOD.replace(from, &with("1280")), "x.toml").expect("good");
    assert_eq!(config.cluster.value_len_max_bytes(), 1280 - 28 - 96);
    let config = Config::parse(GOOD, "x.toml").expect("good");
    assert_eq!(config.cluster.mtu, 1500);
    assert_eq!(config.cluster.value_len_max_bytes(), 1376);
}

#[test]
fn hosts_with_ipv6_addresses_are_refused_in_one_sentence() {
    for address in ["fd00::1", "[fd00::1]:7400"] {
        let to = format!("address = \"{address}\"");
        wrong_value("address = \"10.77.0.2\"", &to, &["IPv6", "IPv4"]);
    }
}

#[test]
fn first_instances_go_with_the_logs() {
    wrong_value(
        "first_instance = 1",
        "first_instances = [1, 2]",
        &["2 entries", "1 logs"],
    );
    wrong_value(
        "first_instance = 1",
        "first_instances = [0]",
        &["first_instances = 0", "1 to"],
    );
    mistake(
        "first_instance = 1",
        "first_instance = 1\nfirst_instances = [1]",
        "first_instance = 1",
        &["both"],
    );
    mistake(
        "first_instance = 1\n",
        "",
        "epoch = 1",
        &["first_instance", "first_instances"],
    );
}

#[test]
fn rings_that_do_not_fit_are_refused() {
    let acceptor = GOOD
        .replace("node = 3", "node = 2")
        .replace("resp = [\"127.0.0.1:6379\"]\n", "")
        .replace("partitions = 1", "partitions = 64")
        .replace("max_clients = 100", "ring_memory_mib = 365");
    let slots = 65 * 4096;
    let error = Config::parse(&acceptor, "x.toml").expect_err("too large");
    match &error {
        ConfigError::RingMemory {
            logs,
            needed_bytes,
            limit_bytes,
            ..
        } => assert_eq!(
            (*logs, *needed_bytes, *limit_bytes),
            (65, slots * 1448, 365 << 20)
        ),
        other => panic!("expected RingMemory, got {other:?}"),
    }
    assert!(
        error.to_string().contains("host.limits.ring_memory_mib"),
        "{error}"
    );
    let enough = acceptor.replace("ring_memory_mib = 365", "ring_memory_mib = 369");
    Config::parse(&enough, "x.toml").expect("fits");
    // A leader alone has no rings.
    let leader = acceptor.replace("node = 2", "node = 1");
    assert_eq!(
        Config::parse(&leader, "x.toml")
            .expect("fits")
            .ring_memory_bytes(),
        0
    );
}

#[test]
fn a_replica_has_no_worker_threads_unless_they_are_set() {
    let config = Config::parse(GOOD, "x.toml").expect("good");
    assert_eq!(config.host.limits.worker_threads, 0);
    let set = GOOD.replace("max_clients = 100", "worker_threads = 3");
    let config = Config::parse(&set, "x.toml").expect("good");
    assert_eq!(config.host.limits.worker_threads, 3);
    wrong_value(
        "max_clients = 100",
        "worker_threads = 65",
        &["worker_threads = 65", "0 to 64"],
    );
}

#[test]
fn generated_text_parses_to_the_same() {
    let config = Config::parse(GOOD, "x.toml").expect("good");
    let again = Config::parse(&config.to_toml(), "generated").expect("generated text is good");
    assert_eq!(config, again);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Config::load(&PathBuf::from("/nonexistent/a.toml")).expect_err("not there");
    assert!(
        error
            .to_string()
            .contains("config /nonexistent/a.toml: cannot be read"),
        "{error}"
    );
}

#[test]
fn the_message_has_file_and_line() {
    let text = GOOD.replace("epoch = 1", "epoch = 0");
    let error = Config::parse(&text, "x.toml").expect_err("epoch 0");
    assert_eq!(
        error.to_string(),
        "config x.toml line 3: epoch = 0 is out of range; it must be 1 to 4294967295"
    );
}

#[test]
fn syntax_and_unknown_fields() {
    wrong_value("epoch = 1", "epoch = = 1", &[]);
    wrong_value("epoch = 1", "epoch = \"one\"", &["string"]);
    mistake(
        "epoch = 1",
        "epoch = 1\nepoch = 2",
        "epoch = 2",
        &["duplicate"],
    );
    mistake(
        "port = 7400\n",
        "port = 7400\nprot = 1\n",
        "prot",
        &["prot", "ring_slots"],
    );
    mistake(
        "[host.timing]",
        "[host.timings]",
        "[host.timings]",
        &["timings"],
    );
    mistake(
        "max_clients = 100",
        "max_client = 100",
        "max_client",
        &["max_client"],
    );
    mistake("id = 2", "id = 2\nweight = 5", "weight", &["weight"]);
    mistake("id = 2\n", "", "[[node]]\nname", &["missing field `id`"]);
    mistake("epoch = 1\n", "", "[cluster]", &["missing field `epoch`"]);
    mistake("node = 3\n", "", "[host]", &["missing field `node`"]);
}

#[test]
fn cluster_values() {
    wrong_value(
        "name = \"inband\"",
        "name = \"in band\"",
        &["\"in band\"", "letters"],
    );
    wrong_value("name = \"inband\"", "name = \"\"", &["1 to 32"]);
    wrong_value(
        "epoch = 1",
        "epoch = 4294967296",
        &["4294967296", "4294967295"],
    );
    wrong_value(
        "first_instance = 1",
        "first_instance = -1",
        &["-1", "must be 1 to"],
    );
    wrong_value(
        "partitions = 1",
        "partitions = 65",
        &["partitions = 65", "1 to 64"],
    );
    wrong_value(
        "ring_slots = 4096",
        "ring_slots = 32",
        &["32", "64 to 65536"],
    );
    wrong_value(
        "ring_slots = 4096",
        "ring_slots = 131072",
        &["131072", "64 to 65536"],
    );
    wrong_value(
        "ring_slots = 4096",
        "ring_slots = 5000",
        &["5000", "power of two", "8192"],
    );
    wrong_value("port = 7400\n", "port = 65536\n", &["65536", "1 to 65535"]);
    wrong_value(
        "durability = \"memory\"",
        "durability = \"paper\"",
        &["\"paper\"", "\"memory\"", "\"sync\""],
    );
}

#[test]
fn host_values() {
    mistake("node = 3", "node = 9", "node = 9", &["node = 9", "1, 2, 3"]);
    wrong_value("node = 3", "node = 255", &["255", "1 to 254"]);
    wrong_value(
        "state_dir = \"/var/lib/inband\"",
        "state_dir = \"\"",
        &["state_dir"],
    );
    wrong_value(
        "dataplane = \"xdp\"",
        "dataplane = \"dpdk\"",
        &["\"dpdk\"", "xdp-generic"],
    );
    mistake(
        "interface = \"eth0\"\n",
        "",
        "dataplane",
        &["needs an interface", "[host]"],
    );
    wrong_value(
        "interface = \"eth0\"",
        "interface = \"a name too long\"",
        &["a name too long"],
    );
    wrong_value(
        "metrics = \"127.0.0.1:9464\"",
        "metrics = \"9464\"",
        &["\"9464\"", "PORT"],
    );
    wrong_value(
        "metrics = \"127.0.0.1:9464\"",
        "metrics = \"127.0.0.1:6379\"",
        &["both name"],
    );
    wrong_value(
        "resp = [\"127.0.0.1:6379\"]",
        "resp = [\"localhost\"]",
        &["\"localhost\""],
    );
    wrong_value(
        "resp = [\"127.0.0.1:6379\"]",
        "resp = [\"127.0.0.1:0\"]",
        &["port from 1"],
    );
    mistake(
        "node = 3",
        "node = 1",
        "resp = ",
        &["not a replica", "\"leader\""],
    );
    let long = format!("control = \"/{}\"", "x".repeat(107));
    wrong_value(
        "control = \"/run/inband/x.sock\"",
        &long,
        &["108 bytes", "107"],
    );
    wrong_value(
        "suspect_after_ms = 200",
        "suspect_after_ms = 1",
        &["5 to 60000"],
    );
    mistake(
        "suspect_after_ms = 200",
        "probe_interval_ms = 100",
        "probe",
        &["below", "100"],
    );
    wrong_value("max_clients = 100", "max_clients = 0", &["1 to 65536"]);
}

#[test]
fn node_values() {
    wrong_value("id = 2", "id = 0", &["1 to 254"]);
    mistake(
        "id = 2",
        "id = 1 # again",
        "id = 1 # again",
        &["\"leader\" already"],
    );
    wrong_value(
        "name = \"acceptor/0\"",
        "name = \"a b\"",
        &["\"a b\"", "'/'"],
    );
    mistake(
        "name = \"acceptor/0\"",
        "name = \"leader\" #",
        "name = \"leader\" #",
        &["node 1"],
    );
    wrong_value(
        "address = \"10.77.0.2\"",
        "address = \"10.77.0\"",
        &["10.77.0", "IPV4:PORT"],
    );
    wrong_value(
        "address = \"10.77.0.2\"",
        "address = \"[::1]:7400\"",
        &["IPv6"],
    );
    wrong_value(
        "address = \"10.77.0.2\"",
        "address = \"0.0.0.0\"",
        &["cannot receive"],
    );
    wrong_value(
        "address = \"10.77.0.2\"",
        "address = \"224.0.0.1\"",
        &["cannot receive"],
    );
    wrong_value(
        "address = \"10.77.0.2\"",
        "address = \"10.77.0.2:0\"",
        &["cannot receive"],
    );
    wrong_value(
        "address = \"10.77.0.2\"",
        "address = \"10.77.0.1\"",
        &["\"leader\" already"],
    );
    wrong_value(
        "roles = [\"acceptor\"]",
        "roles = [\"voter\"]",
        &["\"voter\"", "\"acceptor\""],
    );
    wrong_value("roles = [\"acceptor\"]", "roles = []", &["no roles"]);
    wrong_value(
        "roles = [\"acceptor\"]",
        "roles = [\"acceptor\", \"acceptor\"]",
        &["twice"],
    );
    let replaced = GOOD.replace("[\"acceptor\"]", "[\"leader\"]");
    let (_, message) = line_and_message(&replaced);
    assert!(
        message.contains("no [[node]] has the role \"acceptor\""),
        "{message}"
    );
    let (_, message) = line_and_message(&GOOD[..GOOD.find("[[node]]").expect("nodes")]);
    assert!(message.contains("no [[node]]"), "{message}");
}

#[test]
fn too_many_acceptors() {
    let mut text = GOOD.to_owned();
    for id in 10..26 {
        text += &format!(
            "[[node]]\nid = {id}\nname = \"a{id}\"\naddress = \"10.77.1.{id}\"\n\
             roles = [\"acceptor\"]\n"
        );
    }
    let (_, message) = line_and_message(&text);
    assert!(message.contains("at most 15"), "{message}");
}
