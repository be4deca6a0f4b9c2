//! What happened, for people: the last events of a run, and a hash over all of them.

use std::collections::VecDeque;
use std::fmt;

use inband_dataplane::auth::Digest;
use inband_dataplane::falcon::wire::{self, flag, Type};
use inband_falcon::packets::{Codec, Incoming};
use inband_falcon::timing::Nanos;

use super::links::Host;
use crate::trace::mix;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Trace {
    pub keep: usize,
    hash: u64,
    last: VecDeque<(Nanos, String)>,
}

impl Trace {
    /// Something that is not a packet. It is put into words only if somebody wants to read it.
    pub fn note(&mut self, now: Nanos, words: [u64; 2], say: impl FnOnce() -> String) {
        self.hash = mix(mix(mix(self.hash, now), words[0]), words[1]);
        if self.keep == 0 {
            return;
        }
        if self.last.len() == self.keep {
            self.last.pop_front();
        }
        self.last.push_back((now, say()));
    }

    /// A packet on its way: `how` is an arrow.
    pub fn packet(
        &mut self,
        now: Nanos,
        how: &str,
        from: Host,
        to: Host,
        bytes: &[u8],
        codec: &Codec,
    ) {
        let pair = mix(number(from), number(to)) ^ u64::from(how.as_bytes()[1]);
        let hash = Digest::PLAIN.of(bytes);
        self.note(now, [pair, hash], || {
            format!("{from} {how} {to}  {}", said(bytes, codec))
        });
    }

    /// A host, and what is with it.
    pub fn host(&mut self, now: Nanos, host: Host, what: &'static str) {
        let name = what.bytes().fold(0, |sum, byte| mix(sum, byte.into()));
        self.note(now, [number(host), name], || format!("{host} {what}"));
    }

    /// Of a client or executor.
    pub fn about(&mut self, now: Nanos, host: Host, words: u64, what: impl fmt::Debug) {
        self.note(now, [number(host), words], || format!("{host} {what:?}"));
    }

    /// Equal for equal runs.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last events, one a line.
    pub fn lines(&self) -> Vec<String> {
        let line = |(at, what): &(Nanos, String)| format!("{:>10} us  {what}", at / 1000);
        self.last.iter().map(line).collect()
    }
}

fn number(host: Host) -> u64 {
    match host {
        Host::Scheduler(number) => 1 << 8 | u64::from(number),
        Host::Worker(number) => 2 << 8 | u64::from(number),
        Host::Client(number) => 3 << 8 | u64::from(number),
    }
}

/// What a packet says, in words.
fn said(bytes: &[u8], codec: &Codec) -> String {
    let incoming = codec.read_admitted(bytes);
    let messages = incoming.into_iter().filter_map(|incoming| match incoming {
        Incoming::Host(executor, message) => Some(format!("HOST {executor} {message:?}")),
        _ => None,
    });
    let messages: Vec<String> = messages.collect();
    if !messages.is_empty() {
        return messages.join(", ").chars().take(200).collect();
    }
    let Ok((header, tasks)) = wire::parse(bytes) else {
        return "something that cannot be read".to_owned();
    };
    let flags = [
        (flag::REPEATED, "repeated"),
        (flag::ORIGIN, "origin"),
        (flag::FULL, "full"),
        (flag::USER_FULL, "user-full"),
        (flag::PARKED, "parked"),
    ];
    let flags: Vec<&str> = flags
        .into_iter()
        .filter_map(|(bit, name)| header.has(bit).then_some(name))
        .collect();
    let tasks: Vec<String> = tasks
        .iter()
        .map(|task| format!("{}/{}#{}", task.job, task.task, task.attempt))
        .collect();
    let about = match header.kind {
        Type::Submit => format!("user {} seq {}", header.user, header.submit_seq),
        Type::SubmitReply => format!(
            "seq {} taken {:b} queue {} tail {} head {}",
            header.submit_seq, header.taken, header.queue, header.tail, header.head
        ),
        _ => format!(
            "executor {} of {} pull {}",
            header.executor, header.worker_incarnation, header.pull_seq
        ),
    };
    let incarnation = header.incarnation % 10_000;
    format!(
        "{:?} {} {about} {} of ..{incarnation}",
        header.kind,
        flags.join(" "),
        tasks.join(" ")
    )
}
