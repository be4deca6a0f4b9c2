use super::*;

const MS: u64 = 1_000_000;

fn call(op: Op, owner: &str, (call_ms, return_ms): (u64, u64), answer: Answer) -> Call {
    Call {
        op,
        key: "lock".into(),
        owner: owner.into(),
        ttl_ms: 2_000,
        call_ns: call_ms * MS,
        return_ns: return_ms * MS,
        answer,
    }
}

fn acquire(owner: &str, times: (u64, u64), token: u64) -> Call {
    call(Op::Acquire, owner, times, Answer::Token(token))
}

fn change(kind: ChangeKind, value: Option<&str>) -> Change {
    Change {
        kind,
        key: "lock".into(),
        value: value.map(str::to_owned),
    }
}

fn put(value: &str) -> Change {
    change(ChangeKind::Put, Some(value))
}

fn check(calls: Vec<Call>, changes: &[Change]) -> Result<usize, String> {
    let locks = Locks::default();
    calls.into_iter().for_each(|call| locks.called(call));
    let granted = locks.check(|_| vec![changes.to_vec()]);
    granted.map_err(|error| error.to_string())
}

#[track_caller]
fn refused(calls: Vec<Call>, changes: &[Change], why: &str) {
    let error = check(calls, changes).unwrap_err();
    assert!(error.contains(why), "{error}");
}

#[test]
fn one_owner_after_the_other() {
    let calls = vec![
        acquire("a", (0, 10), 5),
        call(Op::Acquire, "b", (20, 30), Answer::Refused),
        call(Op::Renew, "a", (1_000, 1_010), Answer::Token(5)),
        call(
            Op::Get,
            "",
            (1_100, 1_110),
            Answer::Holder(Some(("a".into(), 5))),
        ),
        call(Op::Release, "a", (1_200, 1_210), Answer::Released),
        acquire("c", (1_205, 1_220), 9),
        // Its lease ends.
        acquire("d", (3_000, 3_300), 10),
        call(Op::Renew, "c", (3_310, 3_320), Answer::Refused),
    ];
    let changes = [
        put("inband.lock 5 a"),
        put("inband.lock 5 a"),
        change(ChangeKind::Delete, None),
        put("inband.lock 9 c"),
        change(ChangeKind::Expire, None),
        put("inband.lock 10 d"),
    ];
    assert_eq!(check(calls, &changes), Ok(3));
}

#[test]
fn two_owners_at_once() {
    let while_held = vec![acquire("a", (0, 10), 5), acquire("b", (20, 30), 6)];
    refused(while_held, &[], "had the lock");
    // Shortly before the shortest lease that the clocks allow, and then.
    let shortest_ms = lease_ns(2_000).0 / MS;
    let taken = |at_ms| {
        vec![
            acquire("a", (0, 10), 5),
            acquire("b", (at_ms, at_ms + 10), 6),
        ]
    };
    refused(taken(shortest_ms - 20), &[], "had the lock");
    assert_eq!(check(taken(shortest_ms), &[]), Ok(2));
    // By the log's order.
    let changes = [put("inband.lock 5 a"), put("inband.lock 6 b")];
    refused(
        vec![acquire("a", (0, 10), 5)],
        &changes,
        "two owners at once",
    );
}

#[test]
fn tokens_that_do_not_grow() {
    let released = |token| {
        vec![
            acquire("a", (0, 10), 5),
            call(Op::Release, "a", (20, 30), Answer::Released),
            acquire("b", (40, 50), token),
        ]
    };
    assert_eq!(check(released(6), &[]), Ok(2));
    refused(released(5), &[], "same token");
    refused(released(4), &[], "larger token");
    let changes = |last: &str| {
        [
            put("inband.lock 5 a"),
            change(ChangeKind::Expire, None),
            put(last),
        ]
    };
    assert!(check(released(6), &changes("inband.lock 6 b")).is_ok());
    refused(
        released(6),
        &changes("inband.lock 4 c"),
        "after the token 5",
    );
    refused(released(6), &changes("inband.lock 7 b"), "was told");
    refused(released(6), &changes("something else"), "is not a lock");
    let mut renewed = released(6);
    renewed.push(call(Op::Renew, "b", (60, 70), Answer::Token(7)));
    refused(renewed, &[], "the owner had the token");
}

#[test]
fn who_has_the_lock_keeps_it() {
    for (op, answer) in [
        (Op::Renew, Answer::Refused),
        (Op::Get, Answer::Holder(None)),
        (Op::Get, Answer::Holder(Some(("b".into(), 6)))),
        (Op::Get, Answer::Holder(Some(("a".into(), 6)))),
    ] {
        let owner = if op == Op::Get { "" } else { "a" };
        let lost = call(op, owner, (20, 30), answer);
        let wrong = vec![acquire("a", (0, 10), 5), lost.clone()];
        refused(wrong, &[], "had the lock");
        // Its release may have been decided.
        let release = call(Op::Release, "a", (15, 25), Answer::Unknown);
        if lost.answer != Answer::Holder(Some(("a".into(), 6))) {
            let right = vec![
                acquire("a", (0, 10), 5),
                release,
                lost,
                acquire("b", (21, 29), 6),
            ];
            assert_eq!(check(right, &[]), Ok(2));
        }
    }
}

#[test]
fn a_renewal_may_shorten_the_lease() {
    for (answer, ttl_ms, is_right) in [
        (Answer::Token(5), 800, true),
        (Answer::Token(5), 2_000, false),
        (Answer::Unknown, 800, true),
        (Answer::Failed, 800, false),
    ] {
        let mut renew = call(Op::Renew, "a", (20, 30), answer);
        renew.ttl_ms = ttl_ms;
        let calls = vec![acquire("a", (0, 10), 5), renew, acquire("b", (700, 710), 6)];
        assert_eq!(check(calls.clone(), &[]).is_ok(), is_right, "{calls:?}");
    }
}

#[test]
fn a_repeated_acquisition_may_be_a_new_one() {
    let longest_ms = lease_ns(2_000).1 / MS;
    for (at_ms, op, token, is_right) in [
        (1_000, Op::Acquire, 5, true),
        (1_000, Op::Acquire, 6, false),
        (longest_ms, Op::Acquire, 6, true),
        (longest_ms, Op::Acquire, 4, false),
        (longest_ms, Op::Renew, 6, false),
    ] {
        let again = call(op, "a", (at_ms, at_ms + 10), Answer::Token(token));
        let calls = vec![acquire("a", (0, 10), 5), again.clone()];
        assert_eq!(check(calls, &[]).is_ok(), is_right, "{again:?}");
    }
    // By the log's order, if there was no answer.
    let log = [
        put("inband.lock 5 a"),
        change(ChangeKind::Expire, None),
        put("inband.lock 8 a"),
    ];
    let times = (longest_ms, longest_ms + 10);
    let unknown = |op| {
        vec![
            acquire("a", (0, 10), 5),
            call(op, "a", times, Answer::Unknown),
        ]
    };
    assert_eq!(check(unknown(Op::Acquire), &log), Ok(1));
    refused(unknown(Op::Renew), &log, "was told another token");
}

#[test]
fn leases_end() {
    let holder = Answer::Holder(Some(("a".into(), 5)));
    let longest_ms = lease_ns(2_000).1 / MS;
    for (at_ms, is_right) in [(longest_ms, true), (longest_ms + 20, false)] {
        let times = (at_ms, at_ms + 10);
        for late in [
            call(Op::Get, "", times, holder.clone()),
            call(Op::Acquire, "b", times, Answer::Refused),
        ] {
            let calls = vec![acquire("a", (0, 10), 5), late.clone()];
            assert_eq!(check(calls, &[]).is_ok(), is_right, "{late:?}");
            // A request whose outcome is unknown may have renewed it.
            let renew = call(Op::Renew, "a", (20, 2_020), Answer::Unknown);
            let calls = vec![acquire("a", (0, 10), 5), renew, late];
            assert_eq!(check(calls, &[]), Ok(1));
        }
    }
    let never = vec![
        call(Op::Acquire, "a", (0, 10), Answer::Failed),
        call(Op::Acquire, "b", (20, 30), Answer::Refused),
    ];
    refused(never, &[], "nobody can have had the lock");
}
