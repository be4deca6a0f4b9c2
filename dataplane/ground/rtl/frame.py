# SPDX-License-Identifier: Apache-2.0
"""The bytes of a frame around an Inband packet: Ethernet, IPv4, UDP, header. Byte 0 is in the lowest bits."""

from amaranth.hdl import Cat, Const, Mux

from .c_headers import constants, fields, reasons

C = constants("ground/frame.h", "ground/xdp/settings.h")
REASONS = reasons("ground/verdict.h")

# Offsets in bytes.
TO_MAC, FROM_MAC, ETHER_TYPE, IP, UDP = 0, 6, 12, 14, 34
IP_LEN, IP_FRAGMENT, IP_TTL, IP_PROTOCOL, IP_SUM, IP_FROM, IP_TO = 16, 20, 22, 23, 24, 26, 30
UDP_FROM, UDP_TO, UDP_LEN, UDP_SUM = 34, 36, 38, 40
HEADER_AT = 42
VALUE_AT = HEADER_AT + C["IB_HEADER_LEN_BYTES"]
TAG_AT = VALUE_AT - 8

FRAME_LEN_MAX_BYTES = 2048  # size of a buffer; longer frames are dropped
BUFFERS = 4
REASON_BITS = 10

# The destination of a frame that is sent (TDEST).
TO_HOST, TO_SENDER, TO_GROUP = range(3)

# Of frames on direct links (ground/xdp/raw.h).
RAW_ETHER_TYPE = C["IB_XDP_RAW_ETHERTYPE"]
LINK_TO_MAC = Const(0xFFFFFFFFFFFF, 48)
LINK_FROM_MAC = Const(0x0249420000, 40)  # and the node

FRAME_FIELDS = {
    name: (HEADER_AT + at, length)
    for name, (at, length) in fields("ground/frame.h", "ib_header").items()
    if name != "tag"
}


def get(flat, at, length=1):
    """The number in network order at byte `at`."""
    return Cat(*(flat[8 * i : 8 * i + 8] for i in reversed(range(at, at + length))))


IP_TOTAL_BITS = 20


def ip_total(header):
    """The sum of the IPv4 header in a frame without its checksum field."""
    return sum(get(header, at, 2) for at in range(IP, IP + 20, 2) if at != IP_SUM)


def ip_sum(total):
    """The IPv4 checksum from the header's sum, as it is in the frame."""
    folded = (total[:16] + total[16:])[:17]
    checksum = ~(folded[:16] + folded[16:])[:16]
    return Cat(checksum[8:], checksum[:8])


class Bytes:
    """The bytes of a frame that is derived from another."""

    def __init__(self, flat):
        self.bytes = [flat[i : i + 8] for i in range(0, len(flat), 8)]

    def put(self, at, length, value):
        value = Const(value, 8 * length) if isinstance(value, int) else value
        assert len(value) >= 8 * length, "too narrow"
        for i in range(length):
            self.bytes[at + i] = value[8 * (length - 1 - i) : 8 * (length - i)]

    def put_if(self, condition, at, length, value):
        before = self.bytes[at : at + length]
        self.put(at, length, value)
        for i, byte in enumerate(before, at):
            self.bytes[i] = Mux(condition, self.bytes[i], byte)

    def copy(self, to, length, source, at):
        self.bytes[to : to + length] = [source[8 * i : 8 * i + 8] for i in range(at, at + length)]

    def flat(self):
        return Cat(*self.bytes)
