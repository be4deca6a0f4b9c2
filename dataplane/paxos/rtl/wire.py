# SPDX-License-Identifier: Apache-2.0
"""Paxos's header, types, flags and reasons for the RTL, from wire.h and reasons.h."""

from ground.rtl.c_headers import constants, fields, reasons
from ground.rtl.frame import HEADER_AT, get

C = constants("ground/frame.h", "paxos/wire.h")
REASONS = reasons("paxos/reasons.h", constants("paxos/reasons.h")["IB_PAXOS_REASONS_FIRST"])
TYPES = (C["IB_PAXOS_REQUEST"], C["IB_PAXOS_ALIVE"])
PADDED = (C["IB_PAXOS_PHASE1A"], C["IB_PAXOS_LEARN"])

_HEADER = {name: (HEADER_AT + at, length) for name, (at, length) in fields("paxos/wire.h", "ib_paxos_header").items()}
# The fields that a role may set.
FIELDS = {
    name: where
    for name, where in _HEADER.items()
    if name not in ("magic", "version", "partition", "node", "key_id", "tag")
}


def read(header, name):
    return get(header, *_HEADER[name])


def checks(header):
    """Like ib_paxos_check."""
    return [
        ((read(header, "instance") | read(header, "floor"))[C["IB_INSTANCE_BITS"] :] != 0, "bad_instance"),
        ((read(header, "round") | read(header, "vround"))[C["IB_ROUND_BITS"] :] != 0, "bad_round"),
    ]


def type_of(name):
    return C[f"IB_PAXOS_{name}"]


def flag(*names):
    value = 0
    for name in names:
        value |= C[f"IB_PAXOS_F_{name}"]
    return value
