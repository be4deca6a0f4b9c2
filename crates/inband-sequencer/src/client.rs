//! A client, sans-I/O: it asks until it is answered.

use inband_ground::auth::Gate;

use crate::wire::{emit, parse, Header, Type};

/// How long an answer may take before the client asks again, in nanoseconds.
pub const RETRY_NS: u64 = 20_000_000;

/// Asks for the numbers of one request after the other. Numbers of an answer that was lost are used by nobody.
pub struct Client {
    gate: Gate,
    asked: Header,
}

impl Client {
    /// `first_request`: drawn at its start, so that answers to an earlier client at this address are not taken for its own.
    pub fn new(gate: Gate, first_request: u64) -> Client {
        let asked = Header {
            request: first_request,
            ..Header::of(Type::Next)
        };
        Client { gate, asked }
    }

    /// The next request: `count` numbers of a log.
    pub fn ask(&mut self, log: u16, count: u64) {
        let request = self.asked.request.wrapping_add(1);
        self.asked = Header {
            log,
            count,
            request,
            ..self.asked
        };
    }

    /// The packet that asks. To be sent again every [`RETRY_NS`] without an answer.
    pub fn packet(&self) -> Vec<u8> {
        let mut packet = emit(&self.asked).to_vec();
        self.gate.sign(&mut packet);
        packet
    }

    /// A packet has arrived. The answer, if it is that to the present request.
    pub fn on_packet(&mut self, packet: &[u8]) -> Option<Header> {
        let answer = self.gate.admits(packet).then(|| parse(packet).ok())??;
        (answer.kind == Type::Number && answer.request == self.asked.request).then_some(answer)
    }
}
