//! A strong read is answered when its read index is reached, and not before; a local one at once. Over TCP and UDP.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use inband_box::gateway::datagrams::Listener;
use inband_box::gateway::{Event, Gateway, Settings, Submit};
use inband_box::local::Local;
use inband_box::network::Network;

const TIMEOUT: Duration = Duration::from_secs(30);
const ALREADY: Duration = Duration::from_millis(200);

/// A cluster that reports no read index until the test allows it.
struct Held {
    local: Local,
    may: Arc<AtomicBool>,
    barriers: Vec<Event>,
}

impl Submit for Held {
    fn submit(&mut self, value: Vec<u8>) -> u64 {
        self.local.submit(value)
    }

    fn barrier(&mut self, id: u64) {
        self.barriers.push(Event::Barrier(id));
    }

    fn events(&mut self, into: &mut Vec<Event>) {
        self.local.events(into);
        if self.may.load(Ordering::Acquire) {
            into.append(&mut self.barriers);
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    stream
}

/// A client over UDP of a server at this address.
fn datagrams_to(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    socket.connect(address).expect("connected");
    socket.set_read_timeout(Some(TIMEOUT)).expect("set");
    socket
}

const FRAME: [u8; 8] = [0, 7, 0, 0, 0, 1, 0, 0];

fn datagram(socket: &UdpSocket) -> std::io::Result<String> {
    let mut bytes = [0; 64];
    let len = socket.recv(&mut bytes)?;
    assert_eq!(bytes[..8], FRAME);
    Ok(String::from_utf8_lossy(&bytes[8..len]).into_owned())
}

fn reply(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut bytes = [0; 64];
    let len = stream.read(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

#[test]
fn a_strong_read_waits_for_its_index() {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let listeners = vec![bind(), bind()];
    let address = |n: usize| listeners[n].local_addr().expect("an address");
    let (strong, local) = (address(0), address(1));
    let udp = [false, true].map(|is_local| Listener {
        socket: UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"),
        network: Network::LOOPBACK,
        is_local,
    });
    let [strong_udp, local_udp] =
        [0, 1].map(|n: usize| datagrams_to(udp[n].socket.local_addr().expect("an address")));
    let cluster = Local::new(1_000).expect("memory");
    let reader = cluster.machine().reader();
    let (may, over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
    let held = Held {
        local: cluster,
        may: Arc::clone(&may),
        barriers: Vec::new(),
    };
    let settings = Settings {
        local_ports: vec![local.port()],
        ..Settings::default()
    };
    let is_over = Arc::clone(&over);
    let thread = std::thread::spawn(move || {
        let gateway = Gateway::with_datagrams(listeners, udp.into(), reader, held, settings);
        gateway.expect("a gateway").run(&is_over).expect("it runs");
    });

    let (mut strong, mut local) = (connect(strong), connect(local));
    let mut ask_locally = || {
        local.write_all(b"get k\r\n").expect("sent");
        reply(&mut local).expect("a reply")
    };
    let get = [&FRAME[..], b"get k\r\n"].concat();
    strong.write_all(b"get k\r\n").expect("sent");
    strong_udp.send(&get).expect("sent");
    assert_eq!(ask_locally(), "END\r\n");
    local_udp.send(&get).expect("sent");
    assert_eq!(datagram(&local_udp).expect("a reply"), "END\r\n");
    strong.set_read_timeout(Some(ALREADY)).expect("set");
    strong_udp.set_read_timeout(Some(ALREADY)).expect("set");
    for early in [reply(&mut strong), datagram(&strong_udp)] {
        let early = early.expect_err("its index is not reached");
        let is_silence = [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&early.kind());
        assert!(is_silence, "{early}");
    }

    may.store(true, Ordering::Release);
    // The gateway only looks for events when something has happened.
    assert_eq!(ask_locally(), "END\r\n");
    strong.set_read_timeout(Some(TIMEOUT)).expect("set");
    strong_udp.set_read_timeout(Some(TIMEOUT)).expect("set");
    assert_eq!(reply(&mut strong).expect("a reply"), "END\r\n");
    assert_eq!(datagram(&strong_udp).expect("a reply"), "END\r\n");
    // A write at either port is settled for the client of that port.
    for socket in [&strong_udp, &local_udp] {
        let set = [&FRAME[..], b"set k 0 0 1\r\nx\r\n"].concat();
        socket.send(&set).expect("sent");
        assert_eq!(datagram(socket).expect("a reply"), "STORED\r\n");
    }
    over.store(true, Ordering::Release);
    thread.join().expect("it ends");
}
