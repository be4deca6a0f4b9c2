"""Lines of replicated memory: registers of 64 bytes that outlive a minority of their servers.

    from inband.memory import Memory

    with Memory(".inband-memory") as memory:
        memory.write(7, b"hello")
        print(memory.read(7).rstrip(b"\0"))

**Guarantees.** Each line is linearizable: its reads and writes, by all clients, take effect one at a time, each between
its call and its return. A call with several lines accesses independent registers: it is not atomic. Nothing is cached.

**Unknown outcomes.** A write that was sent and not acknowledged raises `OutcomeUnknown`: the lines that it lists may have
been written, or may still be, at most once; the others are written. Every other exception except `OSError` means that
nothing was written.

**Threads and processes.** Threads may share a `Memory`; their calls are serialized. For concurrent requests, open several
connections, or use `read_many` and `write_many`. A forked process cannot use its parent's connection (`RuntimeError`).

Exceptions: `IndexError` (no such line), `ValueError` (more than 64 bytes, a duplicate line, or an unusable directory,
address or key file, such as a key file that others may read), `ConnectionError` (no switch became active in time),
`TimeoutError` (a read was not answered in time), `OutcomeUnknown`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import Optional, Union

from ._native import Lines as _Lines

__all__ = ["LINE_LEN_BYTES", "Memory", "OutcomeUnknown"]

LINE_LEN_BYTES = 64
# Python handles signals between waits of this length.
_WAIT_MS = 100


class OutcomeUnknown(Exception):
    """`lines` may have been written, or may still be, at most once."""

    def __init__(self, message: str, lines: list[int]):
        super().__init__(message)
        self.lines = lines


class Memory:
    """A connection to the cluster in a directory of `inband up memory`, or to a cluster with these switches
    ("address:port"), in the same order at every client. `timeout_s` applies to connecting and to each request."""

    def __init__(
        self,
        directory: Union[str, os.PathLike, None] = None,
        *,
        switches: Iterable[str] = (),
        key_file: Union[str, os.PathLike, None] = None,
        timeout_s: float = 10.0,
    ):
        switches = list(switches)
        if (directory is None) == (not switches):
            raise ValueError("give a directory, or switches")
        if key_file is not None and not switches:
            raise ValueError("key_file goes with switches; a directory has its own")
        if not 0.001 <= timeout_s <= 86_400:
            raise ValueError(f"timeout_s is {timeout_s}; give 0.001 to 86400 seconds")
        path = None if directory is None else os.fspath(directory)
        key = None if key_file is None else os.fspath(key_file)
        self._lines = _Lines(path, switches, key, round(timeout_s * 1000))
        self._one = threading.Lock()

    def __len__(self) -> int:
        """The number of lines of the memory."""
        return self._lines.count()

    def read(self, line: int) -> bytes:
        """The 64 bytes of a line."""
        return self.read_many([line])[0]

    def write(self, line: int, value: bytes) -> None:
        """Write a line, of at most 64 bytes; it is padded with zeros."""
        self.write_many({line: value})

    def read_many(self, lines: Iterable[int]) -> list[bytes]:
        """The lines, in the requested order. All requests are sent at once."""
        lines = [self._number(line) for line in lines]
        with self._one:
            return self._end(self._lines.begin_read(lines))

    def write_many(self, values: Mapping[int, bytes]) -> None:
        """Write lines. All requests are sent at once."""
        pairs = [(self._number(line), bytes(value)) for line, value in values.items()]
        with self._one:
            self._end(self._lines.begin_write(pairs))

    def close(self) -> None:
        """Close the session."""
        self._lines.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @staticmethod
    def _number(line: int) -> int:
        if line < 0:
            raise IndexError(f"line {line}: the memory has lines from 0")
        return line

    def _end(self, request: int) -> list[bytes]:
        ended: Optional[tuple] = None
        # After an interrupt, the result of an earlier request may still be pending.
        while ended is None or ended[0] != request:
            ended = self._lines.wait(_WAIT_MS)
        _, read, failed = ended
        if failed is None:
            return read
        is_unknown, lines, message = failed
        raise OutcomeUnknown(message, lines) if is_unknown else TimeoutError(message)
