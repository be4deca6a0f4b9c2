//! An entry of the replicated log.

use serde::{Deserialize, Serialize, Serializer};

/// A command and the client write that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<'a> {
    /// The client's session.
    pub client_id: u64,
    /// The write's sequence number in the session.
    pub client_seq: u64,
    /// All writes below this one have been answered.
    pub client_low: u64,
    #[serde(borrow)]
    pub op: Op<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op<'a> {
    /// Begins a FLAIR session; its id is the index of this entry.
    Session {
        /// The switch that it is bound to.
        switch: u8,
        /// How long the switch serves after a heartbeat, in nanoseconds.
        step_down_ns: u64,
    },
    /// Opens a client session; its id is the index of this entry.
    Open,
    Put {
        #[serde(serialize_with = "as_bytes")]
        key: &'a [u8],
        #[serde(serialize_with = "as_bytes")]
        data: &'a [u8],
    },
    Delete {
        #[serde(serialize_with = "as_bytes")]
        key: &'a [u8],
    },
}

/// Serializes the bytes in one piece: serde writes a slice element by element.
fn as_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}
