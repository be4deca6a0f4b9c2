//! What clients can make a gateway hold while nothing is committed, and for how long.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inband_box::gateway::{Counters, Gateway, Settings};
use inband_box::limits::{
    KEY_LEN_BYTES_MAX, RECORDS_UNDER_WAY_MAX, RECORD_LEN_BYTES_MAX, UNANSWERED_MS_MAX,
};
use inband_box::local::Local;

use crate::gathering::{wait_for, Held, LIMIT};

const MIB: usize = 1 << 20;
const LONG: usize = 1_000_000;

struct Served {
    address: SocketAddr,
    counters: Arc<Counters>,
    is_held: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn start(memory_bytes_max: usize) -> Served {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let local = Local::new(100_000).expect("memory");
        let reader = local.machine().reader();
        let (is_held, stop) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let held = Held {
            local,
            is_held: Arc::clone(&is_held),
        };
        let settings = Settings {
            memory_bytes_max,
            ..Settings::default()
        };
        let gateway = Gateway::new(vec![listener], reader, held, settings);
        let mut gateway = gateway.expect("a gateway");
        let (counters, is_over) = (gateway.counters(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || gateway.run(&is_over).expect("it runs"));
        Served {
            address,
            counters,
            is_held,
            stop,
            thread: Some(thread),
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("set");
        stream.set_write_timeout(Some(LIMIT)).expect("set");
        stream
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let joined = self.thread.take().expect("it was started").join();
        assert!(joined.is_ok() || std::thread::panicking());
    }
}

fn set_of(value_len_bytes: usize) -> Vec<u8> {
    let line = format!("set k 0 0 {value_len_bytes}\r\n");
    [line.as_bytes(), &vec![b'x'; value_len_bytes], b"\r\n"].concat()
}

/// Sends the same request so many times and waits until the client is closed, however that comes about.
fn ask_until_closed(served: &Served, request: &str, times: usize) {
    let mut stream = served.connect();
    for _ in 0..times {
        if stream.write_all(request.as_bytes()).is_err() {
            break;
        }
    }
    let mut part = [0; 4096];
    while stream.read(&mut part).is_ok_and(|len| len > 0) {}
}

#[test]
fn a_write_that_is_held_back_is_refused_in_time() {
    // If the machine stalls, the first writes may be refused before the last one is sent.
    assert!((0..3).any(|_| is_held_back_and_refused()));
}

fn is_held_back_and_refused() -> bool {
    let since = Instant::now();
    let served = Served::start(Settings::default().memory_bytes_max);
    served.is_held.store(true, Ordering::Release);
    let mut begun = Vec::new();
    while served.counters.records.load(Ordering::Acquire) < RECORDS_UNDER_WAY_MAX {
        let mut stream = served.connect();
        stream.write_all(&set_of(LONG)).expect("sent");
        begun.push(stream);
        wait_for(&served.counters.cmd_set, begun.len() as u64);
        let records = begun.len() * LONG / RECORD_LEN_BYTES_MAX;
        if since.elapsed() >= Duration::from_millis(UNANSWERED_MS_MAX / 2) {
            return false;
        }
        wait_for(&served.counters.records, records as u64);
    }
    // The limit holds for the records of earlier iterations of the gateway's loop: let the current one end.
    for _ in 0..2 {
        let mut other = served.connect();
        other.write_all(b"version\r\n").expect("sent");
        let read = other.read(&mut [0; 64]).expect("a reply");
        assert!(read > 0, "closed");
    }
    // On a busy machine one may still share a record with what was sent before.
    let is_held = |_| {
        let mut late = served.connect();
        late.write_all(&set_of(1)).expect("sent");
        let mut reply = String::new();
        late.read_to_string(&mut reply).expect("it is closed");
        reply == "SERVER_ERROR no quorum; it was not done\r\n"
    };
    if !(0..3).any(is_held) {
        return false;
    }
    let mut reply = String::new();
    begun[0].read_to_string(&mut reply).expect("it is closed");
    assert_eq!(
        reply,
        "SERVER_ERROR no quorum; whether it was done is unknown\r\n"
    );
    true
}

/// What each request takes is more than its place among the client's requests.
#[test]
fn keys_and_tokens_that_wait_count_as_memory() {
    let key = "k".repeat(KEY_LEN_BYTES_MAX);
    let token = "v".repeat(1_900);
    let cases = [
        // 40 MB of keys.
        (
            24 * MIB,
            format!("get{}\r\n", format!(" {key}").repeat(4_000)),
            40,
        ),
        // 1.9 MB of tokens.
        (MIB, format!("mg k {token}\r\n"), 1_000),
        (MIB, format!("md k {token}\r\n"), 1_000),
        // 1,024 keys.
        (
            320 << 10,
            format!("gat 0{}\r\n", format!(" {key}").repeat(8)),
            128,
        ),
    ];
    for (memory_bytes_max, request, times) in cases {
        let served = Served::start(memory_bytes_max);
        served.is_held.store(true, Ordering::Release);
        ask_until_closed(&served, &request, times);
        wait_for(&served.counters.memory_closed, 1);
    }
}

/// The outcomes of `gat` contain the values.
#[test]
fn values_that_a_client_does_not_read_count_as_memory() {
    let served = Served::start(24 * MIB);
    let mut stream = served.connect();
    stream.write_all(&set_of(LONG)).expect("sent");
    stream
        .write_all("gat 0 k\r\n".repeat(60).as_bytes())
        .expect("sent");
    wait_for(&served.counters.memory_closed, 1);
}

/// The answers to all reads that a read index allows are not made before anybody else is served.
#[test]
fn clients_that_do_not_read_large_values_do_not_keep_the_others_waiting() {
    const SLOW: usize = 40;
    const READS: u64 = 4;
    let served = Served::start(Settings::default().memory_bytes_max);
    let mut other = served.connect();
    other.write_all(&set_of(LONG)).expect("sent");
    let mut reply = [0; 64];
    let len = other.read(&mut reply).expect("a reply");
    assert_eq!(&reply[..len], b"STORED\r\n");
    // Reads wait for their index.
    served.is_held.store(true, Ordering::Release);
    let slow: Vec<TcpStream> = (0..SLOW)
        .map(|_| {
            let mut stream = served.connect();
            let asked = "get k\r\n".repeat(READS as usize);
            stream.write_all(asked.as_bytes()).expect("sent");
            stream
        })
        .collect();
    wait_for(&served.counters.connections, 1 + SLOW as u64);
    // Let the gateway's loop take the requests.
    for _ in 0..2 {
        other.write_all(b"version\r\n").expect("sent");
        let len = other.read(&mut reply).expect("a reply");
        assert!(len > 0, "closed");
    }
    served.is_held.store(false, Ordering::Release);
    wait_for(&served.counters.get_hits, 1);
    other.write_all(b"version\r\n").expect("sent");
    let len = other.read(&mut reply).expect("a reply");
    let answered = served.counters.get_hits.load(Ordering::Acquire);
    assert!(len > 0, "closed");
    let all = SLOW as u64 * READS;
    assert!(
        answered < all / 2,
        "{answered} of {all} were answered before"
    );
    wait_for(&served.counters.get_hits, all);
    drop(slow);
}
