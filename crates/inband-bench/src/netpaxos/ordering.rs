//! How often two learners disagree or cannot decide, by order and equality alone, over the rate (Figure 4.2a).

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use inband_ground::auth::sign;
use inband_ground::socket::{wait_readable, HostSocket};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_ground::xdp::alone::HostSpec;
use inband_ground::xdp::multicast::Peer;
use inband_ground::xdp::XdpMode;
use inband_lab::faults::LinkFaults;
use inband_lab::lab::HOST_INTERFACE;
use inband_lab::{Lab, LabSpec};
use inband_netpaxos::faithful::{compare, Outcome};
use inband_netpaxos::quorum::Sizes;
use inband_netpaxos::request::Request;
use inband_netpaxos::role::Kind;
use inband_netpaxos::wire::{node, parse, Type};
use inband_netpaxos::xdp::attach;
use inband_netpaxos::VALUE_LEN_MAX_BYTES;
use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::Pid;

use super::{NetPaxosArgs, BENCH};
use crate::row::{machine, quote, Output, Quoted, Row};

const PORT: u16 = 7600;
const SIZES: Sizes = Sizes { failures: 1 };
const LEARNERS: u8 = 2;
/// A rate counts as reached from this share on.
const RATE_REACHED: f64 = 0.95;
/// The rate at which the paper sees no disagreement and 0.3 % of indecision; below 57,457 per second it sees neither.
const PAPER_HIGH: u32 = 65_328;
const PLACE: &str = "dissertation, 4.2, Figure 4.2a";
/// Time limit until the messages before the counted ones arrive everywhere.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// After this much silence, every packet in flight has arrived or is lost.
const QUIET: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(20);

/// How to send messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    rate: u32,
    /// Sleep for this long, then send everything that is due.
    every: Duration,
    jitter_us: u32,
    /// Queues of every link, and CPUs that send, each every so many-th message.
    queues: u32,
}

/// The results of a point.
struct Point {
    outcome: Outcome,
    sent: u32,
    took: Duration,
    /// Share of lost copies, of all copies due at the learners.
    lost_share: f64,
}

impl Point {
    /// Messages per second.
    fn rate(&self) -> f64 {
        f64::from(self.sent) / self.took.as_secs_f64()
    }
}

/// Measures and prints the rows.
pub fn measure(args: &NetPaxosArgs, output: &mut Output) -> Result<()> {
    let steady = |rate: &u32, queues: u32| Load {
        rate: *rate,
        every: Duration::from_millis(1),
        jitter_us: 0,
        queues,
    };
    let highest = args.rates.iter().max().context("--rates: at least one")?;
    let mut queues = vec![1, args.queues];
    queues.dedup();
    let mut loads = Vec::new();
    for queues in queues {
        loads.extend(args.rates.iter().map(|rate| steady(rate, queues)));
        loads.push(Load {
            every: Duration::from_secs(1),
            ..steady(highest, queues)
        });
    }
    loads.extend(args.jitter_us.iter().map(|jitter_us| Load {
        jitter_us: *jitter_us,
        ..steady(&args.jitter_rate, 1)
    }));
    for load in loads {
        let machine = machine();
        let point = measure_point(args.messages, load)?;
        report(load, &point, &machine, output)?;
    }
    Ok(())
}

fn report(load: Load, point: &Point, machine: &str, output: &mut Output) -> Result<()> {
    let is_burst = load.every >= Duration::from_secs(1);
    let mut variant = match (is_burst, load.jitter_us) {
        (true, _) => format!("{}/s, bursts", load.rate),
        (false, 0) => format!("{}/s", load.rate),
        (false, jitter_us) => format!("{}/s, jitter {jitter_us} us", load.rate),
    };
    if load.queues > 1 {
        variant += &format!(", {} queues", load.queues);
    }
    let conditions = format!(
        "{} messages of {VALUE_LEN_MAX_BYTES} B, {:.0} a second reached, {:.3} % of copies lost, {}, 4 minions, 2 learners, namespaces and veth with {} queues, as many CPUs send; {machine}",
        point.sent,
        point.rate(),
        point.lost_share * 100.0,
        if is_burst { "all at the start of each second" } else { "some every ms" },
        load.queues,
    );
    let share = |count: u64| count as f64 * 100.0 / point.outcome.iterations.max(1) as f64;
    // Quote the paper's share only if its rate was reached.
    let is_reached = point.rate() >= RATE_REACHED * f64::from(load.rate);
    let quoted = is_reached.then(|| paper(load, is_burst));
    let (disagreement, indecision) = quoted.unwrap_or_default();
    for (metric, count, paper) in [
        ("disagreement", point.outcome.disagreements, disagreement),
        ("indecision", point.outcome.indecisions, indecision),
    ] {
        let figure = (share(count), "%");
        let row = Row::new((BENCH, metric), "xdp", &variant, figure, &conditions);
        output.row(&row.quoting(paper))?;
    }
    Ok(())
}

fn paper(load: Load, is_burst: bool) -> (Option<Quoted>, Option<Quoted>) {
    match (is_burst, load.jitter_us, load.rate) {
        (true, ..) => (
            Some(quote(PLACE, "bursts", 1.12)),
            Some(quote(PLACE, "bursts", 2.01)),
        ),
        (false, 0, PAPER_HIGH) => (None, Some(quote(PLACE, "disagreement 0", 0.3))),
        // The paper has 0 at lower rates, so a ratio is undefined.
        _ => (None, None),
    }
}

/// Returns the testbed's hosts, in order of their addresses.
fn hosts() -> Vec<String> {
    let minions = (1..=SIZES.minions()).map(|n| format!("minion/{n}"));
    let learners = (1..=LEARNERS).map(|n| format!("learner/{n}"));
    let first = ["proposer", "serializer"].map(str::to_owned);
    first.into_iter().chain(minions).chain(learners).collect()
}

struct Testbed {
    lab: Lab,
    stop: AtomicBool,
    /// Packets received, by learner.
    arrived: [AtomicUsize; LEARNERS as usize],
}

impl Testbed {
    fn address(&self, host: &str) -> Result<SocketAddrV4> {
        Ok(SocketAddrV4::new(self.lab.host(host)?.address(), PORT))
    }

    fn peers(&self, kind: &str, count: u8, id: fn(u8) -> u8) -> Result<Vec<Peer>> {
        let peer = |n| {
            Ok(Peer {
                node: id(n),
                address: self.address(&format!("{kind}/{n}"))?,
                local: false,
            })
        };
        (1..=count).map(peer).collect()
    }

    /// Runs a role in the kernel of its host until the end.
    fn role(&self, host: &str, id: u8, kind: Kind, group: &[Peer], ready: &Sender<Result<()>>) {
        let serve = || -> Result<()> {
            self.lab.host(host)?.namespace().enter()?;
            let spec = HostSpec {
                node: id,
                address: self.address(host)?,
                mode: XdpMode::Native,
                keys: None,
            };
            let mut program = attach(&spec, kind, HOST_INTERFACE, group)?;
            while !program.refresh_neighbours()?.is_empty() {
                thread::sleep(POLL);
                ensure!(!self.stop.load(Ordering::Relaxed), "it ends");
            }
            let _ = ready.send(Ok(()));
            let mut refreshed = Instant::now();
            while !self.stop.load(Ordering::Relaxed) {
                thread::sleep(POLL);
                if refreshed.elapsed() > Duration::from_secs(1) {
                    program.refresh_neighbours()?;
                    refreshed = Instant::now();
                }
            }
            Ok(())
        };
        if let Err(error) = serve() {
            let _ = ready.send(Err(error.context(host.to_owned())));
        }
    }

    /// Runs a learner until the end. Returns what arrived, by minion.
    fn learner(&self, number: u8, ready: &Sender<Result<()>>) -> Result<Vec<Vec<u32>>> {
        let host = self.lab.host(&format!("learner/{number}"))?;
        host.namespace().enter()?;
        let socket = HostSocket::bind(SocketAddrV4::new(host.address(), PORT))?;
        let _ = ready.send(Ok(()));
        let mut logs = vec![Vec::new(); usize::from(SIZES.minions())];
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        let arrived = &self.arrived[usize::from(number) - 1];
        while !self.stop.load(Ordering::Relaxed) {
            wait_readable([socket.fd()], socket.sleep_time(POLL));
            while let Some((len_bytes, _)) = socket.receive(&mut buffer)? {
                let Ok((header, _)) = parse(&buffer[..len_bytes.min(PACKET_LEN_MAX_BYTES)]) else {
                    continue;
                };
                let minion = node::as_minion(header.node, SIZES.minions());
                let (Type::Numbered, Some(minion)) = (header.kind, minion) else {
                    continue;
                };
                logs[usize::from(minion) - 1].push(header.request as u32);
                arrived.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(logs)
    }

    fn arrived(&self) -> Vec<usize> {
        self.arrived
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .collect()
    }

    /// Sends message 0 until it arrives everywhere, then all counted messages. Returns how many copies of message 0
    /// were needed, and the duration of the rest.
    fn propose(&self, messages: u32, load: Load) -> Result<(u32, Duration)> {
        let host = self.lab.host("proposer")?;
        host.namespace().enter()?;
        let socket = HostSocket::bind(SocketAddrV4::new(host.address(), PORT))?;
        let serializer = self.address("serializer")?;
        let request = counted_request();
        let each = usize::from(SIZES.minions());
        let until = Instant::now() + READY_LIMIT;
        let mut first = 0;
        loop {
            let before = self.arrived();
            send(&socket, &request, serializer);
            first += 1;
            thread::sleep(POLL);
            let after = self.arrived();
            if after.iter().zip(&before).all(|(a, b)| *a >= b + each) {
                break;
            }
            ensure!(
                Instant::now() < until,
                "messages do not arrive at all learners: {after:?}"
            );
        }
        self.wait_until_quiet();
        self.lab
            .set_all_links(LinkFaults::delay(load.jitter_us, load.jitter_us))?;
        let began = Instant::now();
        thread::scope(|scope| {
            let senders = (0..load.queues)
                .map(|share| scope.spawn(move || self.send_share(share, (began, messages), load)));
            let senders: Vec<_> = senders.collect();
            let mut ended = senders.into_iter().map(|sender| sender.join());
            ended.try_for_each(|sender| sender.expect("it does not panic"))
        })?;
        let took = began.elapsed();
        self.wait_until_quiet();
        Ok((first, took))
    }

    /// Sends one of the senders' messages, from a CPU of its own if there are several senders.
    fn send_share(&self, share: u32, (began, messages): (Instant, u32), load: Load) -> Result<()> {
        let host = self.lab.host("proposer")?;
        host.namespace().enter()?;
        if load.queues > 1 {
            let mut cpu = CpuSet::new();
            cpu.set(share as usize % thread::available_parallelism()?.get())?;
            sched_setaffinity(Pid::from_raw(0), &cpu).context("a CPU per sender")?;
        }
        let port = PORT + 1 + share as u16;
        let socket = HostSocket::bind(SocketAddrV4::new(host.address(), port))?;
        let serializer = self.address("serializer")?;
        let mut request = counted_request();
        let mut next = share;
        while next < messages {
            // Messages that are due in this interval are sent at its start.
            let periods = began.elapsed().as_nanos() / load.every.as_nanos() + 1;
            let due_s = load.every.as_secs_f64() * periods as f64;
            let due = ((f64::from(load.rate) * due_s) as u32).min(messages);
            while next < due {
                request.number = u64::from(next) + 1;
                send(&socket, &request, serializer);
                next += load.queues;
            }
            let next = load.every * u32::try_from(periods).unwrap_or(u32::MAX);
            thread::sleep(next.saturating_sub(began.elapsed()));
        }
        Ok(())
    }

    fn wait_until_quiet(&self) {
        let mut last = (self.arrived(), Instant::now());
        while last.1.elapsed() < QUIET {
            thread::sleep(POLL);
            let now = self.arrived();
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
    }

    /// Runs all hosts concurrently until the proposer is done.
    fn run(&self, messages: u32, load: Load) -> Result<Point> {
        let minions = self.peers("minion", SIZES.minions(), node::minion)?;
        let learners = self.peers("learner", LEARNERS, node::learner)?;
        thread::scope(|scope| {
            let found = self.run_in(scope, (&minions, &learners), messages, load);
            self.stop.store(true, Ordering::Relaxed);
            let (hands, proposed) = found?;
            let logs = hands
                .into_iter()
                .map(|hand| hand.join().expect("it does not panic"));
            let mut logs = logs.collect::<Result<Vec<_>>>()?;
            let (_, took) = proposed?;
            logs.iter_mut()
                .flatten()
                .for_each(|log| log.retain(|message| *message != 0));
            let came: usize = logs.iter().flatten().map(Vec::len).sum();
            let due = messages as usize * usize::from(SIZES.minions()) * usize::from(LEARNERS);
            Ok(Point {
                outcome: compare(SIZES, [&logs[0], &logs[1]]),
                sent: messages,
                took,
                lost_share: due.saturating_sub(came) as f64 / due as f64,
            })
        })
    }

    #[allow(clippy::type_complexity)]
    fn run_in<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        (minions, learners): (&'s [Peer], &'s [Peer]),
        messages: u32,
        load: Load,
    ) -> Result<(
        Vec<thread::ScopedJoinHandle<'s, Result<Vec<Vec<u32>>>>>,
        Result<(u32, Duration)>,
    )> {
        let (ready, is_ready) = channel();
        let mut hands = Vec::new();
        for number in 1..=LEARNERS {
            let ready = ready.clone();
            hands.push(scope.spawn(move || {
                let logs = self.learner(number, &ready);
                if let Err(error) = &logs {
                    let _ = ready.send(Err(anyhow!("learner/{number}: {error:#}")));
                }
                logs
            }));
        }
        for number in 1..=SIZES.minions() {
            let ready = ready.clone();
            let kind = Kind::Minion { incarnation: 1 };
            scope.spawn(move || {
                let host = format!("minion/{number}");
                self.role(&host, node::minion(number), kind, learners, &ready);
            });
        }
        let own = ready.clone();
        scope.spawn(move || {
            self.role(
                "serializer",
                node::serializer(1),
                Kind::Serializer,
                minions,
                &own,
            );
        });
        for _ in 0..LEARNERS + SIZES.minions() + 1 {
            is_ready
                .recv_timeout(READY_LIMIT)
                .context("a host does not start")??;
        }
        let proposer = scope.spawn(move || self.propose(messages, load));
        let proposed = proposer.join().expect("it does not panic");
        // A role may have failed in the meantime.
        if let Ok(Err(error)) = is_ready.try_recv() {
            return Err(error);
        }
        Ok((hands, proposed))
    }
}

/// Message 0.
fn counted_request() -> Request {
    Request {
        client: 1,
        number: 0,
        low: 0,
        opens: false,
        reply_to: 0,
        value: vec![0; VALUE_LEN_MAX_BYTES],
    }
}

fn send(socket: &HostSocket, request: &Request, to: SocketAddrV4) {
    let mut packet = request.packet();
    sign(None, &mut packet);
    socket.send(&packet, to);
}

fn measure_point(messages: u32, load: Load) -> Result<Point> {
    let spec = LabSpec {
        name: format!("order{}", std::process::id()),
        hosts: hosts(),
        seed: 1,
    };
    let lab = Lab::with_queues(&spec, load.queues)
        .context("`inband bench netpaxos ordering` needs root: it makes network namespaces")?;
    let testbed = Testbed {
        lab,
        stop: AtomicBool::new(false),
        arrived: Default::default(),
    };
    // Frames that XDP redirects into a veth need a program at the other end.
    let ends = ["proposer", "learner/1", "learner/2"];
    let ends = ends.map(|host| Ok(testbed.lab.host(host)?.attach_pass()?));
    let _ends = ends.into_iter().collect::<Result<Vec<_>>>()?;
    testbed.run(messages, load)
}
