# SPDX-License-Identifier: Apache-2.0
"""The roles that there are in RTL, by name."""

from .acceptor import Acceptor
from .leader import Leader
from .role import PaxosRole

# `none`: checks frames and passes them on, as a host does on which no role runs.
ROLES = {"acceptor": Acceptor, "leader": Leader, "none": PaxosRole}
