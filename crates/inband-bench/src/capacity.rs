//! `inband bench agreement --capacity`: the cost of a whole instance in the kernel, from a client's request to the
//! learner's ring buffer, with live frames, compared with two baselines on the same links.

use anyhow::{Context, Result};
use inband_lab::direct::DirectLinks;
use inband_paxos::dataplane::bench::capacity::{
    Chain, Variant, LINKS, SITES, VARIANTS, WINDOW_INSTANCES,
};
use inband_paxos::dataplane::soft::Geometry;
use inband_paxos::dataplane::wire::VALUE_LEN_MAX_BYTES;

use super::row::{machine, median, progress, Baseline, Output, Row};

const VALUE_LENS_BYTES: [usize; 3] = [64, 512, VALUE_LEN_MAX_BYTES];
const RINGS_SLOTS: [usize; 3] = [1024, 4096, 65_536];
/// Packets checked per instance: a request, three 2As, three 2Bs.
const PACKETS_PER_INSTANCE: u32 = 7;
/// Windows of instances per run; the run's figure is their median.
const WINDOWS_PER_RUN: u32 = 40;
/// Instances before measuring; enough to fill a small ring twice.
const WARM_UP_INSTANCES_MIN: u32 = 8192;

/// Medians over the rounds, in the order of [`VARIANTS`], and the number of lost instances.
struct Measured {
    ns: [f64; VARIANTS.len()],
    lost: u64,
}

/// Measures and prints the rows.
pub fn run(rounds: usize, output: &mut Output) -> Result<()> {
    let machine = machine();
    let name = format!("capacity{}", std::process::id());
    let links = DirectLinks::create(&name, &SITES, &LINKS).context("making the links")?;
    for ring_slots in RINGS_SLOTS {
        let geometry = Geometry {
            partitions: 1,
            ring_slots,
        };
        let mut chain = Chain::load(geometry).context("loading the packet programs")?;
        for (site, host) in links.hosts().iter().enumerate() {
            host.run(|| Ok(chain.wire(site)))??;
        }
        for value_len_bytes in VALUE_LENS_BYTES {
            progress(&format!("ring of {ring_slots}, {value_len_bytes} B"));
            let measured = measure(&links, &mut chain, ring_slots, value_len_bytes, rounds)?;
            progress("");
            let conditions = format!(
                "{value_len_bytes} B values, ring of {ring_slots} slots, live frames on one CPU, \
                 direct veth links, one leader, three acceptors, one learner; \
                 {} lost; median of {rounds} interleaved rounds; {machine}",
                measured.lost
            );
            let variant = format!("{value_len_bytes} B, ring {ring_slots}");
            rows(&measured, &variant, &conditions, output)?;
        }
    }
    Ok(())
}

fn measure(
    links: &DirectLinks,
    chain: &mut Chain,
    ring_slots: usize,
    value_len_bytes: usize,
    rounds: usize,
) -> Result<Measured> {
    let client = &links.hosts()[0];
    let mut send = |variant: Variant, instances: u32| -> Result<_> {
        Ok(client.run(|| Ok(chain.run(variant, value_len_bytes, instances)))??)
    };
    let warm_up = WARM_UP_INSTANCES_MIN.max(ring_slots as u32);
    for variant in VARIANTS {
        send(variant, warm_up)?;
    }
    let mut lost = 0;
    let mut ns = VARIANTS.map(|_| Vec::with_capacity(rounds));
    for _ in 0..rounds {
        for (variant, ns) in VARIANTS.iter().zip(&mut ns) {
            let mut run = send(*variant, WINDOWS_PER_RUN * WINDOW_INSTANCES)?;
            lost += run.sent.saturating_sub(run.completed);
            ns.push(median(&mut run.window_ns));
        }
    }
    Ok(Measured {
        ns: ns.map(|mut ns| median(&mut ns)),
        lost,
    })
}

fn rows(measured: &Measured, variant: &str, conditions: &str, output: &mut Output) -> Result<()> {
    let [roles, authenticated, bare, forwarding] = measured.ns;
    let row = |metric| Row {
        bench: "agreement",
        metric,
        backend: "xdp".into(),
        variant: variant.to_owned(),
        value: roles,
        unit: "ns/inst",
        baseline: None,
        ratio: None,
        paper: None,
        conditions: conditions.to_owned(),
    };
    let hops = f64::from(PACKETS_PER_INSTANCE);
    let with_key = Row {
        value: authenticated,
        conditions: format!(
            "with a cluster key, {:.0} ns a hop more; {conditions}",
            (authenticated - roles) / hops
        ),
        ..row("capacity_authenticated")
    };
    let beside = |name: &str, value| {
        let name = name.to_owned();
        Some(Baseline { name, value })
    };
    let keyless = beside("the same without a key", roles);
    output.row(&with_key.beside(keyless))?;
    let bare = beside("roles without a protocol", bare);
    output.row(&row("capacity_to_bare").beside(bare))?;
    let forwarding = beside("plain forwarding", forwarding);
    output.row(&row("capacity_to_forwarding").beside(forwarding))
}
