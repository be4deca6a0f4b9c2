//! Directed schedules of FLAIR: a world in which nothing happens unless the test causes it.

use inband_flair::dataplane::wire::Type;
use inband_flair::timing::MS;
use inband_sim::flair::{Act, Passing, World};
use inband_sim::Fate;

pub fn wait(world: &mut World, what: &str, is_so: impl FnMut(&World) -> bool) {
    let until = world.now + 3000 * MS;
    let came = world.run_until(until, is_so);
    assert!(came || world.violation.is_some(), "never: {what}");
}

/// A client puts a value and waits for the reply.
pub fn put(world: &mut World, client: u8, value: u64) {
    world.request(client, 0, Act::Put(value));
    wait(world, "put", World::is_idle);
}

pub fn gets(world: &mut World, count: u8) {
    for client in 1..=count {
        world.request(client, 0, Act::Get);
    }
}

pub fn filter(world: &mut World, filter: impl FnMut(&Passing) -> Fate + 'static) {
    world.set_filter(Some(Box::new(filter)));
}

/// All violations: of the world's invariants, or of linearizability.
pub fn verdict(world: &World) -> Result<(), String> {
    match &world.violation {
        Some(violation) => Err(violation.to_string()),
        None => world.system.history.check(),
    }
}

/// Ends all faults and lets all clients finish.
pub fn end(mut world: World) -> Result<(), String> {
    if verdict(&world).is_ok() {
        world.heal();
        wait(&mut world, "everybody finishes", |w| {
            w.is_idle() && w.is_whole()
        });
    }
    verdict(&world)
}

pub fn is_control(passing: &Passing) -> bool {
    let kind = passing.header().map(|header| header.kind);
    matches!(kind, Some(Type::Heartbeat | Type::Install))
}
