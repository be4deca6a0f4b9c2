//! A `simple_switch` (bmv2) under test: its packets through pcap files, the input being a FIFO, so that no test needs
//! root; its registers, tables and groups through its Thrift interface.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
const PORTS: usize = 3;
/// Frames between two waits: `simple_switch` drops beyond 64 queued ones.
const BURST: usize = 16;
const GLOBAL_HEADER_LEN_BYTES: usize = 24;
const RECORD_HEADER_LEN_BYTES: usize = 16;

/// The arguments of a Thrift call, in the binary protocol.
#[derive(Default)]
struct Fields(Vec<u8>, i16);

impl Fields {
    fn field(&mut self, kind: u8) {
        self.1 += 1;
        self.0.push(kind);
        self.0.extend(self.1.to_be_bytes());
    }

    fn number(mut self, value: usize) -> Fields {
        self.field(8);
        self.0.extend((value as i32).to_be_bytes());
        self
    }

    fn long(mut self, value: u64) -> Fields {
        self.field(10);
        self.0.extend(value.to_be_bytes());
        self
    }

    fn bytes(&mut self, value: &[u8]) {
        self.0.extend((value.len() as i32).to_be_bytes());
        self.0.extend(value);
    }

    fn text(mut self, value: impl AsRef<[u8]>) -> Fields {
        self.field(11);
        self.bytes(value.as_ref());
        self
    }

    fn structure(mut self, value: Fields) -> Fields {
        self.field(12);
        self.0.extend(value.0);
        self.0.push(0);
        self
    }

    fn texts(mut self, values: &[&[u8]]) -> Fields {
        self.field(15);
        self.0.push(11);
        self.0.extend((values.len() as i32).to_be_bytes());
        values.iter().for_each(|value| self.bytes(value));
        self
    }

    /// A list of one struct.
    fn one(mut self, value: Fields) -> Fields {
        self.field(15);
        self.0.push(12);
        self.0.extend(1i32.to_be_bytes());
        self.0.extend(value.0);
        self.0.push(0);
        self
    }
}

/// The process, and what it is still to send.
pub struct SimpleSwitch {
    child: Child,
    thrift: TcpStream,
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
        let thrift = loop {
            match TcpStream::connect(("127.0.0.1", thrift_port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "simple_switch: {error}"),
            }
            assert_eq!(
                child.try_wait().expect("simple_switch works"),
                None,
                "simple_switch ended"
            );
            std::thread::sleep(Duration::from_millis(20));
        };
        thrift.set_nodelay(true).expect("simple_switch works");
        thrift
            .set_read_timeout(Some(DEADLINE))
            .expect("simple_switch works");
        let outputs = (0..PORTS).map(|port| name(port, "out")).collect();
        let mut switch = SimpleSwitch {
            child,
            thrift,
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
        let pre = "simple_pre_lag";
        self.call(
            pre,
            "bm_mc_mgrp_create",
            Fields::default().number(0).number(1),
        );
        let map = format!("{:b}", 1 << GROUP_PORT);
        let node = Fields::default().number(0).number(1).text(map).text("");
        self.call(pre, "bm_mc_node_create", node);
        let join = Fields::default().number(0).number(1).number(0);
        self.call(pre, "bm_mc_node_associate", join);
    }

    /// Returns the bytes of the result: the struct's fields. Panics on an exception.
    fn call(&mut self, service: &str, method: &str, arguments: Fields) -> Vec<u8> {
        let name = format!("{service}:{method}");
        let mut out = vec![0x80, 1, 0, 1];
        out.extend((name.len() as i32).to_be_bytes());
        out.extend(name.as_bytes());
        out.extend([0; 4]);
        out.extend(arguments.0);
        out.push(0);
        self.thrift.write_all(&out).expect("simple_switch works");
        let kind = self.take(4)[3];
        let len = u32::from_be_bytes(self.take(4).try_into().expect("simple_switch works"));
        self.take(len as usize + 4);
        assert_eq!(kind, 2, "{name} raised an exception");
        let result = match self.take(1)[0] {
            0 => return Vec::new(),
            field => field,
        };
        let id = self.take(2);
        assert_eq!(id, [0, 0], "{name} was refused");
        let value = match result {
            8 => self.take(4),
            10 => self.take(8),
            // Of i64.
            15 => {
                let count =
                    u32::from_be_bytes(self.take(5)[1..].try_into().expect("simple_switch works"));
                self.take(8 * count as usize)
            }
            // struct BmCounterValue: two i64, the second are the packets.
            12 => {
                let fields = self.take(23);
                fields[14..22].to_vec()
            }
            other => panic!("{name}: a result of type {other}"),
        };
        self.take(1);
        value
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.thrift
            .read_exact(&mut bytes)
            .expect("simple_switch works");
        bytes
    }

    /// Sets the action of a table for what has no entry.
    pub fn set_default(&mut self, table: &str, action: &str, data: &[&[u8]]) {
        let what = Fields::default().number(0).text(table).text(action);
        self.call("standard", "bm_mt_set_default_action", what.texts(data));
    }

    /// Adds an entry for one key.
    pub fn add_entry(&mut self, table: &str, key: &[u8], action: &str, data: &[&[u8]]) {
        // EXACT.
        let key = Fields::default()
            .number(0)
            .structure(Fields::default().text(key));
        let what = Fields::default().number(0).text(table).one(key);
        let what = what.text(action).texts(data).structure(Fields::default());
        self.call("standard", "bm_mt_add_entry", what);
    }

    /// Writes a register, after all packets sent before.
    pub fn write(&mut self, register: &str, index: usize, value: u64) {
        self.settle();
        self.known.clear();
        let what = Fields::default().number(0).text(register).number(index);
        self.call("standard", "bm_register_write", what.long(value));
    }

    /// Returns a register after all packets sent before.
    pub fn register(&mut self, array: &str, index: usize) -> u64 {
        self.settle();
        if !self.known.contains_key(array) {
            let what = Fields::default().number(0).text(array);
            let words = self.call("standard", "bm_register_read_all", what);
            let words = words.chunks(8);
            let words =
                words.map(|word| u64::from_be_bytes(word.try_into().expect("simple_switch works")));
            self.known.insert(array.to_owned(), words.collect());
        }
        self.known[array][index]
    }

    /// Returns the packets of a counter.
    pub fn counter(&mut self, name: &str, index: usize) -> u64 {
        let what = Fields::default().number(0).text(name).number(index);
        let value = self.call("standard", "bm_counter_read", what);
        u64::from_be_bytes(value.try_into().expect("simple_switch works"))
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
