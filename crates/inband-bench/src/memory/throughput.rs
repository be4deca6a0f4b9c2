//! Lines and pages per second, over the number of requests in flight and of clients; and the cost of a line in the
//! kernel.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use inband_memory::bench::memory_costs;
use inband_memory::client::{Op, Outcome};
use inband_memory::heap::PAGE_CHUNKS;
use inband_memory::lines::{Lines, CHUNK_LINES, LINE_LEN_BYTES};
use inband_memory::memory::{Memory as Client, MemoryConfig};
use inband_paxos::config::Dataplane;

use super::pages::{place, Access};
use super::testbed::{Testbed, TestbedSpec};
use super::{goal_at_least, row, Run};
use crate::plot::{Chart, Series};
use crate::row::{median, number, progress, Baseline, Output};

const SPACE_BYTES: u64 = 64 << 20;
const SPACE_QUICK_BYTES: u64 = 4 << 20;
const OUTSTANDING: [usize; 5] = [1, 10, 100, 1_000, 10_000];
/// For a quick run.
const OUTSTANDING_QUICK: [usize; 2] = [1, 100];
const CLIENTS: [usize; 4] = [1, 2, 4, 8];
const CLIENTS_QUICK: [usize; 1] = [8];
/// Requests in flight of all clients together, when the number of clients is varied.
const OUTSTANDING_OF_CLIENTS: usize = 512;
const WARM_UP: Duration = Duration::from_millis(100);
const DURATION: Duration = Duration::from_millis(300);
/// Time for the switch to free the slots of clients that have left.
const LEAVING: Duration = Duration::from_millis(20);
const GOAL_LINES_PER_S: f64 = 1e6;

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

fn space_bytes(run: &Run<'_>) -> u64 {
    match run.args.quick {
        true => SPACE_QUICK_BYTES,
        false => SPACE_BYTES,
    }
}

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    access: Access,
    /// Lines per request: one, or all of a chunk; a page has four chunks.
    lines: usize,
    clients: usize,
    /// Requests in flight of all clients together.
    outstanding: usize,
}

impl Load {
    fn metric(self) -> &'static str {
        match (self.access, self.lines) {
            (Access::Read, 1) => "line_reads_per_s",
            (Access::Write, 1) => "line_writes_per_s",
            (Access::Read, _) => "page_reads_per_s",
            (Access::Write, _) => "page_writes_per_s",
        }
    }

    fn unit(self) -> &'static str {
        match self.lines {
            1 => "lines/s",
            _ => "pages/s",
        }
    }

    fn variant(self) -> String {
        let clients = match self.clients {
            1 => "1 client".to_owned(),
            clients => format!("{clients} clients"),
        };
        format!("{} outstanding, {clients}", self.outstanding)
    }

    /// In [`Self::unit`].
    fn rate(self, requests_per_s: f64) -> f64 {
        match self.lines {
            1 => requests_per_s,
            _ => requests_per_s / PAGE_CHUNKS as f64,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    requests_per_s: f64,
    /// First transmissions, and retransmissions.
    sent: u64,
    resent: u64,
}

/// The results of one client.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    /// Requests that ended in the counted time.
    counted: u64,
    sent: u64,
    resent: u64,
}

/// Keeps requests in flight until the phase is over.
fn client(
    config: MemoryConfig,
    load: Load,
    number: usize,
    phase: &AtomicU8,
    filled: &AtomicUsize,
) -> Result<Done> {
    let outstanding = (load.outstanding / load.clients).max(1);
    let mut memory = Client::connect(MemoryConfig {
        window: (outstanding as u32).next_power_of_two(),
        ..config
    })?;
    let chunks = memory.chunks();
    let mut next = chunks * number as u64 / load.clients as u64;
    let lines = u16::MAX >> (CHUNK_LINES - load.lines);
    let mut op = || {
        let chunk = place(next, chunks);
        next += 1;
        match load.access {
            Access::Read => Op::Read { chunk, lines },
            Access::Write => Op::Write {
                chunk,
                lines,
                from: Box::new([[3; LINE_LEN_BYTES]; CHUNK_LINES]),
                sole_writer: true,
            },
        }
    };
    for _ in 0..outstanding {
        memory.submit(op());
    }
    filled.fetch_add(1, Ordering::Relaxed);
    let mut counted = 0;
    loop {
        let (_, outcome) = memory.wait_done()?.context("nothing is under way")?;
        ensure!(
            matches!(outcome, Outcome::Read(..) | Outcome::Written),
            "a request failed: {outcome:?}"
        );
        match phase.load(Ordering::Relaxed) {
            WARMING => {}
            COUNTING => counted += 1,
            _ => {
                let counts = memory.counts();
                return Ok(Done {
                    counted,
                    sent: counts.sent,
                    resent: counts.resent,
                });
            }
        }
        memory.submit(op());
    }
}

fn measure_once(testbed: &Testbed, load: Load) -> Result<Sample> {
    let config = testbed.config()?;
    let (phase, filled) = (AtomicU8::new(WARMING), AtomicUsize::new(0));
    let sample = thread::scope(|scope| {
        let (phase, filled) = (&phase, &filled);
        let clients: Vec<_> = (0..load.clients)
            .map(|number| {
                let config = config.clone();
                scope.spawn(move || client(config, load, number, phase, filled))
            })
            .collect();
        // The first requests of thousands take longer to send than the warm-up.
        while filled.load(Ordering::Relaxed) < load.clients
            && !clients.iter().any(ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(WARM_UP);
        let began = Instant::now();
        phase.store(COUNTING, Ordering::Relaxed);
        thread::sleep(DURATION);
        phase.store(OVER, Ordering::Relaxed);
        let counted_s = began.elapsed().as_secs_f64();
        let mut sample = Sample::default();
        for client in clients {
            let ended = client.join().map_err(|_| anyhow!("a client panicked"))?;
            let done = ended?;
            sample.requests_per_s += done.counted as f64 / counted_s;
            sample.sent += done.sent;
            sample.resent += done.resent;
        }
        Ok(sample)
    });
    thread::sleep(LEAVING);
    sample
}

/// Writes the whole memory once: at a server, all lines that were never written share one page of zeros.
fn fill(testbed: &Testbed) -> Result<()> {
    let mut memory = testbed.connect()?;
    for chunk in 0..memory.chunks() {
        memory.submit(Op::Write {
            chunk,
            lines: u16::MAX,
            from: Box::new([[1; LINE_LEN_BYTES]; CHUNK_LINES]),
            sole_writer: true,
        });
        if chunk % 128 == 0 {
            while memory.wait_done()?.is_some() {}
        }
    }
    while memory.wait_done()?.is_some() {}
    Ok(())
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let dataplanes = run.dataplanes(output);
    ensure!(!dataplanes.is_empty(), "no data plane works here");
    if dataplanes.iter().any(|it| *it != Dataplane::Udp) {
        kernel_costs(run, output)?;
    }
    for dataplane in dataplanes {
        rates(run, output, dataplane)?;
    }
    Ok(())
}

fn rates(run: &Run<'_>, output: &mut Output, dataplane: Dataplane) -> Result<()> {
    let start = |servers| -> Result<Testbed> {
        let testbed = Testbed::start(TestbedSpec {
            servers,
            switches: 2,
            space_bytes: space_bytes(run),
            dataplane,
            secure: run.args.secure,
        })?;
        fill(&testbed)?;
        Ok(testbed)
    };
    let (one, three) = (start(1)?, start(3)?);
    let mut best: f64 = 0.0;
    for lines in [1, CHUNK_LINES] {
        let mut charts: [Vec<Series>; 2] = Default::default();
        for access in Access::ALL {
            let load = |clients, outstanding| Load {
                access,
                lines,
                clients,
                outstanding,
            };
            let (outstanding, clients): (&[usize], &[usize]) = match run.args.quick {
                true => (&OUTSTANDING_QUICK, &CLIENTS_QUICK),
                false => (&OUTSTANDING, &CLIENTS),
            };
            let over_outstanding: Vec<Load> = outstanding.iter().map(|n| load(1, *n)).collect();
            let over_clients: Vec<Load> = clients
                .iter()
                .map(|n| load(*n, OUTSTANDING_OF_CLIENTS))
                .collect();
            for (at, loads) in [over_outstanding, over_clients].into_iter().enumerate() {
                let mut curves = [Vec::new(), Vec::new()];
                for load in loads {
                    let rates = point(run, output, dataplane, [&one, &three], load)?;
                    best = best.max(rates[1] * lines as f64);
                    let x = match at {
                        0 => (load.outstanding as f64).log10(),
                        _ => load.clients as f64,
                    };
                    for (curve, rate) in curves.iter_mut().zip(rates) {
                        curve.push([x, load.rate(rate)]);
                    }
                }
                for (who, points) in ["one server", "three servers"].into_iter().zip(curves) {
                    charts[at].push(Series {
                        name: format!("{}s, {who}", access.name()),
                        points,
                        is_quoted: false,
                    });
                }
            }
        }
        let of = if lines == 1 { "lines" } else { "pages" };
        let axes = [
            "requests outstanding, 1 client, log10",
            "clients, 512 requests outstanding",
        ];
        for (series, x) in charts.into_iter().zip(axes) {
            output.chart(Chart::Lines {
                title: format!("{dataplane}: {of} a second"),
                x: x.into(),
                y: format!("{of}/s"),
                series,
                events: Vec::new(),
            });
        }
    }
    let what = format!("{dataplane}, most lines a second of three servers");
    goal_at_least(output, &what, best, GOAL_LINES_PER_S, "lines/s");
    Ok(())
}

/// Requests per second of one server and of three, measured in alternation.
fn point(
    run: &Run<'_>,
    output: &mut Output,
    dataplane: Dataplane,
    testbeds: [&Testbed; 2],
    load: Load,
) -> Result<[f64; 2]> {
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..run.rounds {
        progress(&format!(
            "{dataplane}: {}, {}",
            load.metric(),
            load.variant()
        ));
        for (samples, testbed) in samples.iter_mut().zip(testbeds) {
            samples.push(measure_once(testbed, load)?);
        }
    }
    let rates = samples.each_ref().map(|samples| {
        let rates = samples.iter().map(|sample| sample.requests_per_s);
        median(&mut rates.collect::<Vec<_>>())
    });
    let of_three = samples[1].iter().map(|sample| sample.requests_per_s);
    let (least, most) = of_three.fold((f64::INFINITY, 0f64), |(least, most), rate| {
        (least.min(rate), most.max(rate))
    });
    let resent: u64 = samples[1].iter().map(|sample| sample.resent).sum();
    let sent: u64 = samples[1]
        .iter()
        .map(|sample| sample.sent + sample.resent)
        .sum();
    let conditions = format!(
        "3 servers, requests of {} lines in no order out of {} MiB, {} rounds of {} ms, alternating with one server: {} to {} {}; {} lines a second; \
         {resent} requests sent again, {} % of what was sent; {}",
        load.lines,
        space_bytes(run) >> 20,
        run.rounds,
        DURATION.as_millis(),
        number(load.rate(least)),
        number(load.rate(most)),
        load.unit(),
        number(rates[1] * load.lines as f64),
        number(100.0 * resent as f64 / sent.max(1) as f64),
        run.conditions()
    );
    let figure = (load.rate(rates[1]), load.unit());
    let row = row(
        load.metric(),
        &dataplane.to_string(),
        load.variant(),
        figure,
        conditions,
    );
    output.row(&row.beside(Some(Baseline {
        name: "one server".into(),
        value: load.rate(rates[0]),
    })))?;
    Ok(rates)
}

/// The cost of one line in the kernel, for the switch and a server.
fn kernel_costs(run: &Run<'_>, output: &mut Output) -> Result<()> {
    progress("what lines cost in the kernel");
    let costs = match memory_costs() {
        Ok(costs) => costs,
        Err(error) => {
            output.skipped(&format!("what lines cost in the kernel: {error}"));
            return Ok(());
        }
    };
    for cost in costs {
        let key = if cost.authenticated { ", key" } else { "" };
        let memory = match cost.role {
            "switch" => String::new(),
            _ => format!(" of {} KiB", cost.chunks),
        };
        let lines = f64::from(cost.lines);
        let variant = format!(
            "{} {}, {} a request{memory}{key}",
            cost.role, cost.operation, cost.lines
        );
        let conditions = format!(
            "{} packets a request, of 3 servers, by test runs, without links and copies; all lines that one CPU could do: {:.2} million a \
             second; {}",
            cost.packets,
            lines * 1e3 / cost.ns,
            run.machine
        );
        let row = row(
            "kernel_ns_per_line",
            "xdp",
            variant,
            (cost.ns / lines, "ns/line"),
            conditions,
        );
        output.row(&row.beside(Some(Baseline {
            name: "forwarding the packets unread".into(),
            value: cost.forward_ns / lines,
        })))?;
    }
    Ok(())
}
