use std::net::Ipv4Addr;

use super::*;
use crate::epoch::{EPOCHS, EPOCH_AHEAD_MAX};
use crate::registers::SwitchSizes;
use crate::wire::{parse, GRANT};

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);

struct Switch {
    host: SwitchHost,
    registers: SwitchRegisters,
    out: Out,
}

fn switch(promised: u64) -> Switch {
    switch_of(2, 16, promised)
}

fn switch_of(sessions: usize, slots: usize, promised: u64) -> Switch {
    let config = SwitchConfig {
        node: 16,
        servers: 3,
        chunks: 4,
    };
    let sizes = SwitchSizes {
        chunks: 4,
        block_lines: 16,
        sessions,
        slots,
    };
    Switch {
        host: SwitchHost::new(config, promised, 7),
        registers: SwitchRegisters::zeroed(&sizes),
        out: Out::default(),
    }
}

impl Switch {
    fn gets(&mut self, now: Nanos, header: Header) -> Vec<(ToWhom, Header)> {
        let Switch {
            host,
            registers,
            out,
        } = self;
        host.on_packet(now, CLIENT, &header, registers, out);
        self.sent()
    }

    fn sent(&mut self) -> Vec<(ToWhom, Header)> {
        let mut sent = Vec::new();
        self.out
            .drain(|to, packet| sent.push((*to, parse(packet).unwrap().0)));
        sent
    }

    fn hello(&mut self, now: Nanos, request: u64, session: u64) -> Header {
        let hello = Header {
            kind: HELLO,
            request,
            session,
            slot: 4,
            ..Header::default()
        };
        let sent = self.gets(now, hello);
        sent.iter()
            .find(|(to, _)| *to == ToWhom::Client(CLIENT))
            .unwrap()
            .1
    }

    /// Lets a client ask the switch to become active. Returns the epoch that it proposes.
    fn wish(&mut self, now: Nanos, epoch: u64) -> u64 {
        let activate = Header {
            kind: HELLO,
            flags: F_ACTIVATE,
            epoch,
            ..Header::default()
        };
        let sent = self.gets(now, activate);
        let grants = sent.iter().filter(|(_, header)| header.kind == GRANT);
        assert_eq!(grants.clone().count(), 3, "{sent:?}");
        let epoch = grants.map(|(_, header)| header.epoch).next().unwrap();
        assert!(self.out.promise.take() >= Some(epoch), "before it is sent");
        epoch
    }

    fn granted(&mut self, now: Nanos, node: u16, epoch: u64, before: u64) {
        let granted = Header {
            kind: EPOCH,
            flags: F_TO_GRANT,
            node,
            epoch,
            session: self.host.incarnation,
            timestamp: before,
            ..Header::default()
        };
        self.gets(now, granted);
    }
}

#[test]
fn it_is_active_when_a_majority_has_granted_an_epoch_that_it_never_proposed_before() {
    let mut switch = switch(32 * 5 + 16);
    let epoch = switch.wish(MS, 0);
    assert_eq!(epoch, 32 * 6 + 16);
    switch.granted(MS, 2, epoch, 0);
    switch.granted(MS, 2, epoch, 0);
    switch.granted(MS, 9, epoch, 0);
    assert_eq!(switch.registers.epoch(), 0, "one server, twice, and nobody");
    switch.granted(MS, 1, epoch, 0);
    assert_eq!(switch.registers.epoch(), epoch);
    assert!(switch.host.is_active(&switch.registers));
}

#[test]
fn a_client_that_knows_less_activates_nothing() {
    let mut switch = switch(0);
    switch.gets(
        MS,
        Header {
            kind: HELLO,
            epoch: 32 + 17,
            ..Header::default()
        },
    );
    let activate = Header {
        kind: HELLO,
        flags: F_ACTIVATE,
        ..Header::default()
    };
    let sent = switch.gets(MS, activate);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!((sent[0].1.flags, sent[0].1.epoch), (F_NOT_ACTIVE, 32 + 17));
    assert!(switch.wish(MS, 32 + 17) > 32 + 17);
}

/// An epoch that no node of a young memory has proposed.
const FAR: u64 = EPOCHS - 64 + 17;

#[test]
fn a_client_does_not_use_up_the_epochs() {
    for epoch in [EPOCHS - 1, FAR, EPOCH_AHEAD_MAX + 1] {
        let mut switch = switch(0);
        assert_eq!(switch.wish(MS, epoch), 32 + 16);
        assert_eq!(switch.host.epochs_refused(), 1);
    }
    assert!(switch(0).wish(MS, EPOCH_AHEAD_MAX) > EPOCH_AHEAD_MAX);
}

/// An active switch learns from the servers that they have granted later epochs to another one.
#[test]
fn a_switch_that_was_cut_off_for_long_asks_the_servers() {
    for kind in [HELLO, EPOCH] {
        let mut switch = switch(0);
        let first = switch.wish(MS, 0);
        switch.granted(MS, 1, first, 0);
        switch.granted(MS, 2, first, 0);
        let packet = Header {
            kind,
            epoch: FAR,
            ..Header::default()
        };
        let asks = |sent: &[(ToWhom, Header)]| {
            let grants = sent.iter().filter(|(_, header)| header.kind == GRANT);
            grants.map(|(_, header)| header.epoch).collect::<Vec<_>>()
        };
        assert_eq!(asks(&switch.gets(2 * MS, packet)), [question(16); 3]);
        assert!(asks(&switch.gets(3 * MS, packet)).is_empty(), "just asked");
        assert!(switch.host.is_active(&switch.registers));
        switch.granted(3 * MS, 3, FAR, FAR);
        assert!(!switch.host.is_active(&switch.registers));
        assert_eq!(switch.registers.deposed(), FAR);
        assert!(switch.wish(40 * MS, FAR) > FAR);
    }
}

#[test]
fn a_server_that_is_far_behind_is_asked_for_epochs_on_the_way() {
    let promised = 32 * 5_000 + 16;
    let mut switch = switch(promised);
    let epoch = switch.wish(MS, 0);
    let mut known = 0;
    let mut steps = 0;
    loop {
        let refused = Header {
            kind: EPOCH,
            flags: F_TO_GRANT,
            node: 2,
            epoch: known,
            session: switch.host.incarnation,
            ..Header::default()
        };
        let sent = switch.gets(MS, refused);
        let Some((to, asked)) = sent.first() else {
            break;
        };
        assert_eq!((*to, sent.len()), (ToWhom::Server(2), 1));
        assert!(asked.epoch > known && !is_ahead(asked.epoch, known));
        (known, steps) = (asked.epoch, steps + 1);
    }
    assert!(!is_ahead(epoch, known));
    assert_eq!(steps, 9);
    assert_eq!(
        switch.registers.epoch(),
        0,
        "a step is not what it asks for"
    );
    switch.granted(MS, 2, epoch, known);
    switch.granted(MS, 1, epoch, 0);
    assert_eq!(switch.registers.epoch(), epoch);
}

#[test]
fn what_was_granted_to_an_earlier_start_does_not_count() {
    let mut switch = switch(0);
    let epoch = switch.wish(MS, 0);
    let earlier = |node| Header {
        kind: EPOCH,
        flags: F_TO_GRANT,
        node,
        epoch,
        session: 12,
        ..Header::default()
    };
    switch.gets(MS, earlier(1));
    switch.gets(MS, earlier(2));
    assert_eq!(switch.registers.epoch(), 0);
}

/// Deposes the switch six times, each time after `before` was granted to another one, and returns how long it takes to
/// become active again.
fn gaps(before: impl Fn(u64) -> u64) -> [Nanos; 6] {
    let mut switch = switch(0);
    let mut now = MS;
    std::array::from_fn(|_| {
        let began = now;
        let deposed = switch.registers.epoch() + 32 - 13;
        switch.registers.raise_deposed(deposed);
        while switch.host.proposes().is_none() {
            now += MS;
            switch.host.wished_at = Some(now);
            switch.host.tick(now, &switch.registers, &mut switch.out);
        }
        let epoch = switch.host.proposes().unwrap();
        switch.granted(now, 1, epoch, before(deposed));
        switch.granted(now, 2, epoch, before(deposed));
        assert_eq!(switch.registers.epoch(), epoch);
        now - began
    })
}

#[test]
fn switches_that_depose_each_other_wait_longer_and_longer() {
    let gaps = gaps(|deposed| deposed - 3 + 17);
    assert_eq!(gaps, [1, 20, 40, 80, 160, 320].map(|ms| ms * MS));
    assert!(gaps.iter().all(|gap| *gap <= ACTIVATION_GAP_MAX_NS));
}

#[test]
fn a_server_that_starts_again_and_again_delays_no_switch_for_longer_each_time() {
    let gaps = gaps(|_| 0);
    assert_eq!(gaps, [1, 20, 20, 20, 20, 20].map(|ms| ms * MS));
}

/// Activates the switch in an epoch with an open session, then deposes it by a server's epoch and activates it again.
fn again(before: u64) -> (Switch, u64) {
    let mut switch = switch(0);
    let first = switch.wish(MS, 0);
    switch.granted(MS, 1, first, 0);
    switch.granted(MS, 2, first, 0);
    let session = switch.hello(2 * MS, 1, 0).session;
    assert!(session != 0);
    switch.registers.raise_deposed(first + 3 - 16 + 32);
    switch
        .host
        .tick(40 * MS, &switch.registers, &mut switch.out);
    let second = switch.host.proposes().unwrap();
    switch.out.promise = None;
    switch.sent();
    switch.granted(40 * MS, 1, second, first);
    switch.granted(40 * MS, 2, second, before);
    assert_eq!(switch.registers.epoch(), second);
    (switch, session)
}

#[test]
fn sessions_survive_an_epoch_of_a_server_and_not_one_of_another_switch() {
    let (switch, session) = again(0);
    assert_eq!(switch.registers.session(0).session, session);
    let (switch, _) = again(64 + 17);
    assert_eq!(switch.registers.session(0).session, 0);
    assert_eq!(switch.host.sessions(), 0);
}

#[test]
fn a_session_is_given_once_and_closed_before_the_next() {
    let mut switch = switch(0);
    let epoch = switch.wish(MS, 0);
    switch.granted(MS, 1, epoch, 0);
    switch.granted(MS, 2, epoch, 0);
    let first = switch.hello(MS, 1, 0);
    assert_eq!(
        switch.hello(MS, 1, 0).session,
        first.session,
        "HELLO came twice"
    );
    assert_eq!((first.slot, first.chunk), (4, 4));
    let second = switch.hello(MS, 2, first.session).session;
    assert!(second != first.session);
    assert_eq!(switch.host.sessions(), 1);
    let third = switch.hello(MS, 3, 0).session;
    let goodbye = Header {
        kind: HELLO,
        session: third,
        ..Header::default()
    };
    switch.gets(MS, goodbye);
    assert_eq!(switch.host.sessions(), 1, "its client has ended");
    assert_ne!(switch.hello(MS, 5, 0).session, 0);
    let full = switch.hello(MS, 4, 0);
    assert_eq!((full.session, full.flags), (0, 0), "active, and no room");
    assert_ne!(switch.hello(2_500 * MS, 4, 0).session, 0, "one was idle");
}

#[test]
fn as_many_clients_find_room_as_there_may_be_sessions() {
    let (sessions, slots) = (1_024, 16_384);
    let mut switch = switch_of(sessions, slots, 0);
    let epoch = switch.wish(MS, 0);
    switch.granted(MS, 1, epoch, 0);
    switch.granted(MS, 2, epoch, 0);
    let mut join = |request| {
        let hello = Header {
            kind: HELLO,
            request,
            slot: 256,
            ..Header::default()
        };
        let sent = switch.gets(MS, hello);
        (sent[0].1.session, sent[0].1.slot)
    };
    let given: Vec<(u64, u32)> = (1..=sessions as u64).map(&mut join).collect();
    let full = given.iter().position(|(session, _)| *session == 0);
    assert_eq!(full, None, "the first without a session");
    assert!(given[..16].iter().all(|(_, window)| *window == 256));
    assert!(given.iter().all(|(_, window)| *window >= 8));
    assert_eq!(join(2_000), (0, 0), "there may be no more");
}
