//! Partitioning of keys over replica sets, and a client of all sets.

use crate::dataplane::wire;

use crate::client::{Client, Config, Op, Out, SubmitError, Ticket};
use crate::digests::Digests;
use crate::limits::SETS_MAX;
use crate::timing::Nanos;

/// Returns the replica set of a key, out of `sets`. Uses the lowest 32 bits of the key's xxh3; groups use the highest
/// bits of the hash, so each set has keys of all groups. The cluster's key is not used, so a key change moves no data
/// between sets.
pub fn set_of(key: &[u8], sets: u16) -> u16 {
    let low = wire::key_hash(key) & u64::from(u32::MAX);
    ((low * u64::from(sets)) >> 32) as u16
}

/// A client for each set. Each has its own session; nothing is atomic across sets.
#[derive(Debug)]
pub struct Clients {
    sets: Vec<Client>,
}

impl Clients {
    /// Clients of sets 0 to `sets` - 1, with the settings of `config`.
    pub fn new(config: Config, sets: usize) -> Clients {
        assert!((1..=SETS_MAX).contains(&sets), "{sets} replica sets");
        let of = |set| Client::new(Config { set, ..config });
        Clients {
            sets: (0..sets as u16).map(of).collect(),
        }
    }

    /// See [`Client::set_digests`].
    pub fn set_digests(&mut self, digests: Digests) {
        self.sets
            .iter_mut()
            .for_each(|client| client.set_digests(digests));
    }

    /// Submits a request to the set of its key. See [`Client::submit`].
    pub fn submit(&mut self, now: Nanos, op: Op, out: &mut Out) -> Result<Ticket, SubmitError> {
        let set = set_of(op.key(), self.sets.len() as u16);
        self.sets[usize::from(set)].submit(now, op, out)
    }

    /// Handles a packet from a switch.
    pub fn on_packet(&mut self, now: Nanos, packet: &[u8], out: &mut Out) {
        let Ok((header, key, data)) = wire::parse(packet) else {
            return;
        };
        if let Some(client) = self.sets.get_mut(usize::from(header.set)) {
            client.on_reply(now, &header, key, data, out);
        }
    }

    /// Returns when to call [`Clients::tick`] next.
    pub fn due(&self) -> Option<Nanos> {
        self.sets.iter().filter_map(Client::due).min()
    }

    /// Handles timeouts.
    pub fn tick(&mut self, now: Nanos, out: &mut Out) {
        self.sets
            .iter_mut()
            .for_each(|client| client.tick(now, out));
    }

    /// Returns the number of requests in flight.
    pub fn under_way(&self) -> usize {
        self.sets.iter().map(Client::under_way).sum()
    }

    /// Returns the number of retransmissions.
    pub fn repeated(&self) -> u64 {
        self.sets.iter().map(Client::repeated).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::wire::{Header, Type};
    use crate::reads::Reads;
    use crate::timing::ClientTiming;

    const SETS: u16 = 3;

    fn clients() -> Clients {
        let config = Config {
            set: 0,
            switches: 1,
            reads: Reads::Flair,
            nonce: 7,
            timing: ClientTiming::default(),
        };
        Clients::new(config, usize::from(SETS))
    }

    #[test]
    fn sets_have_their_share_of_every_group() {
        const GROUPS: usize = 4;
        let mut counts = [[0; GROUPS]; SETS as usize];
        for number in 0..12_000u32 {
            let key = number.to_be_bytes();
            let group = wire::group_of(wire::key_hash(&key), GROUPS);
            counts[usize::from(set_of(&key, SETS))][group] += 1;
            assert_eq!(set_of(&key, 1), 0);
        }
        for count in counts.iter().flatten() {
            assert!((900..1100).contains(count), "{counts:?}");
        }
    }

    #[test]
    fn a_request_goes_to_the_set_of_its_key_and_its_answer_counts_there_only() {
        let (mut clients, mut out) = (clients(), Out::default());
        for number in 0..30u32 {
            let key = number.to_be_bytes();
            let set = set_of(&key, SETS);
            out.packets.clear();
            let get = Op::Get(key.to_vec());
            let ticket = clients.submit(0, get, &mut out).expect("it is taken");
            let (_, asked) = out.packets.iter().next().expect("it is sent");
            let (asked, _, _) = wire::parse(asked).expect("it is whole");
            assert_eq!((asked.set, ticket.set), (set, set));
            let answer = |set| {
                let mut header = Header::new(Type::ReadReply, set, 1);
                header.client_seq = asked.client_seq;
                header.digest = wire::digest(b"value");
                let mut packet = Vec::new();
                wire::emit(&header, &key, b"value", &mut packet);
                packet
            };
            clients.on_packet(1, &answer((set + 1) % SETS), &mut out);
            clients.on_packet(1, &answer(SETS), &mut out);
            assert_eq!(out.outcomes, [], "of another set");
            clients.on_packet(1, &answer(set), &mut out);
            let (ended, _) = out.outcomes.pop().expect("it is answered");
            assert_eq!(ended, ticket);
        }
        assert_eq!(clients.under_way(), 0);
    }
}
