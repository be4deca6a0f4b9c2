use super::*;

/// Keys of one partition; in several, of different ones.
const A: &str = "watched:a";

fn push(revision: &str, kind: &str, key: &str, value: Option<&str>) -> Vec<Option<String>> {
    let text = |text: &str| Some(text.to_owned());
    let key = Some(key).filter(|key| !key.is_empty()).and_then(text);
    vec![
        text("inband.watch"),
        text("watched:"),
        text(revision),
        text(kind),
        key,
        value.and_then(text),
    ]
}

fn put(changes: &Changes, watcher: usize, revision: &str, value: &str) {
    changes.pushed(watcher, push(revision, "put", A, Some(value)));
}

fn write(changes: &Changes, value: &str, (call_ns, return_ns): (u64, u64), outcome: Outcome) {
    changes.wrote(Write {
        key: A.into(),
        value: value.into(),
        call_ns,
        return_ns,
        outcome,
    });
}

/// Two watchers since revision 5, and two values that were written one after the other.
fn two() -> Changes {
    let changes = Changes::new(1);
    for watcher in 0..2 {
        changes.begin(watcher, "5", 10).unwrap();
    }
    write(&changes, "x", (20, 30), Outcome::Ok);
    write(&changes, "y", (40, 50), Outcome::Ok);
    changes
}

fn ends_with(value: Option<&str>) -> BTreeMap<String, Option<String>> {
    BTreeMap::from([(A.to_owned(), value.map(str::to_owned))])
}

#[track_caller]
fn refused(changes: &Changes, last: Option<&str>, why: &str) {
    let error = changes.check(&ends_with(last)).unwrap_err().to_string();
    assert!(error.contains(why), "{error}");
}

#[test]
fn all_changes_once_and_in_order() {
    let changes = two();
    for watcher in 0..2 {
        put(&changes, watcher, "6-1", "x");
        assert_eq!(changes.seen(watcher).as_deref(), Some("6-1"));
        changes.resume();
        put(&changes, watcher, "8-1", "y");
    }
    changes.pushed(0, push("9", PROGRESS, "", None));
    let checked = changes.check(&ends_with(Some("y"))).unwrap();
    let expected = Checked {
        changes: 4,
        resumed: 2,
        gone: 0,
    };
    assert_eq!(checked, expected);
    changes.pushed(0, push("10-1", "delete", A, None));
    refused(&changes, None, "last change that was pushed");
    changes.pushed(1, push("10-1", "delete", A, None));
    assert!(changes.check(&ends_with(None)).is_ok());
}

#[test]
fn a_change_that_is_pushed_twice_or_late() {
    for revision in ["6-1", "5", "6"] {
        let changes = two();
        put(&changes, 0, "6-1", "x");
        put(&changes, 0, revision, "y");
        let is_later = revision == "6";
        assert_eq!(changes.check(&ends_with(Some("y"))).is_ok(), is_later);
    }
    // The same value at another place.
    let changes = two();
    put(&changes, 0, "6-1", "x");
    put(&changes, 0, "7-1", "x");
    refused(&changes, Some("x"), "pushed twice");
}

#[test]
fn a_change_that_is_missing() {
    // At the other watcher, which saw a later one.
    let changes = two();
    put(&changes, 0, "6-1", "x");
    put(&changes, 0, "8-1", "y");
    put(&changes, 1, "8-1", "y");
    refused(&changes, Some("y"), "not to another");
    // At both.
    let changes = two();
    put(&changes, 0, "8-1", "y");
    put(&changes, 1, "8-1", "y");
    refused(&changes, Some("y"), "was acknowledged, but not pushed");
    // The last one.
    let changes = two();
    put(&changes, 0, "6-1", "x");
    put(&changes, 1, "6-1", "x");
    refused(&changes, Some("y"), "last change that was pushed");
    // It was not acknowledged, or was made before the watchers began.
    for (value, times, outcome) in [
        ("z", (20, 30), Outcome::Unknown),
        ("z", (20, 30), Outcome::Failed),
        ("z", (9, 30), Outcome::Ok),
        ("z", (20, 41), Outcome::Ok),
    ] {
        let changes = two();
        write(&changes, value, times, outcome);
        put(&changes, 0, "6-1", "x");
        put(&changes, 0, "8-1", "y");
        assert!(changes.check(&ends_with(Some("y"))).is_ok(), "{times:?}");
    }
}

#[test]
fn a_gap_is_only_where_the_watcher_was_told() {
    for is_told in [true, false] {
        let changes = two();
        put(&changes, 0, "8-1", "y");
        if is_told {
            changes.lose(1);
            changes.begin(1, "7", 35).unwrap();
        }
        put(&changes, 1, "8-1", "y");
        let checked = changes.check(&ends_with(Some("y")));
        assert!(checked.is_err(), "watcher 0 was not told");
        let changes = two();
        changes.lose(0);
        if is_told {
            changes.lose(1);
            changes.begin(1, "7", 35).unwrap();
        }
        put(&changes, 1, "8-1", "y");
        let checked = changes.check(&ends_with(Some("y")));
        assert_eq!(checked.map_or(0, |c| c.gone), if is_told { 2 } else { 0 });
    }
}

#[test]
fn what_nobody_wrote_or_in_another_order() {
    let changes = two();
    put(&changes, 0, "6-1", "z");
    refused(&changes, Some("z"), "which nobody wrote");
    let changes = two();
    put(&changes, 0, "6-1", "y");
    put(&changes, 0, "7-1", "x");
    refused(&changes, Some("x"), "which was written before it");
    let changes = two();
    write(&changes, "z", (60, 70), Outcome::Failed);
    put(&changes, 0, "6-1", "x");
    put(&changes, 0, "7-1", "z");
    refused(&changes, Some("z"), "had no effect");
    let changes = two();
    put(&changes, 0, "6-1", "x");
    changes.pushed(0, push("6-2", "expire", A, None));
    changes.pushed(0, push("6-3", "delete", A, None));
    refused(&changes, None, "did not exist");
    let changes = two();
    put(&changes, 0, "6-1", "x");
    put(&changes, 1, "6-1", "y");
    refused(&changes, Some("x"), "to another");
    let changes = two();
    changes.pushed(0, push("6", "flush", "", None));
    refused(&changes, None, "was pushed");
    let changes = two();
    changes.pushed(0, vec![None; 5]);
    refused(&changes, None, "six parts");
}

#[test]
fn a_revision_has_a_part_for_each_partition() {
    let key_in = |partition| {
        let keys = (0..).map(|n| format!("watched:{n}"));
        let mut keys = keys.filter(|key| partition_of(key.as_bytes(), 2) == partition);
        keys.next().unwrap()
    };
    let changes = Changes::new(2);
    changes.begin(0, "5,5", 0).unwrap();
    for (partition, revision) in [(1, "5,6-1"), (0, "6-1,7"), (1, "6-1,8-1")] {
        changes.pushed(0, push(revision, "delete", &key_in(partition), None));
        let state = changes.lock();
        assert!(state.wrong.is_none(), "{revision}: {:?}", state.wrong);
    }
    // The other part goes back.
    changes.pushed(0, push("5,9-1", "put", &key_in(1), None));
    let error = changes.check(&BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("after revision 6-1,8-1"), "{error}");
}
