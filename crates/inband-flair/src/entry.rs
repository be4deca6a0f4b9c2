//! An entry of the replicated log.

use serde::{Deserialize, Serialize, Serializer};

/// What is done, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<'a> {
    /// The client's session.
    pub client_id: u64,
    /// The write's number in it.
    pub client_seq: u64,
    /// All before this one are answered.
    pub client_low: u64,
    /// What to do.
    #[serde(borrow)]
    pub op: Op<'a>,
}

/// See [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op<'a> {
    /// A session of FLAIR begins; its id is this entry's index.
    Session {
        /// The switch that it is bound to.
        switch: u8,
        /// How long the switch serves after a heartbeat.
        step_down_ns: u64,
    },
    /// A client's session begins; its id is this entry's index.
    Open,
    /// Set a key.
    Put {
        /// Which.
        #[serde(serialize_with = "as_bytes")]
        key: &'a [u8],
        /// To what.
        #[serde(serialize_with = "as_bytes")]
        data: &'a [u8],
    },
    /// There is no such key any more.
    Delete {
        /// Which.
        #[serde(serialize_with = "as_bytes")]
        key: &'a [u8],
    },
}

/// As one piece: a slice is written byte for byte otherwise.
fn as_bytes<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}
