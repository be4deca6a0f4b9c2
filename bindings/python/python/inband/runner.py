"""The interpreter of an executor: runs calls from its stdin, one after another, and answers on its stdout.

Started by a worker's runner; it exits when the process given as its argument exits. Frames in both directions: length as
little-endian u32, then that many bytes.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO

from ._native import end_with_parent
from .calls import LAST, answer
from .output import KeptOutput
from .shared import arrays_of


def _private_pipes() -> tuple[BinaryIO, BinaryIO, KeptOutput]:
    """Redirects the output of tasks to stderr, the worker's log, and keeps it. Their stdin is empty."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    output = KeptOutput(open(1, "w", closefd=False, buffering=1))
    sys.stdin, sys.stdout = open(0, closefd=False), output
    return calls, answers, output


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def main() -> None:
    end_with_parent()
    # The worker exited before that. Do not compare with our parent, which may be a launcher.
    if not _exists(int(sys.argv[1])):
        return
    calls, answers, output = _private_pipes()
    process = os.getpid()
    arrays = arrays_of(os.environ.get("INBAND_CURRENT_KEY_FILE"))
    while len(head := calls.read(4)) == 4:
        (length,) = struct.unpack("<I", head)
        call = calls.read(length)
        if len(call) < length:
            break
        first, rest = answer(call, output, arrays)
        del call
        if os.getpid() != process:  # a child that the task forked: its parent answers
            return
        # A short answer in one piece, a long one without another copy.
        answers.write(struct.pack("<IB", 1 + len(rest), first))
        answers.write(rest)
        answers.flush()
        if first & LAST:
            break


if __name__ == "__main__":
    main()
