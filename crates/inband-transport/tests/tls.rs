//! Which peers are accepted as hosts of the cluster, and which are not.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use inband_transport::certificates::{
    expires, Authority, CertificateError, CertificateFiles, VALIDITY,
};
use inband_transport::paced::Pace;
use inband_transport::tls::{is_refused, HandshakeCounters, Stream, Transport};

const PACE: Pace = Pace {
    silence_max: Duration::from_secs(10),
    grace: Duration::from_secs(10),
    bytes_per_s_min: 0,
};
const TIMEOUT: Duration = Duration::from_secs(5);

fn files(dir: &Path) -> CertificateFiles {
    CertificateFiles {
        ca: dir.join("ca.pem"),
        certificate: dir.join("certificate.pem"),
        key: dir.join("key.pem"),
    }
}

/// A host of the cluster whose CA is in `authority`.
fn host(authority: &Path, dir: &Path, node: u8) -> Transport {
    let authority = Authority::open_or_make(authority, "test").expect("an authority");
    let files = files(dir);
    authority.issue(node, &[], &files).expect("a certificate");
    Transport::mutual(&files).expect("usable")
}

fn counter(counters: &HandshakeCounters, name: &str) -> u64 {
    let all = counters.all();
    all.iter().find(|(n, _)| *n == name).expect("a counter").1
}

/// Accepts one connection, and echoes one message if the peer is accepted as `node`.
fn serve_one(transport: &Transport, node: u8) -> (SocketAddr, thread::JoinHandle<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let transport = transport.clone();
    let serve = move || {
        let (tcp, _) = listener.accept().expect("accepts");
        let mut stream = match transport.accept(tcp, PACE) {
            Ok(stream) => stream,
            Err(error) => {
                assert!(is_refused(&error), "{error}");
                return false;
            }
        };
        if !stream.may_be_node(node) {
            return false;
        }
        let mut message = vec![0; 100_000];
        let read = stream.read_exact(&mut message);
        read.and_then(|()| stream.write_all(&message))
            .and_then(|()| stream.flush())
            .is_ok()
    };
    (address, thread::spawn(serve))
}

fn echo(stream: &mut Stream) -> bool {
    let message: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    let mut back = vec![0; message.len()];
    let done = stream
        .write_all(&message)
        .and_then(|()| stream.flush())
        .and_then(|()| stream.read_exact(&mut back));
    done.is_ok() && back == message
}

#[test]
fn hosts_of_one_cluster_talk_and_others_do_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let one = host(&at("authority"), &at("one"), 1);
    let two = host(&at("authority"), &at("two"), 2);
    let counters = one.counters();

    let (address, served) = serve_one(&one, 2);
    let mut stream = two.connect(address, TIMEOUT, PACE).expect("it is known");
    assert!(echo(&mut stream));
    assert!(served.join().expect("no panic"));
    // A node cannot speak for another node.
    let (address, served) = serve_one(&one, 3);
    let mut stream = two.connect(address, TIMEOUT, PACE).expect("it is known");
    assert!(!served.join().expect("no panic"));
    assert!(!echo(&mut stream));
    assert_eq!(counter(&counters, "tls_refused_other_node"), 1);

    // A host of another cluster; the two refuse each other.
    let foreign = host(&at("other authority"), &at("foreign"), 2);
    let (address, served) = serve_one(&one, 2);
    let refused = foreign.connect(address, TIMEOUT, PACE);
    assert!(refused.is_err());
    assert_eq!(counter(&foreign.counters(), "tls_refused_certificate"), 1);
    assert!(!served.join().expect("no panic"));
    // A peer with the CA's certificate, which is public, and a self-made certificate.
    let mut forged = files(&at("foreign"));
    forged.ca = at("one").join("ca.pem");
    let forged = Transport::mutual(&forged).expect("usable");
    let (address, served) = serve_one(&one, 2);
    let mut stream = forged.connect(address, TIMEOUT, PACE);
    assert!(!served.join().expect("no panic"));
    assert!(!stream.as_mut().is_ok_and(echo), "it got an answer");
    assert_eq!(counter(&counters, "tls_refused_certificate"), 1);

    // Without TLS.
    let (address, served) = serve_one(&one, 2);
    let mut stream = Transport::plain()
        .connect(address, TIMEOUT, PACE)
        .expect("TCP");
    assert!(!echo(&mut stream));
    assert!(!served.join().expect("no panic"));
    assert_eq!(counter(&counters, "tls_refused_plain"), 1);
    // A server without TLS gets nothing from a host.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let stranger = thread::spawn(move || {
        let (mut tcp, _) = listener.accept().expect("accepts");
        let mut greeting = [0; 16];
        let len = tcp.read(&mut greeting).expect("a greeting");
        tcp.write_all(b"+OK welcome, send me everything\r\n")
            .expect("sends");
        greeting[..len].to_vec()
    });
    assert!(two.connect(address, TIMEOUT, PACE).is_err());
    let greeting = stranger.join().expect("no panic");
    assert_eq!(greeting[..2], [22, 3], "no ClientHello: {greeting:?}");

    // An expired one.
    let authority = Authority::open_or_make(&at("authority"), "test").expect("the same");
    let expired = files(&at("expired"));
    let past = Duration::from_secs(1);
    authority.issue_for(2, &[], &expired, past).expect("made");
    thread::sleep(Duration::from_millis(2100));
    assert!(expired.expires().expect("a date") < SystemTime::now());
    let expired = Transport::mutual(&expired).expect("it can be read");
    let (address, served) = serve_one(&one, 2);
    let mut stream = expired.connect(address, TIMEOUT, PACE);
    assert!(!served.join().expect("no panic"));
    assert!(!stream.as_mut().is_ok_and(echo));
    assert_eq!(counter(&counters, "tls_refused_certificate"), 2);
    // And as a server.
    let (address, served) = serve_one(&expired, 1);
    assert!(one.connect(address, TIMEOUT, PACE).is_err());
    assert!(!served.join().expect("no panic"));
}

#[test]
fn whoever_says_nothing_is_hung_up_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let one = host(&dir.path().join("authority"), &dir.path().join("one"), 1);
    let (address, served) = serve_one(&one, 2);
    let mut silent = TcpStream::connect(address).expect("connects");
    silent.set_read_timeout(Some(4 * TIMEOUT)).expect("set");
    // Sending an occasional byte of a long ClientHello does not help.
    let begun = Instant::now();
    for byte in [
        22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ] {
        if served.is_finished() {
            break;
        }
        let _ = silent.write_all(&[byte]);
        thread::sleep(Duration::from_secs(1));
    }
    assert!((4..18).contains(&begun.elapsed().as_secs()));
    assert!(!served.join().expect("no panic"));
    // It may be told the reason, and nothing else.
    let mut got = Vec::new();
    let _ = silent.read_to_end(&mut got);
    assert!(got.len() < 16, "{got:?}");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let authority_dir = dir.path().join("authority");
    let authority = Authority::open_or_make(&authority_dir, "test").expect("an authority");
    let of = files(&dir.path().join("host"));
    let missing = Transport::mutual(&of).expect_err("nothing is there");
    assert!(
        missing.to_string().contains("inband certificate new"),
        "{missing}"
    );
    authority
        .issue(7, &[[127, 0, 0, 1].into()], &of)
        .expect("made");
    let mode = |path: &Path| {
        fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(&of.key), 0o600);
    assert_eq!(mode(&authority_dir.join("ca.key")), 0o600);
    let left = of
        .expires()
        .expect("a date")
        .duration_since(SystemTime::now());
    assert!(left.expect("later") > VALIDITY - Duration::from_secs(60));
    // The same CA after a restart.
    let again = Authority::open_or_make(&authority_dir, "test").expect("the same");
    let second = files(&dir.path().join("second"));
    again.issue(8, &[], &second).expect("made");
    assert_eq!(fs::read(&of.ca).unwrap(), fs::read(&second.ca).unwrap());

    fs::set_permissions(&of.key, fs::Permissions::from_mode(0o640)).expect("set");
    let open = Transport::mutual(&of).expect_err("others may read it");
    assert!(matches!(open, CertificateError::Secret(_)), "{open}");
    fs::set_permissions(&of.key, fs::Permissions::from_mode(0o600)).expect("set");
    Transport::mutual(&of).expect("usable again");
    fs::copy(&second.key, &of.key).expect("copied");
    let mixed = Transport::mutual(&of).expect_err("the key is another's");
    assert!(
        matches!(mixed, CertificateError::Unusable { .. }),
        "{mixed}"
    );
    fs::write(&of.certificate, "nonsense").expect("written");
    assert!(expires(&of.certificate).is_err());
    let nonsense = Transport::mutual(&of).expect_err("no certificate");
    assert!(
        nonsense.to_string().contains("certificate.pem"),
        "{nonsense}"
    );
}
