use crate::command::{Expiry, Strings};
use crate::lock::LockOp;
use inband_resp::request::Args;

use super::*;
use crate::types::{Combine, MultiPop, Op, Sample};

#[test]
fn round_trip_and_every_cut() {
    let bytes = b"k1v1k2";
    let ranges = [(0, 2), (2, 4), (4, 6), (0, 0)];
    let strings = Strings::Args(Args::new(bytes, &ranges), 0);
    let (mut watched, mut queue) = (BytesMut::new(), BytesMut::new());
    Watched::push(&mut watched, b"k", 1 << 40);
    Watched::push(&mut watched, b"", 0);
    Queue::push(&mut queue, &Command::Get(b"k"));
    Queue::push(&mut queue, &Command::MSet(strings));
    let mut commands = vec![
        Command::Get(b"k"),
        Command::GetDel(b""),
        Command::StrLen(b"k"),
        Command::Type(b"k"),
        Command::Persist(b"k"),
        Command::Ttl(b"k", TimeUnit::Seconds),
        Command::Ttl(b"k", TimeUnit::Milliseconds),
        Command::IncrBy(b"k", i64::MIN),
        Command::IncrBy(b"k", i64::MAX),
        Command::IncrBy(b"k", -1),
        Command::Append(b"k", &[7; 300]),
        Command::MGet(strings),
        Command::MSet(strings),
        Command::Del(strings),
        Command::Exists(strings),
        Command::DbSize,
        Command::FlushAll,
        Command::SessionNew { owner: 0 },
        Command::SessionNew { owner: u64::MAX },
        Command::GetRange {
            key: b"k",
            start: -1,
            end: i64::MAX,
        },
        Command::SetRange {
            key: b"k",
            offset: 300,
            value: b"v",
        },
        Command::GetEx(b"k", Expiry::Never),
        Command::GetEx(b"k", Expiry::InMs(7)),
        Command::IncrByFloat(b"k", b"0.5"),
        Command::CompareDelete(b"k", b"token"),
        Command::CompareExpire {
            key: b"k",
            value: b"token",
            ms: -3,
            extend: Extend::AddIfExpiring,
        },
        Command::MSetNx(strings),
        Command::Eval {
            text: b"return 1",
            keys: strings,
            args: strings,
            is_read_only: false,
            calls_version: COMMANDS_VERSION,
        },
        Command::Eval {
            text: b"",
            keys: strings,
            args: strings,
            is_read_only: true,
            calls_version: COMMANDS_VERSION - 1,
        },
        Command::ScriptLoad(b"return 1"),
        Command::ScriptFlush,
        Command::MultiPop {
            pop: MultiPop {
                kind: Kind::SortedSet,
                from_end: true,
                count: 300,
            },
            keys: strings,
            timeout: Some(b"0.5"),
        },
        Command::MultiPop {
            pop: MultiPop {
                kind: Kind::List,
                from_end: false,
                count: 1,
            },
            keys: strings,
            timeout: None,
        },
        Command::Combine {
            op: Combine::ZInterStore,
            target: b"t",
            keys: strings,
            options: strings,
        },
        Command::Combine {
            op: Combine::SInterCard,
            target: b"",
            keys: strings,
            options: Strings::Encoded(0, &[]),
        },
        Command::Sample {
            sample: Sample {
                kind: Kind::Hash,
                count: Some(i64::MIN + 1),
                with_values: true,
                seed: u64::MAX,
            },
            key: b"k",
        },
        Command::Bits {
            op: BitOp::BitFieldRo,
            key: b"k",
            args: strings,
        },
        Command::CombineBits {
            logic: BitLogic::Not,
            target: b"t",
            keys: strings,
        },
        Command::Sample {
            sample: Sample {
                kind: Kind::Set,
                count: None,
                with_values: false,
                seed: 0,
            },
            key: b"",
        },
        Command::SetEvents(EventClasses::of_bits(0b1000_0000_0111).unwrap()),
        Command::SetIfEqual {
            key: b"k",
            value: b"new",
            expected: b"old",
            expiry: Expiry::InMs(5),
            reply: SetReply::Old,
        },
        Command::Typed {
            op: Op::HSet,
            key: b"k",
            args: strings,
        },
        Command::Typed {
            op: Op::SScan,
            key: b"",
            args: strings,
        },
        Command::Restore {
            kind: Kind::List,
            key: b"k",
            expire_at_ms: 300,
            value: b"v",
        },
        Command::Rename {
            from: b"k",
            to: b"other",
            only_if_missing: true,
        },
        Command::Copy {
            from: b"k",
            to: b"",
            replaces: false,
        },
        Command::Publish {
            channel: b"c",
            payload: b"",
        },
        Command::Ttl(b"k", TimeUnit::AtMilliseconds),
        Command::Keys(b"k*"),
        Command::Watch(strings),
        Command::Exec {
            watched: Watched::new(2, &watched),
            commands: Queue::new(2, &queue),
        },
        Command::Exec {
            watched: Watched::new(0, &[]),
            commands: Queue::new(0, &[]),
        },
    ];
    for expiry in [
        Expiry::Never,
        Expiry::Keep,
        Expiry::InMs(-5),
        Expiry::AtMs(1 << 50),
    ] {
        for reply in SET_REPLY {
            for when in SET_WHEN {
                commands.push(Command::Set {
                    key: b"k",
                    value: b"v",
                    when,
                    expiry,
                    reply,
                });
            }
        }
        for when in EXPIRE_WHEN {
            commands.push(Command::Expire {
                key: b"k",
                expiry,
                when,
            });
        }
    }
    for command in commands {
        for stamp in [
            None,
            Some(SessionStamp {
                id: u64::MAX,
                seq: 300,
                low: 1,
            }),
        ] {
            let mut out = BytesMut::new();
            command.encode(stamp, &mut out);
            assert_eq!(Command::decode(&out), Some((command, stamp)));
            for len in 0..out.len() {
                assert_eq!(
                    Command::decode(&out[..len]),
                    None,
                    "{command:?} cut at {len}"
                );
            }
            out.put_u8(0);
            assert_eq!(
                Command::decode(&out),
                None,
                "{command:?} with a byte too many"
            );
        }
    }
}

#[test]
fn the_version_is_that_of_the_latest_operation() {
    let version = |command: &Command<'_>| {
        let mut out = BytesMut::new();
        command.encode(None, &mut out);
        version_of(&out)
    };
    assert_eq!(version(&Command::Get(b"k")), 1);
    assert_eq!(version(&Command::Keys(b"k")), 2);
    let (channel, payload) = (b"c", b"m");
    assert_eq!(version(&Command::Publish { channel, payload }), 8);
    assert_eq!(version(&Command::CompareDelete(b"k", b"v")), 3);
    assert_eq!(version(&Command::ScriptFlush), 4);
    let pop = MultiPop {
        kind: Kind::List,
        from_end: true,
        count: 300,
    };
    let pop = Command::MultiPop {
        pop,
        keys: Strings::Encoded(0, &[]),
        timeout: None,
    };
    assert_eq!(version(&pop), 10);
    let events = Command::SetEvents(EventClasses::default());
    assert_eq!(version(&events), 10);
    assert_eq!(version(&Command::Ttl(b"k", TimeUnit::Seconds)), 1);
    assert_eq!(version(&Command::Ttl(b"k", TimeUnit::AtSeconds)), 7);
    let none = Strings::Encoded(0, &[]);
    let script = |calls_version| Command::Eval {
        text: b"return redis.call('hget', KEYS[1], 'f')",
        keys: none,
        args: none,
        is_read_only: false,
        calls_version,
    };
    assert_eq!(version(&script(11)), 11);
    assert_eq!(version(&script(12)), 12);
    let sample = Sample {
        kind: Kind::Set,
        count: None,
        with_values: false,
        seed: 0,
    };
    assert_eq!(version(&Command::Sample { sample, key: b"k" }), 11);
    let sum = Command::Combine {
        op: Combine::ZUnion,
        target: b"",
        keys: none,
        options: none,
    };
    assert_eq!(version(&sum), 11);
    let bits = Command::Bits {
        op: BitOp::GetBit,
        key: b"k",
        args: none,
    };
    assert_eq!(version(&bits), 12);
    let combined = Command::CombineBits {
        logic: BitLogic::And,
        target: b"t",
        keys: none,
    };
    assert_eq!(version(&combined), 12);
    let lock = Command::Lock {
        op: LockOp::Get,
        key: b"k",
        owner: b"",
        ttl_ms: 0,
    };
    assert_eq!(version(&lock), 9);
    let (op, key, args) = (Op::HGetAll, b"k", none);
    assert_eq!(version(&Command::Typed { op, key, args }), 6);
    let op = Op::ZCard;
    assert_eq!(version(&Command::Typed { op, key, args }), 7);
    for op in [Op::BLPop, Op::BZPopMin] {
        assert_eq!(version(&Command::Typed { op, key, args }), 8);
    }
    for (inner, expected) in [
        (Command::Get(b"k"), 2),
        (Command::GetEx(b"k", Expiry::Never), 3),
        (Command::ScriptLoad(b"return 1"), 4),
        (script(12), 12),
    ] {
        let mut queue = BytesMut::new();
        Queue::push(&mut queue, &inner);
        let exec = Command::Exec {
            watched: Watched::new(0, &[]),
            commands: Queue::new(1, &queue),
        };
        assert_eq!(version(&exec), expected);
    }
}

#[test]
fn lying_lengths_are_refused() {
    assert_eq!(
        Command::decode(&[OP_GET, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
        None
    );
    assert_eq!(
        Command::decode(&[OP_DEL, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, b'a']),
        None
    );
    assert_eq!(Command::decode(&[OP_MSET, 1, 1, b'a']), None);
    assert_eq!(Command::decode(&[OP_TTL, 4, 1, b'a']), None);
    // Neither transactions nor session commands are allowed in a transaction.
    assert_eq!(Command::decode(&[OP_EXEC, 0, 1, 3, OP_EXEC, 0, 0]), None);
    assert_eq!(Command::decode(&[OP_EXEC, 0, 1, 1, OP_SESSION_NEW]), None);
}
