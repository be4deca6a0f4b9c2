"""Checks long arrays and bytes between an executor and its own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import inband
from inband import shared

numpy = pytest.importorskip("numpy")
LONG = 3 * shared.LONG_LEN_MIN + 5
pytestmark = pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory here")


@pytest.fixture(scope="module")
def executor():
    with inband.Executor(max_workers=2) as executor:
        yield executor


def same(value):
    return value


def files_of(executor):
    return os.listdir(executor._arrays)


def test_arrays_and_bytes_come_back_and_leave_no_file(executor):
    array = numpy.arange(LONG, dtype=numpy.int32).reshape(-1, 1)
    value = {"a": [array, array.T, array[::2]], "b": b"short"}
    got = executor.submit(same, value).result(30)
    assert all((one == other).all() for one, other in zip(got["a"], value["a"])) and got["b"] == b"short"
    long = os.urandom(LONG)
    assert executor.submit(same, long).result(30) == long
    assert executor.submit(lambda *parts: b"".join(parts), long, b"", long).result(30) == long * 2
    assert list(executor.map(len, [long, array])) == [LONG, LONG]
    assert files_of(executor) == []


def test_what_is_written_to_is_not_shared(executor):
    def changed(array):
        array[0] = 7
        return array

    array = numpy.zeros(LONG)
    got = executor.submit(changed, array).result(30)
    got[1] = 8
    assert (array[0], got[0], got[1]) == (0, 7, 8)


def test_a_failed_or_cancelled_call_leaves_no_file(executor):
    def fail(array):
        raise ValueError(len(array))

    array = numpy.zeros(LONG)
    assert executor.submit(fail, array).exception(30).args == (LONG,)
    cancelled = [executor.submit(same, array) for _ in range(6)]
    for future in cancelled:
        future.kill()
    assert executor.submit(same, 1).result(30) == 1
    assert all(future.done() for future in cancelled)
    with pytest.raises(ValueError, match="priority"):
        executor.options(priority=9).submit(same, array)
    assert executor.submit(len, array).result(30) == LONG


def test_without_room_long_parts_are_in_the_pickle(executor, monkeypatch):
    monkeypatch.setattr(executor, "_arrays", "/nonexistent")
    array = numpy.ones(LONG)
    assert executor.submit(same, array).result(30).sum() == LONG


def test_what_a_killed_process_has_left_is_removed():
    script = "import inband, time; e = inband.Executor(max_workers=1); print(e._key_dir, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    directory = process.stdout.readline().strip()
    assert os.path.isdir(directory)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    made, lock = shared.make_directory()
    assert not os.path.exists(directory) and os.path.isdir(made)
    shared.remove_directory(made, lock)
    assert not os.path.exists(made)
