"""`inband.Executor` does what CPython says of executors, and what is its own."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

from inband import Executor, InterpreterEnded


@pytest.fixture(scope="module")
def executor():
    with Executor(max_workers=3) as executor:
        yield executor


def add(a, b=1):
    return a + b


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.lock = threading.Lock()


def test_submit_and_result(executor):
    assert executor.submit(add, 2).result(30) == 3
    assert executor.submit(add, 2, b=5).result(30) == 7
    offset = 100
    assert executor.submit(lambda x: x + offset, 1).result(30) == 101


def test_names_of_arguments_do_not_clash_with_our_own(executor):
    def names(self, fn):
        return self, fn

    assert executor.submit(names, self=1, fn=2).result(30) == (1, 2)


def test_map_keeps_order_and_chunks(executor):
    assert list(executor.map(pow, range(20), range(20))) == [n**n for n in range(20)]
    assert list(executor.map(pow, range(20), range(20), chunksize=6)) == [n**n for n in range(20)]
    assert list(executor.map(add, [])) == []
    with pytest.raises(ValueError, match="chunksize is 0"):
        executor.map(add, [1], chunksize=0)


def test_map_raises_where_the_call_did(executor):
    results = executor.map(divmod, [1, 1, 1], [1, 1, 0])
    assert [next(results), next(results)] == [(1, 0), (1, 0)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_map_has_a_timeout(executor):
    results = []
    with pytest.raises(concurrent.futures.TimeoutError):
        for result in executor.map(time.sleep, [0, 0, 20], timeout=5):
            results.append(result)
    assert results == [None, None]


def test_exceptions_bring_their_traceback(executor):
    def fail():
        raise KeyError("oops")

    exception = executor.submit(fail).exception(30)
    assert isinstance(exception, KeyError) and exception.args == ("oops",)
    assert 'raise KeyError("oops")' in str(exception.__cause__)


def test_what_cannot_be_pickled_is_an_exception_and_no_end(executor):
    with pytest.raises(TypeError, match="pickle"):
        executor.submit(add, threading.Lock())
    with pytest.raises(Exception, match="pickle"):
        executor.submit(threading.Lock).result(30)

    def fail():
        raise Unpicklable(1, 2)

    with pytest.raises(RuntimeError, match="cannot be pickled"):
        executor.submit(fail).result(30)
    assert executor.submit(add, 1).result(30) == 2


def test_exits_of_a_task_are_its_own(executor):
    with pytest.raises(SystemExit):
        executor.submit(sys.exit, 3).result(30)
    with pytest.raises(InterpreterEnded, match="status 5"):
        executor.submit(os._exit, 5).result(30)
    assert list(executor.map(add, range(6))) == list(range(1, 7))


def test_printing_and_reading_do_not_disturb(executor):
    def talk():
        print("hello")
        return sys.stdin.read()

    assert executor.submit(talk).result(30) == ""


def test_long_arguments_and_results(executor):
    long = bytes(3_000_000)
    assert executor.submit(lambda b: b + b"!", long).result(60) == long + b"!"


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_callbacks_and_waiting(executor):
    seen = []
    futures = [executor.submit(add, n) for n in range(10)]
    for future in futures:
        future.add_done_callback(lambda future: seen.append(future.result()))
    done, not_done = concurrent.futures.wait(futures, timeout=30)
    assert (len(done), not_done) == (10, set())
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures)) == list(range(1, 11))
    wait_until(lambda: len(seen) == 10)
    assert sorted(seen) == list(range(1, 11))


def test_cancel_and_kill():
    with Executor(max_workers=1) as executor:
        running = executor.submit(time.sleep, 600)
        wait_until(running.running)
        waiting = executor.submit(add, 1)
        assert not running.cancel()
        assert waiting.cancel() and waiting.cancelled() and waiting.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(30)
        assert running.kill()
        with pytest.raises(concurrent.futures.CancelledError):
            running.result(30)
        assert not running.kill()
        assert executor.submit(add, 1).result(30) == 2


def test_a_task_has_a_timeout():
    with Executor(max_workers=1, timeout=5) as executor:
        assert executor.submit(add, 1).result(30) == 2
        with pytest.raises(TimeoutError, match="(5000|4999) ms"):
            executor.submit(time.sleep, 600).result(30)
        assert executor.submit(add, 1).result(30) == 2


def test_shutdown_waits_and_takes_nothing_more():
    executor = Executor(max_workers=2)
    futures = [executor.submit(time.sleep, 0.1) for _ in range(6)]
    executor.shutdown()
    assert all(future.done() for future in futures)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(add, 1)


def test_shutdown_can_cancel_what_waits():
    executor = Executor(max_workers=1)
    first = executor.submit(time.sleep, 1)
    wait_until(first.running)
    others = [executor.submit(time.sleep, 60) for _ in range(5)]
    executor.shutdown(cancel_futures=True)
    assert first.result(0) is None
    assert all(future.cancelled() for future in others)


def test_an_executor_that_is_forgotten_does_its_tasks():
    assert Executor(max_workers=1).submit(add, 1).result(30) == 2


def test_what_was_submitted_is_done_before_the_interpreter_ends(tmp_path):
    done = tmp_path / "done"
    script = f"""
import pathlib, time
from inband import Executor
Executor(max_workers=1).submit(lambda: (time.sleep(0.5), pathlib.Path({str(done)!r}).touch()))
forgotten = Executor(max_workers=1)
del forgotten
kept = Executor(max_workers=1)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert done.exists()


def test_starting_interpreters_runs_nothing_that_libraries_do_at_forks():
    """OpenBLAS ends its threads at every fork, and of two forks at a time one waits for ever."""
    script = """
import ctypes, inband
forks = []
note = ctypes.CFUNCTYPE(None)(lambda: forks.append(1))
libc = ctypes.CDLL(None)
libc.__register_atfork(note, None, None, None)
with inband.Executor(max_workers=2) as executor:
    assert sorted(executor.map(abs, [-1, -2])) == [1, 2]
assert not forks, forks
pid = libc.fork()
if pid == 0:
    libc._exit(0)
assert forks, "this test would notice"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_forked_process_ends_and_leaves_the_executor_alone():
    script = """
import os, sys, time, inband
with inband.Executor(max_workers=1) as executor:
    pending = executor.submit(time.sleep, 1)
    pid = os.fork()
    if pid == 0:
        for use in [lambda: executor.submit(abs, -1), pending.cancel, pending.kill]:
            try:
                use()
            except RuntimeError as error:
                assert "was forked" in str(error), error
            else:
                sys.exit(3)
        with inband.Executor(max_workers=1) as own:
            assert own.submit(abs, -2).result(30) == 2
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status
    assert pending.result(30) is None
    assert executor.submit(abs, -1).result(30) == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_interpreters_end_with_who_started_them():
    script = """
import os, signal, sys, time, inband
executor = inband.Executor(max_workers=1)
print(executor.submit(os.getpid).result(30), flush=True)
executor.submit(time.sleep, 600)
time.sleep(0.2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60)
    interpreter = int(ended.stdout)

    def is_gone():
        try:
            os.kill(interpreter, 0)
        except ProcessLookupError:
            return True
        # Nobody has waited for it yet.
        return "State:\tZ" in pathlib.Path(f"/proc/{interpreter}/status").read_text()

    wait_until(is_gone)


def test_several_threads_submit(executor):
    results = []

    def submit(first):
        results.extend(executor.map(add, range(first, first + 20)))

    threads = [threading.Thread(target=submit, args=(20 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(1, 81))


def test_bad_arguments_say_what_is_wrong():
    with pytest.raises(ValueError, match="max_workers is 0"):
        Executor(max_workers=0)
    with pytest.raises(ValueError, match="max_workers is for executors on this machine"):
        Executor("127.0.0.1:1", max_workers=1)
    with pytest.raises(ValueError, match="is no address"):
        Executor("nowhere")
    with pytest.raises(ConnectionError, match="no scheduler answers at 127.0.0.1:1"):
        Executor("127.0.0.1:1")
    with pytest.raises(ValueError, match="key_file is for a cluster at an address"):
        Executor(key_file="keys.toml")
    with pytest.raises(ValueError, match="key file /no/such/file"):
        Executor("127.0.0.1:1", key_file="/no/such/file")
    with Executor(max_workers=1, priority=8) as executor:
        with pytest.raises(ValueError, match="priority 8"):
            executor.submit(add, 1)


def test_dask_computes_on_it(executor):
    dask = pytest.importorskip("dask")
    total = dask.delayed(sum)([dask.delayed(add)(n) for n in range(10)])
    assert total.compute(scheduler=executor) == 55
