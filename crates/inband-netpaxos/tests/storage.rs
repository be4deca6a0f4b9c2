//! Tests of a storage server: what it asks for after it has lost its memory.
#![allow(missing_docs)]

use inband_netpaxos::control::Control;
use inband_netpaxos::quorum::{Generations, Sizes};
use inband_netpaxos::request::Request;
use inband_netpaxos::storage::{Config, Out, Record, Storage, RETRY_NS, WINDOW};
use inband_netpaxos::wire::node;

const CONFIG: Config = Config {
    minion: 1,
    sizes: Sizes { failures: 1 },
    learners: 3,
    window: WINDOW,
};

fn request(number: u64) -> Request {
    Request {
        client: 7,
        number,
        low: number,
        opens: false,
        reply_to: 0,
        value: b"value".to_vec(),
    }
}

/// Two of three learners report that they have these instances.
fn delivered(storage: &mut Storage, position: u64) {
    for learner in 1..=2 {
        report(storage, learner, 9, position);
    }
}

fn report(storage: &mut Storage, learner: u8, incarnation: u64, position: u64) {
    let delivered = Control::Delivered {
        incarnation,
        position,
    };
    storage.on_control(1, node::learner(learner), delivered, &mut Out::default());
}

/// Returns a storage server that has lost its memory of this many instances, and has fenced the others.
fn forgetful(instances: u64) -> Storage {
    let nonce = 9;
    let mut storage = Storage::without_memory(CONFIG, nonce);
    storage.tick(1, &mut Out::default());
    for generation in [0, 1] {
        for minion in 2..=3 {
            let fenced = Control::Fenced {
                nonce,
                generation,
                highest: instances,
                floor: 0,
                generations: Generations::default(),
                incarnations: vec![(1, 7), (2, 3)],
            };
            storage.on_control(1, node::storage(minion), fenced, &mut Out::default());
        }
    }
    assert!(storage.is_serving() && !storage.is_complete());
    storage
}

/// Lets this much time pass. Returns how often the storage server has asked about each of these instances.
fn asked(storage: &mut Storage, instances: u64, ns: u64) -> Vec<usize> {
    let mut asked = vec![0; instances as usize];
    for step in 0..=ns / RETRY_NS {
        let mut out = Out::default();
        storage.tick(1 + step * RETRY_NS, &mut out);
        for (_, packet) in &out.packets {
            if let Some((_, Control::Learn { instance })) = Control::of(packet) {
                asked[instance as usize - 1] += 1;
            }
        }
    }
    asked
}

#[test]
fn what_a_learner_has_forgotten_is_not_asked_for_again_and_again() {
    const INSTANCES: u64 = 100;
    const FORGOTTEN: u64 = 99;
    let mut storage = forgetful(INSTANCES);
    let forgotten = Control::Forgotten { floor: FORGOTTEN };
    storage.on_control(1, node::learner(1), forgotten, &mut Out::default());
    let asked = asked(&mut storage, INSTANCES, 100 * RETRY_NS);
    let (last, others) = asked.split_last().expect("there are some");
    assert!(*last > 50, "{last}");
    assert_eq!(others.iter().sum::<usize>(), 0);
    // Nothing else is left to ask: they are tried now and then, since the learner may be lost.
    let value = Some(request(1).into());
    let decided = Control::Decided {
        instance: INSTANCES,
        value,
    };
    storage.on_control(1, node::learner(1), decided, &mut Out::default());
    let asked = self::asked(&mut storage, INSTANCES, 1_000 * RETRY_NS);
    assert!((1..=20).contains(&asked[0]), "{asked:?}");
    delivered(&mut storage, INSTANCES);
    assert!(storage.is_complete());
    assert_eq!(storage.due(), u64::MAX);
}

/// What the storage server says, when this start of a learner asks for an incarnation: the highest one and its start.
fn granted(storage: &mut Storage, learner: u8, incarnation: u32, nonce: u64) -> (u32, u64) {
    let mut out = Out::default();
    let enrol = Control::Enrol { incarnation, nonce };
    storage.on_control(1, node::learner(learner), enrol, &mut out);
    let said = out
        .packets
        .iter()
        .filter_map(|(_, packet)| Control::of(packet));
    let mut said = said.filter_map(|(_, control)| match control {
        Control::Enrolled {
            incarnation, nonce, ..
        } => Some((incarnation, nonce)),
        _ => None,
    });
    said.next().expect("it answers")
}

#[test]
fn an_incarnation_is_granted_to_one_start_only_also_after_a_loss_of_memory() {
    let mut storage = Storage::new(CONFIG);
    assert_eq!(granted(&mut storage, 1, 3, 10), (3, 10));
    assert_eq!(granted(&mut storage, 1, 3, 11), (3, 10));
    assert_eq!(granted(&mut storage, 1, 2, 11), (3, 10));
    assert_eq!(granted(&mut storage, 1, 4, 11), (4, 11));
    assert_eq!(granted(&mut storage, 2, 1, 12), (1, 12));
    let records = storage.snapshot();
    let mut storage = Storage::restored(CONFIG, records, 9);
    assert_eq!(granted(&mut storage, 1, 4, 12), (4, 11));

    // The others have told it that they granted 7 to learner 1.
    let mut storage = forgetful(10);
    assert_eq!(granted(&mut storage, 1, 7, 12), (7, 0));
    assert_eq!(granted(&mut storage, 1, 8, 12), (8, 12));
    assert_eq!(granted(&mut storage, 2, 3, 12), (3, 0));
}

/// Otherwise instances would be forgotten that a learner whose directory was lost does not have any more.
#[test]
fn a_late_report_of_an_earlier_start_does_not_count_after_a_restart_either() {
    let mut storage = Storage::new(CONFIG);
    report(&mut storage, 1, 1, 5);
    granted(&mut storage, 1, 2, 10);
    for mut storage in [Storage::restored(CONFIG, storage.snapshot(), 9), storage] {
        report(&mut storage, 1, 1, 5);
        report(&mut storage, 2, 1, 5);
        assert_eq!(storage.floor(), 0);
        report(&mut storage, 1, 2, 4);
        assert_eq!(storage.floor(), 4);
    }
}

/// What an earlier start asked for may come after the present one has its incarnation.
#[test]
fn a_learner_whose_reports_are_ignored_is_told_why() {
    let mut storage = Storage::new(CONFIG);
    granted(&mut storage, 1, 3, 10);
    granted(&mut storage, 1, 4, 9);
    let mut out = Out::default();
    let late = Control::Delivered {
        incarnation: 3,
        position: 5,
    };
    storage.on_control(1, node::learner(1), late, &mut out);
    let (_, control) = Control::of(&out.packets[0].1).expect("a control packet");
    assert!(
        matches!(
            control,
            Control::Enrolled {
                incarnation: 4,
                nonce: 9,
                ..
            }
        ),
        "{control:?}"
    );
}

/// A snapshot that is interrupted leaves some of its records behind those of before.
#[test]
fn no_promise_is_lowered_by_a_part_of_a_snapshot() {
    let mut storage = Storage::new(CONFIG);
    let mut out = Out::default();
    let (instance, round) = (1, 1 << 40);
    let learner = node::learner(1);
    let accept = Control::Accept {
        instance,
        round,
        value: None,
    };
    storage.on_control(1, learner, accept, &mut out);
    let round = 3 << 40;
    storage.on_control(1, learner, Control::Prepare { instance, round }, &mut out);
    let snapshot = storage.snapshot();
    for part in 0..=snapshot.len() {
        let records = out.records.iter().chain(&snapshot[..part]).cloned();
        let mut storage = Storage::restored(CONFIG, records, 9);
        let mut out = Out::default();
        let round = 2 << 40;
        storage.on_control(1, learner, Control::Prepare { instance, round }, &mut out);
        let (_, control) = Control::of(&out.packets[0].1).expect("a control packet");
        let is_refused =
            matches!(control, Control::Refused { promised, .. } if promised == 3 << 40);
        assert!(is_refused, "after {part} records: {control:?}");
    }
}

#[test]
fn numbers_of_an_earlier_start_of_the_minion_are_counted() {
    let mut storage = Storage::new(CONFIG);
    for incarnation in [10, 5] {
        storage.on_numbered(incarnation, 1, request(1), &mut Out::default());
    }
    let counts = storage.counts();
    assert_eq!((counts.fast, counts.stale), (1, 1));
}

/// The minion goes on while the window is full. Returns the instances of the numbers that follow, once it is free again.
fn votes_after_a_full_window(refused: u64) -> Vec<u64> {
    let mut storage = Storage::new(Config {
        window: 8,
        ..CONFIG
    });
    let vote = |storage: &mut Storage, number: u64| {
        let mut out = Out::default();
        storage.on_numbered(1, number, request(number), &mut out);
        let instances = out.records.into_iter().filter_map(|record| match record {
            Record::Fast { instance, .. } => Some(instance),
            _ => None,
        });
        instances.last()
    };
    for number in 1..=8 + refused {
        let instance = Some(number).filter(|number| *number <= 8);
        assert_eq!(vote(&mut storage, number), instance, "{number}");
    }
    let next = 9 + refused;
    delivered(&mut storage, 3);
    if refused >= 8 {
        assert_eq!(vote(&mut storage, next), None, "most of the window is used");
    }
    delivered(&mut storage, 8);
    let numbers = next + 1..next + 4;
    numbers
        .filter_map(|number| vote(&mut storage, number))
        .collect()
}

#[test]
fn it_votes_again_however_many_numbers_a_full_window_has_refused() {
    assert_eq!(votes_after_a_full_window(4), [14, 15, 16]);
    assert_eq!(votes_after_a_full_window(8), [9, 10, 11]);
    assert_eq!(votes_after_a_full_window(1_000), [9, 10, 11]);
}

/// A request that was repeated has two numbers: the later one is still needed when the instance of the first is forgotten.
#[test]
fn the_number_of_a_repeated_request_is_kept_with_its_instance() {
    let mut storage = Storage::new(CONFIG);
    let mut out = Out::default();
    for number in [1, 2, 3] {
        let request = request(if number == 3 { 1 } else { number });
        storage.on_numbered(1, number, request, &mut out);
    }
    delivered(&mut storage, 1);
    assert_eq!(storage.floor(), 1);
    let mut out = Out::default();
    let ask = Control::Ask { question: None };
    storage.on_control(1, node::learner(1), ask, &mut out);
    let said = out.packets.iter();
    let mut said = said.filter_map(|(_, packet)| Control::of(packet));
    let stored = said.find_map(|(_, control)| match control {
        Control::Stored { first, mask, .. } => Some((first, mask)),
        _ => None,
    });
    assert_eq!(stored, Some((1, 0b110)));
}
