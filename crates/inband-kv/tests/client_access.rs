//! Passwords and TLS of clients.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use crate::common::{resp, wait_for};
use crate::redis_programs::has;
use crate::sockets::one_with;
use inband_kv::limit_hits::LimitHit;
use inband_kv::replica::ReplicaConfig;
use inband_resp::password::Password;
use inband_resp::timeouts::ClientTimeouts;
use inband_transport::certificates::{Authority, CertificateFiles};
use inband_transport::tls::{client_of_server, server_for_clients};

#[test]
fn only_those_who_say_the_password_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "open sesame\n").unwrap();
    let owner_only = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, owner_only).unwrap();
    let one_with_timeout = |timeout| {
        one_with(ReplicaConfig {
            password: Some(Password::read(&file).unwrap()),
            timeouts: ClientTimeouts {
                password: timeout,
                ..ReplicaConfig::default().timeouts
            },
            ..ReplicaConfig::default()
        })
    };
    let one = one_with_timeout(Duration::from_secs(60));
    let hits = |limit| one.served.control.status().hits(limit);
    let mut client = one.served.client();
    let noauth = "-NOAUTH Authentication required.";
    for line in [
        "GET a",
        "SET a 1",
        "PING",
        "INFO",
        "SCAN 0",
        "MULTI",
        "INBAND.EXPORT",
        "NOSUCH",
        "CLIENT LIST",
    ] {
        assert_eq!(client.ask(line), noauth, "{line}");
    }
    assert!(client
        .ask("HELLO 3")
        .starts_with("-NOAUTH HELLO must be called"));
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    for line in [
        "AUTH \"open sesam\"",
        "AUTH \"open sesame \"",
        "AUTH admin \"open sesame\"",
        "AUTH default x",
        "AUTH \"\"",
        "HELLO 3 AUTH default x",
    ] {
        assert_eq!(client.ask(line), wrong, "{line}");
    }
    assert_eq!(hits(LimitHit::Password), 6);
    assert_eq!(client.ask("AUTH a b c"), "-ERR syntax error");
    assert_eq!(client.ask("GET a"), noauth);
    // In one write, and afterwards.
    client.send("AUTH \"open sesame\"\r\nSET a 1\r\nGET a\r\n");
    client.expect("+OK\r\n+OK\r\n$1\r\n1\r\n");
    assert_eq!(client.ask("RESET"), "+RESET");
    assert_eq!(client.ask("GET a"), noauth);
    assert_eq!(client.ask("AUTH default \"open sesame\""), "+OK");
    assert_eq!(client.ask("AUTH x"), wrong);
    assert_eq!(client.ask("GET nosuch"), "$-1");
    let mut third = one.served.client();
    assert!(third
        .ask("HELLO 3 AUTH default \"open sesame\"")
        .starts_with("%7"));
    // Unauthenticated requests must be short.
    for (long, says) in [
        (
            "*11\r\n",
            "-ERR Protocol error: unauthenticated multibulk length",
        ),
        (
            "*2\r\n$4\r\nAUTH\r\n$16385\r\n",
            "-ERR Protocol error: unauthenticated bulk length",
        ),
    ] {
        let mut stranger = one.served.client();
        stranger.send(long);
        assert_eq!(stranger.rest().trim_end(), says);
    }
    client.send(resp(&format!("SET long {}", "v".repeat(100_000))));
    client.expect("+OK\r\n");
    // An idle connection is not kept forever.
    let other = one_with_timeout(Duration::from_millis(400));
    assert_eq!(other.served.client().rest(), "");
    let closed = other.served.control.status();
    assert_eq!(closed.hits(LimitHit::Unauthenticated), 1);
    assert_eq!(hits(LimitHit::Unauthenticated), 0);
    assert_eq!(client.ask("STRLEN long"), ":100000");
    if has("redis-cli") {
        let port = one.served.address.port().to_string();
        let cli = |args: &[&str]| {
            let output = Command::new("redis-cli")
                .args(["-p", &port])
                .args(args)
                .output();
            String::from_utf8_lossy(&output.unwrap().stdout)
                .trim_end()
                .to_owned()
        };
        assert_eq!(
            cli(&["--no-auth-warning", "-a", "open sesame", "GET", "a"]),
            "1"
        );
        assert!(cli(&["GET", "a"]).contains("NOAUTH"));
    }
}

/// A host certificate for 127.0.0.1, and its CA file.
fn certificate(dir: &std::path::Path) -> CertificateFiles {
    let file = |name: &str| dir.join(name);
    let files = CertificateFiles {
        ca: file("ca-copy.pem"),
        certificate: file("certificate.pem"),
        key: file("key.pem"),
    };
    let authority = Authority::open_or_make(dir, "test").unwrap();
    authority
        .issue(1, &[[127, 0, 0, 1].into()], &files)
        .unwrap();
    files
}

#[test]
fn clients_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let files = certificate(dir.path());
    let one_with_timeout = |timeout| {
        one_with(ReplicaConfig {
            tls: Some(server_for_clients(&files).unwrap()),
            timeouts: ClientTimeouts {
                password: timeout,
                ..ReplicaConfig::default().timeouts
            },
            ..ReplicaConfig::default()
        })
    };
    let one = one_with_timeout(Duration::from_secs(60));
    let hits = |limit| one.served.control.status().hits(limit);
    // A client without TLS gets an alert at most.
    let mut plain = one.served.client();
    plain.send("*1\r\n$4\r\nPING\r\n");
    let got = plain.rest_bytes();
    assert!(got.len() < 16 && !got.starts_with(b"+PONG"), "{got:?}");
    wait_for("it is counted", || hits(LimitHit::Tls) == 1);

    // Large requests and replies in both directions, and many small ones in a row.
    let connect = || {
        let tls = client_of_server(&files.ca, one.served.address.ip()).unwrap();
        let tcp = std::net::TcpStream::connect(one.served.address).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        rustls::StreamOwned::new(tls, tcp)
    };
    let mut client = connect();
    let value = "v".repeat(1 << 20);
    client
        .write_all(resp(&format!("SET k {value}")).as_bytes())
        .unwrap();
    client
        .write_all(resp("MGET k k k k k k k k").as_bytes())
        .unwrap();
    let expected = format!(
        "+OK\r\n*8\r\n{}",
        format!("$1048576\r\n{value}\r\n").repeat(8)
    );
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == expected.as_bytes());
    client
        .write_all(resp("INCR n").repeat(5000).as_bytes())
        .unwrap();
    let expected: String = (1..=5000).map(|i| format!(":{i}\r\n")).collect();
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == expected.as_bytes());
    // A client that does not read is not read from, and holds no more memory than without TLS.
    let mut slow = connect();
    slow.write_all(resp("MGET k k k k").repeat(100).as_bytes())
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(one.served.control.status().clients_memory_bytes < 16 << 20);
    client.write_all(resp("GET n").as_bytes()).unwrap();
    let mut got = [0; 10];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"$4\r\n5000\r\n");
    drop(slow);
    // An export, and an orderly close.
    client.write_all(resp("INBAND.EXPORT").as_bytes()).unwrap();
    let mut got = [0; 13];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"+OK\r\nIBEXPT1\n");
    let mut client = connect();
    client.write_all(b"PING\r\nQUIT\r\n").unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"+PONG\r\n+OK\r\n");
    // A client that does not start the handshake is disconnected.
    let other = one_with_timeout(Duration::from_millis(400));
    assert_eq!(other.served.client().rest(), "");
    assert_eq!(other.served.control.status().hits(LimitHit::Tls), 1);
    assert_eq!(hits(LimitHit::Tls), 1);
    if has("redis-cli") {
        let port = one.served.address.port().to_string();
        let ca = files.ca.to_str().unwrap();
        let cli = |args: &[&str]| {
            let output = Command::new("redis-cli")
                .args(["-p", &port])
                .args(args)
                .output();
            String::from_utf8_lossy(&output.unwrap().stdout)
                .trim_end()
                .to_owned()
        };
        assert_eq!(cli(&["--tls", "--cacert", ca, "GET", "n"]), "5000");
        // The client rejects a certificate from another CA.
        let elsewhere = tempfile::tempdir().unwrap();
        let other = certificate(elsewhere.path());
        let other = other.ca.to_str().unwrap();
        assert_ne!(cli(&["--tls", "--cacert", other, "GET", "n"]), "5000");
    }
}
