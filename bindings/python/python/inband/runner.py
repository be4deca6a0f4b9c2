"""The interpreter of an executor: runs calls from its stdin, one after another, and answers on its stdout.

Started by a worker's runner. Frames in both directions: length as u32, little endian, and so many bytes.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO

from .calls import answer


def _private_pipes() -> tuple[BinaryIO, BinaryIO]:
    """What tasks print goes where the worker's errors go, and there is nothing for them to read."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False, buffering=1)
    return calls, answers


def main() -> None:
    calls, answers = _private_pipes()
    while len(head := calls.read(4)) == 4:
        (length,) = struct.unpack("<I", head)
        call = calls.read(length)
        if len(call) < length:
            break
        answered = answer(call)
        answers.write(struct.pack("<I", len(answered)) + answered)
        answers.flush()


if __name__ == "__main__":
    main()
