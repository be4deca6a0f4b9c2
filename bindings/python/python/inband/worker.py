"""A worker: executors for a cluster of `inband up falcon`, on a machine that has only this Python package of Inband.

    inband-worker HOST:PORT --key-file keys.toml
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import time

from . import _native

# How long it works between checks for signals.
_TURN_MS = 100
# How long a scheduler may be silent before a message is printed.
_SILENCE_S = 3
_NAME_LEN_MAX = 64


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="inband-worker", description="Executors for a Falcon cluster, until Ctrl-C.")
    parser.add_argument("scheduler", metavar="HOST:PORT", help="the cluster's scheduler")
    parser.add_argument("--key-file", metavar="FILE", help="a copy of the cluster's key file")
    parser.add_argument("--no-key", action="store_true", help="use addresses beyond loopback without a key")
    parser.add_argument("--executors", type=int, default=min(64, 2 * (os.cpu_count() or 1)), metavar="N",
                        help="how many tasks it runs at a time, 1 to 64 (default: two a CPU)")
    parser.add_argument("--name", default=platform.node()[:_NAME_LEN_MAX], help="what `inband status` calls it")
    parser.add_argument("--listen", metavar="ADDR", help="an address of this machine that clients reach")
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    signals = 0

    def on_signal(*_: object) -> None:
        nonlocal signals
        signals += 1

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        if not 1 <= arguments.executors <= 64:
            raise ValueError(f"--executors {arguments.executors} are not 1 to 64; start several workers")
        worker = _native.Worker(
            arguments.scheduler, arguments.key_file, arguments.no_key, arguments.executors, arguments.name, sys.executable, arguments.listen
        )
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"inband-worker: {error}")
    known, asked_at, said = False, time.monotonic(), False
    while not signals:
        is_known = worker.run(_TURN_MS)
        if is_known and not known:
            print(f"inband-worker: {arguments.executors} executors for {arguments.scheduler}", file=sys.stderr, flush=True)
        if known and not is_known:
            asked_at, said = time.monotonic(), False
        known = is_known
        if not known and not said and time.monotonic() - asked_at > _SILENCE_S:
            said = True
            print(f"inband-worker: no scheduler answers at {arguments.scheduler}; is it up, and does it have the same key?",
                  file=sys.stderr, flush=True)
    if not worker.drain():
        print("inband-worker: ends with the tasks that run; Ctrl-C ends them", file=sys.stderr, flush=True)
    while signals < 2 and not worker.drain():
        worker.run(_TURN_MS)
    worker.close()


if __name__ == "__main__":
    main()
