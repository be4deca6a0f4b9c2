//! Latency of an access that misses the client's buffer: of a page by page fault, and of a line through the register
//! interface (the dissertation's figure 7.2).

use std::ffi::OsStr;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use hdrhistogram::Histogram;
use inband_memory::heap::{PAGE_CHUNKS, PAGE_LEN_BYTES};
use inband_memory::lines::{Lines, LocalLines, Transfer, CHUNK_LINES, LINE_LEN_BYTES};
use inband_paxos::config::Dataplane;

use super::pages::{place, Access, Pages};
use super::testbed::{Testbed, TestbedSpec};
use super::{goal_at_most, row, Run};
use crate::plot::{Chart, Series};
use crate::row::{progress, quote, Baseline, Output, Quoted};
use crate::stats::Distribution;

/// Buffer size of the program that accesses pages.
const BUFFER_PAGES: u64 = 4096;
/// Other pages, which evict the measured ones from the buffer.
const REST_PAGES: u64 = 2 * BUFFER_PAGES;
/// Space for the heap's other objects.
const SPARE_PAGES: u64 = 4096;
/// Writes in flight while filling the memory.
const FILL_TOGETHER: usize = 256;

const PLACE: &str = "section 7.3, figure 7.2";
const PAPER_LOCAL: Quoted = quote(PLACE, "a fault that the kernel answers, median", 3.0);
const PAPER_REMOTE: Quoted = quote(PLACE, "a page of three servers, median", 18.0);

const PAGE_P50_GOAL_US: f64 = 18.0;
const PAGE_P50_GOAL_OWN_US: f64 = 12.0;
const PAGE_P99_GOAL_RATIO: f64 = 2.0;
const LINE_P50_GOAL_US: f64 = 9.0;
const LINE_GOAL_RATIO: f64 = 1.3;

/// Where the memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the process that accesses it.
    Local,
    /// Pages only: in the pager's process.
    Pager,
    OneServer,
    ThreeServers,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Local => "local memory",
            Place::Pager => "pager, no network",
            Place::OneServer => "one server",
            Place::ThreeServers => "three servers",
        }
    }

    fn servers(self) -> Option<u8> {
        match self {
            Place::Local | Place::Pager => None,
            Place::OneServer => Some(1),
            Place::ThreeServers => Some(3),
        }
    }
}

/// The unit of access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Page,
    Line,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Page => "page",
            Unit::Line => "line",
        }
    }

    fn metrics(self, access: Access) -> [&'static str; 2] {
        match (self, access) {
            (Unit::Page, Access::Read) => ["page_read_p50_us", "page_read_p99_us"],
            (Unit::Page, Access::Write) => ["page_write_p50_us", "page_write_p99_us"],
            (Unit::Line, Access::Read) => ["line_read_p50_us", "line_read_p99_us"],
            (Unit::Line, Access::Write) => ["line_write_p50_us", "line_write_p99_us"],
        }
    }
}

/// A percentile, in us.
type Pick = fn(&Distribution) -> f64;

/// The latencies of one kind of access in one place.
struct Measured {
    place: Place,
    access: Access,
    times: Histogram<u64>,
}

impl Measured {
    fn all_of(places: &[Place]) -> Result<Vec<Measured>> {
        let new = |(place, access)| -> Result<Measured> {
            Ok(Measured {
                place,
                access,
                times: Histogram::new(3)?,
            })
        };
        let kinds = places
            .iter()
            .flat_map(|place| Access::ALL.map(|access| (*place, access)));
        kinds.map(new).collect()
    }
}

fn add(all: &mut [Measured], place: Place, access: Access, times: &[u32]) -> Result<()> {
    let one = all
        .iter_mut()
        .find(|one| one.place == place && one.access == access);
    let one = one.context("a kind of access that was not planned")?;
    for ns in times {
        one.times.record(u64::from(*ns).max(1))?;
    }
    Ok(())
}

fn distribution(all: &[Measured], place: Place, access: Access) -> Option<Distribution> {
    let one = all
        .iter()
        .find(|one| one.place == place && one.access == access)?;
    Some(Distribution::of(&one.times))
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let dataplanes = run.dataplanes(output);
    ensure!(!dataplanes.is_empty(), "no data plane works here");
    for dataplane in dataplanes {
        let lines = of_lines(run, dataplane)?;
        show(run, output, dataplane, Unit::Line, &lines)?;
        let pages = of_pages(run, dataplane, output)?;
        show(run, output, dataplane, Unit::Page, &pages)?;
    }
    output.note(&format!(
        "goal not measured: {PAGE_P50_GOAL_OWN_US} us for a page where the faulting thread resolves its own fault: that mode is not built"
    ));
    Ok(())
}

fn testbeds(run: &Run<'_>, dataplane: Dataplane) -> Result<Vec<(Place, Testbed)>> {
    let pages = u64::from(run.accesses) + REST_PAGES + SPARE_PAGES;
    let start = |place: Place| {
        let spec = TestbedSpec {
            servers: place.servers().context("it has no servers")?,
            switches: 2,
            space_bytes: pages * PAGE_LEN_BYTES as u64,
            dataplane,
            secure: run.args.secure,
        };
        Ok((place, Testbed::start(spec)?))
    };
    [Place::OneServer, Place::ThreeServers]
        .into_iter()
        .map(start)
        .collect()
}

/// First access and number of accesses of each round's slice.
fn slices(run: &Run<'_>) -> impl Iterator<Item = (u64, u64)> {
    let (all, rounds) = (u64::from(run.accesses), run.rounds as u64);
    (0..rounds).map(move |n| {
        let from = all * n / rounds;
        (from, all * (n + 1) / rounds - from)
    })
}

/// Accesses one line of each of this many pages.
struct OfLines {
    lines: Box<dyn Lines>,
    pages: u64,
}

impl OfLines {
    fn chunk(&self, n: u64) -> u64 {
        place(n, self.pages) * PAGE_CHUNKS as u64
    }

    /// Writes everything that is measured.
    fn fill(&mut self) -> Result<()> {
        let from = [[1; LINE_LEN_BYTES]; CHUNK_LINES];
        let chunks: Vec<u64> = (0..self.pages).map(|n| self.chunk(n)).collect();
        for chunks in chunks.chunks(FILL_TOGETHER) {
            let write = |chunk: &u64| Transfer::Write {
                chunk: *chunk,
                lines: u16::MAX,
                from: &from,
                sole_writer: true,
            };
            let mut writes: Vec<Transfer<'_>> = chunks.iter().map(write).collect();
            self.lines.transfer(&mut writes)?;
        }
        Ok(())
    }

    fn measure(&mut self, access: Access, from: u64, count: u64) -> Result<Vec<u32>> {
        let content = [[2; LINE_LEN_BYTES]; CHUNK_LINES];
        let mut into = [[0; LINE_LEN_BYTES]; CHUNK_LINES];
        let mut times = Vec::with_capacity(count as usize);
        for n in from..from + count {
            let chunk = self.chunk(n);
            let transfer = match access {
                Access::Read => Transfer::Read {
                    chunk,
                    lines: 1,
                    into: &mut into,
                },
                Access::Write => Transfer::Write {
                    chunk,
                    lines: 1,
                    from: &content,
                    sole_writer: true,
                },
            };
            let began = Instant::now();
            self.lines.transfer(&mut [transfer])?;
            let took = began.elapsed();
            times.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
            if access == Access::Read {
                // Written earlier in this run, or when the memory was filled.
                ensure!(matches!(into[0][0], 1 | 2), "chunk {chunk} has lost a line");
            }
        }
        Ok(times)
    }
}

fn of_lines(run: &Run<'_>, dataplane: Dataplane) -> Result<Vec<Measured>> {
    let testbeds = testbeds(run, dataplane)?;
    let pages = u64::from(run.accesses);
    let local = Box::new(LocalLines::new(pages as usize * PAGE_CHUNKS));
    let mut all: Vec<(Place, OfLines)> = vec![(
        Place::Local,
        OfLines {
            lines: local,
            pages,
        },
    )];
    for (place, testbed) in &testbeds {
        let lines = Box::new(testbed.connect()?);
        all.push((*place, OfLines { lines, pages }));
    }
    for (place, lines) in &mut all {
        progress(&format!("{dataplane}: filling lines, {}", place.name()));
        lines.fill()?;
    }
    let places: Vec<Place> = all.iter().map(|(place, _)| *place).collect();
    let mut measured = Measured::all_of(&places)?;
    for access in Access::ALL {
        for (from, count) in slices(run) {
            progress(&format!("{dataplane}: line {}s from {from}", access.name()));
            for (place, lines) in &mut all {
                let times = lines.measure(access, from, count)?;
                add(&mut measured, *place, access, &times)?;
            }
        }
    }
    Ok(measured)
}

fn of_pages(run: &Run<'_>, dataplane: Dataplane, output: &Output) -> Result<Vec<Measured>> {
    let testbeds = testbeds(run, dataplane)?;
    let pages = u64::from(run.accesses);
    let buffer = format!("{}KiB", BUFFER_PAGES * PAGE_LEN_BYTES as u64 / 1024);
    let space = format!(
        "{}KiB",
        (pages + REST_PAGES + SPARE_PAGES) * PAGE_LEN_BYTES as u64 / 1024
    );
    let buffer: [&OsStr; 2] = ["--buffer".as_ref(), buffer.as_ref()];
    let local: [&OsStr; 3] = ["--local".as_ref(), "--local-size".as_ref(), space.as_ref()];
    let in_pager = run.memory_run(&[&buffer[..], &local[..]].concat())?;
    let mut all = Vec::new();
    progress(&format!("{dataplane}: filling pages"));
    let start = |runner| Pages::start(runner, pages, REST_PAGES);
    all.push((Place::Local, start(None)?));
    all.push((Place::Pager, start(Some(in_pager))?));
    for (place, testbed) in &testbeds {
        progress(&format!("{dataplane}: filling pages, {}", place.name()));
        let runner =
            run.memory_run(&[&buffer[..], &["--data".as_ref(), testbed.data().as_ref()]].concat())?;
        all.push((*place, start(Some(runner))?));
    }
    let places: Vec<Place> = all.iter().map(|(place, _)| *place).collect();
    let mut measured = Measured::all_of(&places)?;
    for access in Access::ALL {
        for (_, pages) in &mut all {
            pages.settle()?;
        }
        let fetched = |testbed: &Testbed| testbed.pager().map_or(0, |pager| pager.fetched);
        let before: Vec<u64> = testbeds.iter().map(|(_, t)| fetched(t)).collect();
        for (from, count) in slices(run) {
            progress(&format!("{dataplane}: page {}s from {from}", access.name()));
            for (place, program) in &mut all {
                let times = program.measure(access, from, count)?;
                add(&mut measured, *place, access, &times)?;
            }
        }
        for ((place, testbed), before) in testbeds.iter().zip(before) {
            let pager = testbed.pager().context("the pager reports no counters")?;
            output.note(&format!(
                "{dataplane}, page {}s, {}: {} of {pages} accesses fetched a page, {} transfers were tried again",
                access.name(),
                place.name(),
                pager.fetched - before,
                pager.retries
            ));
        }
    }
    Ok(measured)
}

fn show(
    run: &Run<'_>,
    output: &mut Output,
    dataplane: Dataplane,
    unit: Unit,
    all: &[Measured],
) -> Result<()> {
    let backend = dataplane.to_string();
    for access in Access::ALL {
        let of = |place| distribution(all, place, access);
        let one_server = of(Place::OneServer).context("one server was measured")?;
        let mut series = Vec::new();
        for one in all.iter().filter(|one| one.access == access) {
            let figures = Distribution::of(&one.times);
            let conditions = conditions(run, unit, one.place);
            let quoted = match (unit, access, one.place) {
                (Unit::Page, Access::Write, Place::Local) => Some(PAPER_LOCAL),
                (Unit::Page, _, Place::ThreeServers) => Some(PAPER_REMOTE),
                _ => None,
            };
            let [p50, p99] = unit.metrics(access);
            let percentiles: [(_, Pick, _); 2] = [
                (p50, |d: &Distribution| d.p50_us, quoted),
                (p99, |d: &Distribution| d.p99_us, None),
            ];
            for (metric, pick, quoted) in percentiles {
                let figure = (pick(&figures), "us");
                let is_baseline = one.place == Place::OneServer;
                let baseline = (!is_baseline).then(|| Baseline {
                    name: Place::OneServer.name().into(),
                    value: pick(&one_server),
                });
                let row = row(metric, &backend, one.place.name(), figure, &*conditions);
                output.row(&row.beside(baseline).quoting(quoted))?;
            }
            series.push(Series {
                name: one.place.name().into(),
                points: figures.cdf(),
                is_quoted: false,
            });
        }
        if unit == Unit::Page {
            for quoted in [PAPER_LOCAL, PAPER_REMOTE] {
                series.push(Series {
                    name: format!("paper: {}", quoted.what),
                    points: vec![[quoted.value, 50.0]],
                    is_quoted: true,
                });
            }
        }
        output.chart(Chart::Lines {
            title: format!("{backend}: one {} of a {}", access.name(), unit.name()),
            x: "latency, us".into(),
            y: "percent of accesses".into(),
            series,
            events: Vec::new(),
        });
        let three = of(Place::ThreeServers).context("three servers were measured")?;
        goals(output, dataplane, unit, access, &three, &one_server);
    }
    Ok(())
}

fn goals(
    output: &Output,
    dataplane: Dataplane,
    unit: Unit,
    access: Access,
    three: &Distribution,
    one: &Distribution,
) {
    let what = format!("{dataplane}, {} {}", unit.name(), access.name());
    match unit {
        Unit::Page => {
            let p50 = format!("{what}, p50 through a handler thread");
            goal_at_most(output, &p50, three.p50_us, PAGE_P50_GOAL_US, "us");
            let ratio = three.p99_us / three.p50_us;
            goal_at_most(
                output,
                &format!("{what}, p99"),
                ratio,
                PAGE_P99_GOAL_RATIO,
                "x p50",
            );
        }
        Unit::Line => {
            if dataplane == Dataplane::Xdp {
                goal_at_most(
                    output,
                    &format!("{what}, p50"),
                    three.p50_us,
                    LINE_P50_GOAL_US,
                    "us",
                );
            }
            let ratio = three.p50_us / one.p50_us;
            let p50 = format!("{what}, p50 of three servers");
            goal_at_most(output, &p50, ratio, LINE_GOAL_RATIO, "x one server");
        }
    }
}

fn conditions(run: &Run<'_>, unit: Unit, place: Place) -> String {
    let what = match (unit, place) {
        (Unit::Line, Place::Local) => "line 0 of different pages, copied in this process",
        (Unit::Line, _) => "line 0 of different pages, one request under way",
        (Unit::Page, Place::Local) => {
            "different pages, written first and then read: the kernel answers the fault of the write, the read has none"
        }
        (Unit::Page, Place::Pager) => {
            "different pages, none in the buffer: a handler thread answers from its process"
        }
        (Unit::Page, _) => {
            "different pages, none in the buffer: a handler thread answers, 4 packets of 16 lines"
        }
    };
    format!(
        "{} accesses in {} alternating slices, {what}; {}",
        run.accesses,
        run.rounds,
        run.conditions()
    )
}
