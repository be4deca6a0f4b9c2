//! What the directed tests share: a running cluster, and filters that decide the fate of each packet.

pub mod flair;
pub mod worlds;

use inband_paxos::dataplane::registers::AcceptorView;
use inband_sim::paxos::{Layout, Mutation, Passing, World};
use inband_sim::Fate;

pub const MS: u64 = 1_000;

pub fn world(layout: Layout, mutation: Option<Mutation>) -> World {
    World::new(1, layout, mutation, 400)
}

/// A cluster that decides: sessions are open and a leader is active.
pub fn warm(layout: Layout) -> World {
    let mut world = world(layout, None);
    for node in world.system.layout.replicas.clone() {
        world.submit(node);
    }
    world.run_for(300 * MS);
    assert!(world.is_settled(), "{}", world.explain());
    world
}

pub fn submit(world: &mut World, node: u8, count: usize) {
    for _ in 0..count {
        assert!(world.submit(node));
    }
}

pub fn filter(world: &mut World, f: impl FnMut(&Passing) -> Fate + 'static) {
    world.links.filter = Some(Box::new(f));
}

pub fn lose(world: &mut World, mut which: impl FnMut(&Passing) -> bool + 'static) {
    filter(
        world,
        move |p| if which(p) { Fate::Lose } else { Fate::Pass },
    );
}

pub fn settle(world: &mut World) {
    world.end_all_faults(&[]);
    world.must_settle();
    sound(world);
}

#[track_caller]
pub fn sound(world: &World) {
    if let Some(violation) = world.violation.as_ref() {
        panic!("{violation:?}\n{}", world.trace.lines().join("\n"));
    }
}

pub fn active(world: &World) -> Vec<u8> {
    active_in(world, 0)
}

pub fn active_in(world: &World, partition: usize) -> Vec<u8> {
    let leads = |n: &u8| {
        let host = world.host(*n).host.as_ref();
        host.and_then(|h| h.partition(partition).leadership())
            .is_some_and(|l| l.is_active())
    };
    world
        .system
        .layout
        .leaders
        .iter()
        .copied()
        .filter(leads)
        .collect()
}

pub fn acceptor(world: &World, node: u8) -> AcceptorView {
    let host = world.host(node).host.as_ref().expect("it is up");
    host.switch()
        .expect("it has roles")
        .registers()
        .acceptor
        .acceptor(0)
}

pub fn applied(world: &World, node: u8) -> u64 {
    world.host(node).apps[0].live.applied
}
