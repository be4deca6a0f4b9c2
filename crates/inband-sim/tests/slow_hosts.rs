//! Hosts that are slow: emulated machines, overcommitted ones, containers with a CPU quota.

mod common;

use common::{active, applied, sound, warm, MS};
use inband_sim::{Layout, Rng, World};

/// A host that gets the CPU only now and then.
struct Slices {
    runs_ms: (u64, u64),
    waits_ms: (u64, u64),
}

fn play(seed: u64, slices: &Slices, packet_us: u64, load_ms: u64) -> (u64, u64) {
    let mut layout = Layout::combined(3);
    layout.timing.submit_deadline_us = 60_000 * MS;
    let mut world = warm(layout);
    let mut rng = Rng::new(seed, 1);
    let nodes = world.layout.nodes();
    for node in &nodes {
        world.slow_down(*node, packet_us);
    }
    let mut next_ms: Vec<u64> = nodes.iter().map(|_| rng.between(0, 50)).collect();
    let mut frozen: Vec<bool> = nodes.iter().map(|_| false).collect();
    let mut advance = |world: &mut World, ms: u64, from_ms: &mut u64, until: &dyn Fn(&World) -> bool| {
        for _ in 0..ms {
            for (at, node) in nodes.iter().enumerate() {
                if *from_ms < next_ms[at] {
                    continue;
                }
                frozen[at] = !frozen[at];
                let (low, high) = if frozen[at] { slices.waits_ms } else { slices.runs_ms };
                if frozen[at] { world.freeze(*node) } else { world.thaw(*node) }
                next_ms[at] = *from_ms + rng.between(low, high);
            }
            if *from_ms % load_ms == 0 {
                for node in &world.layout.replicas.clone() {
                    if world.host(*node).host.is_some() && world.host(*node).is_well() {
                        world.submit(*node);
                    }
                }
            }
            world.run_for(MS);
            *from_ms += 1;
            if until(world) {
                return true;
            }
        }
        false
    };
    let mut ms = 0;
    advance(&mut world, 2_000, &mut ms, &|_| false);
    let before = world.stats.activations;
    advance(&mut world, 3_000, &mut ms, &|_| false);
    let without_fault = world.stats.activations - before;
    sound(&world);
    let leader = active(&world).first().copied().unwrap_or(1);
    world.crash(leader);
    let others: Vec<u8> = world.layout.replicas.iter().copied().filter(|n| *n != leader).collect();
    let highest = others.iter().map(|n| applied(&world, *n)).max().unwrap();
    let start = ms;
    // What was decided before the crash does not count.
    let done = advance(&mut world, 40_000, &mut ms, &|w| others.iter().any(|n| applied(w, *n) > highest + 6));
    sound(&world);
    (if done { ms - start } else { u64::MAX }, without_fault)
}

#[test]
fn pauses() {
    for (runs_ms, waits_ms, packet_us, load_ms) in [
        ((5, 30), (20, 150), 0, 200), ((5, 30), (50, 300), 0, 200), ((1, 5), (20, 150), 0, 200),
        ((5, 30), (0, 1), 1_000, 200), ((5, 30), (0, 1), 2_000, 200), ((5, 30), (0, 1), 3_000, 200),((5, 30), (5, 50), 1_000, 200),
    ] {
        let slices = Slices { runs_ms, waits_ms };
        let mut pauses: Vec<_> = (0..10).map(|seed| play(seed, &slices, packet_us, load_ms)).collect();
        pauses.sort();
        let elections: Vec<u64> = pauses.iter().map(|p| p.1).collect();
        println!("runs {runs_ms:?} waits {waits_ms:?} packet {packet_us} us: pauses {:?} elections in 3 s without a fault {elections:?}", pauses.iter().map(|p| p.0).collect::<Vec<_>>());
    }
}
