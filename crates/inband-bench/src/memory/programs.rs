//! Ordinary programs with part of their heap in local memory, and the rest in replicated memory or in swap.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use hdrhistogram::Histogram;
use inband_cluster::client::{Answer, Client};
use inband_cluster::scratch::{retry, ScratchDir, Server};
use inband_memory::heap::PAGE_LEN_BYTES;
use inband_paxos::config::Dataplane;
use inband_testing::port::{free_ports, loopback};

use super::pages::{Access, Pages};
use super::swap::{self, Swap};
use super::testbed::{Testbed, TestbedSpec};
use super::{row, Run};
use crate::plot::{Bar, Chart};
use crate::row::{median, number, progress, Baseline, Output};
use crate::stats::Distribution;

/// Percentages of the heap in local memory.
const LOCAL_PERCENT: [u64; 3] = [75, 50, 25];
const SPACE_BYTES: u64 = 256 << 20;
/// More than any of these programs needs.
const WHOLE: &str = "192MiB";
/// The minimum for `inband memory run`.
const BUFFER_MIN_BYTES: u64 = 256 << 10;
/// Memory of a program in addition to its heap, in a control group: stacks, page tables, file cache.
const BESIDE_HEAP_BYTES: u64 = 4 << 20;
/// Programs that take longer are killed and reported as such.
const LIMIT: Duration = Duration::from_secs(120);
const START_LIMIT: Duration = Duration::from_secs(20);
/// Not a wrapper that executes it: the heap must be that of the program that is started.
const PYTHON: &str = "/usr/bin/python3";
/// Pages of 4 KiB to compare with Redis's values.
const PAGES: u64 = 8192;
const PAGES_BUFFER: u64 = 1024;
const REDIS_CALLS: u64 = 10_000;
const REDIS_LIMIT: Duration = Duration::from_secs(5);

/// A program to measure.
enum Program {
    /// Reads its input and exits.
    Ends {
        name: &'static str,
        words: Vec<String>,
        input: Option<PathBuf>,
    },
    /// A server under redis-benchmark, with this many requests of each kind.
    Redis { requests: u64 },
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Program::Ends { name, .. } => name,
            Program::Redis { .. } => "redis-benchmark",
        }
    }

    /// Returns the files that it needs to run.
    fn needs(&self) -> Vec<&str> {
        match self {
            Program::Ends { words, .. } => vec![&words[0]],
            Program::Redis { .. } => vec!["redis-server", "redis-benchmark", "redis-cli"],
        }
    }
}

fn is_here(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Returns all programs, with their files in a directory.
fn programs(dir: &Path, quick: bool) -> Result<Vec<Program>> {
    let scale = if quick { 1 } else { 5 };
    let script = dir.join("script.sql");
    let rows = 4_000 * scale;
    fs::write(
        &script,
        format!(
            ".bail on\n\
             CREATE TABLE people(id INTEGER PRIMARY KEY, name TEXT, city TEXT, score INTEGER);\n\
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})\n\
             INSERT INTO people SELECT i, 'name-' || (i * 7919 % 120011), 'city-' || (i % 97), i * 31 % 1009 FROM n;\n\
             CREATE INDEX by_city ON people(city, score);\n\
             UPDATE people SET score = score + 1 WHERE id % 3 = 0;\n\
             SELECT city, count(*), sum(score), min(name), max(name) FROM people GROUP BY city ORDER BY city;\n"
        ),
    )?;
    let lines = dir.join("lines");
    let mut file = BufWriter::new(File::create(&lines)?);
    for n in 1..=40_000 * scale {
        writeln!(file, "{}", n * 7919 % 1_500_007)?;
    }
    file.flush()?;
    let keys = 10_000 * scale;
    let python = format!(
        "d = {{i: str(i * 7) for i in range({keys})}}\n\
         for i in range(0, {keys}, 3): del d[i]\n\
         print(len(d), sum(len(v) for v in d.values()))"
    );
    let this = std::env::current_exe().context("finding this program")?;
    let this = this.to_str().context("the name of this program")?;
    let join = format!("--rows={}", 10_000 * scale);
    let ends = |name, words: &[&str], input| Program::Ends {
        name,
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        input,
    };
    let lines = lines.to_str().context("the directory's name")?;
    Ok(vec![
        ends("sqlite3", &["sqlite3", ":memory:"], Some(script)),
        Program::Redis {
            requests: 2_000 * scale,
        },
        ends("sort", &["sort", "-S", "40M", "--parallel=1", lines], None),
        ends("Python dictionary", &[PYTHON, "-c", &python], None),
        ends("hash join", &[this, "memory-join", &join], None),
    ])
}

/// Options of the hidden `inband-bench memory-join`.
#[derive(Debug, clap::Args)]
pub struct MemoryJoinArgs {
    /// Rows of the smaller table; the other has twice as many.
    #[arg(long)]
    rows: u64,
}

/// Joins two tables with a hash table of the smaller one, and prints the number of rows and their sum.
pub fn memory_join(args: &MemoryJoinArgs) {
    // splitmix64: keys in random order, half of which have a match.
    let key = |n: u64| {
        let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ z >> 27
    };
    let small: std::collections::HashMap<u64, u64> = (0..args.rows).map(|n| (key(n), n)).collect();
    let found = (0..2 * args.rows).filter_map(|n| small.get(&key(n)));
    let (count, sum) = found.fold((0u64, 0u64), |(count, sum), n| (count + 1, sum + n));
    println!("{count} {sum}");
}

/// The result of running a program.
struct Ran {
    took: Duration,
    printed: Vec<u8>,
    /// Its standard error.
    said: String,
}

/// Returns the runner, if any, followed by the program.
fn command_of(runner: Option<Command>, words: &[String]) -> Command {
    let mut command = match runner {
        Some(mut runner) => {
            runner.arg(&words[0]);
            runner
        }
        None => Command::new(&words[0]),
    };
    command.args(&words[1..]).env("LC_ALL", "C");
    command
}

fn to_its_end(mut command: Command, input: Option<&Path>, dir: &Path) -> Result<Option<Ran>> {
    let (printed, said) = (dir.join("printed"), dir.join("said"));
    let input = match input {
        Some(path) => File::open(path)?.into(),
        None => Stdio::null(),
    };
    command.stdin(input);
    command.stdout(File::create(&printed)?);
    command.stderr(File::create(&said)?);
    let began = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(1));
    };
    let took = began.elapsed();
    let said = fs::read_to_string(&said)?;
    ensure!(status.success(), "{command:?}: {status}: {said}");
    Ok(Some(Ran {
        took,
        printed: fs::read(&printed)?,
        said,
    }))
}

/// Runs a program to its end; `None` if it took too long.
fn run_program(program: &Program, runner: Option<Command>, dir: &Path) -> Result<Option<Ran>> {
    match program {
        Program::Ends { words, input, .. } => {
            to_its_end(command_of(runner, words), input.as_deref(), dir)
        }
        Program::Redis { requests } => redis_benchmark(runner, *requests, dir),
    }
}

fn redis_words(socket: &Path) -> Vec<String> {
    let socket = socket.to_string_lossy();
    let words = [
        "redis-server",
        "--port",
        "0",
        "--save",
        "",
        "--unixsocket",
        &socket,
    ];
    words.map(str::to_owned).into()
}

fn redis_benchmark(runner: Option<Command>, requests: u64, dir: &Path) -> Result<Option<Ran>> {
    let (socket, said) = (dir.join("redis.socket"), dir.join("redis.log"));
    let _ = fs::remove_file(&socket);
    let mut server = command_of(runner, &redis_words(&socket));
    server.stdin(Stdio::null());
    server.stdout(File::create(dir.join("redis.printed"))?);
    server.stderr(File::create(&said)?);
    let mut server = server.spawn().context("starting redis-server")?;
    let client = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.arg("-s").arg(&socket).args(words);
        command
    };
    let measured = || -> Result<Option<Ran>> {
        let ping = || {
            let pong = client("redis-cli", &["PING"]).output()?;
            ensure!(
                pong.stdout.starts_with(b"PONG"),
                "redis-server does not answer"
            );
            Ok(())
        };
        retry(START_LIMIT, ping)?;
        let requests = requests.to_string();
        let load = [
            "-t",
            "set,get,lpush,sadd,zadd",
            "-n",
            &requests,
            "-r",
            "20000",
            "-d",
            "500",
            "-q",
        ];
        let ran = to_its_end(client("redis-benchmark", &load), None, dir)?;
        let ended = client("redis-cli", &["SHUTDOWN", "NOSAVE"]).output()?;
        ensure!(ended.status.success(), "redis-server does not end");
        Ok(ran)
    };
    let ran = measured();
    if !matches!(ran, Ok(Some(_))) {
        let _ = server.kill();
    }
    server.wait()?;
    Ok(ran?.map(|ran| Ran {
        // Its output differs from run to run, so it is not compared.
        printed: Vec::new(),
        said: fs::read_to_string(&said).unwrap_or_default(),
        ..ran
    }))
}

/// Returns the heap size of a program whose buffer holds all of it, from its pager's final message.
fn heap_bytes(said: &str) -> Result<u64> {
    let before = |unit: &str| -> Option<u64> {
        let (before, _) = said.split_once(unit)?;
        before.rsplit(' ').next()?.parse().ok()
    };
    let touched = before(" new)");
    let ahead = before(" pages got ready ahead");
    let pages = touched.and_then(|touched| Some(touched + ahead?));
    let pages = pages.with_context(|| format!("the pager reports no number of faults: {said}"))?;
    Ok(pages * PAGE_LEN_BYTES as u64)
}

/// Measures, prints the rows and plots them.
pub(super) fn measure(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let dataplanes = run.dataplanes(output);
    ensure!(!dataplanes.is_empty(), "no data plane works here");
    let scratch = ScratchDir::create(&std::env::temp_dir(), "programs")?;
    let dir = scratch.path();
    let swap_space = match Swap::create() {
        Ok(swap) => Some(swap),
        Err(error) => {
            output.skipped(&format!("swap on a block device in memory: {error:#}"));
            None
        }
    };
    let mut bars = Vec::new();
    for program in programs(dir, run.args.quick)? {
        let missing: Vec<&str> = program
            .needs()
            .into_iter()
            .filter(|it| !is_here(it))
            .collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            output.skipped(&format!(
                "{}: {missing} is not on this machine",
                program.name()
            ));
            continue;
        }
        one(
            run,
            output,
            &program,
            &dataplanes,
            swap_space.as_ref(),
            dir,
            &mut bars,
        )?;
    }
    output.chart(Chart::Bars {
        title: "seconds".into(),
        bars,
    });
    drop(swap_space);
    for dataplane in dataplanes {
        beside_redis(run, output, dataplane, dir)?;
    }
    Ok(())
}

/// Where the part of a program's heap is that is not in local memory.
#[derive(Clone, Copy)]
enum Rest<'a> {
    Replicated(&'a Testbed, Dataplane),
    Swap(&'a Swap),
}

#[allow(clippy::too_many_arguments)]
fn one(
    run: &Run<'_>,
    output: &mut Output,
    program: &Program,
    dataplanes: &[Dataplane],
    swap_space: Option<&Swap>,
    dir: &Path,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let name = program.name();
    progress(&format!("{name}, local memory"));
    let whole: [&OsStr; 6] = [
        "--local".as_ref(),
        "--local-size".as_ref(),
        "256MiB".as_ref(),
        "--buffer".as_ref(),
        WHOLE.as_ref(),
        "--stats".as_ref(),
    ];
    let counted = run_program(program, Some(run.memory_run(&whole)?), dir)?;
    let counted =
        counted.with_context(|| format!("{name} takes longer than {} s", LIMIT.as_secs()))?;
    let heap = heap_bytes(&counted.said)?;
    let mut local_s = Vec::new();
    for _ in 0..run.rounds {
        let ran = run_program(program, None, dir)?;
        let ran = ran.with_context(|| format!("{name} takes longer than {} s", LIMIT.as_secs()))?;
        ensure!(
            ran.printed == counted.printed,
            "{name}: another result under `inband memory run`"
        );
        local_s.push(ran.took.as_secs_f64());
    }
    let local_s = median(&mut local_s);
    let mib = heap as f64 / f64::from(1 << 20);
    let conditions = |rest: &str, rounds: usize| {
        format!(
            "heap of {} MiB; {rest}; {rounds} rounds; {}",
            number(mib),
            run.conditions()
        )
    };
    let figure = (local_s, "s");
    let all_local = conditions("all in local memory", run.rounds);
    output.row(&row("program_s", "local", name, figure, all_local))?;
    bars.push(Bar {
        name: format!("{name}, local memory"),
        value: local_s,
        is_baseline: true,
    });
    let testbeds = dataplanes.iter().map(|dataplane| -> Result<_> {
        let testbed = Testbed::start(TestbedSpec {
            servers: 3,
            switches: 2,
            space_bytes: SPACE_BYTES,
            dataplane: *dataplane,
            secure: run.args.secure,
        })?;
        Ok((testbed, *dataplane))
    });
    let testbeds: Vec<(Testbed, Dataplane)> = testbeds.collect::<Result<_>>()?;
    let replicated = testbeds
        .iter()
        .map(|(testbed, dataplane)| Rest::Replicated(testbed, *dataplane));
    let rests: Vec<Rest<'_>> = replicated.chain(swap_space.map(Rest::Swap)).collect();
    for percent in LOCAL_PERCENT {
        for rest in &rests {
            let (backend, what) = match rest {
                Rest::Replicated(_, dataplane) => {
                    (dataplane.to_string(), "the rest in replicated memory")
                }
                Rest::Swap(_) => ("swap".into(), "the rest in swap on zram"),
            };
            let variant = format!("{name}, {percent} % local");
            progress(&format!("{variant}, {what}, {backend}"));
            let part = (heap * percent / 100).max(BUFFER_MIN_BYTES);
            let runner = match rest {
                Rest::Replicated(testbed, _) => {
                    let buffer = format!("{}KiB", part.div_ceil(1024));
                    run.memory_run(&[
                        "--data".as_ref(),
                        testbed.data().as_ref(),
                        "--buffer".as_ref(),
                        buffer.as_ref(),
                        "--stats".as_ref(),
                    ])?
                }
                Rest::Swap(swap) => {
                    swap.limit(part + BESIDE_HEAP_BYTES)?;
                    swap.runner()
                }
            };
            let before = swap::pages_in();
            let ran = match run_program(program, Some(runner), dir) {
                Ok(Some(ran)) => ran,
                Ok(None) => {
                    let limit_s = LIMIT.as_secs();
                    output.note(&format!(
                        "{variant}, {what}, {backend}: not ended after {limit_s} s"
                    ));
                    continue;
                }
                // The kernel may kill a program if it cannot free memory fast enough.
                Err(error) if matches!(rest, Rest::Swap(_)) => {
                    output.note(&format!(
                        "{variant}, {what}: did not come to its end: {error:#}"
                    ));
                    continue;
                }
                Err(error) => return Err(error),
            };
            ensure!(
                ran.printed == counted.printed,
                "{variant}, {what}, {backend}: another result"
            );
            let pager = ran.said.lines().map(str::trim).filter(|_| {
                // With swap there is no pager, so nothing is printed.
                matches!(rest, Rest::Replicated(..))
            });
            let pager = pager.collect::<Vec<_>>().join("; ");
            let figure = (ran.took.as_secs_f64(), "s");
            let rest = match pager.is_empty() {
                true => format!(
                    "{what}, with {} MiB for all but the heap; {} pages came from swap",
                    BESIDE_HEAP_BYTES >> 20,
                    swap::pages_in().saturating_sub(before)
                ),
                false => format!("{what}; {pager}"),
            };
            let baseline = Baseline {
                name: "local memory".into(),
                value: local_s,
            };
            let row = row(
                "program_s",
                &backend,
                &*variant,
                figure,
                conditions(&rest, 1),
            );
            output.row(&row.beside(Some(baseline)))?;
            bars.push(Bar {
                name: format!("{variant}, {backend}"),
                value: ran.took.as_secs_f64(),
                is_baseline: false,
            });
        }
    }
    Ok(())
}

/// Pages of replicated memory compared with values of the same length in Redis.
fn beside_redis(
    run: &Run<'_>,
    output: &mut Output,
    dataplane: Dataplane,
    dir: &Path,
) -> Result<()> {
    if !is_here("redis-server") {
        output.skipped("GET and SET of 4 KiB: redis-server is not on this machine");
        return Ok(());
    }
    progress("GET and SET of 4 KiB");
    let address = loopback(free_ports(1));
    let port = address.port().to_string();
    let log = File::create(dir.join("redis.log"))?;
    let server = Command::new("redis-server")
        .args(["--port", &port, "--save", "", "--appendonly", "no"])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn();
    let _server = Server::new("redis-server", server.context("starting redis-server")?);
    let mut client = retry(START_LIMIT, || Client::connect(address, REDIS_LIMIT))?;
    let page = "p".repeat(PAGE_LEN_BYTES);
    let mut redis = Vec::new();
    for access in Access::ALL {
        let mut times = Histogram::<u64>::new(3)?;
        for n in 0..REDIS_CALLS {
            let key = format!("page:{}", super::pages::place(n, REDIS_CALLS));
            let began = Instant::now();
            let answer = match access {
                Access::Read => client.ask(&["GET", &key])?,
                Access::Write => client.ask(&["SET", &key, &page])?,
            };
            times.record(began.elapsed().as_nanos() as u64)?;
            match (access, answer) {
                (Access::Read, Answer::Text(text)) if text == page => {}
                (Access::Write, Answer::Status(text)) if text == "OK" => {}
                (_, answer) => bail!("redis-server answered {answer:?}"),
            }
        }
        redis.push((access, Distribution::of(&times)));
    }
    let testbed = Testbed::start(TestbedSpec {
        servers: 3,
        switches: 2,
        space_bytes: SPACE_BYTES,
        dataplane,
        secure: run.args.secure,
    })?;
    let buffer = format!("{}KiB", PAGES_BUFFER * PAGE_LEN_BYTES as u64 / 1024);
    let runner = run.memory_run(&[
        "--data".as_ref(),
        testbed.data().as_ref(),
        "--buffer".as_ref(),
        buffer.as_ref(),
    ])?;
    let mut pages = Pages::start(Some(runner), PAGES, 2 * PAGES_BUFFER)?;
    for (access, redis) in redis {
        pages.settle()?;
        let mut times = Histogram::<u64>::new(3)?;
        for ns in pages.measure(access, 0, PAGES)? {
            times.record(u64::from(ns).max(1))?;
        }
        let figures = Distribution::of(&times);
        let (metric, call) = match access {
            Access::Read => ("page_read_p50_us", "GET"),
            Access::Write => ("page_write_p50_us", "SET"),
        };
        let conditions = format!(
            "{PAGES} page faults one after the other, three servers; {REDIS_CALLS} {call}s of 4 KiB one after the other, a Redis that \
             is not replicated, by TCP on loopback; p99 {} us and {} us; {}",
            number(figures.p99_us),
            number(redis.p99_us),
            run.conditions()
        );
        let row = row(
            metric,
            &dataplane.to_string(),
            format!("beside {call}"),
            (figures.p50_us, "us"),
            conditions,
        );
        output.row(&row.beside(Some(Baseline {
            name: format!("{call} of 4 KiB, Redis"),
            value: redis.p50_us,
        })))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_what_the_pager_showed() {
        let figures = inband_memory::heap::stats::Figures {
            fetched: 7,
            zeros: 12,
            read_ahead: 5,
            hits: 3,
            ..Default::default()
        };
        let said = format!("a program's words\n{figures}\n");
        assert_eq!(heap_bytes(&said).expect("it is said"), 17 * 4096);
        assert!(heap_bytes("nothing").is_err());
    }
}
