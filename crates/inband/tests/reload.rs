//! SIGHUP: certificates, password, keys and log level are read again, and the connections stay.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use inband_transport::tls::client_of_server;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use rustls::{ClientConnection, StreamOwned};

use crate::common::PROGRAM;
use crate::logs::LoggedHost;
use crate::run::TIMEOUT;

const FILES: &str = r#"password_file = "DIR/password"
limits = { client_idle_s = 0 }
tls = { ca = "DIR/ca.pem", certificate = "DIR/certificate.pem", key = "DIR/key.pem", resp = true }
"#;

pub struct SecureClient(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl SecureClient {
    pub fn connect(address: SocketAddr, ca: &Path) -> Option<SecureClient> {
        let tcp = TcpStream::connect(address).ok()?;
        let timeout = Some(Duration::from_secs(15));
        tcp.set_read_timeout(timeout).expect("set");
        let tls = client_of_server(ca, address.ip()).expect("the CA");
        let mut client = SecureClient(BufReader::new(StreamOwned::new(tls, tcp)));
        // An unknown authority is noticed with the first bytes.
        client.ask("ECHO x").map(|_| client)
    }

    pub fn ask(&mut self, line: &str) -> Option<String> {
        let stream = self.0.get_mut();
        stream.write_all(format!("{line}\r\n").as_bytes()).ok()?;
        let mut reply = String::new();
        let len = self.0.read_line(&mut reply).ok()?;
        (len > 0).then(|| reply.trim_end().to_owned())
    }
}

struct ReloadedHost(LoggedHost);

impl ReloadedHost {
    fn start() -> ReloadedHost {
        let mut host = LoggedHost::prepare(FILES, "[log]\nlevel = \"info\"");
        let text = fs::read_to_string(host.config()).expect("read");
        let keys = host.dir.path().join("keys.toml");
        let with_keys = text.replace("epoch = 1,", &format!("epoch = 1, key_file = {keys:?},"));
        assert_ne!(text, with_keys);
        fs::write(host.config(), with_keys).expect("written");
        let dir = host.dir.path().to_owned();
        inband(&["key", "new"], &[&keys]);
        certify(&host.config(), &dir.join("authority"), &[]);
        write_secret(&dir.join("password"), "first\n");
        fs::copy(dir.join("ca.pem"), dir.join("ca-1.pem")).expect("copied");
        host.start(&[]);
        ReloadedHost(host)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.dir.path().join(name)
    }

    fn connect(&self, ca: &str) -> Option<SecureClient> {
        SecureClient::connect(self.0.resp, &self.path(ca))
    }

    /// Sends the signal and returns what is logged until the reload is done.
    fn reload(&self) -> String {
        let before = self.0.log().len();
        let pid = Pid::from_raw(self.0.id().try_into().expect("a process id"));
        kill(pid, Signal::SIGHUP).expect("signalled");
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let said = self.0.log()[before..].to_owned();
            if said.contains("SIGHUP: done") {
                return said;
            }
            assert!(Instant::now() < deadline, "{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn inband(arguments: &[&str], paths: &[&Path]) -> String {
    let output = Command::new(PROGRAM).args(arguments).args(paths).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn certify(config: &Path, authority: &Path, more: &[&str]) {
    let arguments = [&["certificate", "new"][..], more, &["--config"]].concat();
    let authority_of = Path::new("--authority");
    inband(&arguments, &[config, authority_of, authority]);
}

pub fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
}

#[test]
fn files_are_read_again_and_connections_stay() {
    let host = ReloadedHost::start();
    let deadline = Instant::now() + TIMEOUT;
    let mut early = loop {
        if let Some(client) = host.connect("ca-1.pem") {
            break client;
        }
        assert!(Instant::now() < deadline, "{}", host.0.log());
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(early.ask("AUTH first").as_deref(), Some("+OK"));
    while early.ask("SET a 1").as_deref() != Some("+OK") {
        assert!(Instant::now() < deadline, "{}", host.0.log());
        std::thread::sleep(Duration::from_millis(20));
    }

    certify(
        &host.0.config(),
        &host.path("other-authority"),
        &["--replace-authority"],
    );
    write_secret(&host.path("password"), "second\n");
    inband(&["key", "add"], &[&host.path("keys.toml")]);
    // Nothing changes before the signal.
    assert!(host.connect("ca.pem").is_none());
    let said = host.reload();
    for what in [
        "SIGHUP: packet keys: sends with 1, accepts [1, 2]",
        "SIGHUP: certificates: ",
        "SIGHUP: host.password_file: ",
    ] {
        assert!(said.contains(what), "{what:?} is not in {said}");
    }
    assert!(!said.contains("take effect when"), "{said}");
    assert!(host.connect("ca-1.pem").is_none());
    let mut late = host.connect("ca.pem").expect("the new authority");
    let refused = late.ask("AUTH first").expect("an answer");
    assert!(refused.starts_with("-WRONGPASS"), "{refused}");
    assert_eq!(late.ask("AUTH second").as_deref(), Some("+OK"));
    assert_eq!(late.ask("INCR a").as_deref(), Some(":2"));
    assert_eq!(early.ask("INCR a").as_deref(), Some(":3"));
    // The control plane's connections use the new certificate, too.
    let listed = inband(&["member", "list", "--config"], &[&host.0.config()]);
    assert!(listed.contains("one"), "{listed}");

    // A certificate of another cluster is refused, as at the start.
    let own = fs::read_to_string(host.0.config()).expect("read");
    let other = own.replace("name = \"logged\"", "name = \"other\"");
    assert_ne!(own, other);
    fs::write(host.0.config(), other).expect("written");
    let foreign = host.path("foreign");
    let to_foreign = ["--out", foreign.to_str().expect("UTF-8")];
    certify(&host.0.config(), &foreign, &to_foreign);
    fs::write(host.0.config(), own).expect("written");
    let kept = fs::read(host.path("certificate.pem")).expect("read");
    fs::copy(
        foreign.join("certificate.pem"),
        host.path("certificate.pem"),
    )
    .expect("copied");
    let said = host.reload();
    let refused = "is a certificate of cluster \"other\", but [cluster] name is";
    assert!(said.contains(refused), "{said}");
    fs::write(host.path("certificate.pem"), kept).expect("written");

    // What is no good is said, and changes nothing.
    fs::write(host.path("certificate.pem"), "no certificate").expect("written");
    fs::set_permissions(host.path("password"), fs::Permissions::from_mode(0o644)).expect("set");
    fs::write(host.path("keys.toml"), "no keys").expect("written");
    let good = fs::read_to_string(host.0.config()).expect("read");
    fs::write(host.0.config(), "no configuration").expect("written");
    let said = host.reload();
    for what in [
        "packet keys",
        "certificates",
        "host.password_file",
        "configuration",
    ] {
        let mut lines = said.lines();
        let line = lines.find(|line| line.contains(&format!("SIGHUP: {what}: ")));
        let line = line.unwrap_or_else(|| panic!("{what:?} is not in {said}"));
        assert!(
            line.contains("ERROR") && line.contains("stays in use"),
            "{line}"
        );
    }
    let mut later = host.connect("ca.pem").expect("the same certificate");
    assert_eq!(later.ask("AUTH second").as_deref(), Some("+OK"));
    assert_eq!(early.ask("INCR a").as_deref(), Some(":4"));

    // The level of the log is applied, and what needs a restart is named.
    let changed = good.replace("client_idle_s = 0", "client_idle_s = 5");
    let changed = changed.replace("level = \"info\"", "level = \"warn\"");
    fs::write(host.0.config(), changed).expect("written");
    let before = host.0.log().len();
    let pid = Pid::from_raw(host.0.id().try_into().expect("a process id"));
    kill(pid, Signal::SIGHUP).expect("signalled");
    host.0
        .wait_for_log("when the host is started again: host.limits.client_idle_s\n");
    let said = host.0.log()[before..].to_owned();
    assert!(!said.contains("SIGHUP: done"), "{said}");
}
