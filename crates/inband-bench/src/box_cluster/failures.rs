//! Leaders killed, and a node restarted empty, as seen by clients of the other nodes.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use inband_box::node::SUSPECT_AFTER_NS;
use inband_cluster::box_cluster::Quorum;

use super::memcached::{fill, Memcached};
use super::testbed::Testbed;
use super::{goal_at_least, goal_at_most, row, Run, QUICK_ITEMS_BYTES, QUICK_KILLS};
use crate::load::Load;
use crate::row::{median, number, progress, Output};

const NODES: u8 = 3;
const TABLE_BYTES: u64 = 64 << 20;
/// How long to watch before killing a leader.
const BEFORE: Duration = Duration::from_millis(100);
const REPLY_LIMIT: Duration = Duration::from_secs(20);
const GOAL_AFTER_SUSPICION_MS: f64 = 5.0;

const ITEM_LEN_BYTES: usize = 1000;
/// Table memory per item: its key, and the overhead of a slot and its chunks.
const TABLE_BYTES_PER_ITEM: u64 = 1600;
/// Requests in flight while a node catches up.
const CLIENTS_OF_JOINER: usize = 8;
const SLICE: Duration = Duration::from_millis(500);
const SLICES_BEFORE: usize = 4;
/// How long a node may take to catch up.
const JOIN_LIMIT: Duration = Duration::from_secs(120);
const GOAL_OTHERS: f64 = 0.7;

/// Sends SETs one after another and records the longest time between two acknowledgements, and their number.
struct Writer {
    stream: BufReader<TcpStream>,
}

impl Writer {
    fn connect(address: SocketAddr) -> Result<Writer> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        Ok(Writer {
            stream: BufReader::new(stream),
        })
    }

    fn set(&mut self) -> Result<()> {
        let request = b"set election 0 0 5\r\nhello\r\n";
        self.stream.get_mut().write_all(request)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line == "STORED\r\n", "a SET was answered {line:?}");
        Ok(())
    }

    /// Returns the longest time between two acknowledgements until `ends` is set and one more has arrived.
    fn longest_gap(&mut self, ends: &AtomicBool) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        let mut last = Instant::now();
        loop {
            let is_last = ends.load(Ordering::Acquire);
            self.set()?;
            longest = longest.max(last.elapsed());
            last = Instant::now();
            if is_last {
                return Ok(longest);
            }
        }
    }
}

/// Kills leaders while a client of a surviving node writes one value after another.
pub fn election(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let kills = run.quick(QUICK_KILLS.min(run.args.kills), run.args.kills);
    let testbed = Testbed::start(NODES, Quorum::Majority, TABLE_BYTES, run.args)?;
    run.note_place(&testbed.place());
    let mut gaps_ms = Vec::new();
    let mut undisturbed_ms: Vec<f64> = Vec::new();
    while gaps_ms.len() < kills {
        progress(&format!("kill {} of {kills}", gaps_ms.len() + 1));
        testbed.wait_until_whole()?;
        let leader = testbed.leader()?;
        let mut others = testbed.nodes().into_iter();
        let other = others.find(|node| node.name != leader);
        let other = other.context("there are other nodes")?.name;
        let mut writer = Writer::connect(testbed.address(&other)?)?;
        let still = AtomicBool::new(false);
        let calm = thread::scope(|scope| {
            let calm = scope.spawn(|| writer.longest_gap(&still));
            thread::sleep(BEFORE);
            still.store(true, Ordering::Release);
            calm.join().map_err(|_| anyhow!("the client panicked"))?
        })?;
        let ends = AtomicBool::new(false);
        let (gap, leads) = thread::scope(|scope| {
            let gap = scope.spawn(|| writer.longest_gap(&ends));
            thread::sleep(BEFORE);
            let leads = testbed.leader().map(|now| now == leader);
            let killed = match leads {
                Ok(true) => testbed.supervisor.kill(&leader).map(drop),
                _ => Ok(()),
            };
            // Values sent from now on are acknowledged by the next leader.
            ends.store(true, Ordering::Release);
            let gap = gap.join().map_err(|_| anyhow!("the client panicked"))?;
            killed?;
            Ok::<_, anyhow::Error>((gap?, leads?))
        })?;
        // A pause of the machine while the client was watched may have elected another.
        if !leads {
            continue;
        }
        undisturbed_ms.push(calm.as_secs_f64() * 1e3);
        gaps_ms.push(gap.as_secs_f64() * 1e3);
        testbed.supervisor.restart(&leader)?;
    }
    let suspicion_ms = SUSPECT_AFTER_NS as f64 / 1e6;
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let (middle, worst) = (median(&mut gaps_ms.clone()), most(&gaps_ms));
    let conditions = format!(
        "{NODES} nodes; a client of a node that survives sends SETs one after the other: the longest time between two \
         acknowledgements around each of {kills} kills; a silent leader is suspected after {} ms; {}",
        number(suspicion_ms),
        run.conditions()
    );
    for (metric, value) in [
        ("election_median_ms", middle),
        ("election_worst_ms", worst),
        (
            "election_undisturbed_median_ms",
            median(&mut undisturbed_ms),
        ),
    ] {
        output.row(&row(
            metric,
            "inband",
            "leader killed",
            (value, "ms"),
            &*conditions,
        ))?;
    }
    for (what, value) in [("median", middle), ("worst", worst)] {
        goal_at_most(
            (run, output),
            &format!(
                "without a leader, {what} of {kills}, less the suspicion of {} ms",
                number(suspicion_ms)
            ),
            value - suspicion_ms,
            GOAL_AFTER_SUSPICION_MS,
            "ms",
        );
    }
    Ok(())
}

/// Kills a follower and restarts it empty.
pub fn joiner(run: &Run<'_>, output: &mut Output) -> Result<()> {
    let items_bytes = run.quick(
        QUICK_ITEMS_BYTES.min(run.args.items_bytes),
        run.args.items_bytes,
    );
    let items = items_bytes / ITEM_LEN_BYTES as u64;
    let table_bytes = (items * TABLE_BYTES_PER_ITEM).max(TABLE_BYTES);
    let testbed = Testbed::start(NODES, Quorum::Majority, table_bytes, run.args)?;
    run.note_place(&testbed.place());
    let serving = testbed.leader()?;
    let address = testbed.address(&serving)?;
    progress("filling the table");
    fill(&Memcached, address, items, ITEM_LEN_BYTES)?;
    let slice = || {
        let load = Load {
            protocol: &Memcached,
            addresses: &[address],
            connections: CLIENTS_OF_JOINER,
            pipeline: 1,
            sets_percent: 100,
            value_len_bytes: ITEM_LEN_BYTES,
            keys: items,
            spins: false,
        };
        Ok::<f64, anyhow::Error>(load.run(Duration::ZERO, SLICE)?.per_s)
    };
    progress("before");
    let rates = |count: usize| (0..count).map(|_| slice()).collect::<Result<Vec<f64>>>();
    let mut before = rates(SLICES_BEFORE)?;
    // Another node may lead by now.
    let leader = testbed.leader()?;
    let follower = testbed
        .nodes()
        .into_iter()
        .find(|node| ![&leader, &serving].contains(&&node.name));
    let follower = follower.context("there are followers")?.name;
    testbed.supervisor.kill(&follower)?;
    let mut without = rates(SLICES_BEFORE)?;
    progress("a node comes back");
    let over = AtomicBool::new(false);
    let began = Instant::now();
    let (joined, during) = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut rates = Vec::new();
            while !over.load(Ordering::Acquire) {
                rates.push(slice()?);
            }
            Ok::<Vec<f64>, anyhow::Error>(rates)
        });
        let wait = || -> Result<Option<Duration>> {
            testbed.supervisor.restart(&follower)?;
            while began.elapsed() < JOIN_LIMIT {
                let nodes = testbed.nodes();
                let node = nodes.iter().find(|node| node.name == follower);
                if node.is_some_and(|node| node.state == "following") {
                    return Ok(Some(began.elapsed()));
                }
                thread::sleep(Duration::from_millis(20));
            }
            Ok(None)
        };
        let joined = wait();
        over.store(true, Ordering::Release);
        let during = others.join().map_err(|_| anyhow!("the load panicked"))?;
        Ok::<_, anyhow::Error>((joined?, during?))
    })?;
    let (before, without, during) = (
        median(&mut before),
        median(&mut without),
        median(&mut during.clone()),
    );
    let conditions = format!(
        "{NODES} nodes, {items} items of {ITEM_LEN_BYTES} B; {CLIENTS_OF_JOINER} clients of the first leader with a SET of {ITEM_LEN_BYTES} B each; \
         median of slices of {} ms: {} SETs/s with all nodes, {} without one, {} while it catches up; {}",
        SLICE.as_millis(),
        number(before),
        number(without),
        number(during),
        run.conditions()
    );
    match joined {
        Some(joined) => {
            let figure = (joined.as_secs_f64(), "s");
            output.row(&row(
                "joiner_equal_s",
                "inband",
                "under load",
                figure,
                &*conditions,
            ))?;
        }
        None => output.note(&format!(
            "MISSED: under this load the node did not catch up within {} s",
            JOIN_LIMIT.as_secs()
        )),
    }
    for (variant, rate) in [
        ("all nodes", before),
        ("a node is down", without),
        ("it catches up", during),
    ] {
        let figure = (rate, "SETs/s");
        output.row(&row(
            "joiner_others_per_s",
            "inband",
            variant,
            figure,
            &*conditions,
        ))?;
    }
    let what = "the others' SETs while a node catches up, beside those with all nodes";
    goal_at_least((run, output), what, during / before, GOAL_OTHERS, "times");
    Ok(())
}
