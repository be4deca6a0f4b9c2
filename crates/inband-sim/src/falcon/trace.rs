//! The trace of Falcon's events.

use std::fmt;

use inband_falcon::dataplane::wire::{self, flag, Type};
use inband_falcon::packets::{Codec, Incoming};
use inband_falcon::timing::Nanos;
use inband_ground::auth::Digest;

use super::host::Host;
use crate::system::Travel;
use crate::trace::{mix, word_of, Trace};

/// A packet in flight.
pub(super) fn packet(
    trace: &mut Trace,
    now: Nanos,
    travel: Travel,
    (from, to): (Host, Host),
    bytes: &[u8],
    codec: &Codec,
) {
    let arrow = travel.arrow();
    let pair = mix(number(from), number(to)) ^ u64::from(arrow.as_bytes()[1]);
    let hash = Digest::PLAIN.of(bytes);
    trace.note_words(now, &[pair, hash], || {
        format!("{from} {arrow} {to}  {}", said(bytes, codec))
    });
}

/// An event at a host.
pub(super) fn host(trace: &mut Trace, now: Nanos, host: Host, what: &'static str) {
    trace.note_words(now, &[number(host), word_of(what)], || {
        format!("{host} {what}")
    });
}

/// An event of a client or executor.
pub(super) fn about(trace: &mut Trace, now: Nanos, host: Host, words: u64, what: impl fmt::Debug) {
    trace.note_words(now, &[number(host), words], || format!("{host} {what:?}"));
}

fn number(host: Host) -> u64 {
    match host {
        Host::Scheduler(number) => 1 << 8 | u64::from(number),
        Host::Worker(number) => 2 << 8 | u64::from(number),
        Host::Client(number) => 3 << 8 | u64::from(number),
    }
}

/// Returns a packet's content for people.
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
