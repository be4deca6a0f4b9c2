//! Link faults: which are active, and how each host's link behaves under them.

use inband_lab::faults::LOSS_SCALE_PPM;
use inband_lab::{Lab, LabError, LinkFaults};
use inband_sim::Rng;

use super::fault_kind::FaultKind;
use super::history::{Fault, Recorder};

/// Minimum and maximum duration of a link fault.
const FAULT_MS: (u64, u64) = (100, 3_000);
/// Maximum share of frames that a link loses or duplicates.
const LOSS_PPM_MAX: u64 = 300_000;
const DELAY_US_MAX: u64 = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Damage {
    /// Applies these faults to the links of these hosts.
    Links(Vec<String>, LinkFaults),
    /// Drops everything from the first host of each pair to the second.
    Cuts(Vec<(String, String)>),
}

#[derive(Debug)]
struct Active {
    kind: FaultKind,
    what: String,
    damage: Damage,
    from_ns: u64,
    until_ns: u64,
}

/// The active link faults.
#[derive(Debug, Default)]
pub struct ActiveFaults(Vec<Active>);

impl ActiveFaults {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Begins a fault of this kind. If there are important hosts, half of the faults target one of them.
    pub fn begin(
        &mut self,
        kind: FaultKind,
        hosts: &[String],
        important: &[String],
        now_ns: u64,
        rng: &mut Rng,
    ) {
        let (what, damage) = match rng.pick(important) {
            Some(host) if rng.chance_ppm(500_000) => choose_against(kind, host, hosts, rng),
            _ => choose(kind, hosts, rng),
        };
        self.0.push(Active {
            kind,
            what,
            damage,
            from_ns: now_ns,
            until_ns: now_ns + rng.between(FAULT_MS.0, FAULT_MS.1) * 1_000_000,
        });
    }

    /// Cuts a host off from all others, until [`end_isolations`](Self::end_isolations) or the end of the run.
    pub fn isolate(&mut self, host: &str, hosts: &[String], now_ns: u64) {
        let others = hosts.iter().filter(|other| *other != host);
        let pairs = others.flat_map(|other| {
            let (host, other) = (host.to_owned(), other.clone());
            [(host.clone(), other.clone()), (other, host)]
        });
        self.0.push(Active {
            kind: FaultKind::Partition,
            what: format!("{host} is cut off from all others"),
            damage: Damage::Cuts(pairs.collect()),
            from_ns: now_ns,
            until_ns: u64::MAX,
        });
    }

    /// Reconnects all hosts cut off by [`isolate`](Self::isolate).
    pub fn end_isolations(&mut self, now_ns: u64, recorder: &Recorder) {
        self.end_if(now_ns, recorder, |active| active.until_ns == u64::MAX);
    }

    /// Ends the faults that are due. Returns whether there were any.
    pub fn end_due(&mut self, now_ns: u64, recorder: &Recorder) -> bool {
        let before = self.len();
        self.end_if(now_ns, recorder, |active| active.until_ns <= now_ns);
        self.len() < before
    }

    pub fn end_all(&mut self, now_ns: u64, recorder: &Recorder) {
        self.end_if(now_ns, recorder, |_| true);
    }

    fn end_if(&mut self, now_ns: u64, recorder: &Recorder, is_over: impl Fn(&Active) -> bool) {
        for ended in self.take_if(is_over) {
            recorder.fault(Fault {
                fault: ended.kind.name(),
                what: ended.what,
                from_ns: ended.from_ns,
                to_ns: now_ns,
                note: None,
            });
        }
    }

    fn take_if(&mut self, is_over: impl Fn(&Active) -> bool) -> Vec<Active> {
        let all = std::mem::take(&mut self.0).into_iter();
        let (over, left) = all.partition(is_over);
        self.0 = left;
        over
    }

    /// Configures the lab's links according to the active faults. Skips hosts that have left.
    pub fn apply(&self, lab: &Lab) -> Result<(), LabError> {
        let hosts = lab.hosts();
        let names: Vec<&str> = hosts.iter().map(|host| host.name()).collect();
        for from in &names {
            unless_gone(lab.set_link(from, self.link_of(from)))?;
            for to in names.iter().filter(|to| *to != from) {
                unless_gone(lab.cut_one_way(from, to, self.cuts(from, to)))?;
            }
        }
        Ok(())
    }

    fn link_of(&self, host: &str) -> LinkFaults {
        let mut link = LinkFaults::default();
        for active in &self.0 {
            match &active.damage {
                Damage::Links(hosts, faults) if hosts.iter().any(|h| h == host) => {
                    link = worse(link, *faults);
                }
                _ => {}
            }
        }
        link
    }

    fn cuts(&self, from: &str, to: &str) -> bool {
        self.0.iter().any(|active| match &active.damage {
            Damage::Cuts(pairs) => pairs.iter().any(|(a, b)| a == from && b == to),
            Damage::Links(..) => false,
        })
    }
}

/// A host may leave at any time.
fn unless_gone(done: Result<(), LabError>) -> Result<(), LabError> {
    match done {
        Err(LabError::UnknownHost { .. }) => Ok(()),
        done => done,
    }
}

/// Combines two faults: the worse of each property.
fn worse(a: LinkFaults, b: LinkFaults) -> LinkFaults {
    LinkFaults {
        loss_from_host_ppm: a.loss_from_host_ppm.max(b.loss_from_host_ppm),
        loss_to_host_ppm: a.loss_to_host_ppm.max(b.loss_to_host_ppm),
        cut_from_host: a.cut_from_host || b.cut_from_host,
        cut_to_host: a.cut_to_host || b.cut_to_host,
        held: a.held || b.held,
        delay_us: a.delay_us.max(b.delay_us),
        jitter_us: a.jitter_us.max(b.jitter_us),
        duplicated_ppm: a.duplicated_ppm.max(b.duplicated_ppm),
    }
}

fn choose(kind: FaultKind, hosts: &[String], rng: &mut Rng) -> (String, Damage) {
    match kind {
        FaultKind::Partition => choose_cut(hosts, rng),
        FaultKind::Pause => on_links(kind, some(hosts, 2, rng), None, rng),
        kind if rng.chance_ppm(500_000) => on_links(kind, hosts.to_vec(), Some("all"), rng),
        kind => on_links(kind, some(hosts, 3, rng), None, rng),
    }
}

/// Returns the same fault on the links of all these hosts.
fn on_links(
    kind: FaultKind,
    hosts: Vec<String>,
    who: Option<&str>,
    rng: &mut Rng,
) -> (String, Damage) {
    let (what, faults) = choose_link(kind, rng);
    let who = who.map_or_else(|| hosts.join(", "), str::to_owned);
    (format!("{what}: {who}"), Damage::Links(hosts, faults))
}

/// Returns a fault of one host's link, or of the path between it and another host.
fn choose_against(
    kind: FaultKind,
    host: &String,
    hosts: &[String],
    rng: &mut Rng,
) -> (String, Damage) {
    if kind != FaultKind::Partition {
        return on_links(kind, vec![host.clone()], None, rng);
    }
    let others: Vec<&String> = hosts.iter().filter(|other| *other != host).collect();
    let Some(other) = rng.pick(&others).copied() else {
        return choose_cut(hosts, rng);
    };
    let pair = |a: &String, b: &String| (a.clone(), b.clone());
    match rng.below(3) {
        0 => {
            let what = format!("{host} is not heard by {other}");
            (what, Damage::Cuts(vec![pair(host, other)]))
        }
        1 => {
            let what = format!("{host} does not hear {other}");
            (what, Damage::Cuts(vec![pair(other, host)]))
        }
        _ => {
            let both = vec![pair(host, other), pair(other, host)];
            let what = format!("{host} and {other} are cut off from each other");
            (what, Damage::Cuts(both))
        }
    }
}

fn choose_link(kind: FaultKind, rng: &mut Rng) -> (String, LinkFaults) {
    let ppm = rng.between(LOSS_PPM_MAX / 100, LOSS_PPM_MAX);
    let percent = ppm as f64 * 100.0 / f64::from(LOSS_SCALE_PPM);
    let ppm = ppm as u32;
    match kind {
        FaultKind::Pause => {
            let held = LinkFaults {
                held: true,
                ..LinkFaults::default()
            };
            ("packets held".into(), held)
        }
        FaultKind::Loss => {
            let [from, to] = [[ppm, ppm], [ppm, 0], [0, ppm]][rng.below(3) as usize];
            let faults = LinkFaults {
                loss_from_host_ppm: from,
                loss_to_host_ppm: to,
                ..LinkFaults::default()
            };
            (format!("{percent:.1} % lost"), faults)
        }
        FaultKind::Duplicate => {
            let faults = LinkFaults {
                duplicated_ppm: ppm,
                ..LinkFaults::default()
            };
            (format!("{percent:.1} % twice"), faults)
        }
        _ => {
            let delay_us = rng.between(100, DELAY_US_MAX) as u32;
            let jitter_us = rng.below(u64::from(delay_us)) as u32;
            let what = format!("{delay_us} us more, give or take {jitter_us}");
            (what, LinkFaults::delay(delay_us, jitter_us))
        }
    }
}

fn choose_cut(hosts: &[String], rng: &mut Rng) -> (String, Damage) {
    let size = match rng.below(3) {
        0 => 1,
        _ => rng.between(1, (hosts.len() as u64 - 1).max(1)) as usize,
    };
    let island = exactly(hosts, size, rng);
    let others: Vec<&String> = hosts.iter().filter(|h| !island.contains(h)).collect();
    let direction = rng.below(4);
    let mut pairs = Vec::new();
    for inner in &island {
        for outer in &others {
            if direction != 0 {
                pairs.push((inner.clone(), (*outer).clone()));
            }
            if direction != 1 {
                pairs.push(((*outer).clone(), inner.clone()));
            }
        }
    }
    let how = [
        "hear nobody else",
        "are heard by nobody else",
        "are cut off",
        "are cut off",
    ];
    let what = format!("{} {}", island.join(", "), how[direction as usize]);
    (what, Damage::Cuts(pairs))
}

/// Picks one to `most` of them.
fn some(of: &[String], most: u64, rng: &mut Rng) -> Vec<String> {
    let size = rng.between(1, most.min(of.len() as u64));
    exactly(of, size as usize, rng)
}

/// Picks `size` of them and keeps their order.
fn exactly(of: &[String], size: usize, rng: &mut Rng) -> Vec<String> {
    let mut left: Vec<usize> = (0..of.len()).collect();
    while left.len() > size {
        left.remove(rng.below(left.len() as u64) as usize);
    }
    left.into_iter().map(|i| of[i].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<String> {
        ["leader", "acceptor/0", "acceptor/1", "replica/0"]
            .map(String::from)
            .into()
    }

    fn active(damage: Damage) -> Active {
        Active {
            kind: FaultKind::Loss,
            what: String::new(),
            damage,
            from_ns: 0,
            until_ns: 5,
        }
    }

    #[test]
    fn faults_at_once_add_up_and_end_alone() {
        let link = |host: &str, faults| active(Damage::Links(vec![host.into()], faults));
        let mut faults = ActiveFaults(vec![
            link("leader", LinkFaults::loss(7)),
            link("leader", LinkFaults::delay(100, 20)),
            active(Damage::Cuts(vec![("leader".into(), "replica/0".into())])),
        ]);
        let both = faults.link_of("leader");
        assert_eq!((both.loss_to_host_ppm, both.delay_us), (7, 100));
        assert_eq!(faults.link_of("replica/0"), LinkFaults::default());
        assert!(faults.cuts("leader", "replica/0") && !faults.cuts("replica/0", "leader"));
        faults.0[0].until_ns = 1;
        let over = faults.take_if(|active| active.until_ns == 1);
        assert_eq!(
            (over.len(), faults.link_of("leader").loss_to_host_ppm),
            (1, 0)
        );
    }

    #[test]
    fn an_isolated_host_hears_nobody_until_it_ends() {
        let path = std::env::temp_dir().join(format!("ib-chaos-links-{}", std::process::id()));
        let about = crate::history::About {
            seed: 1,
            version: "",
            minutes: 0.0,
            faults: Vec::new(),
            cluster: String::new(),
            clients: 0,
            operations_per_s: 0,
        };
        let clock = crate::history::Clock::start();
        let (writer, recorder) =
            crate::history::Writer::start(&path, clock, about).expect("a file");
        let mut faults = ActiveFaults::default();
        faults.isolate("leader", &hosts(), 1);
        assert!(faults.cuts("leader", "replica/0") && faults.cuts("acceptor/1", "leader"));
        assert!(!faults.cuts("acceptor/0", "acceptor/1"));
        assert!(!faults.end_due(1_000_000, &recorder), "it ends when told");
        faults.end_isolations(3, &recorder);
        assert_eq!(faults.len(), 0);
        drop(recorder);
        assert_eq!(writer.finish().expect("written").faults.len(), 1);
        let _ = std::fs::remove_file(path);
    }

    #[test]
    fn a_cut_leaves_somebody_on_both_sides() {
        let mut rng = Rng::new(5, 0);
        for _ in 0..1_000 {
            let (what, damage) = choose(FaultKind::Partition, &hosts(), &mut rng);
            let Damage::Cuts(pairs) = damage else {
                panic!("{what}");
            };
            assert!(
                !pairs.is_empty() && pairs.iter().all(|(a, b)| a != b),
                "{what}"
            );
        }
    }

    #[test]
    fn a_fault_against_a_host_strikes_it() {
        let (mut rng, hosts) = (Rng::new(7, 0), hosts());
        for _ in 0..100 {
            for kind in [FaultKind::Partition, FaultKind::Pause, FaultKind::Loss] {
                let (what, damage) = choose_against(kind, &hosts[1], &hosts, &mut rng);
                let is_it = |host: &String| *host == hosts[1];
                let strikes = match &damage {
                    Damage::Links(few, _) => few.len() == 1 && is_it(&few[0]),
                    Damage::Cuts(pairs) => pairs.iter().all(|(a, b)| is_it(a) != is_it(b)),
                };
                assert!(strikes && what.contains(&hosts[1]), "{what}: {damage:?}");
            }
        }
    }

    #[test]
    fn what_is_chosen_is_a_legal_fault_of_its_kind() {
        let mut rng = Rng::new(6, 0);
        for _ in 0..200 {
            for kind in [
                FaultKind::Pause,
                FaultKind::Loss,
                FaultKind::Delay,
                FaultKind::Duplicate,
            ] {
                let (what, damage) = choose(kind, &hosts(), &mut rng);
                let Damage::Links(few, faults) = damage else {
                    panic!("{what}");
                };
                assert!(!few.is_empty() && faults != LinkFaults::default(), "{what}");
                assert!(u64::from(faults.loss_to_host_ppm) <= LOSS_PPM_MAX, "{what}");
                assert_eq!(faults.held, kind == FaultKind::Pause);
            }
        }
    }
}
