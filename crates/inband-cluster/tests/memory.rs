//! A cluster of replicated memory, from its first start to its loss: nothing of it begins with zeros by itself.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Result};
use inband_cluster::command::SystemCommand;
use inband_cluster::memory::{grow, replace, Memory, Options};
use inband_cluster::scratch::retry;
use inband_cluster::socket::{self, Request};
use inband_cluster::supervisor::Supervisor;
use inband_host::config::Dataplane;
use inband_memory::line_client::LineClient;

const SERVING_LIMIT: Duration = Duration::from_secs(20);
const LINE: u64 = 5;
const VALUE: [u8; 64] = [7; 64];

fn program() -> PathBuf {
    inband_testing::build("inband-memory");
    let test = std::env::current_exe().expect("this test is a file");
    let release = test.parent().and_then(Path::parent).expect("two parents");
    release.join("inband-memory")
}

fn start(dir: &Path, accept_loss: bool) -> Result<Supervisor<Memory>> {
    let options = Options {
        servers: 3,
        switches: 2,
        space: 4 << 20,
        block: 16,
        dataplane: Dataplane::Udp,
        no_key: false,
        accept_loss,
    };
    let mut spec = Memory::spec(&options, dir)?;
    spec.program = Some(program());
    Supervisor::start(spec)
}

fn connect(cluster: &Supervisor<Memory>) -> LineClient {
    let config = cluster.status().cluster.config().expect("its key");
    LineClient::connect(config).expect("a switch")
}

fn all_serve(cluster: &Supervisor<Memory>) -> Result<()> {
    retry(SERVING_LIMIT, || {
        let nodes = cluster.status().nodes;
        let serving = nodes.iter().filter(|node| node.state == "serving").count();
        ensure!(serving == 3, "{serving} servers serve");
        Ok(())
    })
}

#[test]
fn a_memory_is_lost_only_when_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), false).expect("a new memory");
    connect(&cluster).write(LINE, &VALUE).expect("written");

    // Another supervisor meanwhile, also one that accepts the loss, changes nothing.
    for accept_loss in [false, true] {
        let error = start(dir.path(), accept_loss).map(drop).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains("another `inband up`"), "{said}");
    }

    // Each server in turn loses its memory and gets it back.
    for server in ["server/1", "server/2", "server/3"] {
        cluster.kill(server).expect("killed");
        cluster.restart(server).expect("restarted");
        all_serve(&cluster).expect("recovered");
        assert_eq!(connect(&cluster).read(LINE).expect("read"), VALUE);
    }

    // The command line does not take a majority away unless it is told to.
    let ask = |server: &str, force| {
        let role = server.to_owned();
        socket::done::<Memory>(dir.path(), &Request::Restart { role, force })
    };
    cluster.kill("server/1").expect("killed");
    let refused = format!("{:#}", ask("server/2", false).expect_err("only two serve"));
    assert!(
        refused.contains("server/2 cannot be spared") && refused.contains("--force"),
        "{refused}"
    );
    ask("server/1", false).expect("it is not there, so it is not missed");
    all_serve(&cluster).expect("recovered");
    ask("server/2", false).expect("the two others serve");
    all_serve(&cluster).expect("recovered");
    assert_eq!(connect(&cluster).read(LINE).expect("read"), VALUE);

    // All at once lose it for good, and no restart serves zeros.
    for server in ["server/1", "server/2", "server/3"] {
        cluster.kill(server).expect("killed");
    }
    for server in ["server/1", "server/2", "server/3"] {
        cluster.restart(server).expect("restarted");
    }
    std::thread::sleep(Duration::from_millis(500));
    let nodes = cluster.status().nodes;
    let servers: Vec<_> = nodes
        .iter()
        .filter(|n| n.name.starts_with("server"))
        .collect();
    assert_eq!(servers.len(), 3);
    assert!(
        servers.iter().all(|node| node.state == "recovering"),
        "{servers:?}"
    );
    drop(cluster);

    let error = start(dir.path(), false).map(drop).unwrap_err();
    let said = format!("{error:#}");
    assert!(
        said.contains("was lost when its servers stopped") && said.contains("--accept-loss"),
        "{said}"
    );
    let cluster = start(dir.path(), true).expect("told to begin with zeros");
    assert_eq!(connect(&cluster).read(LINE).expect("read"), [0; 64]);
}

#[test]
fn it_grows_and_a_server_is_replaced_while_a_client_uses_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(dir.path(), false).expect("a new memory");
    let lines = |space: u64| space / VALUE.len() as u64;
    let (small, large) = (4 << 20, 12 << 20);
    let mut client = connect(&cluster);
    client.write(LINE, &VALUE).expect("written");

    let is_over = &std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut other = connect(&cluster);
        // Each line is written by this thread only, and is read back as it was written, whatever happens meanwhile.
        let user = scope.spawn(move || {
            let mut count = 0u64;
            while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                let (line, value) = (100 + count % 50, [count as u8; 64]);
                if other.write(line, &value).is_err() {
                    other
                        .write(line, &value)
                        .expect("written, if not the first time");
                }
                assert_eq!(other.read(line).expect("read"), value);
                count += 1;
            }
            count
        });
        let mut said = Vec::new();
        let error = grow(dir.path(), small, |_| ()).expect_err("it has as much");
        assert!(
            format!("{error:#}").contains("does not shrink"),
            "{error:#}"
        );
        grow(dir.path(), large, |what| said.push(what)).expect("grown");
        assert_eq!(said.len(), 3 + 2 + 1, "{said:?}");

        let error = replace(dir.path(), "switch/1").expect_err("no server");
        assert!(format!("{error:#}").contains("is no server"), "{error:#}");
        for server in ["server/1", "server/2", "server/3"] {
            replace(dir.path(), server).expect("replaced");
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
        assert!(user.join().expect("no error") > 0);
    });

    let mut client = connect(&cluster);
    let last = lines(large) - 1;
    assert_eq!(client.read(LINE).expect("read"), VALUE);
    assert_eq!(client.read(last).expect("a new line"), [0; 64]);
    client.write(last, &VALUE).expect("written");
    assert!(client.read(last + 1).is_err(), "behind the end");
    for server in ["server/1", "server/2"] {
        cluster.kill(server).expect("killed");
        cluster.restart(server).expect("restarted");
        all_serve(&cluster).expect("recovered");
    }
    assert_eq!(connect(&cluster).read(last).expect("read"), VALUE);
    let config = Memory::settings(dir.path()).expect("settings");
    let space = config.iter().find(|it| it.name == "--space").expect("it");
    assert_eq!(space.value, large.to_string());
}
