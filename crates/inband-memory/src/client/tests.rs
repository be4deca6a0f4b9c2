use super::*;
use crate::epoch::EPOCHS;
use crate::switch_host::{SESSION_IDLE_MIN_NS, WINDOW_MAX};
use crate::wire::{parse, F_ACTIVATE, READ_REQUEST, WRITE_REQUEST};

struct Desk {
    client: Client,
    out: Out,
}

fn desk(switches: usize) -> Desk {
    let mut out = Out::default();
    let config = ClientConfig {
        window: 4,
        ..ClientConfig::new(switches)
    };
    Desk {
        client: Client::new(config, MS, 5, &mut out),
        out,
    }
}

impl Desk {
    fn sent(&mut self) -> Vec<(usize, Header)> {
        let mut sent = Vec::new();
        self.out
            .drain(|to, packet| sent.push((*to, parse(packet).unwrap().0)));
        sent
    }

    fn gets(
        &mut self,
        now: Nanos,
        switch: usize,
        header: Header,
        value: &[u8],
    ) -> Vec<(usize, Header)> {
        let mut packet = Vec::new();
        emit(&header, value, &mut packet);
        let (header, value) = parse(&packet).unwrap();
        self.client
            .on_packet(now, switch, &header, value, &mut self.out);
        self.sent()
    }

    fn tick(&mut self, now: Nanos) -> Vec<(usize, Header)> {
        self.client.tick(now, &mut self.out);
        self.sent()
    }

    /// Returns the nonce of the current search.
    fn nonce(&self) -> u64 {
        self.client.looking.as_ref().expect("it looks").nonce
    }

    /// Joins a switch and returns the HELLO that asked for the session.
    fn join(&mut self, now: Nanos, switch: usize, epoch: u64, session: u64) -> Header {
        self.sent();
        let active = Header {
            request: self.nonce(),
            ..active(epoch)
        };
        let hello = self.gets(now, switch, active, &[]);
        let (to, hello) = *hello
            .iter()
            .find(|(_, h)| h.kind == HELLO && h.slot > 0)
            .expect("a HELLO");
        assert_eq!(to, switch);
        let welcome = Header {
            request: hello.request,
            session,
            slot: 4,
            chunk: 8,
            ..active
        };
        self.gets(now, switch, welcome, &[]);
        hello
    }

    fn write(&mut self, now: Nanos, sole_writer: bool) -> Ticket {
        let op = Op::Write {
            chunk: 1,
            lines: 1,
            from: Box::new([[3; LINE_LEN_BYTES]; CHUNK_LINES]),
            sole_writer,
        };
        self.client.submit(now, op, &mut self.out)
    }
}

fn active(epoch: u64) -> Header {
    Header {
        kind: WELCOME,
        epoch,
        ..Header::default()
    }
}

fn refused(session: u64, request: u64, epoch: u64) -> Header {
    Header {
        kind: REFUSED,
        flags: F_NOT_ACTIVE,
        session,
        request,
        epoch,
        ..Header::default()
    }
}

fn written(request: &Header) -> Header {
    Header {
        kind: WRITE_REPLY,
        ..*request
    }
}

#[test]
fn the_window_bounds_what_is_under_way_and_a_lost_request_is_sent_again() {
    let mut desk = desk(1);
    desk.join(MS, 0, 48, 100);
    for _ in 0..6 {
        desk.write(MS, false);
    }
    let sent: Vec<Header> = desk.sent().into_iter().map(|(_, h)| h).collect();
    let numbers: Vec<u64> = sent.iter().map(|h| h.request).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    // Three later requests are answered: the first one is lost.
    assert!(desk.gets(2 * MS, 0, written(&sent[1]), &[]).is_empty());
    assert!(desk.gets(2 * MS, 0, written(&sent[2]), &[]).is_empty());
    let again = desk.gets(2 * MS, 0, written(&sent[3]), &[]);
    assert_eq!(
        again.iter().map(|(_, h)| h.request).collect::<Vec<_>>(),
        [1]
    );
    let next = desk.gets(2 * MS, 0, written(&sent[0]), &[]);
    assert_eq!(
        next.iter().map(|(_, h)| h.request).collect::<Vec<_>>(),
        [5, 6]
    );
    let again = desk.tick(9 * MS);
    assert!(again.iter().any(|(_, h)| h.request == 5), "{again:?}");
    let other = Header {
        chunk: 2,
        ..written(&next[0].1)
    };
    desk.gets(9 * MS, 0, other, &[]);
    assert_eq!(desk.client.outstanding(), 2, "an answer to something else");
}

#[test]
fn a_lost_session_repeats_what_may_be_repeated_and_closes_the_old_one() {
    let mut desk = desk(1);
    desk.join(MS, 0, 48, 100);
    let (plain, own) = (desk.write(MS, false), desk.write(MS, true));
    let op = Op::Read { chunk: 0, lines: 3 };
    desk.client.submit(MS, op, &mut desk.out);
    desk.sent();
    let refused = Header {
        flags: 0,
        ..refused(100, 2, 0)
    };
    let hello = desk.gets(2 * MS, 0, refused, &[]);
    assert_eq!(desk.client.take_done(), Some((plain, Outcome::Unknown)));
    let hello = hello.iter().find(|(_, h)| h.slot > 0).unwrap().1;
    assert_eq!(hello.session, 100, "it is to be closed first");
    let welcome = Header {
        kind: WELCOME,
        epoch: 80,
        request: hello.request,
        session: 200,
        slot: 4,
        chunk: 8,
        ..Header::default()
    };
    let again = desk.gets(3 * MS, 0, welcome, &[]);
    let kinds: Vec<_> = again
        .iter()
        .map(|(_, h)| (h.kind, h.session, h.request))
        .collect();
    assert_eq!(kinds, [(WRITE_REQUEST, 200, 1), (READ_REQUEST, 200, 2)]);
    // An answer for the old session is ignored.
    desk.gets(
        3 * MS,
        0,
        Header {
            session: 100,
            ..written(&again[0].1)
        },
        &[],
    );
    assert_eq!(desk.client.take_done(), None);
    desk.gets(3 * MS, 0, written(&again[0].1), &[]);
    assert_eq!(desk.client.take_done(), Some((own, Outcome::Written)));
}

#[test]
fn a_silent_switch_is_replaced_by_one_that_a_client_activates() {
    let mut desk = desk(2);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, true);
    desk.sent();
    let probes = desk.tick(12 * MS);
    let asked: Vec<usize> = probes
        .iter()
        .filter(|(_, h)| h.kind == HELLO)
        .map(|(to, _)| *to)
        .collect();
    assert_eq!(asked, [0, 1]);
    let passive = Header {
        flags: F_NOT_ACTIVE,
        request: desk.nonce(),
        ..active(48)
    };
    desk.gets(13 * MS, 1, passive, &[]);
    let activate = desk.tick(23 * MS);
    let activate: Vec<_> = activate
        .iter()
        .filter(|(_, h)| h.flags == F_ACTIVATE)
        .collect();
    assert_eq!(activate.len(), 1, "{activate:?}");
    assert_eq!((activate[0].0, activate[0].1.epoch), (1, 48));
    desk.join(24 * MS, 1, 81, 300);
    let again = desk.tick(24 * MS);
    assert_eq!(desk.client.switch(), Some((1, 81)));
    drop(again);
    // On its return to the first switch it closes its earlier session there.
    desk.gets(25 * MS, 1, refused(300, 1, 112), &[]);
    let hello = desk.join(26 * MS, 0, 112, 400);
    assert_eq!(hello.session, 100);
}

#[test]
fn a_request_ends_by_its_deadline_and_a_chunk_behind_the_end_is_refused() {
    let mut desk = desk(1);
    let ticket = desk.write(MS, false);
    desk.tick(11_000 * MS);
    assert_eq!(desk.client.take_done(), Some((ticket, Outcome::TimedOut)));
    desk.join(11_000 * MS, 0, 48, 100);
    let op = Op::Read { chunk: 8, lines: 1 };
    let ticket = desk.client.submit(11_000 * MS, op, &mut desk.out);
    assert_eq!(
        desk.client.take_done(),
        Some((ticket, Outcome::OutOfRange(8)))
    );
    assert_eq!(desk.client.outstanding(), 0);
}

#[test]
fn what_was_refused_and_is_over_deposes_no_switch() {
    let mut desk = desk(2);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, false);
    let request = desk.sent()[0].1;
    desk.gets(2 * MS, 0, written(&request), &[]);
    let late = refused(100, request.request, 48);
    assert!(desk.gets(3 * MS, 0, late, &[]).is_empty());
    assert!(desk.client.looking.is_none());
    // It looks for a switch because one request is overdue, which is then answered in time.
    desk.write(3 * MS, false);
    let request = desk.sent()[0].1;
    desk.gets(4 * MS, 0, refused(100, request.request, 48), &[]);
    let nonce = desk.nonce();
    desk.client
        .joined
        .as_mut()
        .unwrap()
        .pending
        .fill_with(|| None);
    desk.client.joined.as_mut().unwrap().oldest += 1;
    let answer = Header {
        request: nonce,
        ..active(48)
    };
    desk.gets(5 * MS, 0, answer, &[]);
    assert!(
        desk.client.looking.is_none(),
        "it is idle, and the switch active"
    );
}

#[test]
fn an_epoch_of_a_server_says_nothing_about_switches() {
    let mut desk = desk(1);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, true);
    desk.sent();
    let fence = 64 + 3;
    desk.gets(2 * MS, 0, refused(100, 1, fence), &[]);
    assert_eq!(desk.client.epoch, 48);
    // The switch has lost its sessions, and its epoch is below the server's.
    desk.client.abandon();
    desk.join(3 * MS, 0, 48, 200);
    assert_eq!(desk.client.switch(), Some((0, 48)));
}

#[test]
fn an_epoch_that_is_far_ahead_counts_only_in_an_answer() {
    let mut desk = desk(2);
    let last = EPOCHS - 32 + 16;
    let (nonce, hello) = (desk.nonce(), desk.sent());
    assert!(hello.iter().all(|(_, h)| h.epoch == 0));
    desk.gets(2 * MS, 0, active(last), &[]);
    desk.gets(2 * MS, 0, refused(0, nonce ^ 1 << 40, last), &[]);
    desk.gets(2 * MS, 0, refused(7, 1, last), &[]);
    assert!(desk.tick(4 * MS).iter().all(|(_, h)| h.epoch == 0));
    let answer = Header {
        request: nonce,
        ..active(32 * 9_000 + 16)
    };
    let hello = desk.gets(5 * MS, 1, answer, &[]);
    assert!(hello.iter().any(|(_, h)| h.epoch == 32 * 9_000 + 16));
}

#[test]
fn a_slow_switch_gives_one_session() {
    let mut desk = desk(1);
    desk.sent();
    let probed = Header {
        request: desk.nonce(),
        ..active(48)
    };
    let first = desk.gets(MS, 0, probed, &[])[0].1;
    for ms in 2..60 {
        desk.tick(ms * MS);
    }
    let probed = Header {
        request: desk.nonce(),
        ..probed
    };
    let second = desk.gets(60 * MS, 0, probed, &[])[0].1;
    assert_eq!((first.slot, second.slot), (4, 4));
    assert_eq!(first.request, second.request, "the same session");
    for ms in 60..90 {
        desk.tick(ms * MS);
    }
    // The answer to the first HELLO arrives while the client is looking again.
    let welcome = Header {
        request: first.request,
        session: 100,
        slot: 4,
        chunk: 8,
        ..active(48)
    };
    let too_much = Header {
        slot: 2 * WINDOW_MAX,
        ..welcome
    };
    desk.gets(90 * MS, 0, too_much, &[]);
    assert_eq!(desk.client.switch(), None);
    desk.gets(90 * MS, 0, welcome, &[]);
    assert_eq!(desk.client.switch(), Some((0, 48)));
    desk.client.abandon();
    desk.tick(91 * MS);
    let hello = desk.join(92 * MS, 0, 48, 200);
    assert_ne!(hello.request, first.request, "that one was used");
}

#[test]
fn an_answer_to_what_was_asked_before_counts_no_more() {
    let mut desk = desk(1);
    let old = Header {
        request: desk.nonce(),
        ..active(48)
    };
    desk.join(MS, 0, 48, 100);
    desk.client.abandon();
    desk.tick(2 * MS);
    let sent = desk.gets(3 * MS, 0, old, &[]);
    assert!(sent.is_empty(), "{sent:?}");
    desk.join(4 * MS, 0, 48, 200);
}

#[test]
fn a_switch_that_never_answers_is_left_later_each_time() {
    let mut desk = desk(1);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, true);
    for (ms, doubled) in [(12, 1), (50, 2), (200, 3), (500, 4)] {
        desk.tick(ms * MS);
        assert_eq!(desk.client.suspect_after_ns, (10 << doubled) * MS);
        let session = 100 + doubled;
        desk.client.abandon();
        desk.join(ms * MS, 0, 48, session);
    }
    let request = Header {
        kind: WRITE_REQUEST,
        session: desk.client.joined.as_ref().unwrap().session,
        request: 1,
        chunk: 1,
        lines: 1,
        ..Header::default()
    };
    desk.gets(500 * MS, 0, written(&request), &[]);
    assert_eq!(desk.client.suspect_after_ns, 10 * MS);
}

#[test]
fn goodbye_closes_the_session() {
    let mut desk = desk(2);
    desk.join(MS, 1, 48, 100);
    desk.sent();
    desk.client.goodbye(&mut desk.out);
    let sent = desk.sent();
    let sent: Vec<_> = sent
        .iter()
        .map(|(to, h)| (*to, h.kind, h.session, h.slot))
        .collect();
    assert_eq!(sent, [(1, HELLO, 100, 0)]);
}

/// Returns what a switch's role answers to a probe.
fn probed(nonce: u64, flags: u16, epoch: u64) -> Header {
    Header {
        flags,
        ..refused(0, nonce, epoch)
    }
}

fn activates(sent: &[(usize, Header)]) -> bool {
    sent.iter().any(|(_, h)| h.flags == F_ACTIVATE)
}

#[test]
fn a_switch_whose_role_answers_is_left_only_when_it_is_of_no_use() {
    let mut desk = desk(2);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, true);
    desk.sent();
    let probes = desk.tick(12 * MS);
    let asked = probes.iter().filter(|(_, h)| h.kind == READ_REQUEST);
    let asked: Vec<_> = asked.map(|(to, h)| (*to, h.session, h.request)).collect();
    let nonce = desk.nonce();
    assert_eq!(asked, [(0, 0, nonce), (1, 0, nonce)]);
    // The first switch's process waits for a CPU. Answers that need servers are missing or late.
    for ms in 13..60 {
        assert!(!activates(&desk.tick(ms * MS)), "after {ms} ms");
        desk.gets(ms * MS, 0, probed(nonce, 0, 48), &[]);
        desk.gets(ms * MS, 1, probed(nonce, F_NOT_ACTIVE, 0), &[]);
    }
    assert!(activates(&desk.tick(70 * MS)), "it does not help to wait");
}

#[test]
fn a_role_that_says_it_is_not_active_may_be_replaced() {
    let mut desk = desk(2);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, true);
    desk.tick(12 * MS);
    let nonce = desk.nonce();
    desk.gets(13 * MS, 1, probed(nonce, F_NOT_ACTIVE, 48), &[]);
    assert!(activates(&desk.tick(23 * MS)));
    // The answer belongs to an earlier search.
    desk.gets(24 * MS, 1, probed(nonce + 7, 0, 81), &[]);
    assert!(desk.client.joining.is_none());
    // Active, but its process gives out no session: the client asks it for one.
    desk.gets(25 * MS, 1, probed(nonce, 0, 81), &[]);
    let joining = desk.client.joining.as_ref().unwrap();
    assert_eq!(joining.switch, 1);
}

/// The first switch's process hangs, and its role answers before the second switch does. Returns when the client has
/// the second one activated and, if there is no second one, how often it asks the first for a session afterwards.
fn looks_beside_a_hanging_process(is_second_there: bool) -> (Option<Nanos>, usize) {
    let mut desk = desk(2);
    let mut sent: VecDeque<_> = desk.sent().into();
    let mut late = 0;
    for ms in 2..2_000 {
        while let Some((to, header)) = sent.pop_front() {
            if header.flags == F_ACTIVATE {
                assert_eq!(to, 1);
                return (Some(ms), late);
            }
            late += usize::from(ms > 500 && header.kind == HELLO && header.slot > 0);
            let flags = [0, F_NOT_ACTIVE][to];
            if header.kind == READ_REQUEST && (to == 0 || is_second_there) {
                let answer = probed(header.request, flags, 48);
                sent.extend(desk.gets(ms * MS, to, answer, &[]));
            }
        }
        sent.extend(desk.tick(ms * MS));
    }
    (None, late)
}

#[test]
fn a_process_that_hangs_is_left_also_if_its_role_is_the_first_to_answer() {
    let (activated, _) = looks_beside_a_hanging_process(true);
    assert!(activated.is_some_and(|ms| ms < 200), "{activated:?}");
    let (activated, asked) = looks_beside_a_hanging_process(false);
    assert!(activated.is_none() && asked > 100, "{asked}");
}

#[test]
fn where_answers_take_long_a_switch_is_suspected_later() {
    let mut desk = desk(2);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, true);
    let request = desk.sent()[0].1;
    desk.gets(16 * MS, 0, written(&request), &[]);
    desk.write(16 * MS, true);
    desk.tick(27 * MS);
    let passive = probed(desk.nonce(), F_NOT_ACTIVE, 48);
    desk.gets(28 * MS, 1, passive, &[]);
    assert!(!activates(&desk.tick(60 * MS)), "three times 15 ms");
    assert!(activates(&desk.tick(61 * MS)));
    // The switch had not failed. One that was left long ago is forgotten.
    desk.gets(70 * MS, 0, refused(100, 9, 48), &[]);
    let bears = |desk: &Desk, ms: u64| desk.client.bears(ms * MS) / MS;
    assert_eq!((bears(&desk, 70), bears(&desk, 60_000)), (100, 10));
}

#[test]
fn as_much_is_under_way_as_the_network_takes() {
    let mut out = Out::default();
    let config = ClientConfig {
        window: 1024,
        ..ClientConfig::new(1)
    };
    let client = Client::new(config, MS, 5, &mut out);
    let mut desk = Desk { client, out };
    desk.join(MS, 0, 48, 100);
    desk.client.abandon();
    desk.client.look(MS);
    desk.sent();
    let hello = desk.gets(MS, 0, probed(desk.nonce(), 0, 48), &[])[0].1;
    let welcome = Header {
        request: hello.request,
        session: 200,
        slot: 1024,
        chunk: 8,
        ..active(48)
    };
    desk.gets(MS, 0, welcome, &[]);
    for _ in 0..1_000 {
        desk.write(MS, false);
    }
    let mut sent = desk.sent();
    assert_eq!(sent.len(), crate::congestion::WINDOW_FIRST as usize);
    // Each answer lets one more request through, and a second one while there are no losses.
    let first = written(&sent[0].1);
    assert_eq!(desk.gets(2 * MS, 0, first, &[]).len(), 2);
    // From now on nothing is answered.
    sent = desk.tick(9 * MS);
    assert!(!sent.is_empty());
    assert_eq!(desk.client.congestion.size(), 32);
    desk.client.abandon();
    assert_eq!(desk.client.outstanding(), 999 - 65);
}

#[test]
fn a_pause_of_the_caller_is_neither_a_round_trip_nor_silence() {
    let mut desk = desk(2);
    desk.join(MS, 0, 48, 100);
    desk.write(MS, true);
    let request = desk.sent()[0].1;
    desk.gets(2 * MS, 0, written(&request), &[]);
    assert_eq!(desk.client.srtt_ns(), MS);
    let bears = desk.client.bears(2 * MS);
    // A request is in flight, and the caller is slow to take its answer.
    desk.write(2 * MS, true);
    let request = desk.sent()[0].1;
    desk.client.was_away(2 * MS..900 * MS);
    desk.client.tick(900 * MS, &mut desk.out);
    assert!(desk.client.looking.is_none(), "the switch was not silent");
    desk.gets(900 * MS, 0, written(&request), &[]);
    assert_eq!(desk.client.srtt_ns(), MS);
    assert_eq!(desk.client.bears(900 * MS), bears);
    // Requests sent later are measured again, and a switch that is silent then is left.
    desk.write(900 * MS, true);
    let request = desk.sent()[0].1;
    desk.gets(909 * MS, 0, written(&request), &[]);
    assert_eq!(desk.client.srtt_ns(), 2 * MS);
    desk.write(910 * MS, true);
    desk.tick(980 * MS);
    assert!(desk.client.looking.is_some());
}

#[test]
fn a_switch_that_has_not_heard_that_the_memory_has_grown_does_not_shrink_it() {
    let mut desk = desk(2);
    desk.join(MS, 0, 48, 100);
    assert_eq!(desk.client.chunks(), Some(8));
    desk.client.chunks = Some(20);
    desk.client.abandon();
    desk.tick(2 * MS);
    desk.join(3 * MS, 1, 49, 200);
    assert_eq!(desk.client.chunks(), Some(20));
}

#[test]
fn an_idle_session_becomes_stale_although_the_caller_looks_in_now_and_then() {
    let mut desk = desk(1);
    desk.join(MS, 0, 48, 100);
    let polls = (0..3).map(|n| n * SESSION_STALE_NS / 2);
    for from in polls {
        desk.client.was_away(from + MS..from + SESSION_STALE_NS / 2);
    }
    desk.write(2 * SESSION_STALE_NS, false);
    let kinds: Vec<u16> = desk.sent().iter().map(|(_, h)| h.kind.into()).collect();
    assert_eq!(kinds, [u16::from(HELLO)], "another session first");
}

#[test]
fn a_session_that_a_switch_short_of_room_may_have_closed_is_not_used() {
    let mut desk = desk(1);
    desk.join(MS, 0, 48, 100);
    desk.write(MS + SESSION_IDLE_MIN_NS, false);
    let kinds: Vec<u16> = desk.sent().iter().map(|(_, h)| h.kind.into()).collect();
    assert_eq!(kinds, [u16::from(HELLO)], "another session first");
}

/// Of two switches, the first is active but has no room, and says so after `late`. Returns how many HELLOs ask it for a
/// session within 2 s, after which it grants one.
fn asks_a_full_switch(late: Nanos) -> usize {
    let mut desk = desk(2);
    let mut under_way: VecDeque<(Nanos, usize, Header)> = VecDeque::new();
    let mut sent = desk.sent();
    let mut asked = 0;
    for now in (2..3_000).map(|ms| ms * MS) {
        sent.extend(desk.tick(now));
        for (switch, header) in sent.drain(..) {
            assert!(header.flags & F_ACTIVATE == 0, "after {now} ns");
            let flags = [0, F_NOT_ACTIVE][switch];
            if header.kind == READ_REQUEST {
                under_way.push_back((now, switch, probed(header.request, flags, 48)));
                continue;
            }
            let is_asked = header.slot > 0;
            assert!(!is_asked || switch == 0);
            asked += usize::from(is_asked && now < 2_000 * MS);
            let is_told = now > 100 * MS && now < 2_000 * MS;
            assert!(!is_told || desk.client.full_switch() == Some(0));
            let has_room = is_asked && now >= 2_000 * MS;
            let welcome = Header {
                flags,
                request: header.request,
                session: if has_room { 100 } else { 0 },
                slot: if has_room { 4 } else { 0 },
                ..active(48)
            };
            under_way.push_back((now + late, switch, welcome));
        }
        let due = |(at, ..): &(Nanos, usize, Header)| *at <= now;
        while let Some(at) = under_way.iter().position(due) {
            let (_, switch, header) = under_way.remove(at).expect("it is there");
            sent.extend(desk.gets(now, switch, header, &[]));
        }
    }
    assert_eq!(desk.client.joined.as_ref().unwrap().session, 100);
    assert_eq!(desk.client.full_switch(), None);
    asked
}

#[test]
fn a_full_switch_is_asked_now_and_then_and_is_not_deposed() {
    let asked = asks_a_full_switch(0);
    assert!((10..100).contains(&asked), "{asked}");
    // The switch's answers take longer than the HELLO's retransmission interval.
    asks_a_full_switch(30 * MS);
}
