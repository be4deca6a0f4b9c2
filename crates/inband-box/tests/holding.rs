//! What clients can make a gateway hold while nothing is committed, and for how long.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use inband_box::gateway::{Counters, Gateway, Settings};
use inband_box::limits::RECORDS_UNDER_WAY_MAX;
use inband_box::local::Local;

use crate::gathering::{wait_for, Held, LIMIT};

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

#[test]
fn a_write_that_is_held_back_is_refused_in_time() {
    let served = Served::start(Settings::default().memory_bytes_max);
    served.is_held.store(true, Ordering::Release);
    let mut begun = Vec::new();
    while served.counters.records.load(Ordering::Acquire) < RECORDS_UNDER_WAY_MAX {
        let mut stream = served.connect();
        stream.write_all(&set_of(LONG)).expect("sent");
        begun.push(stream);
        wait_for(&served.counters.cmd_set, begun.len() as u64);
        // Its records are counted at the end of the turn.
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    let mut late = served.connect();
    late.write_all(&set_of(1)).expect("sent");
    let mut reply = String::new();
    late.read_to_string(&mut reply).expect("it is closed");
    assert_eq!(reply, "SERVER_ERROR no quorum; it was not done\r\n");
    reply.clear();
    begun[0].read_to_string(&mut reply).expect("it is closed");
    assert_eq!(
        reply,
        "SERVER_ERROR no quorum; whether it was done is unknown\r\n"
    );
}
