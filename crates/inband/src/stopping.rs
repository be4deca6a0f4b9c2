//! How a host stops. On a signal, it first hands over the logs that it leads, so that the others need not wait for the
//! suspicion timeout; then it answers the commands that it has accepted.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use inband_control::service::{call, Request, Response, Status};

use crate::published;
use crate::serve::HostView;

/// How soon a request to stop is noticed.
const STOP_POLL: Duration = Duration::from_millis(20);
/// After a signal, a host stops within this time, and the time to sync its store.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Without a signal, it answers accepted commands for at most this long: a host whose supervisor has exited must end
/// within two seconds.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Time limit for the handover of all logs. After it the others find out by themselves.
const HANDOVER_MAX: Duration = Duration::from_secs(3);
/// A host that has been silent for longer gets nothing.
const SILENT_MAX_MS: u64 = 1_000;
/// Polling interval while the others take over.
const STEP: Duration = Duration::from_millis(5);

/// Starts the thread that waits for a request to stop, carries it out, and sets the view's `stop`.
pub fn start(view: HostView) -> Result<()> {
    let thread = std::thread::Builder::new().name("stop".into());
    thread.spawn(move || {
        while !view.is_stopping() {
            sleep(STOP_POLL);
        }
        let until = Instant::now() + STOP_MAX;
        let mut drain_max = DRAIN_MAX;
        if view.request.is_signalled() {
            hand_over(&view);
            drain_max = until.saturating_duration_since(Instant::now());
        }
        view.stop.store(true, Ordering::Release);
        if let Some(replica) = &view.replica {
            replica.drain_and_stop(drain_max);
        }
    })?;
    Ok(())
}

/// Hands over every log that this host leads, while it still serves. Without a control plane, and when no other host can
/// lead, nothing happens.
fn hand_over(view: &HostView) {
    let until = Instant::now() + HANDOVER_MAX;
    let led = led(view);
    if led.is_empty() || !view.config.is_managed() {
        return;
    }
    match hand_over_until(view, &led, until) {
        Ok(()) => tracing::info!("handed over the logs {led:?}"),
        Err(error) => tracing::warn!("the logs {led:?} were not handed over: {error:#}"),
    }
}

/// Returns the logs that this host leads now.
fn led(view: &HostView) -> Vec<usize> {
    let state = published::read(&view.state);
    let logs = state.leaders.iter().enumerate();
    let active = logs.filter(|(_, leader)| leader.round != 0);
    active.map(|(log, _)| log).collect()
}

fn hand_over_until(view: &HostView, led: &[usize], until: Instant) -> Result<()> {
    let Response::Status(status) = ask(view, &Request::Status, until)? else {
        bail!("the control plane's reply is not a status");
    };
    for log in led {
        let this = view.config.this().id;
        for to in heirs(&status, *log, this) {
            let request = Request::MoveLeader {
                partition: Some(*log as u32),
                to,
            };
            match ask(view, &request, until)? {
                Response::Accepted { .. } => {}
                Response::Refused(refusal) => bail!("{refusal}"),
                other => bail!("the control plane answered {other:?}"),
            }
        }
    }
    while self::led(view).iter().any(|log| led.contains(log)) {
        if Instant::now() >= until {
            bail!("no other host has taken over in time");
        }
        sleep(STEP);
    }
    Ok(())
}

fn ask(view: &HostView, request: &Request, until: Instant) -> Result<Response> {
    let services = view.config.controllers();
    let services: Vec<SocketAddr> = services
        .map(|node| SocketAddr::V4(node.control_plane()))
        .collect();
    let left = until.saturating_duration_since(Instant::now());
    let cluster = &view.config.cluster.name;
    call(cluster, &services, request, left, &view.transport).context("asking the control plane")
}

/// Returns whom to prefer, in this order, so that the last one takes over: a host takes over when it *becomes* the
/// preferred leader. Nobody, if no other host is alive.
fn heirs(status: &Status, log: usize, this: u8) -> Vec<u8> {
    let opened = status.opened.as_ref();
    let order = opened.and_then(|opened| opened.leaders.get(log));
    let order = order.map_or(&[][..], Vec::as_slice);
    let is_alive = |node: &u8| {
        let mut hosts = status.hosts.iter();
        hosts.any(|host| host.node == *node && host.silent_ms <= SILENT_MAX_MS)
    };
    let mut others = order.iter().filter(|node| **node != this && is_alive(node));
    match others.next() {
        None => Vec::new(),
        Some(heir) if order.first() == Some(heir) => vec![this, *heir],
        Some(heir) => vec![*heir],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use inband_control::configuration::{Beginning, Configuration, Identity};
    use inband_control::coordinator::Waiting;
    use inband_control::service::HostStatus;

    use super::*;

    fn status(order: &[u8], silent_ms: &[(u8, u64)]) -> Status {
        let host = |(node, silent_ms): &(u8, u64)| HostStatus {
            node: *node,
            identity: Identity((*node).into()),
            silent_ms: *silent_ms,
            acceptor: None,
            stopped: Vec::new(),
        };
        Status {
            leader: 1,
            voters: vec![1],
            opened: Some(Configuration {
                epoch: 1,
                revision: 1,
                members: BTreeMap::new(),
                leaders: vec![order.to_vec()],
                beginning: Beginning::Fresh(vec![1]),
            }),
            pending: None,
            waiting: Waiting::Nothing,
            hosts: silent_ms.iter().map(host).collect(),
        }
    }

    #[test]
    fn the_next_host_that_lives_takes_over() {
        let all = [(1, 0), (2, 10), (3, 10)];
        assert_eq!(heirs(&status(&[1, 2, 3], &all), 0, 1), [2]);
        // Host 1 is preferred already, and would do nothing.
        assert_eq!(heirs(&status(&[1, 2, 3], &all), 0, 2), [2, 1]);
        let without_2 = [(1, 0), (2, 5_000), (3, 10)];
        assert_eq!(heirs(&status(&[1, 2, 3], &without_2), 0, 1), [3]);
        assert_eq!(heirs(&status(&[1, 2, 3], &[(1, 0)]), 0, 1), [0; 0]);
        assert_eq!(heirs(&status(&[1], &all), 0, 1), [0; 0]);
        assert_eq!(heirs(&status(&[1, 2], &all), 1, 1), [0; 0], "no such log");
    }
}
