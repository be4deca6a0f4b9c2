# SPDX-License-Identifier: Apache-2.0
"""The blocks available in RTL."""

from .links import Linked
from .node import Node

ROLES = {"node": Node, "direct": lambda links=3, **sizes: Node(links=links, **sizes)}
# What makes the block of a role, and its bench, if they are not the ground's.
BLOCKS = {"direct": Linked}
BENCHES = {"direct": "box.rtl.links_bench"}
# Sizes of the block whose area is reported.
REPORTED = {"node": {"ring_slots": 64}, "direct": {"ring_slots": 64, "links": 2}}
