//! Writes that arrive while enough records are in flight share the next one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inband_box::gateway::{Event, Gateway, Settings, Submit};
use inband_box::limits::RECORDS_BEFORE_GATHERING;
use inband_box::local::Local;

pub const LIMIT: Duration = Duration::from_secs(30);
const LATER: u64 = 10;

/// A cluster whose commits can be held back.
pub struct Held {
    pub local: Local,
    pub is_held: Arc<AtomicBool>,
}

impl Submit for Held {
    fn submit(&mut self, value: Vec<u8>) -> u64 {
        self.local.submit(value)
    }

    fn barrier(&mut self, id: u64) {
        self.local.barrier(id);
    }

    fn events(&mut self, into: &mut Vec<Event>) {
        if !self.is_held.load(Ordering::Acquire) {
            self.local.events(into);
        }
    }
}

pub fn wait_for(counter: &AtomicU64, n: u64) {
    let until = Instant::now() + LIMIT;
    while counter.load(Ordering::Acquire) < n {
        assert!(Instant::now() < until, "{counter:?} of {n}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn set(stream: &mut TcpStream) {
    stream.write_all(b"set k 0 0 1\r\nv\r\n").expect("sent");
}

fn is_stored(stream: &mut TcpStream) {
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).expect("a reply");
    assert_eq!(&reply, b"STORED\r\n");
}

#[test]
fn writes_share_a_record_while_others_are_under_way() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let cluster = Local::new(1_000).expect("memory");
    let reader = cluster.machine().reader();
    let is_held = Arc::new(AtomicBool::new(false));
    let held = Held {
        local: cluster,
        is_held: Arc::clone(&is_held),
    };
    let gateway = Gateway::new(vec![listener], reader, held, Settings::default());
    let mut gateway = gateway.expect("a gateway");
    let counters = gateway.counters();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let thread = std::thread::spawn(move || gateway.run(&is_over).expect("it runs"));

    let connect = || {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("set");
        stream
    };
    let mut first = connect();
    set(&mut first);
    is_stored(&mut first);
    let before = counters.records.load(Ordering::Acquire);
    is_held.store(true, Ordering::Release);
    let mut streams = Vec::new();
    for n in 1..=RECORDS_BEFORE_GATHERING {
        let mut stream = connect();
        set(&mut stream);
        // One after the other: each is a record of its own.
        wait_for(&counters.records, before + n);
        streams.push(stream);
    }
    for n in 1..=LATER {
        let mut stream = connect();
        set(&mut stream);
        wait_for(&counters.cmd_set, 1 + RECORDS_BEFORE_GATHERING + n);
        streams.push(stream);
    }
    let alone = before + RECORDS_BEFORE_GATHERING;
    assert_eq!(counters.records.load(Ordering::Acquire), alone);
    is_held.store(false, Ordering::Release);
    streams.iter_mut().for_each(is_stored);
    assert_eq!(counters.records.load(Ordering::Acquire), alone + 1);
    over.store(true, Ordering::Release);
    thread.join().expect("it ends");
}
