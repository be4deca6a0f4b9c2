"""What a task prints, kept for its client."""

from __future__ import annotations

import sys
from typing import Any, Callable, TextIO

#: Characters of a task's output that are kept: the last ones.
OUTPUT_LEN_MAX = 64 << 10


class Printed:
    """A pickled result, or exception, and what the task printed."""

    def __init__(self, text: str, pickled: bytes) -> None:
        self.text, self.pickled = text, pickled


def _stdout() -> TextIO:
    return sys.stdout


class KeptOutput:
    """Stands for a stream: passes on what is written to it, and keeps the end of that."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pieces: "list[str]" = []
        self._len = 0

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self._pieces.append(text[-OUTPUT_LEN_MAX:])
        self._len += len(self._pieces[-1])
        # Now and then: a task may print many short lines.
        if self._len > 2 * OUTPUT_LEN_MAX or len(self._pieces) > OUTPUT_LEN_MAX:
            self._pieces = [self._end()]
            self._len = len(self._pieces[0])
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def _end(self) -> str:
        return "".join(self._pieces)[-OUTPUT_LEN_MAX:]

    def take(self) -> str:
        """What is kept; from now on, of what follows."""
        end = self._end()
        self._pieces, self._len = [], 0
        return end

    def __reduce__(self) -> "tuple[Callable[[], TextIO], tuple[()]]":
        """As cloudpickle pickles `sys.stdout`: where it is unpickled, it is that of the process there."""
        return _stdout, ()

    def __getattr__(self, name: str) -> Any:
        # `_stream` is looked up here if `__init__` has not run.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._stream, name)
