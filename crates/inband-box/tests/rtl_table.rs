//! The hash table in RTL (`dataplane/box/rtl/table.py`) against a table of the process, with the layout of `table.h`: random changes
//! and lookups, and values that change meanwhile.
#![allow(missing_docs, unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use inband_box::c;
use inband_box::memcached::udp::DATAGRAM_BYTES_MAX;
use inband_box::store::{Meta, Region, Table};
use inband_testing::not_run;
use inband_testing::random::{seed, Prng};
use inband_testing::rtl::{packets, replay};
use inband_testing::script::{hex, Op};

use crate::gets::reply_of;

/// As many as the block has buckets.
const CHUNKS: u64 = 64;
const CHUNK_WORDS: usize = c::IB_BOX_CHUNK_WORDS as usize;
/// Entries of a bucket; a chain may be longer.
const WAYS: usize = 4;
/// Room of each entry's key, in words, and value, in lines of 64 bytes and in words.
const KEY_WORDS: usize = 32;
const VALUE_LINES: usize = 32;
const VALUE_WORDS: usize = VALUE_LINES * 8;
/// Words behind an index of the host's port.
const PIECE_WORDS: usize = 32;
/// Spaces of the host's port.
const HEADER: usize = 0;
const BUCKETS: usize = 1;
const KEYS: usize = 2;
const VALUES: usize = 3;
/// Bytes around a reply's text: memcached's header.
const FRAME_BYTES: usize = 8;
/// Changes for each lookup, in percent.
const CHANGES_PERCENT: u64 = 30;
/// Exit status of `scripts/rtl`.
const CANNOT_RUN: i32 = 77;

/// A table, and what the block has of it.
struct Mirror {
    table: Table,
    /// The table's memory.
    memory: Region,
    known: BTreeMap<(usize, usize, usize), u64>,
    ops: Vec<Op>,
}

/// An item, as the table has it.
struct Stored {
    hash: u64,
    lengths: u64,
    flags: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    let word = |piece: &[u8]| {
        let mut eight = [0; 8];
        eight[..piece.len()].copy_from_slice(piece);
        u64::from_le_bytes(eight)
    };
    bytes.chunks(8).map(word).collect()
}

impl Mirror {
    fn new() -> Mirror {
        let table = Table::new(CHUNKS).unwrap();
        let file = table.file().expect("a memory file").try_clone().unwrap();
        let len_bytes = File::from(file.try_clone().unwrap())
            .metadata()
            .unwrap()
            .len();
        let memory = Region::map(file, len_bytes as usize / 8).unwrap();
        let mut mirror = Mirror {
            table,
            memory,
            known: BTreeMap::new(),
            ops: Vec::new(),
        };
        for at in [
            c::IB_BOX_T_HASH_KEY as usize,
            c::IB_BOX_T_HASH_KEY as usize + 1,
        ] {
            mirror.write((HEADER, 0, at), mirror.word(at));
        }
        mirror.write((HEADER, 0, c::IB_BOX_T_REPLACED as usize), 0);
        for bucket in 0..mirror.buckets() {
            mirror.write((BUCKETS, bucket, 0), 0);
        }
        mirror
    }

    fn word(&self, at: usize) -> u64 {
        self.memory.words()[at].load(std::sync::atomic::Ordering::Relaxed)
    }

    fn buckets(&self) -> usize {
        1 << self.word(c::IB_BOX_T_BUCKETS_LOG2 as usize)
    }

    /// Returns the bucket of a key, by the C code.
    fn bucket_of(&self, key: &[u8]) -> usize {
        let at = c::IB_BOX_T_HASH_KEY as usize;
        let (k0, k1) = (self.word(at), self.word(at + 1));
        let hash_key = c::ib_box_hash_key { k0, k1 };
        // SAFETY: the function reads the key of this length.
        let hash = unsafe { c::ib_box_hash(&raw const hash_key, key.as_ptr(), key.len() as u32) };
        (hash >> (64 - self.word(c::IB_BOX_T_BUCKETS_LOG2 as usize))) as usize
    }

    fn bucket_at(&self, bucket: usize) -> usize {
        CHUNK_WORDS + bucket * c::IB_BOX_BUCKET_WORDS as usize
    }

    fn chunk_at(&self, link: u64) -> usize {
        self.bucket_at(self.buckets()) + (link as usize - 1) * CHUNK_WORDS
    }

    /// Returns a bucket's chain of items.
    fn chain(&self, bucket: usize) -> Vec<Stored> {
        let mut items = Vec::new();
        let mut link = self.word(self.bucket_at(bucket) + 1);
        while link != 0 {
            let at = self.chunk_at(link);
            let word = |n: u32| self.word(at + n as usize);
            let lengths = word(c::IB_BOX_I_LENGTHS);
            let (key_len, value_len) = ((lengths >> 32) as usize, lengths as u32 as usize);
            let mut bytes = Vec::new();
            let (mut chunk, mut first) = (at, c::IB_BOX_ITEM_WORDS as usize);
            loop {
                let words = chunk + first..chunk + CHUNK_WORDS;
                bytes.extend(words.flat_map(|n| self.word(n).to_le_bytes()));
                if bytes.len() >= key_len + value_len {
                    break;
                }
                chunk = self.chunk_at(self.word(chunk + c::IB_BOX_I_NEXT as usize));
                first = c::IB_BOX_NEXT_WORDS as usize;
            }
            items.push(Stored {
                hash: word(c::IB_BOX_I_HASH),
                lengths,
                flags: word(c::IB_BOX_I_FLAGS),
                key: bytes[..key_len].to_vec(),
                value: bytes[key_len..key_len + value_len].to_vec(),
            });
            link = word(c::IB_BOX_I_LINK);
        }
        items
    }

    fn write(&mut self, at: (usize, usize, usize), value: u64) {
        if self.known.insert(at, value) != Some(value) {
            let (space, index, word) = at;
            self.ops.push(Op::Write {
                space,
                index,
                word,
                value,
            });
        }
    }

    fn write_words(&mut self, space: usize, first: usize, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            let at = first + n;
            self.write((space, at / PIECE_WORDS, at % PIECE_WORDS), *word);
        }
    }

    /// The host does what it has done to its table, bucket by bucket.
    fn follow(&mut self) {
        for bucket in 0..self.buckets() {
            let sequence = self.word(self.bucket_at(bucket));
            let before = self.known[&(BUCKETS, bucket, 0)];
            if sequence == before {
                continue;
            }
            self.write((BUCKETS, bucket, 0), before + 1);
            let chain = self.chain(bucket);
            self.write((BUCKETS, bucket, 1), u64::from(chain.len() > WAYS));
            for way in 0..WAYS {
                let number = bucket * WAYS + way;
                let mut entry = [0; 4];
                if let Some(item) = chain.get(way) {
                    self.write_words(KEYS, number * KEY_WORDS, &words_of(&item.key));
                    // Longer ones are not answered.
                    let value = words_of(&item.value);
                    let kept = value.len().min(VALUE_WORDS);
                    self.write_words(VALUES, number * VALUE_WORDS, &value[..kept]);
                    let places = (((number * VALUE_LINES) << 32) | (number * KEY_WORDS)) as u64;
                    entry = [item.hash, item.lengths, item.flags, places];
                }
                for (n, word) in entry.into_iter().enumerate() {
                    self.write((BUCKETS, bucket, 4 + 4 * way + n), word);
                }
            }
            self.write((BUCKETS, bucket, 0), sequence);
        }
    }

    /// Looks a key up, and says what must be found. Returns the reason.
    fn look(&mut self, key: &[u8], note: String) -> &'static str {
        let (reason, out) = self.expected(key);
        self.ops.push(Op::Note { text: note });
        self.ops.push(Op::Frame {
            bytes: hex(key),
            dest: None,
            out: hex(&out),
            reason: reason.to_owned(),
        });
        reason
    }

    fn expected(&self, key: &[u8]) -> (&'static str, Vec<u8>) {
        if key.len() > c::IB_BOX_KEY_LEN_MAX_BYTES as usize {
            return ("gets_other", Vec::new());
        }
        let chain = self.chain(self.bucket_of(key));
        let place = chain.iter().position(|item| item.key == key);
        let found = self.table.get(key);
        assert_eq!(place.is_some(), found.is_some());
        // The block has no more of a chain.
        if chain.len() > WAYS && place.is_none_or(|place| place >= WAYS) {
            return ("gets_busy", Vec::new());
        }
        let Some(item) = found else {
            return ("gets_miss", Vec::new());
        };
        if reply_of(&self.table, key).len() + FRAME_BYTES > DATAGRAM_BYTES_MAX {
            return ("gets_long", Vec::new());
        }
        let out = [&item.meta.flags.to_be_bytes()[..], &item.value].concat();
        ("gets_hit", out)
    }
}

fn random_key(random: &mut Prng) -> Vec<u8> {
    let len = match random.below(4) {
        0 => 1 + random.below(250),
        1 => 8 * (1 + random.below(31)) + random.below(2),
        _ => 1 + random.below(20),
    };
    (0..len).map(|_| 0x21 + random.below(0xdf) as u8).collect()
}

/// Keys of which many share a bucket.
fn keys(mirror: &Mirror, random: &mut Prng) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..40).map(|_| random_key(random)).collect();
    let crowded: Vec<usize> = keys[..2].iter().map(|key| mirror.bucket_of(key)).collect();
    while keys.len() < 60 {
        let key = random_key(random);
        if crowded.contains(&mirror.bucket_of(&key)) {
            keys.push(key);
        }
    }
    keys.extend([1, 7, 8, 9, 247, 248, 249, 250, 251, 300].map(|len| vec![b'k'; len]));
    keys
}

fn script() -> Vec<Op> {
    let seed = seed();
    eprintln!("INBAND_SEED={seed}");
    let random = &mut Prng(seed);
    let mut mirror = Mirror::new();
    let keys = keys(&mirror, random);
    let (lookups, must_meet) = packets();
    let mut met = BTreeMap::<&str, usize>::new();
    for number in 0..lookups {
        let key = &keys[random.below(keys.len() as u64) as usize];
        if random.below(100) < CHANGES_PERCENT {
            let len = match random.below(6) {
                0 => 1300 + random.below(100),
                1 => random.below(4000),
                2 => random.below(300),
                _ => random.below(40),
            };
            let value: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let meta = Meta {
                flags: match random.below(3) {
                    0 => random.next() as u32,
                    1 => 10_u32.pow(random.below(10) as u32) - random.below(2) as u32,
                    _ => 0,
                },
                marks: random.below(8) as u32,
                ..Meta::default()
            };
            let fits = key.len() <= c::IB_BOX_KEY_LEN_MAX_BYTES as usize;
            if fits && random.below(4) > 0 {
                let _ = mirror.table.put(key, &value, &meta);
            } else {
                mirror.table.remove(key);
            }
            mirror.follow();
        }
        let note = format!("lookup {number} of INBAND_SEED={seed}");
        let reason = mirror.look(key, note);
        *met.entry(reason).or_default() += 1;
    }
    eprintln!("{met:?}");
    for reason in [
        "gets_hit",
        "gets_miss",
        "gets_other",
        "gets_busy",
        "gets_long",
    ] {
        assert!(!must_meet || met.contains_key(reason), "not met: {reason}");
    }
    mirror.ops
}

#[test]
fn the_table_in_rtl_finds_what_the_process_does() {
    replay("box", "table", "random", &script());
}

/// A table that does not check sequences answers with parts of two values, and the bench notices it.
#[test]
fn a_table_in_rtl_without_sequences_is_caught() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/rtl/random-box-table_torn-128.jsonl");
    fs::create_dir_all(root.join("target/rtl")).unwrap();
    let lines = script()
        .iter()
        .map(|op| serde_json::to_string(op).unwrap() + "\n")
        .collect::<String>();
    fs::write(&path, lines).unwrap();
    let mut torn = Command::new(root.join("scripts/rtl"));
    torn.args(["replay", "box", "table_torn", "128"]).arg(&path);
    let got = torn.output().expect("it can be run");
    let said = String::from_utf8_lossy(&got.stdout);
    if got.status.code() == Some(CANNOT_RUN) {
        not_run("Verilator or the RTL's Python packages cannot be had (see above)");
        return;
    }
    assert!(
        !got.status.success() && said.contains("torn: flags"),
        "{said}"
    );
}
