//! What watches, keyspace events and the histograms of request times cost: CPU time of a replica's thread per SET, over
//! the in-memory log, which makes the shares larger than they are over a network.
//!
//! `cargo run --release -p inband-kv --features testing --example costs [ROUNDS [SETS]]`
//!
//! Every round measures all cases, each round beginning with another one. CPU time is the kernel's count for the
//! thread, so other processes disturb it less than they disturb elapsed time.

use std::error::Error;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;

use inband_kv::control::ReplicaControl;
use inband_kv::machine::{Machine, MachineConfig};
use inband_kv::replica::{Replica, ReplicaConfig};
use inband_kv::testing::MemoryCluster;

const ENTRIES_KEPT: usize = 10_000;
const KEYS: u64 = 10_000;
const VALUE_LEN_BYTES: usize = 64;
/// SETs that are sent before the replies are read.
const PIPELINE: usize = 100;

struct Case {
    name: &'static str,
    keeps_changes: bool,
    has_histograms: bool,
    /// What another client asks for before.
    listener: Option<&'static str>,
    events: &'static str,
}

const fn case(name: &'static str, listener: Option<&'static str>, events: &'static str) -> Case {
    Case {
        name,
        keeps_changes: true,
        has_histograms: true,
        listener,
        events,
    }
}

const NOTHING: Case = Case {
    keeps_changes: false,
    has_histograms: false,
    ..case("neither (baseline)", None, "")
};
const HISTOGRAMS: Case = Case {
    keeps_changes: false,
    ..case("histograms", None, "")
};
const CHANGES: Case = Case {
    has_histograms: false,
    ..case("changes kept, no watcher", None, "")
};
const CASES: [Case; 8] = [
    NOTHING,
    HISTOGRAMS,
    CHANGES,
    case("both, no watcher", None, ""),
    case(
        "both, a watcher of another prefix",
        Some("INBAND.WATCH other:"),
        "",
    ),
    case(
        "both, a watcher of that prefix",
        Some("INBAND.WATCH key:"),
        "",
    ),
    case("both, events without a subscriber", None, "KEA"),
    case(
        "both, a subscriber of all events",
        Some("PSUBSCRIBE __key*"),
        "KEA",
    ),
];

struct Client(TcpStream);

impl Client {
    fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Sends a line and reads what comes at once.
    fn ask(&mut self, line: &str) -> std::io::Result<()> {
        self.0.write_all(format!("{line}\r\n").as_bytes())?;
        let mut reply = [0; 4096];
        let len = self.0.read(&mut reply)?;
        match reply[..len].first() {
            Some(b'-') | None => Err(std::io::Error::other(format!("{line}: refused"))),
            _ => Ok(()),
        }
    }

    fn sets(&mut self, sets: usize, state: &mut u64) -> std::io::Result<()> {
        let value = "v".repeat(VALUE_LEN_BYTES);
        for _ in 0..sets / PIPELINE {
            let mut out = String::new();
            for _ in 0..PIPELINE {
                *state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let key = format!("key:{:05}", (*state >> 33) % KEYS);
                out += &format!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE_LEN_BYTES}\r\n{value}\r\n",
                    key.len()
                );
            }
            self.0.write_all(out.as_bytes())?;
            let mut replies = vec![0; PIPELINE * "+OK\r\n".len()];
            self.0.read_exact(&mut replies)?;
        }
        Ok(())
    }
}

/// Reads everything that is pushed to a client, until its connection is closed.
fn listen(address: SocketAddr, line: &str) -> std::io::Result<(TcpStream, JoinHandle<()>)> {
    let mut client = Client::connect(address)?;
    client.ask("HELLO 3")?;
    client.ask(line)?;
    let mut stream = client.0.try_clone()?;
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while stream.read(&mut bytes).is_ok_and(|len| len > 0) {}
    });
    Ok((client.0, reader))
}

/// Nanoseconds that a thread has used.
fn cpu_ns(thread: i32) -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))?;
    Ok(text.split(' ').next().unwrap_or("").parse()?)
}

fn measure(
    case: &Case,
    sets: usize,
    served: (SocketAddr, &ReplicaControl, i32),
    state: &mut u64,
) -> Result<f64, Box<dyn Error>> {
    let (address, control, thread) = served;
    let mut client = Client::connect(address)?;
    client
        .ask("CONFIG SET notify-keyspace-events \"\"")
        .or_else(|_| {
            client.0.write_all(
                b"*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$22\r\nnotify-keyspace-events\r\n$0\r\n\r\n",
            )?;
            client.0.read_exact(&mut [0; 5])
        })?;
    if !case.events.is_empty() {
        client.ask(&format!(
            "CONFIG SET notify-keyspace-events {}",
            case.events
        ))?;
    }
    control.measure_without(!case.keeps_changes, !case.has_histograms);
    let listener = case
        .listener
        .map(|line| listen(address, line))
        .transpose()?;
    client.sets(sets / 10, state)?;
    let before = cpu_ns(thread)?;
    client.sets(sets, state)?;
    let used = cpu_ns(thread)? - before;
    if let Some((stream, reader)) = listener {
        match stream.shutdown(std::net::Shutdown::Both) {
            Err(error) if error.kind() != ErrorKind::NotConnected => return Err(error.into()),
            _ => {}
        }
        reader.join().map_err(|_| "the listener panicked")?;
    }
    Ok(used as f64 / sets as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let number = |at, default| std::env::args().nth(at).map_or(Ok(default), |n| n.parse());
    let (rounds, sets): (usize, usize) = (number(1, 15)?, number(2, 100_000)?);
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let cluster = MemoryCluster::new();
    cluster.keep_entries(ENTRIES_KEPT);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let machine = Machine::open(MachineConfig::single(dir.path()))?;
    let log = cluster.join(&machine.applied())?;
    let (started, replica) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let config = ReplicaConfig::default();
        let replica = Replica::new(config, machine, Box::new(log), vec![listener], None);
        let mut replica = replica.expect("a replica");
        let thread = nix::unistd::gettid().as_raw();
        started
            .send((replica.control(), thread))
            .expect("it is awaited");
        replica.run().expect("it runs");
    });
    let (control, number) = replica.recv()?;
    let mut ns = vec![Vec::new(); CASES.len()];
    let mut state = 1;
    for round in 0..rounds {
        for at in 0..CASES.len() {
            let at = (round + at) % CASES.len();
            ns[at].push(measure(
                &CASES[at],
                sets,
                (address, &control, number),
                &mut state,
            )?);
        }
    }
    control.stop();
    thread.join().map_err(|_| "the replica panicked")?;
    println!("CPU time of the replica's thread per SET: median of {rounds} rounds of {sets} SETs; least and most");
    for (case, of) in CASES.iter().zip(&ns) {
        let shares = of
            .iter()
            .zip(&ns[0])
            .map(|(ns, base)| (ns / base - 1.0) * 100.0);
        let (least, most) = of.iter().fold((f64::MAX, 0.0), |(a, b): (f64, f64), ns| {
            (a.min(*ns), b.max(*ns))
        });
        println!(
            "{:36} {:7.0} ns  {:+6.1} %  ({least:.0} to {most:.0})",
            case.name,
            median(of.clone()),
            median(shares.collect()),
        );
    }
    Ok(())
}
