//! Tests of a storage server: what it asks for after it has lost its memory.
#![allow(missing_docs)]

use inband_netpaxos::control::Control;
use inband_netpaxos::quorum::{Generations, Sizes};
use inband_netpaxos::request::Request;
use inband_netpaxos::storage::{Config, Out, Storage, RETRY_NS};
use inband_netpaxos::wire::node;

const CONFIG: Config = Config {
    minion: 1,
    sizes: Sizes { failures: 1 },
    learners: 3,
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
        let delivered = Control::Delivered {
            incarnation: 1,
            position,
        };
        storage.on_control(1, node::learner(learner), delivered, &mut Out::default());
    }
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
