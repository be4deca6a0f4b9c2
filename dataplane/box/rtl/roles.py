# SPDX-License-Identifier: Apache-2.0
"""The blocks available in RTL."""

from functools import partial

from .links import Linked
from .node import Node
from .table import Sizes, Table

ROLES = {
    "node": Node,
    "direct": lambda links=3, **sizes: Node(links=links, **sizes),
    "table": Sizes,
    "table_torn": partial(Sizes, checks_sequence=False),
}
# A faulty block, which its test must catch.
MUTANTS = {"table_torn"}
# What makes the block of a role, and its bench, if they are not the ground's.
BLOCKS = {"direct": Linked, "table": Table, "table_torn": Table}
BENCHES = {"direct": "box.rtl.links_bench", "table": "box.rtl.table_bench", "table_torn": "box.rtl.table_bench"}
# Sizes of the block whose area is reported.
REPORTED = {
    "node": {"ring_slots": 64},
    "direct": {"ring_slots": 64, "links": 2},
    "table": {"buckets_log2": 9, "keys_bytes": 1 << 16, "values_bytes": 1 << 18},
}
