//! The console of a real cluster: over HTTP, and in a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use inband_testing::port::free_ports;
use serde_json::{json, Value};
use tempfile::TempDir;

/// Time limit for an event.
const TIMEOUT: Duration = Duration::from_secs(120);
const CONSOLE: &str = env!("CARGO_BIN_EXE_inband-console");

/// A cluster of `inband up`.
struct Cluster {
    program: PathBuf,
    dir: TempDir,
}

impl Cluster {
    /// Three nodes of a box on loopback.
    fn start() -> Cluster {
        inband_testing::build("inband-box");
        // A box has room for seven nodes.
        let port = free_ports(7);
        let memcached = format!("127.0.0.1:{port}");
        Cluster::up(&["box", "--dataplane", "udp", "--memcached", &memcached])
    }

    /// A store whose hosts are namespaces.
    fn start_with_links() -> Cluster {
        let resp = format!("127.0.0.1:{}", free_ports(8));
        Cluster::up(&["--resp", &resp])
    }

    fn up(arguments: &[&str]) -> Cluster {
        let cluster = Cluster {
            program: inband_testing::build("inband"),
            dir: tempfile::tempdir().expect("a directory"),
        };
        let output = cluster.inband(&[&["up"], arguments, &["--detach"]].concat());
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        cluster
    }

    fn data(&self) -> &Path {
        self.dir.path()
    }

    fn inband(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--data").arg(self.data());
        command.output().expect("the program runs")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.inband(&["down"]);
    }
}

/// `inband console`.
struct Console {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    url: String,
    address: String,
    token: String,
}

impl Console {
    fn start(data: &Path) -> Console {
        let mut command = Command::new(CONSOLE);
        command
            .arg("--data")
            .arg(data)
            .args(["--listen", "127.0.0.1:0"]);
        Console::of(&mut command)
    }

    /// A program that starts a console, and says where it is.
    fn of(command: &mut Command) -> Console {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        while !line.starts_with("console of ") {
            line.clear();
            let len_bytes = stdout.read_line(&mut line).expect("a line");
            assert_ne!(len_bytes, 0, "it ends without a console");
        }
        let url = line
            .trim_end()
            .rsplit(' ')
            .next()
            .expect("an address")
            .to_owned();
        let rest = url.strip_prefix("http://").expect("an address");
        let (address, token) = rest.split_once("/#").expect("a token");
        Console {
            child,
            _stdout: stdout,
            address: address.into(),
            token: token.into(),
            url,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        stream
    }

    /// Sends a request with these headers. Returns the status and the body.
    fn send(&self, request: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let mut text = format!(
            "{request} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        stream
            .write_all(format!("{text}\r\n{body}").as_bytes())
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.get(9..12).and_then(|status| status.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        (status.expect("a status"), body.to_owned())
    }

    fn ask(&self, path: &str, body: &str) -> (u16, Value) {
        let bearer = format!("Bearer {}", self.token);
        let headers = [("Host", &*self.address), ("Authorization", &*bearer)];
        let (status, said) = self.send(&format!("POST {path}"), &headers, body);
        (status, serde_json::from_str(&said).expect("JSON"))
    }

    /// The stream of events.
    fn events(&self) -> impl Iterator<Item = Value> {
        let mut stream = self.connect();
        let request = format!(
            "GET /api/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
            self.address, self.token
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let lines = BufReader::new(stream)
            .lines()
            .map(|line| line.expect("an event"));
        lines.filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a host is in an event's status.
fn has(event: &Value, host: &str) -> bool {
    let hosts = event["body"]["hosts"].as_array();
    hosts.is_some_and(|hosts| hosts.iter().any(|h| h["name"] == host))
}

/// Whether an event says that a host's process is in this state.
fn is_in(event: &Value, host: &str, state: &str) -> bool {
    let hosts = event["body"]["hosts"].as_array();
    hosts.is_some_and(|hosts| {
        hosts
            .iter()
            .any(|h| h["name"] == host && h["state"] == state)
    })
}

#[test]
fn a_cluster_is_watched_and_put_through_faults() {
    let cluster = Cluster::start();
    let console = Console::start(cluster.data());
    refuses_strangers(&console);

    let mut events = console.events();
    events
        .find(|event| is_in(event, "node/2", "running"))
        .expect("a status");
    assert_eq!(
        console
            .ask("/api/load", r#"{"ops_per_s":200,"reads_percent":50}"#)
            .0,
        200
    );
    events
        .find(|event| event["event"] == "load" && event["body"][0]["ended"] != 0)
        .expect("load");

    assert_eq!(
        console.ask("/api/action", r#"{"do":"kill","host":"node/2"}"#),
        (200, json!({"host": "node/2"}))
    );
    // On a machine that pauses, a change of the leader may be marked, too.
    let mark = events
        .find(|event| event["event"] == "mark" && event["body"]["is_fault"] == true)
        .expect("a mark");
    assert_eq!(mark["body"]["text"], "kill node/2");
    events
        .find(|event| is_in(event, "node/2", "killed"))
        .expect("it is seen");
    assert_eq!(
        console
            .ask("/api/action", r#"{"do":"restart","host":"node/2"}"#)
            .0,
        200
    );
    events
        .find(|event| is_in(event, "node/2", "running"))
        .expect("it is seen");

    // The hosts are processes on loopback.
    let link = r#"{"do":"link","host":"node/1","change":{"delay_us":1000}}"#;
    let (status, said) = console.ask("/api/action", link);
    assert!(
        status == 409
            && said["error"]
                .as_str()
                .is_some_and(|why| why.contains("as root")),
        "{said}"
    );
    let added = console.ask("/api/action", r#"{"do":"add"}"#);
    assert_eq!(added.0, 200, "{added:?}");
    events
        .find(|event| is_in(event, "node/4", "running"))
        .expect("it is seen");
    let removed = console.ask("/api/action", r#"{"do":"remove","host":"node/4"}"#);
    assert_eq!(removed.0, 200, "{removed:?}");
    events
        .find(|event| is_in(event, "node/2", "running") && !has(event, "node/4"))
        .expect("it is seen");

    let key = |body| console.ask("/api/key", body);
    assert_eq!(key(r#"{"do":"set","key":"k","value":"v w"}"#).0, 200);
    assert_eq!(
        key(r#"{"do":"get","key":"k"}"#),
        (200, json!({"value": "v w"}))
    );
    // The removed node's process may not have ended, and a majority has the value: the others get it, too.
    let values = || -> Vec<Value> {
        let (status, said) = key(r#"{"do":"each","key":"k"}"#);
        assert_eq!(status, 200, "{said}");
        let replicas = said["replicas"].as_array().expect("a list");
        replicas.iter().map(|one| one["value"].clone()).collect()
    };
    let since = Instant::now();
    while values() != vec![json!("v w"); 3] {
        assert!(since.elapsed() < TIMEOUT, "{:?}", values());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        key(r#"{"do":"delete","key":"k"}"#),
        (200, json!({"was_there": true}))
    );
    assert_eq!(
        key(r#"{"do":"get","key":"k"}"#),
        (200, json!({"value": null}))
    );
    let (status, said) = key(r#"{"do":"set","key":"k\r\nflush_all","value":""}"#);
    assert_eq!(status, 409, "{said}");
    assert!(
        said["error"]
            .as_str()
            .is_some_and(|why| why.contains("visible ASCII")),
        "{said}"
    );
    let (status, said) = console.ask("/api/action", r#"{"do":"kill","host":"node/9"}"#);
    assert!(
        status == 409
            && said["error"]
                .as_str()
                .is_some_and(|why| why.contains("node/9")),
        "{said}"
    );
}

fn refuses_strangers(console: &Console) {
    let own = ("Host", &*console.address);
    let bearer = format!("Bearer {}", console.token);
    let token = ("Authorization", &*bearer);
    let status = |request: &str, headers: &[(&str, &str)], body: &str| {
        console.send(request, headers, body).0
    };
    assert_eq!(status("GET /", &[own], ""), 200);
    assert_eq!(status("GET /api/status", &[own, token], ""), 200);
    for path in [
        "GET /api/status",
        "GET /api/events",
        "POST /api/action",
        "POST /api/key",
        "GET /api/none",
    ] {
        assert_eq!(status(path, &[own], ""), 401, "{path}");
        assert_eq!(
            status(path, &[own, ("Authorization", "Bearer 0")], ""),
            401,
            "{path}"
        );
        // The name of another site that resolves to loopback.
        assert_eq!(
            status(path, &[("Host", "console.example"), token], ""),
            403,
            "{path}"
        );
        // A page of another site.
        assert_eq!(
            status(path, &[own, token, ("Origin", "http://other.example")], ""),
            403,
            "{path}"
        );
    }
    assert_eq!(status("GET /api/none", &[own, token], ""), 404);
    assert_eq!(
        status("POST /api/action", &[own, token], r#"{"do":"down"}"#),
        400
    );
    assert_eq!(
        status("POST /api/action", &[own, token], &" ".repeat(20_000)),
        413
    );
    let too_much = r#"{"ops_per_s":100001,"reads_percent":0}"#;
    assert_eq!(status("POST /api/load", &[own, token], too_much), 409);
}

#[test]
fn it_refuses_to_serve_others_and_says_what_to_do_without_a_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = |options: &[&str]| {
        let output = Command::new(CONSOLE)
            .args(options)
            .arg("--data")
            .arg(dir.path())
            .output();
        let output = output.expect("the program runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let refused = said(&["--listen", "0.0.0.0:8390"]);
    assert!(
        refused.contains("0.0.0.0:8390") && refused.contains("loopback"),
        "{refused}"
    );
    let none = said(&[]);
    assert!(none.contains("inband up"), "{none}");
}

#[test]
fn up_starts_a_console_that_ends_with_the_cluster() {
    inband_testing::build("inband-box");
    let dir = tempfile::tempdir().expect("a directory");
    let memcached = format!("127.0.0.1:{}", free_ports(7));
    let mut up = Command::new(inband_testing::build("inband"));
    up.args(["up", "box", "--dataplane", "udp", "--console=127.0.0.1:0"])
        .args(["--memcached", &memcached, "--data"])
        .arg(dir.path());
    let mut console = Console::of(&mut up);
    let mut events = console.events();
    events
        .find(|event| is_in(event, "node/1", "running"))
        .expect("the cluster's status");

    let pid = console.child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.expect("kill runs").success());
    let status = console.child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    assert!(
        TcpStream::connect(&console.address).is_err(),
        "the console goes on"
    );
}

#[test]
fn up_goes_on_without_a_console_that_cannot_listen_and_detach_has_none() {
    inband_testing::build("inband-box");
    let program = inband_testing::build("inband");
    let dir = tempfile::tempdir().expect("a directory");
    let memcached = format!("127.0.0.1:{}", free_ports(7));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let console = format!("--console={}", taken.local_addr().expect("an address"));
    let mut up = Command::new(&program);
    up.args(["up", "box", "--dataplane", "udp", &console])
        .args(["--memcached", &memcached, "--data"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = up.spawn().expect("the program runs");
    // Open to the end: it goes on writing.
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.starts_with("--console: ") {
        said.clear();
        let len_bytes = stderr.read_line(&mut said).expect("a line");
        assert_ne!(len_bytes, 0, "it does not say why");
    }
    let said = said.trim_end();
    assert!(
        said.contains("cannot listen at") && said.ends_with("the cluster runs without it"),
        "{said}"
    );
    assert!(child.try_wait().expect("ours").is_none(), "it runs");
    let down = Command::new(&program)
        .args(["down", "--data"])
        .arg(dir.path())
        .status();
    assert!(down.expect("it runs").success());
    assert!(child.wait().expect("it ends").success());

    let output = Command::new(&program)
        .args(["up", "--console", "--detach", "--data"])
        .arg(dir.path())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("--detach"),
        "{said}"
    );
}

/// Debian's Chromium does what a part of `browser.py` says.
fn browse(part: &str, start: impl FnOnce() -> Cluster) {
    let python = "/usr/bin/python3";
    let has_selenium = Command::new(python)
        .args(["-c", "import selenium"])
        .output();
    let has_selenium = has_selenium.is_ok_and(|output| output.status.success());
    let has_browser = ["/usr/bin/chromium", "/usr/bin/chromedriver"]
        .iter()
        .all(|program| Path::new(program).exists());
    if !has_selenium || !has_browser {
        return inband_testing::not_run(
            "chromium, chromium-driver or python3-selenium is not installed",
        );
    }
    let cluster = start();
    let console = Console::start(cluster.data());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser.py");
    let mut command = Command::new(python);
    let output = command.arg(script).args([part, &console.url]).output();
    let output = output.expect("the program runs");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{said:?}");
}

/// It clicks Kill and sees the host's state, the event and the line in the chart.
#[test]
fn a_browser_sees_the_fault_that_it_has_clicked() {
    browse("clicks", Cluster::start);
}

#[test]
fn a_browser_shows_a_dark_and_a_light_theme_that_can_be_read() {
    browse("themes", Cluster::start);
}

/// It cuts a link and delays its packets by the form on the host's card.
#[test]
fn a_browser_breaks_links() {
    if let Err(error) = inband_lab::preflight::check_lab() {
        return inband_testing::not_run(error);
    }
    browse("links", Cluster::start_with_links);
}
