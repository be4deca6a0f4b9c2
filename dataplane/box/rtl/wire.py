# SPDX-License-Identifier: Apache-2.0
"""The box's header, types, flags, registers and reasons for the RTL, from wire.h, registers.h and reasons.h."""

from amaranth.hdl import Cat

from ground.rtl.c_headers import constants, fields, reasons
from ground.rtl.frame import HEADER_AT, get

C = constants("ground/frame.h", "box/wire.h", "box/registers.h", "box/reasons.h")
REASONS = reasons("box/reasons.h", C["IB_BOX_REASONS_FIRST"])
TYPES = (C["IB_BOX_SUBMIT"], C["IB_BOX_CONTROL"])
# Where the words of a node's registers are, in bytes.
NODE = {name: at for name, (at, _) in fields("box/registers.h", "ib_box_node").items()}
PEER = {name: at for name, (at, _) in fields("box/registers.h", "ib_box_peer").items()}

_HEADER = {name: (HEADER_AT + at, length) for name, (at, length) in fields("box/wire.h", "ib_box_header").items()}
# The fields that the role sets (ib_box_emit).
FIELDS = {
    name: where
    for name, where in _HEADER.items()
    if name not in ("magic", "version", "group", "node", "key_id", "origin", "origin_session", "origin_seq", "tag")
}


def read(header, name):
    return get(header, *_HEADER[name])


def type_of(name):
    return C[f"IB_BOX_{name}"]


def is_any(header, *names):
    return Cat(read(header, "type") == type_of(name) for name in names).any()


def flag(*names):
    value = 0
    for name in names:
        value |= C[f"IB_BOX_F_{name}"]
    return value


def checks(header):
    """Like ib_box_check, after the frame's checks."""
    value_len = read(header, "value_len_bytes")
    has_record = is_any(header, "SUBMIT", "PROPOSE")
    return [
        (read(header, "node") > C["IB_BOX_NODES_MAX"], "bad_node"),
        (has_record & (value_len > C["IB_BOX_RECORD_LEN_MAX_BYTES"]), "box_bad_value"),
        (~has_record & (value_len != 0) & ~is_any(header, "CONTROL"), "box_bad_value"),
        (is_any(header, "PROPOSE", "ACK", "COMMIT") & (read(header, "epoch") == 0), "box_no_epoch"),
    ]
