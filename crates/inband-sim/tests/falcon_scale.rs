//! Scheduling in clusters larger than one machine can run, at a small scale.

use inband_sim::falcon_scale::{run, Delays, Options, Policy, Report};

const US: u64 = 1000;
const MS: u64 = 1_000_000;
const FALCON: Policy = Policy::Falcon {
    schedulers: 1,
    cores: 1,
    packet_ns: 10,
};

fn options(policy: Policy, utilisation_permille: u64) -> Options {
    Options {
        nodes: 60,
        executors: 16,
        delays: Delays::default(),
        policy,
        utilisation_permille,
        seed: 7,
        warm_up_ns: 40 * MS,
        duration_ns: 160 * MS,
    }
}

fn play(policy: Policy, utilisation_permille: u64) -> Report {
    let report = run(&options(policy, utilisation_permille));
    assert_eq!(
        report.submitted, report.begun,
        "every task runs, once ({policy:?})"
    );
    assert!(!report.is_saturated, "{policy:?}");
    report
}

#[test]
fn falcon_waits_less_than_who_guesses() {
    for utilisation_permille in [800, 900] {
        let falcon = play(FALCON, utilisation_permille);
        let sparrow = play(Policy::Sparrow, utilisation_permille);
        let random = play(Policy::Random, utilisation_permille);
        for permille in [500, 990] {
            let [falcon, sparrow, random] =
                [&falcon, &sparrow, &random].map(|report| report.delay_ns(permille));
            let said = format!("{utilisation_permille}, {permille}: {falcon} {sparrow} {random}");
            assert!(falcon <= sparrow && sparrow < random, "{said}");
        }
    }
}

#[test]
fn an_idle_cluster_waits_for_packets_only() {
    let Delays {
        to_scheduler_ns,
        to_host_ns,
        start_ns,
    } = Delays::default();
    let direct_ns = 2 * to_scheduler_ns + start_ns;
    let falcon = play(FALCON, 100);
    // A job's packets are handled one after another.
    let last_ns = direct_ns + 64 * 10;
    assert!(
        (direct_ns..=last_ns).contains(&falcon.delay_ns(500)),
        "{}",
        falcon.delay_ns(500)
    );
    let sparrow = play(Policy::Sparrow, 100);
    assert_eq!(sparrow.delay_ns(0), 3 * to_host_ns + start_ns);
    let central = play(Policy::Central { decision_ns: 0 }, 100);
    assert_eq!(central.delay_ns(500), 2 * to_host_ns + start_ns);
}

#[test]
fn users_are_divided_among_schedulers() {
    let four = Policy::Falcon {
        schedulers: 4,
        cores: 1,
        packet_ns: 400,
    };
    let report = play(four, 800);
    let one = play(FALCON, 800);
    assert!(
        report.delay_ns(990) >= one.delay_ns(990),
        "they do not help each other"
    );
    assert!(report.delay_ns(990) < play(Policy::Random, 800).delay_ns(990));
}

#[test]
fn who_takes_too_long_to_decide_is_seen_to() {
    // It handles at most 50,000 tasks per second; the executors could run 96,000.
    let slow = Policy::Central {
        decision_ns: 20 * US,
    };
    assert!(run(&options(slow, 900)).is_saturated);
    assert!(!run(&options(slow, 300)).is_saturated);
}

#[test]
fn a_seed_is_a_run() {
    let with = |seed| Options {
        seed,
        ..options(Policy::Sparrow, 900)
    };
    assert_eq!(run(&with(3)), run(&with(3)));
    assert_ne!(run(&with(3)).delays_ns, run(&with(4)).delays_ns);
}
