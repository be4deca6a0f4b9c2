# SPDX-License-Identifier: Apache-2.0
"""Interfaces of the blocks."""

from amaranth.hdl import unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .frame import BUFFERS, VALUE_AT


class Axis(wiring.Signature):
    """AXI4-Stream of Ethernet frames. Only the last word of a frame may have bytes without TKEEP, at its end."""

    def __init__(self, width, dest_bits=0):
        members = {"tvalid": Out(1), "tready": In(1), "tdata": Out(width), "tkeep": Out(width // 8), "tlast": Out(1)}
        if dest_bits:
            members["tdest"] = Out(dest_bits)
        super().__init__(members)


# A frame that has been received: its first bytes, its length, and the buffer that holds it.
Received = stream.Signature(
    data.StructLayout({"header": 8 * VALUE_AT, "len_bytes": 12, "too_long": 1, "buffer": range(BUFFERS)})
)
# The checksums of the header and of the value it claims to have, in the order of frames.
Sums = stream.Signature(data.StructLayout({"header": 64, "value": 32}))


def job(slots):
    """What is to become of a frame. `slots`: of the value store, 1 if there is none."""
    return stream.Signature(
        data.StructLayout(
            {
                "drop": 1,
                "rewritten": 1,  # with a new header: tag and IP checksum are still to be made
                "header": 8 * VALUE_AT,
                "len_bytes": 12,
                "buffer": range(BUFFERS),
                "load": 1,  # the value is the slot's
                "save": 1,  # the value goes into the slot too
                "slot": range(max(slots, 2)),
                "dest": 2,
            }
        )
    )


class Host(wiring.Signature):
    """
    The host's access to registers, a word of 64 bits at a time. Held until `ack`, which comes between two packets.
    A value lies in its slot as in a frame: from byte VALUE_AT modulo the stream's width in bytes.
    """

    def __init__(self):
        super().__init__(
            {
                "valid": Out(1),
                "write": Out(1),
                "space": Out(2),
                "index": Out(20),
                "word": Out(8),
                "write_data": Out(64),
                "ack": In(1),
                "read_data": In(64),
            }
        )


REGISTERS, VOTES, VALUES = range(3)  # spaces

Settings = wiring.Signature(
    {
        "node": Out(16),
        "partitions": Out(16),  # at most as many as the role has memory for
        "address": Out(32),  # of this host
        "port": Out(16),
        "group_mac": Out(48),  # of the group that a role sends to, network order
        "group_address": Out(32),
        "group_port": Out(16),
    }
)

# One for each packet of ours.
Event = wiring.Signature({"valid": Out(1), "reason": Out(unsigned(10))})

__all__ = ["Axis", "Event", "Host", "In", "Out", "Received", "Settings", "Sums", "job"]
