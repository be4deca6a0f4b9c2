//! `cargo run -p inband-sim --example seeds -- FIRST COUNT [trace]`
use inband_sim::{run_many, Options};

fn main() {
    let args: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|a| a.parse().ok())
        .collect();
    let trace = std::env::args().any(|a| a == "trace");
    let verbose = std::env::args().any(|a| a == "all");
    let started = std::time::Instant::now();
    let summary = run_many(args[0], args[1], &Options::default(), |report| {
        if report.violation.is_some() || verbose {
            println!("{report}");
            if trace {
                for line in &report.trace {
                    println!("{line}");
                }
            }
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{summary:?} {seconds:.1} s, {:.0} events/s",
        summary.events as f64 / seconds
    );
}
