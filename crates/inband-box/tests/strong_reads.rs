//! A strong read is answered when its read index is reached, and not before; a local one at once.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use inband_box::gateway::{Event, Gateway, Settings, Submit};
use inband_box::local::Local;

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
        let gateway = Gateway::new(listeners, reader, held, settings);
        gateway.expect("a gateway").run(&is_over).expect("it runs");
    });

    let (mut strong, mut local) = (connect(strong), connect(local));
    let mut ask_locally = || {
        local.write_all(b"get k\r\n").expect("sent");
        reply(&mut local).expect("a reply")
    };
    strong.write_all(b"get k\r\n").expect("sent");
    assert_eq!(ask_locally(), "END\r\n");
    strong.set_read_timeout(Some(ALREADY)).expect("set");
    let early = reply(&mut strong).expect_err("its index is not reached");
    let is_silence = [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&early.kind());
    assert!(is_silence, "{early}");

    may.store(true, Ordering::Release);
    // The gateway only looks for events when something has happened.
    assert_eq!(ask_locally(), "END\r\n");
    strong.set_read_timeout(Some(TIMEOUT)).expect("set");
    assert_eq!(reply(&mut strong).expect("a reply"), "END\r\n");
    over.store(true, Ordering::Release);
    thread.join().expect("it ends");
}
