# SPDX-License-Identifier: Apache-2.0
"""The roles available in RTL, by name."""

from .acceptor import Acceptor
from .leader import Leader
from .role import PaxosRole

# `none`: checks frames and passes them on, like a host without roles.
ROLES = {"acceptor": Acceptor, "leader": Leader, "none": PaxosRole}
# Sizes of the blocks whose area is reported.
REPORTED = dict.fromkeys(("acceptor", "leader"), {"partitions": 1, "ring_slots": 64})
