//! Values of the log and the commands in them: whatever decodes is encoded again as the same, and every property of a
//! command can be queried.

use bytes::BytesMut;
use inband_kv::command::Command;
use inband_kv::value::{marker, marker_entry, Chunk, ValueReader, ValueWriter};
use inband_paxos::saved_position;
use inband_resp::reply::Reply;
use xxhash_rust::xxh3::xxh3_64;

const PARTITIONS: usize = 3;

/// The input is a value.
pub fn run(bytes: &[u8]) {
    let entry = marker_entry(bytes);
    let chunk = Chunk::of_value(bytes);
    let commands = ValueReader::new(bytes);
    let kinds = [entry.is_some(), chunk.is_some(), commands.is_ok()];
    assert!(
        kinds.iter().filter(|is| **is).count() <= 1,
        "a value is one thing"
    );
    if let Some(entry) = entry {
        assert_eq!(marker(entry), bytes);
    }
    if let Some(chunk) = chunk {
        let mut written = Vec::new();
        chunk.write(&mut written);
        assert_eq!(written, bytes);
    }
    if let Ok(reader) = commands {
        let mut writer = ValueWriter::new();
        let mut count = 0;
        for encoded in reader.commands() {
            writer.push(encoded);
            count += 1;
            command(encoded);
        }
        assert_eq!(count, reader.count);
        // The first byte states the required version; a proposer may have stated a higher one than necessary.
        assert_eq!(writer.finish(reader.time_ms)[1..], bytes[1..]);
    }
    command(bytes);
    reply(bytes);
    position(bytes);
}

/// A saved position with a correct checksum.
fn position(body: &[u8]) {
    let saved = [body, &xxh3_64(body).to_be_bytes()].concat();
    if let Ok((applied, sessions)) = saved_position::decode(&saved) {
        let again = saved_position::encode(applied, &sessions);
        assert_eq!(saved_position::decode(&again), Ok((applied, sessions)));
    }
}

/// A reply as sessions keep it.
fn reply(encoded: &[u8]) {
    if let Some(reply) = Reply::decode(encoded) {
        let mut written = Vec::new();
        reply.encode(&mut written);
        assert_eq!(Reply::decode(&written), Some(reply));
    }
}

pub fn command(encoded: &[u8]) {
    let Some((command, stamp)) = Command::decode(encoded) else {
        return;
    };
    let mut once = BytesMut::new();
    command.encode(stamp, &mut once);
    let (again, stamp_again) = Command::decode(&once).expect("what was written is read");
    assert_eq!((&again, stamp_again), (&command, stamp));
    let mut twice = BytesMut::new();
    again.encode(stamp_again, &mut twice);
    assert_eq!(once, twice);
    let involved = command.involved(PARTITIONS);
    assert!(involved.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(involved.iter().all(|partition| *partition < PARTITIONS));
    let _ = (command.route(PARTITIONS), command.route(1));
    let _ = (
        command.only_reads(),
        command.replies_with_value(),
        command.stored_len_bytes(),
    );
}
