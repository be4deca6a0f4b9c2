# SPDX-License-Identifier: Apache-2.0
"""Interfaces of the blocks."""

from amaranth.hdl import unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .frame import BUFFERS, VALUE_AT

LINK_BITS = 3  # the number of a direct link; 0: the network


class Axis(wiring.Signature):
    """AXI4-Stream of Ethernet frames. Only the last word of a frame may have bytes without TKEEP, at its end."""

    def __init__(self, width, dest_bits=0, user_bits=0):
        members = {"tvalid": Out(1), "tready": In(1), "tdata": Out(width), "tkeep": Out(width // 8), "tlast": Out(1)}
        if dest_bits:
            members["tdest"] = Out(dest_bits)
        if user_bits:
            members["tuser"] = Out(user_bits)
        super().__init__(members)


# A received frame: its first bytes, its length, the buffer that contains it, and the link that it came by.
Received = stream.Signature(
    data.StructLayout({"header": 8 * VALUE_AT, "len_bytes": 12, "too_long": 1, "buffer": range(BUFFERS), "link": LINK_BITS})
)
# The checksums of the header, and of a value of the length in the header, in the order of frames.
Sums = stream.Signature(data.StructLayout({"header": 64, "value": 32}))


def dest_bits(links):
    """Bits of TDEST. In a block with direct links, the link that the frame came by is above the destination."""
    return 2 + (LINK_BITS if links else 0)


def job(slots, links=0):
    """What to do with a frame. `slots`: size of the value store, 1 if there is none. `links`: the number of direct links."""
    return stream.Signature(
        data.StructLayout(
            {
                "drop": 1,
                "rewritten": 1,  # with a new header: its tag and IP checksum must be computed
                "header": 8 * VALUE_AT,
                "len_bytes": 12,
                "buffer": range(BUFFERS),
                "load": 1,  # take the value from the slot
                "save": 1,  # also store the value in the slot
                "copy": 1,  # it is not sent: store it before the frame is sent
                "copy_len_bytes": 12,  # of the received frame
                "slot": range(max(slots, 2)),
                "dest": dest_bits(links),
            }
        )
    )


class Host(wiring.Signature):
    """
    The host's access to registers, one 64-bit word at a time. Held until `ack`, which comes between two packets.
    A value has the same alignment in its slot as in a frame: it starts at byte VALUE_AT modulo the stream's width.
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
        "partitions": Out(16),  # at most the number that the role has memory for
        "now_ns": Out(64),  # the role's clock
        "address": Out(32),  # of this host
        "port": Out(16),
        "group_mac": Out(48),  # of the group that the role sends to, network order
        "group_address": Out(32),
        "group_port": Out(16),
        "links_up": Out(1),  # all direct links are up
    }
)

# One event for each of our packets.
Event = wiring.Signature({"valid": Out(1), "reason": Out(unsigned(10))})

__all__ = ["LINK_BITS", "Axis", "Event", "Host", "In", "Out", "Received", "Settings", "Sums", "dest_bits", "job"]
