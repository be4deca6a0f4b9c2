//! Links between hosts (`inband_transport::frames::Links`: Raft of FLAIR, the control plane) over a network that is cut
//! and restored. Needs root.

mod common;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{in_host, lab, privileged, PORT, TIMEOUT};
use inband_lab::LinkFaults;
use inband_transport::frames::{read_frame, Links};
use inband_transport::tls::Transport;

/// Interval between messages: about as often as a Raft leader sends.
const EVERY: Duration = Duration::from_millis(10);
/// A link must carry messages again within this time after its network is restored: the system closes a connection one
/// second after the first retransmission, or later on a busy machine. TCP alone takes as long as the cut lasted, which
/// is more than this for the longest cut here.
const SPEAKS_AGAIN_MAX: Duration = Duration::from_secs(2);

/// Sends numbers over a link whose network is cut for this long. Returns the time from the restoration to the next
/// number received.
fn silence_after(cut: Duration, test: &str) -> Duration {
    let lab = lab(test, &["a", "b"]);
    let (a, b) = (lab.host("a").expect("a"), lab.host("b").expect("b"));
    let address = SocketAddr::from((b.address(), PORT));
    let listener = in_host(&b, || TcpListener::bind(address));
    let (came, comes) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("a connection");
            let came = came.clone();
            thread::spawn(move || {
                let pace = inband_transport::paced::Pace {
                    silence_max: TIMEOUT,
                    grace: Duration::ZERO,
                    bytes_per_s_min: 0,
                };
                let mut stream = Transport::plain().accept(stream, pace).expect("taken");
                while let Ok(number) = read_frame::<u64>(&mut stream, 64) {
                    let _ = came.send((Instant::now(), number));
                }
            });
        }
    });
    let stop = Arc::new(AtomicBool::new(false));
    let sending = thread::spawn({
        let (a, stop) = (a.clone(), stop.clone());
        move || {
            in_host(&a, || {
                let mut links = Links::new(Transport::plain(), "link");
                for number in 0u64.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    links.send(address, number);
                    thread::sleep(EVERY);
                }
                Ok(())
            })
        }
    });
    comes.recv_timeout(TIMEOUT).expect("the link is open");
    lab.set_link("b", LinkFaults::cut()).expect("cut");
    thread::sleep(cut);
    while comes.try_recv().is_ok() {}
    lab.set_link("b", LinkFaults::default()).expect("healed");
    let healed = Instant::now();
    let (at, _) = comes.recv_timeout(TIMEOUT).expect("it speaks again");
    stop.store(true, Ordering::Release);
    sending.join().expect("it ends");
    at - healed
}

#[test]
fn a_link_that_was_cut_speaks_soon_after_it_heals() {
    if !privileged() {
        return;
    }
    // TCP's retransmission timeout doubles, so without help it stays silent for as long again as the cut.
    for cut_ms in [300, 700, 1_500, 3_100] {
        let speaks_soon = |_| {
            let silent = silence_after(Duration::from_millis(cut_ms), &format!("cut{cut_ms}"));
            println!("cut for {cut_ms} ms: silent for {silent:?} after it healed");
            silent < SPEAKS_AGAIN_MAX
        };
        // A stall of the machine spoils a trial, but not each of them.
        assert!((0..4).any(speaks_soon), "after a cut of {cut_ms} ms");
    }
}
