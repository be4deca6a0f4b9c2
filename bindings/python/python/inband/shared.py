"""Long arrays and bytes between processes of one machine: in files in memory instead of in pickles.

Each such file belongs to one call or one result. The client removes that of a call when the task has ended, and that of a
result when it has mapped it, which keeps its memory until nothing refers to it. What is left of a task that was killed is
removed with the directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import pickle
import shutil
import tempfile
from typing import Any, Callable, Optional, Sequence, TextIO

import cloudpickle

#: Shorter ones are part of the pickle.
LONG_LEN_MIN = 256 << 10
#: What is longer in all is refused, as it is by clusters on other machines.
LONG_LEN_MAX = 256 << 20

_MEMORY = "/dev/shm"
_PREFIX = "inband-falcon-"
# In a directory that `make_directory` has made.
_LOCK, _ARRAYS = "lock", "arrays"


def make_directory() -> "tuple[str, Optional[TextIO]]":
    """Make a directory for a cluster's key and, where that is possible, for arrays. Returns it with a file that is open for
    as long as the directory is used."""
    if not os.access(_MEMORY, os.W_OK):
        return tempfile.mkdtemp(prefix=_PREFIX), None
    _remove_abandoned()
    while True:
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY)
        lock = open(os.path.join(directory, _LOCK), "w", encoding="ascii")
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Before that, another process may have taken it for an abandoned one.
        if os.path.exists(lock.name):
            os.mkdir(os.path.join(directory, _ARRAYS), 0o700)
            return directory, lock
        lock.close()


def remove_directory(directory: str, lock: Optional[TextIO]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    if lock is not None:
        lock.close()


def _remove_abandoned() -> None:
    """Remove the directories of killed processes, whose memory nobody else would free."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(_MEMORY):
            if not entry.name.startswith(_PREFIX) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
                continue
            # One that has no lock yet is just being made.
            with contextlib.suppress(OSError):
                with open(os.path.join(entry.path, _LOCK), encoding="ascii") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)


def arrays_of(key_file: Optional[str]) -> Optional[str]:
    """Where the arrays of the cluster with this key file are, if they are shared."""
    arrays = os.path.join(os.path.dirname(key_file), _ARRAYS) if key_file else None
    return arrays if arrays and os.path.isdir(arrays) else None


def is_long(value: Any) -> bool:
    """Whether these are bytes that are too long for a pickle."""
    return type(value) is bytes and len(value) >= LONG_LEN_MIN


class LongBytes:
    """Pickled as bytes that can be outside of the pickle."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def __reduce__(self) -> "tuple[type[bytes], tuple[pickle.PickleBuffer]]":
        return bytes, (pickle.PickleBuffer(self._value),)


class _Shared:
    """A pickle whose long parts are in a file."""

    def __init__(self, load: Callable[..., Any], path: str, lengths: "list[int]", pickled: bytes) -> None:
        self._call = load, (path, lengths, pickled)

    def __reduce__(self) -> "tuple[Callable[..., Any], tuple[Any, ...]]":
        return self._call


def dump_call(call: "tuple[Any, ...]", arrays: Optional[str]) -> "tuple[bytes, Optional[str]]":
    """A pickle of the call, and the file of its long parts."""
    return _dump(call, arrays, _load_call)


def dump_result(result: Any, arrays: Optional[str]) -> bytes:
    """A pickle that can be loaded once, because that removes its file."""
    if is_long(result):
        result = LongBytes(result)
    return _dump(result, arrays, _load_result)[0]


def _dump(value: Any, arrays: Optional[str], load: Callable[..., Any]) -> "tuple[bytes, Optional[str]]":
    if arrays is None:
        return cloudpickle.dumps(value), None
    long: "list[memoryview]" = []

    def is_part(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # it is not in one piece
            return True
        if raw.nbytes < LONG_LEN_MIN:
            return True
        long.append(raw)
        return False

    pickled = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=is_part)
    if not long:
        return pickled, None
    if len(pickled) + sum(part.nbytes for part in long) > LONG_LEN_MAX:
        return cloudpickle.dumps(value), None
    try:
        path = _write(arrays, long)
    except OSError:  # there is no room
        return cloudpickle.dumps(value), None
    shared = _Shared(load, path, [part.nbytes for part in long], pickled)
    return pickle.dumps(shared, protocol=pickle.HIGHEST_PROTOCOL), path


def _padded(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


def _write(arrays: str, parts: "Sequence[memoryview]") -> str:
    file, path = tempfile.mkstemp(dir=arrays)
    try:
        at = 0
        for part in parts:
            written = 0
            while written < part.nbytes:
                written += os.pwrite(file, part[written:], at + written)
            at += _padded(part.nbytes)
        return path
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(file)


def _load_call(path: str, lengths: "Sequence[int]", pickled: bytes) -> Any:
    # Another executor may have to run it again.
    return _load(path, lengths, pickled)


def _load_result(path: str, lengths: "Sequence[int]", pickled: bytes) -> Any:
    try:
        return _load(path, lengths, pickled)
    finally:
        os.unlink(path)


def _load(path: str, lengths: "Sequence[int]", pickled: bytes) -> Any:
    file = os.open(path, os.O_RDONLY)
    try:
        length = os.fstat(file).st_size
        # A process that writes to it gets its own copy of the pages.
        mapped = memoryview(mmap.mmap(file, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(file)
    parts, at = [], 0
    for length in lengths:
        parts.append(mapped[at : at + length])
        at += _padded(length)
    return pickle.loads(pickled, buffers=parts)
