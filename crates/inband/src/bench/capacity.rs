use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use inband_dataplane::bench::capacity::{Chain, Variant, LINKS, SITES, VARIANTS, WINDOW_INSTANCES};
use inband_dataplane::soft::Geometry;
use inband_lab::direct::DirectLinks;

use super::row::{median, Output};

/// Measure.
pub fn run(output: &mut Output) -> Result<()> {
    let links = DirectLinks::create(&format!("capacity{}", std::process::id()), &SITES, &LINKS)?;
    for ring_slots in [1024, 4096, 65536] {
        let mut chain = Chain::load(Geometry { partitions: 1, ring_slots })?;
        for (site, host) in links.hosts().iter().enumerate() {
            host.run(|| Ok(chain.wire(site)))??;
        }
        for len in [64, 512, 1376] {
            for v in VARIANTS {
                let warm = (ring_slots as u32).max(8192);
                let r = links.hosts()[0].run(|| Ok(chain.run(v, len, warm)))??;
                if r.sent != r.completed { eprintln!("lost {} {}", r.sent, r.completed); }
            }
            let mut all = [const { Vec::new() }; 3];
            for _ in 0..5 {
                for (i, v) in VARIANTS.iter().enumerate() {
                    let mut r = links.hosts()[0].run(|| Ok(chain.run(*v, len, 40 * WINDOW_INSTANCES)))??;
                    if r.sent != r.completed { eprintln!("lost {v:?} {} {} {:?}", r.sent, r.completed, chain.counters()); }
                    all[i].push(median(&mut r.window_ns));
                }
            }
            let m: Vec<f64> = all.iter_mut().map(|a| median(a)).collect();
            eprintln!("ring {ring_slots} len {len}: {:.0} {:.0} {:.0}: {:.2} bare, {:.2} plain  {:.0?}", m[0], m[1], m[2], m[0]/m[1], m[0]/m[2], all);
        }
    }
    Ok(())
}
