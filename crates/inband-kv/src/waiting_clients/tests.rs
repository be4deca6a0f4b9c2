use std::time::Duration;

use super::*;
use crate::types::Kind;

const NONE: [u64; 0] = [];

fn list(key: &str) -> AwaitedKey {
    AwaitedKey::new(Kind::List, key.as_bytes())
}

struct Scene {
    clients: WaitingClients,
    awaited: AwaitedKeys,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let awaited = AwaitedKeys::default();
        Self {
            clients: WaitingClients::new(awaited.clone()),
            awaited,
            now: Instant::now(),
        }
    }

    /// A client that wants to pop from these keys.
    fn enter(&mut self, keys: &str) -> u64 {
        let pop = Pop {
            keys: keys.split(' ').map(list).collect(),
            log: 0,
            first: b"first".to_vec(),
            again: b"again".to_vec(),
            deadline: None,
        };
        self.clients.enter(7, pop)
    }

    /// The same, and its first attempt has found nothing.
    fn wait(&mut self, keys: &str) -> u64 {
        let number = self.enter(keys);
        if self.attempts() == [number] {
            self.nothing(number);
        }
        assert!(self.clients.is_waiting(number));
        number
    }

    fn nothing(&mut self, number: u64) {
        assert!(self.clients.found_nothing(number, self.now));
    }

    fn put(&mut self, key: &str) {
        self.awaited.note_put(Kind::List, key.as_bytes());
        self.clients.take_news();
    }

    fn attempts(&mut self) -> Vec<u64> {
        let mut attempts = Vec::new();
        while let Some(attempt) = self.clients.next_attempt() {
            attempts.push(attempt.client);
        }
        attempts
    }
}

#[test]
fn the_client_that_has_waited_longest_tries_and_then_the_next_one() {
    let mut scene = Scene::new();
    let (a, b) = (scene.wait("k"), scene.wait("k"));
    scene.put("k");
    assert_eq!(scene.attempts(), [a]);
    // A second element: the first client is not overtaken.
    scene.put("k");
    assert_eq!(scene.attempts(), NONE);
    // Neither by one that has just arrived.
    let c = scene.enter("k");
    assert_eq!(scene.attempts(), NONE);
    scene.clients.leave(a, Some(b"k"));
    assert_eq!(scene.attempts(), [b]);
    scene.clients.leave(b, Some(b"k"));
    assert_eq!(scene.attempts(), NONE);
    scene.put("k");
    assert_eq!(scene.attempts(), [c]);
}

#[test]
fn one_that_finds_nothing_keeps_its_place() {
    let mut scene = Scene::new();
    let (a, _b) = (scene.wait("k"), scene.wait("k"));
    scene.put("k");
    assert_eq!(scene.attempts(), [a]);
    scene.nothing(a);
    assert_eq!(scene.attempts(), NONE);
    scene.put("k");
    assert_eq!(scene.attempts(), [a]);
}

#[test]
fn an_element_put_during_an_attempt_is_not_overlooked() {
    let mut scene = Scene::new();
    let a = scene.enter("k");
    assert_eq!(scene.attempts(), [a]);
    // In the first attempt, which may have been decided before.
    scene.put("k");
    assert_eq!(scene.attempts(), NONE);
    scene.nothing(a);
    assert_eq!(scene.attempts(), [a]);
    // In a later one.
    scene.put("k");
    scene.nothing(a);
    assert_eq!(scene.attempts(), [a]);
    scene.nothing(a);
    assert_eq!(scene.attempts(), NONE);
}

#[test]
fn an_attempt_says_nothing_about_the_keys_where_it_has_not_popped() {
    let mut scene = Scene::new();
    let (a, b) = (scene.wait("j k"), scene.wait("k"));
    scene.put("k");
    scene.put("j");
    assert_eq!(scene.attempts(), [a]);
    scene.clients.leave(a, Some(b"j"));
    assert_eq!(scene.attempts(), [b]);
    // A first attempt.
    let mut scene = Scene::new();
    let a = scene.enter("j k");
    let b = scene.enter("k");
    assert_eq!(scene.attempts(), [a, b]);
    scene.nothing(b);
    scene.clients.leave(a, Some(b"j"));
    assert_eq!(scene.attempts(), [b]);
}

#[test]
fn what_a_client_did_that_is_gone_is_unknown() {
    for is_gone_early in [false, true] {
        let mut scene = Scene::new();
        let (a, b) = (scene.wait("k"), scene.wait("k"));
        scene.put("k");
        if is_gone_early {
            scene.clients.leave(a, None);
        } else {
            assert_eq!(scene.attempts(), [a]);
            scene.clients.leave(a, None);
        }
        assert_eq!(scene.attempts(), [b]);
    }
    let mut scene = Scene::new();
    let (a, b) = (scene.wait("k"), scene.wait("k"));
    scene.clients.leave(a, None);
    assert_eq!(scene.attempts(), NONE);
    scene.clients.leave(b, None);
    assert!(scene.clients.is_empty() && scene.clients.keys.is_empty());
    scene.put("k");
    assert_eq!(scene.awaited.take(), News::Put(BTreeSet::new()));
}

#[test]
fn only_elements_of_the_right_type_count() {
    let mut scene = Scene::new();
    let a = scene.wait("k");
    for kind in [Kind::String, Kind::Set, Kind::SortedSet, Kind::Hash] {
        scene.awaited.note_put(kind, b"k");
    }
    scene.clients.take_news();
    assert_eq!(scene.attempts(), NONE);
    // After a checkpoint anything may be there.
    scene.awaited.lose_track();
    scene.clients.take_news();
    assert_eq!(scene.attempts(), [a]);
}

#[test]
fn the_time_of_a_client_that_is_trying_ends_with_its_attempt() {
    let mut scene = Scene::new();
    let later = scene.now + Duration::from_secs(1);
    let pop = Pop {
        keys: vec![list("k")],
        log: 0,
        first: Vec::new(),
        again: Vec::new(),
        deadline: Some(later),
    };
    let (a, b) = (
        scene.clients.enter(1, pop.clone()),
        scene.clients.enter(2, pop),
    );
    assert_eq!(scene.attempts(), [a, b]);
    scene.nothing(a);
    assert_eq!(scene.clients.next_deadline(), Some(later));
    assert_eq!(scene.clients.take_overdue(scene.now), []);
    assert_eq!(scene.clients.take_overdue(later), [(a, 1)]);
    assert_eq!(scene.clients.next_deadline(), None);
    assert!(!scene.clients.found_nothing(b, later));
}
