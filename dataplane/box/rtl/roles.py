# SPDX-License-Identifier: Apache-2.0
"""The role available in RTL."""

from .node import Node

ROLES = {"node": Node}
# Sizes of the block whose area is reported.
REPORTED = {"node": {"ring_slots": 64}}
