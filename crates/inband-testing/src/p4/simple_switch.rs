//! A `simple_switch` (bmv2) under test: its packets through pcap files, the input being a FIFO, so that no test needs
//! root; its registers, tables and groups through its Thrift interface.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use inband_bmv2::Client;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use crate::port::free_ports;

/// For what takes milliseconds on an idle machine.
const DEADLINE: Duration = Duration::from_secs(120);
/// The port that frames come in through.
pub const SENDER_PORT: usize = 0;
pub const HOST_PORT: usize = 1;
pub const GROUP_PORT: usize = 2;
/// Multicast group of the answers for a group, in `ground/p4/frame.p4`.
const GROUP: usize = 1;
const PORTS: usize = 3;
/// Frames between two waits: `simple_switch` drops beyond 64 queued ones.
const BURST: usize = 16;
const GLOBAL_HEADER_LEN_BYTES: usize = 24;
const RECORD_HEADER_LEN_BYTES: usize = 16;

/// The process, and what it is still to send.
pub struct SimpleSwitch {
    child: Child,
    control: Client,
    input: File,
    outputs: Vec<PathBuf>,
    read: [usize; PORTS],
    expected: [Vec<(String, Vec<u8>)>; PORTS],
    /// Frames since the last wait.
    sent: usize,
    waits: u64,
    /// Register arrays read since the last frame or write.
    known: BTreeMap<String, Vec<u64>>,
    _folder: TempDir,
}

impl Drop for SimpleSwitch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address that frames between bursts go to, one for each port.
fn marker_mac(port: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, port as u8]
}

fn record(frame: &[u8]) -> Vec<u8> {
    let len = (frame.len() as u32).to_le_bytes();
    [&[0; 8], &len[..], &len[..], frame].concat()
}

impl SimpleSwitch {
    /// Starts a compiled program.
    pub fn start(program: &Path, json: &Path) -> SimpleSwitch {
        let folder = tempfile::tempdir().expect("simple_switch works");
        let name = |port: usize, end| folder.path().join(format!("{port}_{end}.pcap"));
        let mut header = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
        header.extend([0; 8]);
        header.extend([0, 0, 4, 0, 1, 0, 0, 0]);
        mkfifo(&name(SENDER_PORT, "in"), Mode::S_IRWXU).expect("simple_switch works");
        for port in 1..PORTS {
            fs::write(name(port, "in"), &header).expect("simple_switch works");
        }
        let thrift_port = free_ports(1);
        let mut command = Command::new(program);
        command.args(["--use-files", "0", "--log-level", "off"]);
        command.args(["--thrift-port", &thrift_port.to_string()]);
        for port in 0..PORTS {
            let path = folder.path().join(port.to_string());
            command.args(["-i", &format!("{port}@{}", path.display())]);
        }
        command.arg(json).stdout(Stdio::null());
        let mut child = command.spawn().expect("simple_switch works");
        // Read and write, so that opening does not wait for the other end.
        let mut input = OpenOptions::new()
            .read(true)
            .write(true)
            .open(name(SENDER_PORT, "in"))
            .expect("simple_switch works");
        input.write_all(&header).expect("simple_switch works");
        let until = Instant::now() + DEADLINE;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, thrift_port));
        let control = loop {
            match Client::connect(address, DEADLINE) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            assert_eq!(
                child.try_wait().expect("simple_switch works"),
                None,
                "simple_switch ended"
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        let outputs = (0..PORTS).map(|port| name(port, "out")).collect();
        let mut switch = SimpleSwitch {
            child,
            control,
            input,
            outputs,
            read: [GLOBAL_HEADER_LEN_BYTES; PORTS],
            expected: Default::default(),
            sent: 0,
            waits: 0,
            known: BTreeMap::new(),
            _folder: folder,
        };
        switch.prepare();
        switch
    }

    /// Markers' routes, and a group with one member.
    fn prepare(&mut self) {
        for port in 0..PORTS {
            let data = (port as u16).to_be_bytes();
            self.add_entry("forward", &marker_mac(port), "to_port", &[&data]);
        }
        let made = self.control.create_group(GROUP);
        made.expect("simple_switch works");
        let added = self.control.add_member(GROUP, 1, GROUP_PORT);
        added.expect("simple_switch works");
    }

    /// Sets the action of a table for what has no entry.
    pub fn set_default(&mut self, table: &str, action: &str, data: &[&[u8]]) {
        let set = self.control.set_default(table, action, data);
        set.expect("simple_switch works");
    }

    /// Adds an entry for one key.
    pub fn add_entry(&mut self, table: &str, key: &[u8], action: &str, data: &[&[u8]]) {
        let added = self.control.add_entry(table, key, action, data);
        added.expect("simple_switch works");
    }

    /// Writes a register, after all packets sent before.
    pub fn write(&mut self, register: &str, index: usize, value: u64) {
        self.settle();
        self.known.clear();
        let written = self.control.write_register(register, index, value);
        written.expect("simple_switch works");
    }

    /// Returns a register after all packets sent before.
    pub fn register(&mut self, array: &str, index: usize) -> u64 {
        self.settle();
        if !self.known.contains_key(array) {
            let words = self.control.registers(array);
            let words = words.expect("simple_switch works");
            self.known.insert(array.to_owned(), words);
        }
        self.known[array][index]
    }

    /// Returns the packets of a counter.
    pub fn counter(&mut self, name: &str, index: usize) -> u64 {
        let counted = self.control.packets(name, index);
        counted.expect("simple_switch works")
    }

    /// Sends a frame, and notes what must come out of which port.
    pub fn send(&mut self, frame: &[u8], out: Option<(usize, Vec<u8>)>, what: &str) {
        self.input
            .write_all(&record(frame))
            .expect("simple_switch works");
        if let Some((port, frame)) = out {
            self.expected[port].push((what.to_owned(), frame));
        }
        self.known.clear();
        self.sent += 1;
        if self.sent == BURST {
            self.settle();
        }
    }

    /// Waits until everything sent has left, and compares it: a frame to each port comes last.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.sent) == 0 {
            return;
        }
        self.waits += 1;
        let markers: Vec<Vec<u8>> = (0..PORTS)
            .map(|port| {
                let number = self.waits.to_be_bytes();
                [&marker_mac(port)[..], &[2; 6], &[0x88, 0xb6], &number].concat()
            })
            .collect();
        for marker in &markers {
            self.input
                .write_all(&record(marker))
                .expect("simple_switch works");
        }
        let until = Instant::now() + DEADLINE;
        for (port, marker) in markers.iter().enumerate() {
            let mut expected = std::mem::take(&mut self.expected[port]).into_iter();
            loop {
                let Some(frame) = self.next(port) else {
                    assert!(Instant::now() < until, "port {port}: nothing comes out");
                    assert_eq!(
                        self.child.try_wait().expect("simple_switch works"),
                        None,
                        "simple_switch ended"
                    );
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                if frame == *marker {
                    break;
                }
                let (what, right) = expected
                    .next()
                    .unwrap_or_else(|| panic!("port {port}: more than expected: {frame:02x?}"));
                assert_eq!(frame, right, "port {port}: {what}");
            }
            if let Some((what, _)) = expected.next() {
                panic!("port {port}: nothing came out of {what}");
            }
        }
    }

    fn next(&mut self, port: usize) -> Option<Vec<u8>> {
        let all = fs::read(&self.outputs[port]).ok()?;
        let rest = all.get(self.read[port]..)?;
        let len =
            u32::from_le_bytes(rest.get(8..12)?.try_into().expect("simple_switch works")) as usize;
        let frame = rest.get(RECORD_HEADER_LEN_BYTES..RECORD_HEADER_LEN_BYTES + len)?;
        self.read[port] += RECORD_HEADER_LEN_BYTES + len;
        Some(frame.to_vec())
    }
}
