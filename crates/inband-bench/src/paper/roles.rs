//! CPU use of each role at peak throughput, and over the number of learners (Partitioned Paxos, figure
//! 1; CAANS, sections 2.2 and 6.3).

use anyhow::Result;
use inband_paxos::config::Dataplane;

use super::{backends, line, lines, testbed, App, Run, PEAK_WINDOW};
use crate::cpu::ProgramTimes;
use crate::node::Load;
use crate::plot::{Bar, Chart};
use crate::row::{median, progress, quote, Output, Quoted};
use crate::testbed::{Outcome, Testbed};

const LEARNERS: [usize; 5] = [1, 2, 3, 4, 6];
const LEARNERS_AT_PEAK: usize = 3;
const ROLES: [&str; 4] = ["proposer", "leader", "acceptor", "learner"];

/// CPU use in percent of a core: of the role's process, and of its packet programs; means over the hosts of a role.
#[derive(Debug, Clone, Copy, Default)]
struct RoleUse {
    process: f64,
    programs: f64,
}

/// The results for a number of learners.
struct Point {
    learners: usize,
    per_s: f64,
    roles: [RoleUse; ROLES.len()],
}

/// The first learner is also the proposer.
fn role_of(host: &str) -> usize {
    match host.split_once('/') {
        None => 1,
        Some(("acceptor", _)) => 2,
        Some((_, "0")) => 0,
        Some(_) => 3,
    }
}

fn by_role(outcome: &Outcome) -> [RoleUse; ROLES.len()] {
    let mut uses = [RoleUse::default(); ROLES.len()];
    for (at, role) in uses.iter_mut().enumerate() {
        let hosts = outcome.cpu.iter().filter(|(host, _)| role_of(host) == at);
        let uses: Vec<_> = hosts.map(|(_, used)| *used).collect();
        let mean = |pick: fn(&crate::cpu::CpuUse) -> f64| {
            uses.iter().map(pick).sum::<f64>() / uses.len().max(1) as f64 * 100.0
        };
        role.process = mean(|used| used.process);
        role.programs = mean(|used| used.programs);
    }
    uses
}

/// Measures, prints the rows and plots them.
pub fn measure(run: &Run, output: &mut Output) -> Result<()> {
    let counting = ProgramTimes::count();
    if let Err(error) = &counting {
        output.skipped(&format!("time of packet programs: {error}; run as root"));
    }
    for backend in backends(output) {
        let mut curve = Vec::new();
        for learners in run.points(&LEARNERS) {
            progress(&format!("{backend}, {learners} learners"));
            curve.push(point(run, &mut testbed(learners)?, backend, learners)?);
        }
        let at_peak = curve.iter().find(|p| p.learners >= LEARNERS_AT_PEAK);
        if let Some(point) = at_peak {
            rows(run, backend, point, output)?;
        }
        charts(backend, &curve, at_peak, output);
    }
    Ok(())
}

fn point(run: &Run, testbed: &mut Testbed, backend: Dataplane, learners: usize) -> Result<Point> {
    let mut job = run.job(backend, App::NoOp, Load::Saturate);
    job.job.window = PEAK_WINDOW;
    let outcomes = (0..run.rounds)
        .map(|_| job.run(testbed))
        .collect::<Result<Vec<_>>>()?;
    let rounds: Vec<_> = outcomes.iter().map(by_role).collect();
    let mut roles = [RoleUse::default(); ROLES.len()];
    for (at, role) in roles.iter_mut().enumerate() {
        role.process = median(&mut rounds.iter().map(|r| r[at].process).collect::<Vec<_>>());
        role.programs = median(&mut rounds.iter().map(|r| r[at].programs).collect::<Vec<_>>());
    }
    let mut per_s: Vec<f64> = outcomes.iter().map(Outcome::delivered_per_s).collect();
    Ok(Point {
        learners,
        per_s: median(&mut per_s),
        roles,
    })
}

fn paper(role: &str, backend: Dataplane) -> Option<Quoted> {
    match (role, backend) {
        ("learner", Dataplane::Xdp) => Some(quote(
            "CAANS, section 6.3",
            "\"close to 100% utilization on the learner\", consensus in FPGAs",
            100.0,
        )),
        ("leader", Dataplane::Udp) => Some(quote(
            "CAANS, section 2.2",
            "libpaxos' coordinator \"becomes CPU bound\" at 69,185 /s",
            100.0,
        )),
        _ => None,
    }
}

fn rows(run: &Run, backend: Dataplane, point: &Point, output: &mut Output) -> Result<()> {
    let what = format!(
        "at the peak of {:.0} values/s of one proposer, which asks again and again and so is always \
         busy, {} learners, mean over the hosts of a role; a packet program runs in its sender's \
         system call and is booked on that process, too",
        point.per_s, point.learners
    );
    for (role, used) in ROLES.iter().zip(&point.roles) {
        let row = run.row(
            "cpu_process",
            backend,
            *role,
            (used.process, "percent"),
            &what,
        );
        output.row(&row.quoting(paper(role, backend)))?;
        let figure = (used.programs, "percent");
        output.row(&run.row("cpu_packet_programs", backend, *role, figure, &what))?;
    }
    Ok(())
}

fn charts(backend: Dataplane, curve: &[Point], at_peak: Option<&Point>, output: &mut Output) {
    if let Some(point) = at_peak {
        let bars = ROLES.iter().zip(&point.roles).flat_map(|(role, used)| {
            let bar = |what: &str, value, is_baseline| Bar {
                name: format!("{role}: {what}"),
                value,
                is_baseline,
            };
            [
                bar("process", used.process, false),
                bar("its packet programs", used.programs, true),
            ]
        });
        output.chart(Chart::Bars {
            title: format!(
                "{backend}: percent of a core at {:.0} values/s",
                point.per_s
            ),
            bars: bars.collect(),
        });
    }
    let over = |pick: &dyn Fn(&Point) -> f64| -> Vec<[f64; 2]> {
        curve.iter().map(|p| [p.learners as f64, pick(p)]).collect()
    };
    let mut series = Vec::new();
    for (at, role) in ROLES.iter().enumerate() {
        series.push(line(
            format!("{role}: process"),
            over(&|p| p.roles[at].process),
        ));
        if backend != Dataplane::Udp {
            let programs = over(&|p| p.roles[at].programs);
            series.push(line(format!("{role}: packet programs"), programs));
        }
    }
    let title = format!("{backend}: CPU use over learners");
    output.chart(lines(&title, "learners", "percent of a core", series));
    let title = format!("{backend}: throughput over learners");
    let per_s = vec![line("one proposer", over(&|p| p.per_s))];
    output.chart(lines(&title, "learners", "values/s", per_s));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_roles() {
        let roles = ["replica/0", "leader", "acceptor/2", "replica/1"].map(role_of);
        assert_eq!(roles.map(|at| ROLES[at]), ROLES);
    }
}
