//! One.
use inband_sim::{run, Options};
fn main() {
    let seed = std::env::args().nth(1).unwrap().parse().unwrap();
    let r = run(seed, &Options { trace_events: 3_000_000, ..Options::default() });
    for l in &r.trace { println!("{l}"); }
    println!("{r}");
}
