//! Requests, and what instances decide.

use std::sync::Arc;

use inband_host::session::{Origin, ValueKind};
use serde::{Deserialize, Serialize};

use crate::wire::{emit, flag, Header, Type};

/// A request. Two requests are the same if all their fields are equal: a retransmitted request is still the same one,
/// and two requests with equal bytes have different numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Request {
    /// The session, or a random number if the request opens one.
    pub client: u64,
    /// Its number within the session, from 1.
    pub number: u64,
    /// All requests of the session below this number have been answered.
    pub low: u64,
    /// Whether the request opens a session.
    pub opens: bool,
    /// The address of the proposer, packed.
    pub reply_to: u64,
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// What an instance decides; `None` fills a hole.
pub type Value = Option<Arc<Request>>;

/// A request's client and number.
pub type Identity = (u64, u64);

impl Request {
    /// Returns the request in a packet.
    pub fn of(header: &Header, value: &[u8]) -> Request {
        Request {
            client: header.client,
            number: header.request,
            low: header.low,
            opens: header.has(flag::OPENS),
            reply_to: header.reply_to,
            value: value.to_vec(),
        }
    }

    /// Returns the request's client and number.
    pub fn identity(&self) -> Identity {
        (self.client, self.number)
    }

    /// Returns its submitter.
    pub fn origin(&self) -> Origin {
        Origin {
            client_id: self.client,
            client_seq: self.number,
            client_low: self.low,
            kind: match self.opens {
                true => ValueKind::OpenSession,
                false => ValueKind::Command,
            },
        }
    }

    /// Returns the request as a packet, still unsigned.
    pub fn packet(&self) -> Vec<u8> {
        let header = Header {
            flags: if self.opens { flag::OPENS } else { 0 },
            client: self.client,
            request: self.number,
            low: self.low,
            reply_to: self.reply_to,
            ..Header::of(Type::Request)
        };
        emit(&header, &self.value)
    }
}
