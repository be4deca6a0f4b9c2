//! memcached over UDP: the frame of a datagram.

/// Length of a frame's header.
pub const HEADER_BYTES: usize = 8;
/// Maximum length of a reply's datagram, as in memcached.
pub const DATAGRAM_BYTES_MAX: usize = 1400;

/// The header of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The request's id, chosen by the client.
    pub request: u16,
    /// Index of this datagram in its message.
    pub sequence: u16,
    /// Number of datagrams in the message.
    pub datagrams: u16,
}

pub fn parse(datagram: &[u8]) -> Option<(Frame, &[u8])> {
    let (header, rest) = datagram.split_first_chunk::<HEADER_BYTES>()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let frame = Frame {
        request: word(0),
        sequence: word(2),
        datagrams: word(4),
    };
    // A request takes one datagram, as in memcached.
    (frame.sequence == 0 && frame.datagrams == 1 && word(6) == 0).then_some((frame, rest))
}

/// Splits a reply into datagrams.
pub fn datagrams(request: u16, reply: &[u8]) -> Vec<Vec<u8>> {
    let parts: Vec<_> = reply.chunks(DATAGRAM_BYTES_MAX - HEADER_BYTES).collect();
    let count = parts.len() as u16;
    let datagram = |(sequence, part): (u16, &&[u8])| {
        let words = [request, sequence, count, 0];
        let mut datagram: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        datagram.extend_from_slice(part);
        datagram
    };
    (0..).zip(&parts).map(datagram).collect()
}
