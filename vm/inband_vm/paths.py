"""Where things are."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / "target/vm"
PROGRAM = REPOSITORY / "target/release/inband"
PACKAGES = REPOSITORY / "target/deb"
# `ssh` and `scp` as the documents use them, over the guests' shells.
SHIMS = REPOSITORY / "vm/bin"
