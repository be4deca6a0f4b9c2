"""Captures a task's output for its client."""

from __future__ import annotations

import sys
from typing import Any, Callable, TextIO

# Maximum number of characters kept of a task's output; the last ones.
OUTPUT_LEN_MAX = 64 << 10


class Printed:
    """A pickled result or exception, and the task's output."""

    def __init__(self, text: str, pickled: bytes) -> None:
        self.text, self.pickled = text, pickled


def _stdout() -> TextIO:
    return sys.stdout


class KeptOutput:
    """A replacement for a stream: forwards output and keeps the end of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pieces: "list[str]" = []
        self._len = 0

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self._pieces.append(text[-OUTPUT_LEN_MAX:])
        self._len += len(self._pieces[-1])
        # Trim only occasionally, because a task may print many short lines.
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
        """Returns what has been kept, and starts again with nothing."""
        if not self._pieces:
            return ""
        end = self._end()
        self._pieces, self._len = [], 0
        return end

    def __reduce__(self) -> "tuple[Callable[[], TextIO], tuple[()]]":
        """Pickled like `sys.stdout` by cloudpickle: unpickles to `sys.stdout` of the other process."""
        return _stdout, ()

    def __getattr__(self, name: str) -> Any:
        # `__getattr__` is called for `_stream` if `__init__` has not run.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._stream, name)
