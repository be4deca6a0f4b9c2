//! The operations of a test bench for a role on another target than this machine, and their expected results.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::frame::{turned, GROUP, GROUP_MAC, HERE, NODE};

/// The bench's operations, in order. Bytes are hexadecimal.
#[derive(Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    Settings {
        node: u8,
        address: String,
        port: u16,
        partitions: usize,
        group_mac: String,
        group_address: String,
        group_port: u16,
    },
    /// The role's clock, until the next such operation.
    Clock {
        now_ns: u64,
    },
    /// Labels the following operations.
    Note {
        text: String,
    },
    Write {
        space: usize,
        index: usize,
        word: usize,
        value: u64,
    },
    WriteValue {
        index: usize,
        bytes: String,
    },
    Check {
        space: usize,
        index: usize,
        word: usize,
        value: u64,
    },
    CheckValue {
        index: usize,
        bytes: String,
    },
    /// `dest` and `out` describe the output frame, if there is one; `reason` is the counted reason, if any.
    Frame {
        bytes: String,
        dest: Option<u8>,
        out: String,
        reason: String,
    },
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(space: usize, index: usize, word: usize, value: u64) -> Op {
    Op::Write {
        space,
        index,
        word,
        value,
    }
}

fn check(space: usize, index: usize, word: usize, value: u64) -> Op {
    Op::Check {
        space,
        index,
        word,
        value,
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq)]
pub enum To {
    Nobody,
    Host,
    Sender,
    Group,
}

/// The words accessible through the host's port: rows of registers by space, and values.
#[derive(Clone, Default, PartialEq)]
pub struct Words {
    pub spaces: [Vec<Vec<u64>>; 3],
    pub values: Vec<Vec<u8>>,
}

impl Words {
    /// The words that differ from `before`, one operation each.
    fn changed(
        &self,
        before: &Words,
        word: impl Fn(usize, usize, usize, u64) -> Op,
        value: impl Fn(usize, String) -> Op,
    ) -> Vec<Op> {
        let mut ops = Vec::new();
        for (space, all) in self.spaces.iter().enumerate() {
            for (index, words) in all.iter().enumerate() {
                for (at, now) in words.iter().enumerate() {
                    let old = before.spaces[space].get(index).map_or(0, |words| words[at]);
                    if *now != old {
                        ops.push(word(space, index, at, *now));
                    }
                }
            }
        }
        for (index, bytes) in self.values.iter().enumerate() {
            if !bytes.is_empty() && before.values.get(index) != Some(bytes) {
                ops.push(value(index, hex(bytes)));
            }
        }
        ops
    }
}

/// The operations for the bench, and the contents of the role's memory after them.
pub struct Script {
    pub ops: Vec<Op>,
    known: Words,
    /// The state at the last comparison of registers.
    compared: Words,
    pub frames: usize,
    pub reasons: BTreeMap<String, usize>,
}

impl Script {
    /// A script for node [`NODE`] at [`HERE`].
    pub fn new(partitions: usize) -> Script {
        let settings = Op::Settings {
            node: NODE,
            address: hex(&HERE.ip().octets()),
            port: HERE.port(),
            partitions,
            group_mac: hex(&GROUP_MAC),
            group_address: hex(&GROUP.0),
            group_port: GROUP.1,
        };
        Script {
            ops: vec![settings],
            known: Words::default(),
            compared: Words::default(),
            frames: 0,
            reasons: BTreeMap::new(),
        }
    }

    pub fn note(&mut self, text: String) {
        self.ops.push(Op::Note { text });
    }

    /// The host sets the registers to these.
    pub fn set(&mut self, now: Words) {
        let value = |index, bytes| Op::WriteValue { index, bytes };
        self.ops.extend(now.changed(&self.known, write, value));
        self.compared = now.clone();
        self.known = now;
    }

    /// A frame arrives, and this packet leaves. `reason` is "" for a frame that is not ours.
    pub fn frame(&mut self, frame: &[u8], to: To, packet: &[u8], reason: &str) {
        let (dest, out) = match to {
            To::Nobody => (None, Vec::new()),
            To::Host => (Some(0), frame.to_vec()),
            To::Sender => (Some(1), turned(frame, packet, None)),
            To::Group => (Some(2), turned(frame, packet, Some(GROUP))),
        };
        *self.reasons.entry(reason.to_owned()).or_default() += 1;
        self.frames += 1;
        self.ops.push(Op::Frame {
            bytes: hex(frame),
            dest,
            out: hex(&out),
            reason: reason.to_owned(),
        });
    }

    /// Compares the registers. Those that have not changed since the last comparison are not read again.
    pub fn compare(&mut self, now: Words) {
        let value = |index, bytes| Op::CheckValue { index, bytes };
        self.ops.extend(now.changed(&self.compared, check, value));
        self.compared = now.clone();
        self.known = now;
    }

    pub fn compare_all(&mut self, now: Words) {
        for (space, all) in now.spaces.iter().enumerate() {
            for (index, words) in all.iter().enumerate() {
                let ops = words.iter().enumerate();
                self.ops
                    .extend(ops.map(|(at, word)| check(space, index, at, *word)));
            }
        }
        self.compare(now);
    }
}
