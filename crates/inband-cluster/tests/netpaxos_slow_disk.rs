//! NetPaxos with `sync` on a disk whose syncs take long, as on a busy machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{ensure, Result};
use inband_cluster::client::{Answer, Client};
use inband_cluster::command::SystemCommand;
use inband_cluster::netpaxos::{NetPaxos, Options};
use inband_cluster::scratch::retry;
use inband_cluster::supervisor::Supervisor;
use inband_host::config::Durability;

use crate::netpaxos::{options, program, store_of, LIMIT};

const LEARNERS: u8 = 3;
const CLIENTS_OF_A_LEARNER: usize = 4;
const COUNT: usize = 10;

/// Each sync takes 50 ms longer.
const SLOW: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int fdatasync(int fd)
{
	struct timespec pause = {0, 50 * 1000 * 1000};
	int (*sync)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

	nanosleep(&pause, NULL);
	return sync(fd);
}
"#;

/// The program, with a disk that is slow. `None` if there is no compiler; the test is then reported as not run.
fn program_with_slow_disk(dir: &Path) -> Option<PathBuf> {
    let (source, library) = (dir.join("slow.c"), dir.join("slow.so"));
    std::fs::write(&source, SLOW).expect("written");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]);
    let compiled = compile.arg(&library).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        inband_testing::not_run("cc makes no library");
        return None;
    }
    let path = dir.join("inband-netpaxos");
    let script = format!(
        "#!/bin/sh\nLD_PRELOAD={} exec {} \"$@\"\n",
        library.display(),
        program().display()
    );
    inband_testing::write_script(&path, &script);
    Some(path)
}

fn set_and_get(client: &mut Client, key: &str, value: &str) -> Result<()> {
    let set = client.ask(&["SET", key, value])?;
    ensure!(set == Answer::Status("OK".into()), "{set:?}");
    let get = client.ask(&["GET", key])?;
    ensure!(get == Answer::Text(value.into()), "{get:?}");
    Ok(())
}

#[test]
fn a_store_serves_though_its_disk_is_slow() {
    let (scripts, dir) = (tempfile::tempdir(), tempfile::tempdir());
    let (scripts, dir) = (scripts.expect("one"), dir.expect("another"));
    let Some(program) = program_with_slow_disk(scripts.path()) else {
        return;
    };
    let options = Options {
        learners: LEARNERS,
        log_only: false,
        ..options(Durability::Sync, false)
    };
    let mut spec = NetPaxos::spec(&options, dir.path()).expect("a specification");
    spec.program = Some(program);
    let cluster = Supervisor::<NetPaxos>::start(spec).expect("a new store");
    // Clients at different learners, whose requests conflict: each conflict costs a recovery.
    thread::scope(|scope| {
        for number in 0..usize::from(LEARNERS) * CLIENTS_OF_A_LEARNER {
            let cluster = &cluster;
            scope.spawn(move || {
                let learner = (number % usize::from(LEARNERS)) as u8 + 1;
                let mut client = None;
                for n in 0..COUNT {
                    // The outcome of a command is unknown after a while, and its connection may be closed.
                    let served = retry(LIMIT, || {
                        let connected = client.get_or_insert_with(|| store_of(cluster, learner));
                        let done = set_and_get(connected, &format!("key{number}"), &n.to_string());
                        if done.is_err() {
                            client = None;
                        }
                        done
                    });
                    served.expect("it is served");
                }
            });
        }
    });
}
