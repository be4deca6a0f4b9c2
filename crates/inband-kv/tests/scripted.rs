//! A replica over a log that does exactly what the test specifies.

use crate::common;
use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use crate::common::Client;
use inband_host::log::{
    Burst, Origin, ReadTicket, ReplicatedLog, SubmitError, SubmitFailure, Ticket, ValueKind,
};
use inband_kv::replica::{Replica, ReplicaConfig};

#[derive(Default)]
struct Script {
    submitted: Vec<(Ticket, Vec<u8>)>,
    /// Session, sequence, ticket and value of the next deliveries.
    deliveries: Vec<(Origin, Option<Ticket>, Vec<u8>)>,
    failures: Vec<(Ticket, SubmitFailure)>,
    /// Answers to questions about the log: nothing is decided.
    confirmed: Vec<(ReadTicket, u64)>,
    next_instance: u64,
    refuse_submit: Option<SubmitError>,
    room: usize,
    calls: Vec<String>,
    /// Another replica's value is decided at every poll.
    others_never_stop: bool,
    polls: u64,
}

/// No turn may poll the log this often.
const POLLS_MAX: u64 = 1_000_000;

struct ScriptedLog(Rc<RefCell<Script>>);

impl ReplicatedLog for ScriptedLog {
    fn partitions(&self) -> usize {
        1
    }
    fn max_value_len_bytes(&self) -> usize {
        300
    }
    fn submit_room(&self, _partition: usize) -> usize {
        self.0.borrow().room
    }
    fn submit(&mut self, _partition: usize, value: &[u8]) -> Result<Ticket, SubmitError> {
        let mut script = self.0.borrow_mut();
        if let Some(error) = script.refuse_submit.take() {
            return Err(error);
        }
        let ticket = Ticket(script.submitted.len() as u64 + 1);
        script.submitted.push((ticket, value.to_vec()));
        Ok(ticket)
    }
    fn poll(&mut self, bursts: &mut [Burst]) {
        let burst = &mut bursts[0];
        let mut script = self.0.borrow_mut();
        burst.failed.append(&mut script.failures);
        burst.confirmed.append(&mut script.confirmed);
        script.polls += 1;
        assert!(script.polls < POLLS_MAX, "a turn does not end");
        if script.others_never_stop {
            let origin = Origin {
                client_id: 0,
                client_seq: 0,
                client_low: 0,
                kind: ValueKind::Noop,
            };
            script.deliveries.push((origin, None, Vec::new()));
        }
        for (origin, ticket, value) in std::mem::take(&mut script.deliveries) {
            burst.push(script.next_instance, origin, ticket, &value);
            script.next_instance += 1;
        }
    }
    fn pause(&mut self, _partition: usize, _is_paused: bool) {}

    fn applied(&mut self, _partition: usize, instance: u64) {
        self.0
            .borrow_mut()
            .calls
            .push(format!("applied {instance}"));
    }
    fn reset(&mut self, _partition: usize, applied: u64) {
        self.0.borrow_mut().next_instance = applied + 1;
    }
    fn session_refused(&mut self, ticket: Ticket) {
        self.0
            .borrow_mut()
            .calls
            .push(format!("refused {}", ticket.0));
    }
    fn answered(&mut self, ticket: Ticket) {
        self.0
            .borrow_mut()
            .calls
            .push(format!("answered {}", ticket.0));
    }
    fn confirm_read(&mut self, partition: usize) -> ReadTicket {
        let mut script = self.0.borrow_mut();
        script.calls.push("read".into());
        let ticket = ReadTicket::new(partition, 1);
        // Otherwise a replica that starts says after a moment that it may be behind.
        script.confirmed.push((ticket, 0));
        ticket
    }
    fn wake_fds(&self) -> Vec<RawFd> {
        Vec::new()
    }
    fn poll_timeout(&self) -> Duration {
        Duration::from_millis(1)
    }
    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
}

struct Stage {
    script: Rc<RefCell<Script>>,
    replica: Replica,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

const COMMAND: ValueKind = ValueKind::Command;

impl Stage {
    fn new() -> Self {
        let script = Rc::new(RefCell::new(Script {
            room: 100,
            ..Script::default()
        }));
        let open = Origin {
            client_id: 7,
            client_seq: 0,
            client_low: 0,
            kind: ValueKind::OpenSession,
        };
        script
            .borrow_mut()
            .deliveries
            .push((open, None, Vec::new()));
        let dir = tempfile::tempdir().unwrap();
        let machine = common::open(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Box::new(ScriptedLog(script.clone()));
        let config = ReplicaConfig {
            spin_us: 0,
            ..ReplicaConfig::default()
        };
        let replica = Replica::new(config, machine, log, vec![listener], None).unwrap();
        Self {
            script,
            replica,
            address,
            _dir: dir,
        }
    }

    fn turn(&mut self) {
        for _ in 0..5 {
            self.script.borrow_mut().polls = 0;
            self.replica.poll_once(Duration::from_millis(5)).unwrap();
        }
    }

    fn client(&mut self) -> Client {
        let client = Client::connect(self.address);
        self.turn();
        client
    }

    fn submitted(&self) -> usize {
        self.script.borrow().submitted.len()
    }

    /// Delivers the value submitted with `ticket`, as sequence `seq` of session `session`.
    fn deliver(&mut self, ticket: u64, session: u64, seq: u64) {
        let origin = Origin {
            client_id: session,
            client_seq: seq,
            client_low: 1,
            kind: COMMAND,
        };
        let value = self.script.borrow().submitted[ticket as usize - 1]
            .1
            .clone();
        self.script
            .borrow_mut()
            .deliveries
            .push((origin, Some(Ticket(ticket)), value));
    }

    /// Runs turns until everything is written and reported to the log.
    fn settle(&mut self) {
        self.turn();
        while self.replica.machine().unwritten() > 0 {
            self.turn();
        }
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.script.borrow_mut().calls)
    }
}

#[test]
fn verdicts_reach_the_log_and_the_client() {
    let mut stage = Stage::new();
    let mut client = stage.client();
    client.send("INCR n\r\n");
    stage.settle();
    assert_eq!(stage.submitted(), 1);
    stage.calls();
    // The session is unknown: the log is told, and the client waits.
    stage.deliver(1, 99, 1);
    stage.settle();
    assert_eq!(stage.calls(), ["refused 1", "applied 2"]);
    // Resubmitted with the same ticket, and decided twice.
    stage.deliver(1, 1, 1);
    stage.deliver(1, 1, 1);
    stage.settle();
    assert_eq!(stage.calls(), ["answered 1", "applied 4"]);
    assert_eq!(client.line(), ":1");
    // Decided as a duplicate without a first occurrence here: that was in a checkpoint.
    client.send("INCR n\r\n");
    stage.turn();
    stage.deliver(2, 1, 1);
    stage.settle();
    assert_eq!(stage.calls(), ["answered 2", "applied 5"]);
    assert!(client
        .line()
        .starts_with("-UNKNOWN outcome unknown: the command was applied"));
}

/// Values of other replicas arrive faster than this one applies them: its own clients are still served, and deadlines
/// are checked.
#[test]
fn clients_are_served_while_others_never_stop() {
    let mut stage = Stage::new();
    let mut client = stage.client();
    stage.script.borrow_mut().others_never_stop = true;
    client.send("INCR n\r\n");
    stage.turn();
    assert_eq!(stage.submitted(), 1);
    stage.deliver(1, 1, 1);
    stage.turn();
    assert_eq!(client.line(), ":1");
}

#[test]
fn failures_are_told_apart() {
    let mut stage = Stage::new();
    let mut client = stage.client();
    client.send("INCR n\r\nINCR n\r\nPING\r\n");
    stage.turn();
    let failure = SubmitFailure::NotApplied("the leader has stepped down");
    stage
        .script
        .borrow_mut()
        .failures
        .push((Ticket(1), failure));
    stage.turn();
    assert_eq!(
        client.line(),
        "-TRYAGAIN not applied: the leader has stepped down"
    );
    assert_eq!(
        client.line(),
        "-TRYAGAIN not applied: the leader has stepped down"
    );
    assert_eq!(client.line(), "+PONG");
    client.send("INCR n\r\n");
    stage.turn();
    stage
        .script
        .borrow_mut()
        .failures
        .push((Ticket(2), SubmitFailure::OutcomeUnknown(5)));
    stage.turn();
    assert!(client
        .line()
        .starts_with("-UNKNOWN outcome unknown: no decision within 5 ms"));
    // It is decided after all: it is applied, and no client is answered twice.
    stage.deliver(2, 1, 9);
    client.send("PING\r\n");
    stage.turn();
    assert_eq!(client.line(), "+PONG");
    stage.script.borrow_mut().refuse_submit = Some(SubmitError::Closed("shutting down"));
    client.send("INCR n\r\n");
    stage.turn();
    assert_eq!(
        client.line(),
        "-TRYAGAIN this node does not accept values: shutting down"
    );
    assert_eq!(stage.replica.machine().keys(), 1);
}

#[test]
fn a_full_window_delays_and_then_fills_values() {
    let mut stage = Stage::new();
    stage.script.borrow_mut().room = 0;
    let mut clients: Vec<Client> = (0..6).map(|_| stage.client()).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send(format!("SET k{i} {}\r\n", "v".repeat(60)));
    }
    stage.turn();
    assert_eq!(stage.submitted(), 0);
    // The log reports room, and then has none.
    stage.script.borrow_mut().room = 100;
    stage.script.borrow_mut().refuse_submit = Some(SubmitError::WindowFull(1));
    stage.turn();
    assert_eq!(
        stage.submitted(),
        2,
        "six commands of about 70 bytes in two values of 300"
    );
    stage.deliver(2, 1, 1);
    stage.deliver(1, 1, 2);
    stage.turn();
    assert!(clients.iter_mut().all(|client| client.line() == "+OK"));
    assert_eq!(stage.replica.machine().keys(), 6);
}

/// An element is put after the attempt of a blocking pop and before its reply is processed: both are in one burst.
#[test]
fn an_element_put_right_after_an_attempt_wakes_the_client() {
    let mut stage = Stage::new();
    let (mut waiting, mut other) = (stage.client(), stage.client());
    waiting.send("BLPOP k 0\r\n");
    stage.turn();
    other.send("RPUSH k 1\r\n");
    stage.turn();
    assert_eq!(stage.submitted(), 2);
    stage.deliver(1, 1, 1);
    stage.deliver(2, 1, 2);
    stage.turn();
    assert_eq!(other.line(), ":1");
    assert_eq!(stage.submitted(), 3, "it tries again");
    stage.deliver(3, 1, 3);
    stage.turn();
    waiting.expect("*2\r\n$1\r\nk\r\n$1\r\n1\r\n");
    // The list is empty again, so nothing more is tried.
    waiting.send("BLPOP k 0\r\n");
    stage.turn();
    stage.deliver(4, 1, 4);
    stage.turn();
    assert_eq!(stage.submitted(), 4);
    // An attempt that fails is reported: nobody knows what is there.
    other.send("RPUSH k 2\r\n");
    stage.turn();
    stage.deliver(5, 1, 5);
    stage.turn();
    assert_eq!(stage.submitted(), 6);
    let failure = SubmitFailure::NotApplied("the leader has stepped down");
    stage
        .script
        .borrow_mut()
        .failures
        .push((Ticket(6), failure));
    stage.turn();
    assert!(waiting.line().starts_with("-TRYAGAIN not applied"));
}
