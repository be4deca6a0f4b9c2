//! The sequencer's vectors, random packets, and threads.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

use inband_sequencer::{Header, Logs, Sequencer, Type};
use inband_testing::answering::{answers_to_threads, check_equal, check_vectors, Tested};
use inband_testing::frame::NODE;

struct Numbers;

impl Tested for Numbers {
    type Role = Sequencer;
    const ROLE: Sequencer = Sequencer {
        logs: 2,
        incarnation: 77,
    };
    const FOLDER: &'static str = "sequencer";

    fn request(own: &[u64]) -> Header {
        Header::next(1, own[0])
    }

    fn answer(request: Header, own: &[u64]) -> Header {
        Header {
            kind: Type::Number,
            node: NODE.into(),
            incarnation: 77,
            number: own[0],
            ..request
        }
    }

    fn registers(of: &Logs) -> Vec<&AtomicU64> {
        vec![of.given(0), of.given(1)]
    }
}

#[test]
fn every_vector_runs_in_this_process_and_in_the_kernel() {
    check_vectors::<Numbers>();
}

#[test]
fn random_packets_leave_kernel_and_native_equal() {
    check_equal::<Numbers>(20_000, |random| Header {
        kind: Type::ALL[random.below(2) as usize],
        ..Header::next(random.below(3) as u16, random.below(5000))
    });
}

#[test]
fn threads_get_different_numbers() {
    let answers = answers_to_threads::<Numbers>(4, 20_000, Header::next(1, 3));
    let different: BTreeSet<u64> = answers.iter().map(|answer| answer.number).collect();
    assert_eq!(different.len(), 80_000);
    assert!(different.iter().all(|first| first % 3 == 1));
}
