"""Checks how executors, their interpreters and the processes that use them end."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
from waiting import until_exists, wait_until

import inband.executor
from inband import Executor


# The beginning of a script: a task that runs until a file exists, so that it does not end before what is tested has begun.
UNTIL_TOLD = """
import pathlib, sys, time
go = pathlib.Path(sys.argv[1])

def until_told():
    while not go.exists():
        time.sleep(0.01)
"""


def run_script(script, *arguments):
    """Runs a script and returns its standard output. A script that hangs is killed, and the test fails."""
    command = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return ended.stdout.split()


def test_shutdown_waits_and_takes_nothing_more():
    executor = Executor(max_workers=2)
    futures = [executor.submit(time.sleep, 0.1) for _ in range(6)]
    executor.shutdown()
    assert all(future.done() for future in futures)
    executor.shutdown()
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        executor.submit(abs, -2)


def test_shutdown_can_cancel_what_waits(tmp_path):
    go = tmp_path / "go"
    executor = Executor(max_workers=1)
    first = executor.submit(until_exists, go)
    wait_until(first.running)
    others = [executor.submit(time.sleep, 60) for _ in range(5)]
    others[-1].add_done_callback(lambda _: go.touch())
    executor.shutdown(cancel_futures=True)
    assert first.result(0) is None
    assert all(future.cancelled() for future in others)


def test_an_executor_that_is_forgotten_does_its_tasks():
    assert Executor(max_workers=1).submit(abs, -2).result(30) == 2


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


def test_a_forked_process_ends_and_leaves_the_executor_alone(tmp_path):
    script = UNTIL_TOLD + """
import os, inband
with inband.Executor(max_workers=1) as executor:
    pending = executor.submit(until_told)
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
    go.touch()
    assert status == 0, status
    assert pending.result(30) is None
    assert executor.submit(abs, -1).result(30) == 1
"""
    subprocess.run([sys.executable, "-c", script, tmp_path / "go"], check=True, timeout=60)


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
        # It has not been reaped yet.
        return "State:\tZ" in pathlib.Path(f"/proc/{interpreter}/status").read_text()

    wait_until(is_gone)


def test_shutdown_in_a_callback_does_not_wait_for_itself():
    executor = Executor(max_workers=1)
    ended = threading.Event()

    def end(_):
        executor.shutdown()
        ended.set()

    executor.submit(abs, -2).add_done_callback(end)
    assert ended.wait(30)


def test_a_callback_that_exits_ends_no_other(tmp_path):
    script = UNTIL_TOLD + """
import inband
with inband.Executor(1) as executor:
    def interrupt(_):
        raise KeyboardInterrupt
    first, second = executor.submit(until_told), executor.submit(until_told)
    first.add_done_callback(lambda _: sys.exit(1))
    first.add_done_callback(lambda _: print("first", flush=True))
    second.add_done_callback(interrupt)
    second.add_done_callback(lambda _: print("second", flush=True))
    go.touch()
"""
    assert run_script(script, tmp_path / "go") == ["first", "second"]


def test_a_callback_runs_while_the_interpreter_ends():
    """Python 3.12 starts no threads during shutdown (3.11 and 3.13 do), so the script refuses to start any."""
    script = """
import atexit, threading, time, inband

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

executor = inband.Executor(2)
first, second = executor.submit(time.sleep, 0.5), executor.submit(time.sleep, 1)
first.add_done_callback(lambda _: print(second.exception(20), flush=True))
second.add_done_callback(lambda _: print("second", flush=True))
atexit.register(setattr, threading.Thread, "start", refuse)
"""
    # On a busy machine, the second task may end before the first one.
    assert sorted(run_script(script)) == ["None", "second"]


def test_a_process_forked_while_a_callback_runs_ends(tmp_path):
    script = UNTIL_TOLD + """
import os, signal, threading, inband
begun, go_on = threading.Event(), threading.Event()
with inband.Executor(1) as executor:
    executor.submit(until_told).add_done_callback(lambda _: (begun.set(), go_on.wait()))
    go.touch()
    assert begun.wait(20)
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    end_s = time.monotonic() + 30
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < end_s:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(pid, signal.SIGKILL)
    go_on.set()
print(ended == (pid, 0))
"""
    assert run_script(script, tmp_path / "go") == ["True"]


def test_an_executors_threads_end_with_it():
    def threads():
        return [thread for thread in threading.enumerate() if thread not in before]

    before = threading.enumerate()
    with Executor(1) as executor:
        assert executor.submit(abs, -2).result(30) == 2
    with pytest.raises(ConnectionError):
        Executor("127.0.0.1:1")
    Executor(1)
    wait_until(lambda: not threads())


def test_shutdown_waits_for_a_result_that_is_being_told(monkeypatch):
    tell, is_telling = inband.executor._tell, threading.Event()

    def tell_slowly(future, kind, said):
        if kind != inband.executor._STARTED:
            is_telling.set()
            time.sleep(0.5)
        tell(future, kind, said)

    monkeypatch.setattr(inband.executor, "_tell", tell_slowly)
    executor, seen = Executor(1), []
    future = executor.submit(time.sleep, 0.2)
    future.add_done_callback(seen.append)
    assert is_telling.wait(30)
    executor.shutdown()
    assert future.done() and seen == [future]


def forks(child):
    """Runs `child` in a forked process, which comes back from this function. Returns that process's exit status here."""
    process = os.fork()
    if process == 0:
        return child()
    return os.WEXITSTATUS(os.waitpid(process, 0)[1])


def raises():
    raise ValueError("in the child")


def test_a_forked_child_of_a_task_gives_no_answer():
    with Executor(max_workers=1) as executor:
        for child, status in [(os.getpid, 0), (raises, 1), (functools.partial(sys.exit, 3), 3)]:
            assert executor.submit(forks, child).result(60) == status
            assert list(executor.map(pow, range(20), [2] * 20, timeout=60)) == [n**2 for n in range(20)]
