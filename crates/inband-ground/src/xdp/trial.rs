//! Tests whether an interface actually sends the frames that XDP sends. Drivers drop them for various reasons (no queue
//! for a CPU, no XDP transmission at all), and hardly any reports it. So the trial asks a neighbour with ARP requests,
//! which XDP sends in the two ways that the roles use.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::Pid;

use super::attach::Attachment;
use super::error::{Doing, XdpError};
use super::loopback::{packet_socket, send_frame};
use super::maps::{lookup, update};
use super::netlink::LinkInfo;
use super::programs::load_object;
use super::{live, XdpMode};
use crate::c;
use crate::objects;

/// How long to wait for the first answer: a driver may reset its link to take a program.
const NEIGHBOUR_LIMIT: Duration = Duration::from_secs(2);
/// Timeout of one request.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);
const ANSWER_POLL: Duration = Duration::from_micros(200);
/// This many failures without a success are conclusive: a network might lose one frame in three.
const FAILURES: usize = 12;
/// Attempts that are inconclusive because the neighbour did not answer an ordinary request either.
const SILENCES: usize = 12;
/// If the neighbour fell silent before [`FAILURES`] was reached, this many failures are conclusive.
const FAILURES_AMONG_SILENCES: usize = 3;

const BROADCAST: [u8; 6] = [0xff; 6];
const ARP_HEADER: [u8; 10] = [8, 6, 0, 1, 8, 0, 6, 4, 0, 1];
const FRAME_LEN_BYTES: usize = c::IB_TRIAL_FRAME_LEN_BYTES as usize;

/// The result of a trial that did not find losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Frames are sent on every CPU.
    Sent,
    /// Inconclusive: no neighbour answered.
    NobodyAnswers,
}

struct Trial<'a> {
    program: &'a OwnedFd,
    map: OwnedFd,
    link: &'a LinkInfo,
    socket: OwnedFd,
    state: c::ib_trial,
}

/// An ARP request, sent to the hardware address `to`.
fn question(
    mac: [u8; 6],
    address: Ipv4Addr,
    to: [u8; 6],
    neighbour: Ipv4Addr,
) -> [u8; FRAME_LEN_BYTES] {
    let mut frame = [0; FRAME_LEN_BYTES];
    let parts: [&[u8]; 7] = [
        &to,
        &mac,
        &ARP_HEADER,
        &mac,
        &address.octets(),
        &[0; 6],
        &neighbour.octets(),
    ];
    let mut end = 0;
    for part in parts {
        frame[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
    frame
}

fn raw(address: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(address.octets())
}

/// Runs the trial with whichever neighbour answers. In generic mode copies do not depend on the driver, so only XDP_TX
/// is tested.
pub fn send_from_xdp(
    link: &LinkInfo,
    interface: &str,
    mode: XdpMode,
    address: Ipv4Addr,
    neighbours: &[Ipv4Addr],
) -> Result<Proof, XdpError> {
    if link.mac == [0; 6] || neighbours.is_empty() {
        return Ok(Proof::NobodyAnswers);
    }
    let loaded = load_object("trial", objects::TRIAL, None, &[], &[])?;
    let devices = loaded.map("ib_trial_devices_map")?;
    if mode == XdpMode::Native {
        for copy in 0..c::IB_TRIAL_COPIES {
            // struct bpf_devmap_val: interface, egress program (0: none).
            update(&devices, &copy, &[link.index, 0]).doing("filling the trial's devices")?;
        }
    }
    let mut trial = Trial {
        program: &loaded.program,
        map: loaded.map("ib_trial_map")?,
        link,
        socket: packet_socket()?,
        state: c::ib_trial {
            address: raw(address),
            neighbour: 0,
            answers: 0,
            transmits: 0,
            mac: link.mac,
            neighbour_mac: [0; 6],
            reserved: [0; 4],
        },
    };
    trial.set()?;
    let _attached = Attachment::xdp(&loaded.program, link.index, interface, mode)?;
    let broadcast = |to: &Ipv4Addr| question(link.mac, address, BROADCAST, *to);
    let questions: Vec<_> = neighbours.iter().map(broadcast).collect();
    let Some(neighbour) = trial.find(&questions)? else {
        return Ok(Proof::NobodyAnswers);
    };
    let ask = question(link.mac, address, trial.state.neighbour_mac, neighbour);
    let lost = |what: String| XdpError::Loses {
        interface: interface.into(),
        what,
    };
    if mode == XdpMode::Native {
        let before = sched_getaffinity(Pid::from_raw(0)).map_err(std::io::Error::from);
        let before = before.doing("asking for this thread's CPUs")?;
        for cpu in (0..CpuSet::count()).filter(|cpu| before.is_set(*cpu).unwrap_or(false)) {
            let mut one = CpuSet::new();
            // Always within range.
            let _ = one.set(cpu);
            let there = sched_setaffinity(Pid::from_raw(0), &one).map_err(std::io::Error::from);
            let result = there
                .doing("moving to another CPU")
                .and_then(|()| trial.copies_leave(&ask));
            let _ = sched_setaffinity(Pid::from_raw(0), &before);
            match result? {
                Some(true) => {}
                Some(false) => {
                    let what = format!("a question to {neighbour} redirected on CPU {cpu}");
                    return Err(lost(what));
                }
                None => return Ok(Proof::NobodyAnswers),
            }
        }
    }
    match trial.transmits_leave(&ask)? {
        Some(true) => Ok(Proof::Sent),
        Some(false) => Err(lost(format!(
            "a question to {neighbour} sent back out (XDP_TX)"
        ))),
        None => Ok(Proof::NobodyAnswers),
    }
}

impl Trial<'_> {
    fn set(&self) -> Result<(), XdpError> {
        update(&self.map, &0u32, &self.state).doing("setting the trial's addresses")
    }

    /// Resets the answer counter. The next `transmits` answers are turned into requests.
    fn begin(&mut self, transmits: u64) -> Result<(), XdpError> {
        self.state.answers = 0;
        self.state.transmits = transmits;
        self.set()
    }

    fn seen(&self) -> Result<c::ib_trial, XdpError> {
        lookup(&self.map, &0u32).doing("reading the trial's answers")
    }

    /// Waits for this many answers. Returns whether they arrived in time.
    fn answered(&self, count: u64) -> Result<bool, XdpError> {
        let end = Instant::now() + ANSWER_LIMIT;
        loop {
            if self.seen()?.answers >= count {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(ANSWER_POLL);
        }
    }

    /// Sends a frame through the kernel's normal path.
    fn send(&self, frame: &[u8]) {
        // Fails while the link is not up yet; the caller retries.
        let _ = send_frame(&self.socket, self.link.index, frame);
    }

    fn find(&mut self, questions: &[[u8; FRAME_LEN_BYTES]]) -> Result<Option<Ipv4Addr>, XdpError> {
        let end = Instant::now() + NEIGHBOUR_LIMIT;
        while Instant::now() < end {
            questions.iter().for_each(|question| self.send(question));
            if self.answered(1)? {
                self.state = self.seen()?;
                let octets = self.state.neighbour.to_ne_bytes();
                return Ok(Some(Ipv4Addr::from(octets)));
            }
        }
        Ok(None)
    }

    /// Repeats an attempt until it succeeds or its failure is conclusive. `None` means that the neighbour has fallen
    /// silent.
    fn tried(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<bool>, XdpError>,
    ) -> Result<Option<bool>, XdpError> {
        let (mut failures, mut silences) = (0, 0);
        while failures < FAILURES && silences < SILENCES {
            match attempt(self)? {
                Some(true) => return Ok(Some(true)),
                Some(false) => failures += 1,
                None => silences += 1,
            }
        }
        // Even a neighbour that answers only some requests has shown that no frame from XDP arrives.
        Ok((failures >= FAILURES_AMONG_SILENCES).then_some(false))
    }

    /// Sends redirected copies on this thread's CPU.
    fn copies_leave(&mut self, ask: &[u8]) -> Result<Option<bool>, XdpError> {
        self.tried(|trial| {
            trial.begin(0)?;
            live::send(trial.program, ask, trial.link.index, 1).doing("sending a live frame")?;
            if trial.answered(1)? {
                return Ok(Some(true));
            }
            trial.begin(0)?;
            trial.send(ask);
            Ok(trial.answered(1)?.then_some(false))
        })
    }

    /// Sends an answer back as another request, with XDP_TX.
    fn transmits_leave(&mut self, ask: &[u8]) -> Result<Option<bool>, XdpError> {
        self.tried(|trial| {
            trial.begin(1)?;
            trial.send(ask);
            if trial.answered(2)? {
                return Ok(Some(true));
            }
            Ok((trial.seen()?.answers > 0).then_some(false))
        })
    }
}
