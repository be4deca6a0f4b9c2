//! Packets: the header of `wire.h` in host byte order.

use inband_ground::wire::{checked, checksum, unpadded, ParseError, HEADER_LEN_BYTES};

use crate::c;
use crate::role::Record;

inband_ground::message_types!(
    Type {
        Submit = c::IB_BOX_SUBMIT,
        Propose = c::IB_BOX_PROPOSE,
        Ack = c::IB_BOX_ACK,
        Commit = c::IB_BOX_COMMIT,
        Refused = c::IB_BOX_REFUSED,
        Control = c::IB_BOX_CONTROL,
    }
);

inband_ground::flag_bits!(
    flag {
        NOT_LEADER = c::IB_BOX_F_NOT_LEADER,
        BUSY = c::IB_BOX_F_BUSY,
        EPOCH = c::IB_BOX_F_EPOCH,
        GAP = c::IB_BOX_F_GAP,
        ROUND = c::IB_BOX_F_ROUND,
        RECOVERING = c::IB_BOX_F_RECOVERING,
    }
);

inband_ground::header!(
    /// The header in host byte order.
    Header of c::ib_box_header, Type, group {
        epoch: u64,
        zxid: u64,
        record_epoch: u64,
        committed: u64,
        time_ms: u64,
        round: u64,
        origin_session: u64,
        origin_seq: u64,
        /// Digest of the value, computed by [`emit`].
        digest: u32,
        origin: u16,
        leader: u16,
    }
);

/// Parses a UDP payload into the header and the value. Does not check the value's digest.
pub fn parse(packet: &[u8]) -> Result<(Header, &[u8]), ParseError> {
    let (kind, value) = checked(packet)?;
    unpadded(packet, value)?;
    Ok((Header::read(Type::from_wire(kind)?, packet), value))
}

/// Returns the packet, with its digest but unsigned.
pub fn emit(header: &Header, value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; HEADER_LEN_BYTES];
    packet.extend_from_slice(value);
    let digest = if value.is_empty() { 0 } else { checksum(value) };
    Header { digest, ..*header }.write(&mut packet, value.len());
    packet
}

/// Returns the PROPOSE of a record in a leader's epoch; the leader has committed up to `committed`.
pub fn propose(record: &Record, node: u8, epoch: u64, committed: u64) -> Vec<u8> {
    let header = Header {
        node: node.into(),
        epoch,
        zxid: record.zxid,
        record_epoch: record.epoch,
        committed,
        time_ms: record.time_ms,
        origin: record.origin.into(),
        origin_session: record.origin_session,
        origin_seq: record.origin_seq,
        leader: node.into(),
        ..Header::of(Type::Propose)
    };
    emit(&header, &record.value)
}

/// Returns the record of a PROPOSE.
pub fn record_of(header: &Header, value: &[u8]) -> Record {
    Record {
        zxid: header.zxid,
        epoch: header.record_epoch,
        time_ms: header.time_ms,
        origin: header.origin as u8,
        origin_session: header.origin_session,
        origin_seq: header.origin_seq,
        value: value.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was() {
        let record = Record {
            zxid: 1 << 40,
            epoch: 33,
            time_ms: 3,
            origin: 4,
            origin_session: u64::MAX - 1,
            origin_seq: 6,
            value: vec![7; 1248],
        };
        let packet = propose(&record, 2, 34, 9);
        let (header, value) = parse(&packet).unwrap();
        assert_eq!((header.node, header.leader), (2, 2));
        assert_eq!((header.epoch, header.committed), (34, 9));
        assert_eq!(header.digest, checksum(&record.value));
        assert_eq!(record_of(&header, value), record);
    }
}
