use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

fn meta(cas: u64) -> Meta {
    Meta {
        cas,
        ..Meta::default()
    }
}

#[test]
fn it_holds_what_a_map_holds() {
    let mut random = StdRng::seed_from_u64(17);
    let mut table = Table::new(600).expect("memory");
    let mut map: HashMap<Vec<u8>, (Vec<u8>, Meta)> = HashMap::new();
    let (mut refused, mut copied, mut copies) = (0, None, 0);
    for n in 0..60_000_u64 {
        let key = format!("key-{}", random.random_range(0..150)).into_bytes();
        match random.random_range(0..10) {
            0..=5 => {
                let longest = if random.random_bool(0.05) {
                    20_000
                } else {
                    900
                };
                let value: Vec<u8> = vec![n as u8; random.random_range(0..longest)];
                let meta = Meta {
                    flags: random.random(),
                    expires_ms: random.random_range(0..3) * (n + 50),
                    ..meta(n + 1)
                };
                let needed = chunks_of(key.len(), value.len()) as u64;
                let has_room = table.used_chunks() + needed <= 600;
                assert_eq!(table.put(&key, &value, &meta).is_ok(), has_room);
                match has_room {
                    true => drop(map.insert(key, (value, meta))),
                    false => refused += 1,
                }
            }
            6..=7 => assert_eq!(table.remove(&key), map.remove(&key).is_some()),
            8 => {
                if let Some((_, meta)) = map.get_mut(&key) {
                    meta.marks ^= STALE;
                    assert!(table.set_meta(&key, meta));
                }
            }
            _ => {
                table.expire(n);
                map.retain(|_, (_, meta)| meta.expires_ms == 0 || meta.expires_ms > n);
            }
        }
        assert_eq!(table.len(), map.len() as u64);
        if n % 1000 == 0 {
            let used = map
                .iter()
                .map(|(key, (value, _))| chunks_of(key.len(), value.len()) as u64);
            assert_eq!(table.used_chunks(), used.sum::<u64>());
            table.begin_copy(Vec::new());
            copied = Some((map.clone(), table.digest()));
            for (key, (value, meta)) in &map {
                let item = table.get(key).expect("it is there");
                assert_eq!((&item.value, &item.meta), (value, meta));
            }
            // Another table with the same items, stored in a different order, has the same digest.
            let mut other = Table::new(600).expect("memory");
            let mut items: Vec<_> = map.iter().collect();
            items.sort_by_key(|(key, _)| *key);
            items
                .iter()
                .for_each(|(key, (value, meta))| other.put(key, value, meta).expect("room"));
            assert_eq!(other.digest(), table.digest());
        }
        // A copy made while the table changes shows the state when it was begun.
        if let Some(copy) = table.go_on_copying(3) {
            let (map, digest) = copied.take().expect("it was begun");
            let mut other = Table::new(600).expect("memory");
            other.put(b"gone", b"soon", &Meta::default()).expect("room");
            assert!(other.replace(&copy));
            assert_eq!((other.digest(), other.len()), (digest, map.len() as u64));
            for (key, (value, meta)) in &map {
                let item = other.get(key).expect("it is there");
                assert_eq!((&item.value, &item.meta), (value, meta));
            }
            let is_cut = !copy.is_empty() && other.replace(&copy[..copy.len() - 1]);
            assert!(!is_cut);
            copies += 1;
        }
    }
    assert!(copies > 3, "{copies}");
    assert!(refused > 0, "the table was never full");
    table.clear();
    assert_eq!(
        (table.len(), table.used_chunks(), table.digest()),
        (0, 0, 0)
    );
    assert_eq!(table.next_expiry_ms(), None);
}

/// Readers find every key while a copy replaces all items: they wait, and never see a half-filled table.
#[test]
fn readers_never_see_a_table_that_is_half_replaced() {
    let mut table = Table::new(2_000).expect("memory");
    let keys: Vec<Vec<u8>> = (0..500_u32).map(|n| n.to_be_bytes().to_vec()).collect();
    for key in &keys {
        table.put(key, b"value", &meta(1)).expect("room");
    }
    table.begin_copy(Vec::new());
    let copy = table.go_on_copying(1 << 20).expect("all at once");
    let reader = table.reader_of_others();
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let read = || {
            let mut seen = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                for key in &keys {
                    assert!(reader.get(key).is_some(), "{key:?} is missing");
                    seen += 1;
                }
            }
            seen
        };
        let reader = scope.spawn(read);
        for _ in 0..200 {
            assert!(table.replace(&copy));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Relaxed);
        reader.join().expect("a reader")
    });
    assert!(seen > 0, "readers and writer never met");
}

#[test]
fn the_longest_value_comes_back_whole() {
    let mut table = Table::new(10_000).expect("memory");
    for len in [0, 1, 183, 184, 185, 431, 432, 433, 1 << 20] {
        let value: Vec<u8> = (0..len).map(|n: usize| (n % 251) as u8).collect();
        table.put(b"k", &value, &meta(1)).expect("room");
        assert_eq!(table.get(b"k").expect("it is there").value, value);
        assert_eq!(table.used_chunks(), chunks_of(1, len) as u64);
    }
}

/// Every value repeats one byte, with a length that follows from it, so a torn copy is detected at once.
#[test]
fn readers_of_a_mapping_never_see_half_a_change() {
    let mut table = Table::new(64).expect("memory");
    let file = table.file().expect("not in a map");
    let file = file.try_clone().expect("a file");
    let reader = Reader::open(file).expect("a table");
    let is_over = AtomicBool::new(false);
    let length = |byte: u8| 1 + usize::from(byte) * 5;
    let (seen, tries) = std::thread::scope(|scope| {
        let read = || {
            let (mut seen, mut tries) = (0_u64, 0);
            while !is_over.load(Ordering::Relaxed) {
                for n in 0..4_u8 {
                    let key = [b'k', n];
                    let Some(item) = reader.get_counting(&key, &mut tries) else {
                        continue;
                    };
                    let byte = item.value[0];
                    assert_eq!(item.value.len(), length(byte), "a torn length");
                    assert!(item.value.iter().all(|b| *b == byte), "a torn value");
                    assert_eq!(item.meta.cas, u64::from(byte), "another's cas");
                    seen += 1;
                }
            }
            (seen, tries)
        };
        // Marks what it reads, even if the chunk has become part of another item meanwhile.
        let mark = || {
            while !is_over.load(Ordering::Relaxed) {
                for n in 0..4_u8 {
                    reader.get_and_mark(&[b'k', n], u64::MAX);
                }
            }
            (0, 0)
        };
        let readers = [scope.spawn(read), scope.spawn(mark)];
        let mut random = StdRng::seed_from_u64(5);
        for _ in 0..400_000 {
            let key = [b'k', random.random_range(0..4)];
            let byte = random.random_range(0..255_u8);
            match random.random_bool(0.2) {
                true => drop(table.remove(&key)),
                false => drop(table.put(&key, &vec![byte; length(byte)], &meta(byte.into()))),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        let counts = readers.map(|reader| reader.join().expect("a reader"));
        counts
            .into_iter()
            .fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    });
    println!("{seen} reads, {tries} of them read again");
    assert!(seen > 0 && tries > 0, "readers and writer never met");
}

#[test]
fn a_file_that_is_no_table_is_refused() {
    let region = Region::zeroed(100).expect("memory");
    let file = region.file().expect("a file").try_clone().expect("a file");
    assert!(Reader::open(file).is_err());
}

/// The hash is SipHash-2-4, as another implementation computes it.
#[test]
#[allow(deprecated)]
fn keys_are_hashed_by_siphash() {
    use std::hash::{Hasher, SipHasher};

    let mut random = StdRng::seed_from_u64(24);
    for n in 0..2_000 {
        let len = if n <= KEY_LEN_BYTES_MAX { n } else { n % 60 };
        let key: Vec<u8> = (0..len).map(|_| random.random()).collect();
        let hash_key: (u64, u64) = random.random();
        let mut expected = SipHasher::new_with_keys(hash_key.0, hash_key.1);
        expected.write(&key);
        let layout = Layout::of(100, hash_key);
        assert_eq!(layout.hash_of(&key), expected.finish(), "{len} bytes");
    }
}
