//! Ordinary traffic alongside full consensus load (Partitioned Paxos, section 5.2): a TCP stream between two acceptors'
//! hosts, over the same interfaces on which the roles run.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context, Result};
use inband_lab::netns::NetnsHandle;
use inband_paxos::config::Dataplane;

use super::{testbed, App, Run, PEAK_WINDOW};
use crate::node::Load;
use crate::plot::{Bar, Chart};
use crate::row::{median, progress, Baseline, Output};
use crate::testbed::{Job, Testbed};

const FROM: &str = "acceptor/0";
const TO: &str = "acceptor/1";
/// A port that Inband does not use.
const PORT: u16 = 5201;
const BLOCK_LEN_BYTES: usize = 64 << 10;

/// The two ends of a stream.
struct Traffic {
    from: NetnsHandle,
    to: NetnsHandle,
    address: Ipv4Addr,
}

impl Traffic {
    fn of(testbed: &Testbed) -> Result<Traffic> {
        Ok(Traffic {
            from: testbed.lab.host(FROM)?.namespace().handle()?,
            to: testbed.lab.host(TO)?.namespace().handle()?,
            address: testbed.lab.host(TO)?.address(),
        })
    }

    /// Gigabits received per second.
    fn gbit_per_s(&self, duration: Duration) -> Result<f64> {
        thread::scope(|scope| {
            let (ready, is_ready) = mpsc::channel();
            let receiving = scope.spawn(move || self.receive(&ready));
            // If there is no listener, the receiver's own error is more specific.
            if is_ready.recv().is_ok() {
                let sending = scope.spawn(move || self.send(duration));
                sending
                    .join()
                    .map_err(|_| anyhow!("the sender of traffic panicked"))??;
            }
            receiving
                .join()
                .map_err(|_| anyhow!("the receiver of traffic panicked"))?
        })
    }

    fn receive(&self, ready: &mpsc::Sender<()>) -> Result<f64> {
        self.to.enter()?;
        let listener = TcpListener::bind((self.address, PORT)).context("listening for traffic")?;
        // The other side is waiting for this.
        let _ = ready.send(());
        let (mut stream, _) = listener.accept()?;
        let mut block = vec![0; BLOCK_LEN_BYTES];
        let (started, mut received) = (Instant::now(), 0u64);
        loop {
            match stream.read(&mut block)? {
                0 => break,
                read => received += read as u64,
            }
        }
        Ok(received as f64 * 8.0 / started.elapsed().as_secs_f64() / 1e9)
    }

    fn send(&self, duration: Duration) -> Result<()> {
        self.from.enter()?;
        let mut stream = TcpStream::connect((self.address, PORT)).context("sending traffic")?;
        let block = vec![7; BLOCK_LEN_BYTES];
        let started = Instant::now();
        while started.elapsed() < duration {
            stream.write_all(&block)?;
        }
        Ok(())
    }
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run, output: &mut Output) -> Result<()> {
    let mut testbed = testbed(3)?;
    let traffic = Traffic::of(&testbed)?;
    let streaming = run.duration / 2;
    let mut full = run.job(Dataplane::Xdp, App::NoOp, Load::Saturate).job;
    full.window = PEAK_WINDOW;
    let idle = Job {
        load: Load::Idle,
        ..full.clone()
    };
    let mut rounds = [const { Vec::new() }; 6];
    for round in 1..=run.rounds {
        progress(&format!("round {round}/{}", run.rounds));
        let without = traffic.gbit_per_s(streaming)?;
        let passing = {
            let _programs = [FROM, TO]
                .map(|host| Ok(testbed.lab.host(host)?.attach_pass()?))
                .into_iter()
                .collect::<Result<Vec<_>>>()?;
            traffic.gbit_per_s(streaming)?
        };
        let (_, beside_idle) = testbed.run_beside(&idle, || traffic.gbit_per_s(streaming))?;
        let (loaded, beside_full) = testbed.run_beside(&full, || traffic.gbit_per_s(streaming))?;
        let alone = testbed.run(&full)?;
        let failed = loaded.failed() + alone.failed();
        run.failed.set(run.failed.get() + failed);
        let figures = [
            without,
            passing,
            beside_idle,
            beside_full,
            alone.delivered_per_s(),
            loaded.delivered_per_s(),
        ];
        for (rounds, figure) in rounds.iter_mut().zip(figures) {
            rounds.push(figure);
        }
    }
    let [without, passing, beside_idle, beside_full, alone, loaded] =
        rounds.map(|mut rounds| median(&mut rounds));
    let tcp = [without, passing, beside_idle, beside_full];
    rows(run, tcp, [alone, loaded], output)
}

fn rows(run: &Run, tcp: [f64; 4], consensus: [f64; 2], output: &mut Output) -> Result<()> {
    let names = [
        "no program",
        "a program that passes everything",
        "roles attached, idle",
        "roles at full load",
    ];
    let what = format!(
        "a TCP stream from {FROM} to {TO} for half of the time; it shares the CPUs with everything else; the \
         paper (section 5.2) gives no figure, but \"coexist with standard networking operation, \
         without affecting standard network functionality\", in hardware that has a pipeline for each"
    );
    for (name, value) in names.into_iter().zip(tcp) {
        // Any XDP program on a veth disables segmentation offload, so the baseline is a program that only passes
        // packets.
        let baseline = (name != names[1]).then(|| Baseline {
            name: names[1].into(),
            value: tcp[1],
        });
        let figure = (value, "Gbit/s");
        let row = run.row(
            "ordinary_tcp_gbit_per_s",
            Dataplane::Xdp,
            name,
            figure,
            &what,
        );
        output.row(&row.beside(baseline))?;
    }
    let baseline = Baseline {
        name: "without the stream".into(),
        value: consensus[0],
    };
    let figure = (consensus[1], "values/s");
    let variant = "beside the stream";
    let row = run.row("consensus_per_s", Dataplane::Xdp, variant, figure, &what);
    output.row(&row.beside(Some(baseline)))?;
    let bars = |names: &[&str], values: &[f64]| {
        let bars = names.iter().zip(values);
        bars.map(|(name, value)| Bar {
            name: (*name).to_owned(),
            value: *value,
            is_baseline: *name == names[0] || name.starts_with("a program"),
        })
        .collect()
    };
    output.chart(Chart::Bars {
        title: "ordinary TCP stream, Gbit/s".into(),
        bars: bars(&names, &tcp),
    });
    output.chart(Chart::Bars {
        title: "consensus, values/s".into(),
        bars: bars(&["without the stream", variant], &consensus),
    });
    Ok(())
}
