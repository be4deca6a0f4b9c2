use super::*;
use crate::registers::{SwitchRegisters, SwitchSizes};
use crate::switch_host::{SwitchConfig, SwitchHost};
use crate::wire::{parse, F_ACTIVATE, HELLO};

type Sent = Vec<(ToWhom<u32>, Header)>;

struct Server {
    host: ServerHost,
    registers: ServerRegisters,
    out: Out<u32>,
}

fn server(start: Start, promised: u64) -> Server {
    server_of(2, start, promised)
}

fn server_of(chunks: usize, start: Start, promised: u64) -> Server {
    let registers = ServerRegisters::zeroed(chunks);
    let config = ServerConfig {
        node: 1,
        servers: 3,
    };
    Server {
        host: ServerHost::new(config, start, promised, 9, &registers),
        registers,
        out: Out::default(),
    }
}

impl Server {
    fn sent(&mut self) -> Sent {
        let mut sent = Vec::new();
        self.out
            .drain(|to, packet| sent.push((*to, parse(packet).unwrap().0)));
        sent
    }

    fn gets(&mut self, now: Nanos, header: Header, value: &[u8]) -> Sent {
        let mut packet = Vec::new();
        emit(&header, value, &mut packet);
        let (header, value) = parse(&packet).unwrap();
        let Server {
            host,
            registers,
            out,
        } = self;
        host.on_packet(now, 77, &header, value, registers, out);
        self.sent()
    }

    fn tick(&mut self, now: Nanos) -> Sent {
        self.host.tick(now, &self.registers, &mut self.out);
        self.sent()
    }
}

fn grant(epoch: u64) -> Header {
    Header {
        kind: GRANT,
        node: owner(epoch).into(),
        epoch,
        ..Header::default()
    }
}

fn answered(sent: &Sent) -> (u64, u64) {
    assert_eq!(sent.len(), 1);
    let (to, header) = &sent[0];
    assert_eq!(
        (*to, header.kind, header.flags),
        (ToWhom::Asker(77), EPOCH, F_TO_GRANT)
    );
    (header.epoch, header.timestamp)
}

#[test]
fn an_epoch_is_promised_once_and_before_it_is_granted() {
    let mut server = server(Start::New, 0);
    let (a, b) = (32 + 16, 64 + 17);
    assert_eq!(answered(&server.gets(MS, grant(a), &[])), (a, 0));
    assert!(server.out.promise.take() >= Some(a));
    assert_eq!(
        answered(&server.gets(MS, grant(a), &[])),
        (a, 0),
        "it came twice"
    );
    assert_eq!(server.out.promise.take(), None);
    assert_eq!(answered(&server.gets(MS, grant(b), &[])), (b, a));
    assert_eq!(answered(&server.gets(MS, grant(a), &[])), (b, b), "refused");
    assert_eq!(
        (server.registers.epoch(), server.registers.switch_epoch()),
        (b, b)
    );
    let forged = Header {
        node: 18,
        ..grant(96 + 17)
    };
    assert!(server.gets(MS, forged, &[]).is_empty(), "of somebody else");
}

#[test]
fn a_promise_outlives_the_memory() {
    let mut server = server(Start::New, 64 + 17);
    assert_eq!(answered(&server.gets(MS, grant(64 + 16), &[])).0, 64 + 17);
    assert_eq!(
        server.registers.epoch(),
        64 + 17,
        "whatever is older is refused"
    );
}

#[test]
fn an_epoch_is_granted_to_one_start_of_a_node() {
    let mut server = server(Start::New, 0);
    let of = |start| Header {
        session: start,
        ..grant(32 + 16)
    };
    assert_eq!(answered(&server.gets(MS, of(1), &[])).0, 32 + 16);
    let refused = answered(&server.gets(MS, of(2), &[])).0;
    assert!(refused > 32 + 16 && !is_switch(refused), "{refused}");
    assert_eq!(answered(&server.gets(MS, of(1), &[])).0, 32 + 16);
}

/// An epoch that no node of a young memory has proposed.
const FAR: u64 = EPOCHS - 64 + 16;

#[test]
fn an_epoch_that_is_far_ahead_is_granted_only_in_steps() {
    let mut server = server(Start::New, 0);
    let own = 32 + 17;
    assert_eq!(answered(&server.gets(MS, grant(own), &[])).0, own);
    server.out.promise = None;
    assert_eq!(answered(&server.gets(MS, grant(FAR), &[])), (own, own));
    assert_eq!((server.out.promise, server.registers.epoch()), (None, own));
    assert_eq!(server.host.epochs_refused(), 1);
    let mut known = own;
    while let Some(step) = step(FAR, known) {
        known = answered(&server.gets(MS, grant(step), &[])).0;
        assert_eq!(known, step);
    }
    assert_eq!(answered(&server.gets(MS, grant(FAR), &[])), (FAR, known));
    assert_eq!(server.host.epochs_refused(), 1);
}

/// Only the other servers' answers prove that an epoch exists.
#[test]
fn a_server_that_was_cut_off_for_long_asks_the_others() {
    let mut server = server(Start::New, 0);
    server.registers.raise_epoch(48);
    let read = Header {
        kind: READ,
        epoch: FAR,
        lines: 1,
        ..Header::default()
    };
    let asked = server.gets(MS, read, &[]);
    let to: Vec<_> = asked.iter().map(|(to, h)| (*to, h.kind)).collect();
    let others = [2, 3].map(|node| (ToWhom::Server(node), GRANT));
    assert_eq!(to, others);
    assert!(server.gets(2 * MS, read, &[]).is_empty(), "just asked");
    let near = Header { epoch: 96, ..read };
    assert!(server.gets(20 * MS, near, &[]).is_empty());
    // It is granted by nobody who has an epoch.
    let mut other = others_at([FAR - 320, 0]).into_iter().next().unwrap();
    let mut answer = other.gets(2 * MS, asked[0].1, &[])[0].1;
    assert_eq!(other.registers.epoch(), FAR - 320);
    answer.session ^= 1;
    server.gets(3 * MS, answer, &[]);
    assert_eq!(server.registers.epoch(), 48, "nobody asked for that");
    answer.session ^= 1;
    server.gets(3 * MS, answer, &[]);
    assert_eq!(server.registers.epoch(), FAR - 320);
}

fn read_answer(node: u16, request: &Header, epoch: u64, timestamp: u64) -> (Header, Vec<u8>) {
    let mut value = Vec::new();
    (0..CHUNK_LINES).for_each(|_| value.extend_from_slice(&timestamp.to_be_bytes()));
    value.resize(value.len() + CHUNK_LINES * LINE_LEN_BYTES, timestamp as u8);
    let header = Header {
        kind: READ_ANSWER,
        node,
        epoch,
        ..*request
    };
    (header, value)
}

/// Lets server 1 replace a lost server, while servers 2 and 3 have the epochs they were granted. Returns the epoch in
/// which it copies.
fn fence_of_a_replaced_one(others: &mut [Server; 2]) -> u64 {
    let mut server = server(Start::Recover, 0);
    server.host.replaces();
    for ms in 1..100 {
        let mut sent = server.tick(ms * MS);
        while let Some((to, header)) = sent.pop() {
            let ToWhom::Server(node) = to else {
                panic!("it serves nobody");
            };
            if header.kind == READ {
                return header.epoch;
            }
            for (_, answer) in others[usize::from(node) - 2].gets(ms * MS, header, &[]) {
                sent.extend(server.gets(ms * MS, answer, &[]));
            }
        }
    }
    panic!("it is not granted an epoch");
}

fn others_at(epochs: [u64; 2]) -> [Server; 2] {
    let mut node = 1;
    epochs.map(|epoch| {
        node += 1;
        let config = ServerConfig { node, servers: 3 };
        let registers = ServerRegisters::zeroed(2);
        let mut server = Server {
            host: ServerHost::new(config, Start::New, epoch.saturating_sub(32), 9, &registers),
            registers,
            out: Out::default(),
        };
        if epoch != 0 {
            assert_eq!(answered(&server.gets(MS, grant(epoch), &[])).0, epoch);
        }
        server
    })
}

/// The servers know of different proposals, each just below or above the replacement's first one.
#[test]
fn a_replaced_server_copies_far_above_what_any_other_knew() {
    let at = |proposal: u64| 32 * proposal + 17;
    for known in [
        [0, 0],
        [at(1), at(5)],
        [at(1_020), at(1_024)],
        [at(1_020), at(5)],
        [at(3), at(3_000)],
    ] {
        let fence = fence_of_a_replaced_one(&mut others_at(known));
        let most = known[0].max(known[1]);
        assert!(fence > most + REPLACE_SKIPS, "{fence} after {known:?}");
        assert!(fence < most + 2 * REPLACE_SKIPS, "{fence} after {known:?}");
    }
}

/// Each lost server had granted an epoch that no other server has heard of.
#[test]
fn a_server_that_is_replaced_again_and_again_copies_above_all_that_was_granted() {
    let mut others = others_at([32 * 40 + 17; 2]);
    let mut known = 32 * 40 + 17;
    for _ in 0..4 {
        let granted_alone = known + REPLACE_SKIPS - 1;
        let fence = fence_of_a_replaced_one(&mut others);
        assert!(
            fence > granted_alone,
            "{fence}, {granted_alone} was granted"
        );
        known = fence;
    }
    let proposals = known / 32;
    assert!(proposals < 40 + 4 * 1_100, "{proposals} proposals are used");
}

#[test]
fn an_empty_server_copies_from_a_majority_behind_a_fence() {
    let mut server = server(Start::Recover, 32 * 9 + 1);
    let asked = server.tick(MS);
    let fence = 32 * 10 + 1;
    let to: Vec<_> = asked
        .iter()
        .map(|(to, header)| (*to, header.kind, header.epoch))
        .collect();
    assert_eq!(
        to,
        [
            (ToWhom::Server(2), GRANT, fence),
            (ToWhom::Server(3), GRANT, fence)
        ]
    );
    assert!(
        server.gets(MS, grant(32 * 20 + 16), &[]).is_empty(),
        "it grants nothing"
    );
    let granted = |node| Header {
        kind: EPOCH,
        flags: F_TO_GRANT,
        node,
        session: 9,
        timestamp: 32 * 4 + 16,
        ..grant(fence)
    };
    assert!(server.gets(MS, granted(2), &[]).is_empty());
    assert!(
        server.gets(MS, granted(2), &[]).is_empty(),
        "the same one again"
    );
    let reads = server.gets(MS, granted(3), &[]);
    assert_eq!(reads.len(), 4, "two chunks of two servers: {reads:?}");
    assert!(reads
        .iter()
        .all(|(_, h)| h.kind == READ && h.epoch == fence));
    // Another switch has become active meanwhile: the server goes on in that epoch.
    let refused = Header {
        kind: EPOCH,
        node: 2,
        epoch: fence + 50,
        request: 9,
        ..Header::default()
    };
    let of_nobody = Header {
        epoch: EPOCHS - 1,
        request: 8,
        ..refused
    };
    server.gets(2 * MS, of_nobody, &[]);
    server.gets(2 * MS, refused, &[]);
    assert!(server
        .tick(20 * MS)
        .iter()
        .all(|(_, h)| h.epoch == fence + 50));
    for chunk in 0..2 {
        let request = reads.iter().find(|(_, h)| h.chunk == chunk).unwrap().1;
        let (old, value) = read_answer(2, &request, fence - 32, 9);
        server.gets(20 * MS, old, &value);
        let (header, value) = read_answer(2, &request, fence, (fence + 1) << COUNT_BITS);
        server.gets(20 * MS, header, &value);
        let (header, value) = read_answer(2, &request, fence, 5);
        server.gets(20 * MS, header, &value);
        server.gets(20 * MS, header, &value);
        assert!(
            !server.host.is_serving(),
            "one server is no majority of others"
        );
        let (header, value) = read_answer(3, &request, fence + 50, 7 + chunk);
        server.gets(20 * MS, header, &value);
    }
    server.tick(21 * MS);
    assert!(server.host.is_serving() && server.registers.serving());
    assert_eq!(server.registers.chunk(1).0, [8; CHUNK_LINES]);
    assert_eq!(server.registers.chunk(0).1[3], [7; LINE_LEN_BYTES]);
    assert_eq!(server.registers.epoch(), fence + 50);
    assert_eq!(server.registers.switch_epoch(), 32 * 4 + 16);
}

/// Lets the two other servers, with these numbers of chunks, grant the fence. Returns the packets sent after that.
fn copying(server: &mut Server, now: Nanos, chunks: [u64; 2]) -> Sent {
    let fence = server.tick(now)[0].1.epoch;
    let mut sent = Vec::new();
    for (node, chunk) in (2..).zip(chunks) {
        let granted = Header {
            kind: EPOCH,
            flags: F_TO_GRANT,
            node,
            session: 9,
            chunk,
            ..grant(fence)
        };
        sent = server.gets(now, granted, &[]);
    }
    sent
}

#[test]
fn chunks_that_a_server_did_not_have_at_the_fence_are_not_asked_of_it() {
    let mut server = server_of(3, Start::Recover, 0);
    let reads = copying(&mut server, MS, [1, 2]);
    let asked: Vec<_> = reads.iter().map(|(to, h)| (*to, h.chunk)).collect();
    let (two, three) = (ToWhom::Server(2), ToWhom::Server(3));
    assert_eq!(asked, [(two, 0), (three, 0), (three, 1)]);
    for (to, request) in &reads {
        let node = if *to == two { 2 } else { 3 };
        let (header, value) = read_answer(node, request, request.epoch, 6);
        server.gets(MS, header, &value);
    }
    server.tick(2 * MS);
    assert!(server.host.is_serving());
    let timestamps = [0, 1, 2].map(|chunk| server.registers.chunk(chunk).0[0]);
    assert_eq!(timestamps, [6, 6, 0], "nobody had the last one");
}

#[test]
fn copying_is_limited_in_its_rate_and_slows_down_where_answers_are_lost() {
    let mut server = server_of(10_000, Start::Recover, 0);
    let per_ms = COPY_CHUNKS_PER_MS as usize;
    let mut reads = copying(&mut server, MS, [10_000; 2]);
    for ms in 2..40 {
        let mut sent = server.tick(ms * MS);
        for (to, request) in reads {
            let node = if to == ToWhom::Server(2) { 2 } else { 3 };
            let (header, value) = read_answer(node, &request, request.epoch, 6);
            sent.extend(server.gets(ms * MS, header, &value));
        }
        assert!(sent.len() <= 2 * per_ms, "{} in a millisecond", sent.len());
        reads = sent;
    }
    let copied = server.host.copied().unwrap();
    assert!(copied >= 30 * COPY_CHUNKS_PER_MS, "{copied} in 38 ms");
    // From now on nobody answers.
    let (mut first, mut last) = (0, 0);
    for ms in 100..2_000 {
        let sent = server.tick(ms * MS).len();
        match ms {
            ..200 => first += sent,
            1_900.. => last += sent,
            _ => {}
        }
    }
    assert!(
        last < first,
        "{first} sent in 100 ms at first, {last} later"
    );
    let State::Copying { pace, .. } = &server.host.state else {
        panic!("it copies");
    };
    assert_eq!(pace.window.size(), crate::congestion::WINDOW_MIN as usize);
}

#[test]
fn a_refusal_that_comes_late_is_no_grant_of_what_a_former_start_owns() {
    let mut switch = SwitchHost::new(
        SwitchConfig {
            node: 16,
            servers: 3,
            chunks: 2,
        },
        0,
        7,
    );
    let registers = SwitchRegisters::zeroed(&SwitchSizes {
        chunks: 2,
        block_lines: 16,
        sessions: 1,
        slots: 4,
    });
    let mut out = crate::switch_host::Out::default();
    let client = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 1);
    let mut proposes = |switch: &mut SwitchHost, now, packet: Header| {
        switch.on_packet(now, client, &packet, &registers, &mut out);
        let mut grants = Vec::new();
        out.drain(|_, packet| grants.push(parse(packet).unwrap().0));
        grants.retain(|header| header.kind == GRANT);
        grants.first().copied()
    };
    let wish = |epoch| Header {
        kind: HELLO,
        flags: F_ACTIVATE,
        epoch,
        ..Header::default()
    };
    // Another switch has `higher`, and an earlier start of this one, whose promise is lost, the epoch after it.
    let (higher, owned) = (64 + 17, 96 + 16);
    let first = proposes(&mut switch, MS, wish(0)).unwrap();
    assert_eq!(first.epoch, 32 + 16);
    let refusals = [1, 2].map(|node| {
        let mut server = server(Start::New, 0);
        server.host.config.node = node;
        let former = Header {
            session: 5,
            ..grant(owned)
        };
        assert_eq!(answered(&server.gets(MS, former, &[])).0, owned);
        server.gets(MS, first, &[])[0].1
    });
    let mut third = server(Start::New, higher);
    third.host.config.node = 3;
    let refused = third.gets(MS, first, &[])[0].1;
    assert!(proposes(&mut switch, 2 * MS, refused).is_none());
    let second = proposes(&mut switch, 10 * MS, wish(higher)).unwrap();
    assert_eq!(second.epoch, owned);
    // The answers to its first proposal arrive only now.
    for refusal in refusals {
        proposes(&mut switch, 11 * MS, refusal);
    }
    assert_eq!(registers.epoch(), 0, "two starts own one epoch");
}
