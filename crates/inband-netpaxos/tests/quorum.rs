//! Checks all possible votes of the storage servers in the fast round, and every classic quorum of them: recovery must
//! propose what may have been chosen.
#![allow(missing_docs)]

use std::sync::Arc;

use inband_netpaxos::quorum::{choose, Sizes, Vote};
use inband_netpaxos::request::Request;

fn request(number: usize) -> Arc<Request> {
    Arc::new(Request {
        client: 1,
        number: number as u64,
        low: 1,
        opens: false,
        reply_to: 0,
        value: b"the same".to_vec(),
    })
}

/// Returns every way in which this many servers can vote for one of `values` requests, or not at all.
fn all_votes(servers: usize, values: usize) -> impl Iterator<Item = Vec<usize>> {
    let ways = (values + 1).pow(servers as u32);
    (0..ways).map(move |way| {
        let digit = |at: usize| way / (values + 1).pow(at as u32) % (values + 1);
        (0..servers).map(digit).collect()
    })
}

fn check(failures: u8, values: usize) {
    let sizes = Sizes { failures };
    let (servers, quorum) = (usize::from(sizes.minions()), sizes.quorum());
    let mut chosen = 0;
    for votes in all_votes(servers, values) {
        let count = |value: usize| votes.iter().filter(|vote| **vote == value).count();
        let decided = (1..=values).find(|value| count(*value) >= quorum);
        chosen += u32::from(decided.is_some());
        let cast: Vec<Vote> = votes
            .iter()
            .map(|vote| match vote {
                0 => Vote::None,
                number => Vote::Fast(request(*number)),
            })
            .collect();
        for mask in 0_u32..1 << servers {
            if mask.count_ones() as usize != quorum {
                continue;
            }
            let answers = (0..servers).filter(|at| mask >> at & 1 == 1);
            let answers: Vec<&Vote> = answers.map(|at| &cast[at]).collect();
            let proposed = choose(sizes, &answers);
            if let Some(value) = decided {
                assert_eq!(proposed, Some(request(value)), "{votes:?} {mask:b}");
            }
            // What is proposed was voted for; a hole is filled only if nobody in the quorum voted.
            let is_voted = |r: &Arc<Request>| answers.contains(&&Vote::Fast(Arc::clone(r)));
            match &proposed {
                Some(request) => assert!(is_voted(request)),
                None => assert!(answers.iter().all(|vote| **vote == Vote::None)),
            }
        }
    }
    assert!(chosen > 0);
}

#[test]
fn recovery_proposes_what_may_be_chosen_of_four() {
    check(1, 4);
}

#[test]
fn recovery_proposes_what_may_be_chosen_of_seven() {
    check(2, 3);
}

#[test]
fn rounds_of_recovery_come_first() {
    let sizes = Sizes { failures: 1 };
    let fast = Vote::Fast(request(1));
    let low = Vote::Classic(5, Some(request(2)));
    let high = Vote::Classic(6, None);
    assert_eq!(choose(sizes, &[&fast, &fast, &low]), Some(request(2)));
    assert_eq!(choose(sizes, &[&high, &fast, &low]), None);
    let decided = Vote::Decided(Some(request(3)));
    assert_eq!(choose(sizes, &[&high, &decided, &low]), Some(request(3)));
}
