//! A host whose store takes long to open: what clients and probes are told meanwhile.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::common::Client;
use crate::health::{ask, wait_until_it_says};
use crate::logs::LoggedHost;
use crate::run::{wait_until_it_answers, TIMEOUT};

/// The file of a database that RocksDB reads first, as a pipe: opening the store waits for its writer.
struct HeldStore {
    path: PathBuf,
    content: Vec<u8>,
}

impl HeldStore {
    fn hold(dir: &Path) -> HeldStore {
        let mut pending = vec![dir.to_owned()];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(&dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.file_name().is_some_and(|name| name == "CURRENT") {
                    let content = fs::read(&path).expect("read");
                    fs::remove_file(&path).expect("removed");
                    mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).expect("a pipe");
                    return HeldStore { path, content };
                }
                if path.is_dir() {
                    pending.push(path);
                }
            }
        }
        panic!("no database in {}", dir.display());
    }

    /// Lets the store open.
    fn release(&self) {
        let beside = self.path.with_extension("whole");
        fs::write(&beside, &self.content).expect("written");
        // This returns when RocksDB has opened the pipe. It finds a file when it opens it again.
        let mut pipe = OpenOptions::new()
            .write(true)
            .open(&self.path)
            .expect("a reader");
        fs::rename(&beside, &self.path).expect("renamed");
        // RocksDB may have closed the pipe already, and then reads the file.
        if let Err(error) = pipe.write_all(&self.content) {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        }
    }
}

#[test]
fn clients_and_probes_are_answered_while_the_store_is_opened() {
    let mut host = LoggedHost::prepare("", "");
    host.start(&[]);
    wait_until_it_answers(host.resp, &["SET", "a", "1"], "+OK");
    host.kill();
    let store = HeldStore::hold(&host.dir.path().join("state/data"));
    host.start(&[]);

    let deadline = Instant::now() + TIMEOUT;
    let mut client = loop {
        match Client::try_connect(host.resp) {
            Some(client) => break client,
            None => assert!(Instant::now() < deadline, "{}", host.log()),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    for command in [&["PING"][..], &["GET", "a"], &["SET", "a", "2"]] {
        let reply = client.call(command);
        assert!(reply.starts_with("-LOADING "), "{command:?}: {reply}");
    }
    assert_eq!(client.call(&["AUTH", "default", "x"]), "+OK");
    assert_eq!(client.call(&["CLIENT", "SETNAME", "early"]), "+OK");
    wait_until_it_says(host.metrics, "/live", 200, "live\n");
    let why = "not ready: the host is opening its store";
    wait_until_it_says(host.metrics, "/ready", 503, why);
    let (status, text) = ask(host.metrics, "/metrics").expect("an answer");
    assert!(
        status == 200 && text.contains("\ninband_starting 1\n"),
        "{text}"
    );

    store.release();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        // The same connection all the time.
        let reply = client.call(&["PING"]);
        if reply == "+PONG" {
            break;
        }
        assert!(reply.starts_with("-LOADING "), "{reply}");
        assert!(Instant::now() < deadline, "{}", host.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(client.call(&["CLIENT", "GETNAME"]), "early");
    let (_, text) = ask(host.metrics, "/metrics").expect("an answer");
    assert!(text.contains("\ninband_starting 0\n"), "{text}");
}
