//! How long a script takes that does nothing.
use std::time::Instant;

use inband_lua::{run, Host, Limits, Script};
use inband_resp::reply::Reply;

struct Nothing;
impl Host for Nothing {
    fn call(&mut self, _: &[Vec<u8>]) -> Option<Reply> {
        Some(Reply::Ok)
    }
}

fn main() {
    let limits = Limits {
        steps: 2_000_000,
        memory_bytes: 32 << 20,
        reply_bytes: 32 << 20,
    };
    let script = Script {
        text: b"return 1",
        keys: &[],
        args: &[],
    };
    for _ in 0..5 {
        let since = Instant::now();
        for _ in 0..1000 {
            run(&script, &limits, &mut Nothing);
        }
        println!("{:?}", since.elapsed() / 1000);
    }
}
