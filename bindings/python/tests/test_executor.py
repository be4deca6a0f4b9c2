"""Checks that `inband.Executor` behaves like CPython's executors, and its own features."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from waiting import until_exists, wait_until

import inband.output
from inband import DependencyFailed, Executor, InitializerFailed, InterpreterEnded


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


def square_elsewhere(n):
    mine = inband.current()
    assert mine is inband.current()
    return mine.submit(pow, n, 2).result(30), os.getpid()


def test_a_task_submits_others(executor):
    squares = [executor.submit(square_elsewhere, n) for n in (3, 4)]
    assert [square.result(30)[0] for square in squares] == [9, 16]


def test_a_worker_of_the_package_joins_a_cluster():
    with Executor(max_workers=1) as executor:
        address = executor.submit(os.getenv, "INBAND_CURRENT_SCHEDULER").result(30)
        key_file = os.path.join(executor._key_dir, "key")
        command = [sys.executable, "-m", "inband.worker", address, "--key-file", key_file, "--executors", "2", "--name", "other"]
        worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert "2 executors for" in worker.stderr.readline()
        slow = [executor.submit(time.sleep, 0.5) for _ in range(3)]
        assert len({executor.submit(os.getppid).result(30) for _ in range(50)} - {os.getpid()}) <= 1
        assert all(future.result(30) is None for future in slow)
        worker.terminate()
        assert worker.wait(30) == 0


def test_a_worker_says_what_is_wrong():
    command = [sys.executable, "-m", "inband.worker"]
    run = subprocess.run([*command, "192.0.2.1:7900"], capture_output=True, text=True, timeout=30)
    assert run.returncode == 1 and "without a key" in run.stderr and "--key-file" in run.stderr
    run = subprocess.run([*command, "127.0.0.1:7900", "--executors", "65"], capture_output=True, text=True, timeout=30)
    assert run.returncode == 1 and "65 are not 1 to 64" in run.stderr


def test_outside_of_a_task_there_is_no_current_executor():
    with pytest.raises(RuntimeError, match="not a task of an executor"):
        inband.current()


def test_the_key_of_executors_here_goes_with_them():
    executor = Executor(max_workers=1)
    assert os.stat(os.path.join(executor._key_dir, "key")).st_mode & 0o777 == 0o600
    executor.shutdown()
    assert not os.path.exists(executor._key_dir)


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
        for result in executor.map(time.sleep, [0, 0, 20], timeout=12):
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
    with pytest.raises(InterpreterEnded, match=r"ended \(status 5\); .*submit it again"):
        executor.submit(os._exit, 5).result(30)
    with pytest.raises(InterpreterEnded, match=r"ended \(killed by SIGUSR1\)"):
        executor.submit(lambda: os.kill(os.getpid(), signal.SIGUSR1)).result(30)
    assert list(executor.map(add, range(6))) == list(range(1, 7))


def test_printing_and_reading_do_not_disturb(executor):
    def talk():
        print("hello")
        return sys.stdin.read()

    assert executor.submit(talk).result(30) == ""


def test_long_arguments_and_results(executor):
    long = bytes(3_000_000)
    assert executor.submit(lambda b: b + b"!", long).result(60) == long + b"!"


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
    # On a busy machine the worker takes seconds to start.
    with Executor(max_workers=1, timeout=20) as executor:
        assert executor.submit(add, 1).result(60) == 2
        with pytest.raises(TimeoutError, match="(20000|19999) ms"):
            executor.submit(time.sleep, 600).result(60)
        assert executor.submit(add, 1).result(60) == 2


def test_starting_interpreters_runs_nothing_that_libraries_do_at_forks():
    """OpenBLAS stops its threads at every fork, and of two concurrent forks one waits forever."""
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
        Executor(address="127.0.0.1:1", max_workers=1)
    with pytest.raises(ValueError, match="is not an address"):
        Executor("nowhere")
    with pytest.raises(ConnectionError, match="no scheduler answers at 127.0.0.1:1"):
        Executor("127.0.0.1:1")
    with pytest.raises(ValueError, match="key_file is for a cluster at an address"):
        Executor(key_file="keys.toml")
    with pytest.raises(ValueError, match="key file /no/such/file"):
        Executor("127.0.0.1:1", key_file="/no/such/file")
    with Executor(max_workers=1, priority=8) as executor:
        with pytest.raises(ValueError, match="priority 8: give a number from 0 to 7"):
            executor.submit(add, 1)
        for option, value in [("priority", -1), ("resource", 64), ("resource", -1), ("worker", -1), ("worker", 1 << 16)]:
            with pytest.raises(ValueError, match=f"{option} {value}: give a number from 0 to"):
                executor.options(**{"priority": 0, option: value}).submit(add, 1)
        for timeout in [-1, float("inf"), float("nan")]:
            with pytest.raises(ValueError, match=f"timeout is {timeout}"):
                executor.options(priority=0, timeout=timeout)


def test_dask_computes_on_it(executor):
    dask = pytest.importorskip("dask")
    total = dask.delayed(sum)([dask.delayed(add)(n) for n in range(10)])
    assert total.compute(scheduler=executor) == 55


def test_other_threads_go_on_while_a_long_call_is_submitted(executor):
    """A regression: 100 MB took 9.4 s, and blocked all other threads."""

    def trial():
        longest_s = 0.0
        is_over = threading.Event()

        def watch():
            nonlocal longest_s
            seen = time.monotonic()
            while not is_over.is_set():
                time.sleep(0.001)
                longest_s, seen = max(longest_s, time.monotonic() - seen), time.monotonic()

        watcher = threading.Thread(target=watch)
        watcher.start()
        began = time.monotonic()
        future = executor.submit(len, bytes(100_000_000))
        submitted_s = time.monotonic() - began
        is_over.set()
        watcher.join()
        print(f"submitted in {submitted_s:.2f} s; another thread waited for {longest_s:.2f} s")
        assert future.result(60) == 100_000_000
        return submitted_s < 4 and longest_s < 2

    # A stall of the machine spoils a trial, but not each of them.
    assert any(trial() for _ in range(4))


def test_callbacks_of_a_cancelled_future_hold_nobody_up(tmp_path):
    with Executor(1) as executor:
        go = tmp_path / "go"
        running = executor.submit(until_exists, go)
        wait_until(running.running)
        waiting, last = executor.submit(add, 1), executor.submit(add, 2)
        seen = []
        waiting.add_done_callback(lambda _: (go.touch(), seen.append(last.result(60))))
        assert waiting.cancel()
        assert seen == [3], "it was called by who cancelled, and could wait"
        assert concurrent.futures.wait([waiting, running], timeout=20).not_done == set()


def test_a_killed_future_is_cancelled():
    with Executor(1) as executor:
        running = executor.submit(time.sleep, 600)
        wait_until(running.running)
        assert running.kill() and running.cancelled() and running.done()
        assert concurrent.futures.wait([running], timeout=20).not_done == set()
        assert not running.kill() and running.cancel()
        with pytest.raises(concurrent.futures.CancelledError):
            running.result(0)


def test_an_exception_that_is_false_is_one(executor):
    def fail():
        class Empty(Exception):
            def __bool__(self):
                return False

        raise Empty("nothing")

    future = executor.submit(fail)
    assert future.exception(30) is not None
    with pytest.raises(Exception, match="nothing"):
        future.result(30)


def test_what_is_too_long_is_refused_at_once(executor):
    with pytest.raises(ValueError, match="2694.* bytes .* limit of 268435456"):
        executor.submit(len, bytes(257 << 20))
    assert executor.submit(add, 1).result(30) == 2


def test_many_futures_cost_little():
    with Executor(1) as executor:
        running = executor.submit(time.sleep, 600)
        wait_until(running.running)
        began = time.monotonic()
        futures = [executor.submit(abs, -1) for _ in range(20_000)]
        submitted_s = time.monotonic() - began
        began = time.process_time()
        time.sleep(2)
        idle_cpu_s = time.process_time() - began
        cancelled_s = []
        # A stall of the machine spoils one of them, but not each.
        for first in (15_000, 10_000, 5_000):
            began = time.monotonic()
            assert all(future.cancel() for future in futures[first : first + 5000])
            cancelled_s.append(time.monotonic() - began)
        print(f"20,000 submitted in {submitted_s:.1f} s, 2 s of waiting cost {idle_cpu_s:.2f} s, 5,000 cancelled in {cancelled_s} s")
        # A regression: 40,000 waiting tasks used a quarter of a core, and cancelling 5,000 of them took 5.8 s.
        assert idle_cpu_s < 0.2 and min(cancelled_s) < 2.5
        running.kill()
        for future in futures:
            future.cancel()


def test_the_first_argument_is_how_many_or_an_address():
    with Executor(2) as executor:
        assert executor._max_workers == 2
    with pytest.raises(ConnectionError, match="no scheduler answers at 127.0.0.1:1"):
        Executor(address="127.0.0.1:1")
    with pytest.raises(TypeError, match="two addresses"):
        Executor("127.0.0.1:1", address="127.0.0.1:2")
    with pytest.raises(TypeError, match="max_workers is 2.5"):
        Executor(2.5)


def test_errors_are_those_that_users_of_executors_expect(executor):
    with pytest.raises(concurrent.futures.BrokenExecutor):
        executor.submit(os._exit, 5).result(30)
    assert executor.submit(add, 1).result(30) == 2


def test_an_initializer_runs_once_in_every_interpreter():
    def prepare(name, value):
        import builtins

        assert not hasattr(builtins, name)
        setattr(builtins, name, value)

    def prepared():
        return prepared_for_this_test, os.getpid()  # noqa: F821

    with Executor(2, initializer=prepare, initargs=("prepared_for_this_test", 7)) as executor:
        results = [future.result(30) for future in [executor.submit(prepared) for _ in range(20)]]
    assert {value for value, _ in results} == {7}
    with Executor(1, initializer=divmod, initargs=(1, 0)) as executor:
        with pytest.raises(InitializerFailed, match="ZeroDivisionError"):
            executor.submit(add, 1).result(30)
        with pytest.raises(concurrent.futures.BrokenExecutor):
            executor.submit(add, 1).result(30)
    with pytest.raises(TypeError, match="initializer is 3"):
        Executor(1, initializer=3)


def test_an_interpreter_ends_after_so_many_calls():
    with Executor(1, max_tasks_per_child=3) as executor:
        pids = [executor.submit(os.getpid).result(30) for _ in range(9)]
    assert [len(set(pids[n : n + 3])) for n in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3
    with pytest.raises(ValueError, match="max_tasks_per_child is 0"):
        Executor(1, max_tasks_per_child=0)


def test_map_reads_no_further_than_its_buffer(executor):
    read = []

    def numbers():
        for number in range(20):
            read.append(number)
            yield number

    results = executor.map(add, numbers(), buffersize=3)
    assert read == [0, 1, 2]
    assert next(results) == 1 and read == [0, 1, 2, 3]
    assert list(results) == list(range(2, 21))
    assert list(executor.map(add, range(20), chunksize=4, buffersize=2)) == list(range(1, 21))
    with pytest.raises(ValueError, match="buffersize is 0"):
        executor.map(add, [1], buffersize=0)


def test_what_tasks_print_goes_to_stderr():
    script = """
import inband
with inband.Executor(1) as executor:
    executor.submit(print, "printed").result(30)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, "printed" in ended.stderr) == ("", True)


def test_some_tasks_have_options_of_their_own():
    with Executor(1, timeout=60) as executor:
        with pytest.raises(TimeoutError, match="(200|199) ms"):
            executor.options(timeout=0.2).submit(time.sleep, 600).result(30)
        with pytest.raises(ValueError, match="priority 9"):
            executor.options(priority=9).submit(add, 1)
        assert list(executor.options(timeout=30).map(add, range(5), chunksize=2)) == [1, 2, 3, 4, 5]


def test_a_task_waits_for_others(tmp_path):
    with Executor(3) as executor:
        seen = tmp_path / "seen"

        def write(text):
            time.sleep(0.2)
            seen.write_text(text)

        first = executor.submit(write, "first")
        assert executor.options(after=[first]).submit(seen.read_text).result(30) == "first"
        assert executor.options(after=[first]).submit(add, 1).result(30) == 2, "it is done"
        failing = executor.submit(divmod, 1, 0)
        late = executor.options(after=[first, failing]).submit(add, 1)
        with pytest.raises(DependencyFailed, match="failed"):
            late.result(30)
        with Executor(1) as other:
            with pytest.raises(ValueError, match="not a future of this executor"):
                other.options(after=[first])


def test_a_callback_may_wait_for_another_future():
    with Executor(max_workers=2) as executor:
        last = executor.submit(time.sleep, 0.5)
        seen = []
        executor.submit(add, 1).add_done_callback(lambda _: seen.append(last.exception(20)))
        others = [executor.submit(add, n) for n in range(20)]
        assert [other.result(20) for other in others] == [n + 1 for n in range(20)]
        assert last.exception(20) is None
    assert seen == [None], "it has returned before the executor's end"


def test_what_a_task_prints_comes_with_its_result(executor):
    def shout(line, times):
        for _ in range(times):
            print(line)
        return times

    future = executor.submit(shout, "heard", 2)
    assert (future.result(30), future.output) == (2, "heard\nheard\n")
    silent = executor.submit(add, 1)
    assert (silent.result(30), silent.output) == (2, "")
    long = executor.submit(shout, "x" * 1023, 1000)
    assert (long.result(30), long.output) == (1000, ("x" * 1023 + "\n") * 64)

    def fail():
        print("before it fails")
        raise ValueError("so")

    failed = executor.submit(fail)
    with pytest.raises(ValueError, match="so"):
        failed.result(30)
    assert failed.output == "before it fails\n"


def test_a_tasks_standard_output_can_be_pickled_and_copied(executor):
    def keep():
        stream = sys.stdout
        return lambda: stream

    assert executor.submit(keep).result(30)() is sys.stdout

    def copies():
        import copy

        return [copied is sys.stdout for copied in (copy.copy(sys.stdout), copy.deepcopy(sys.stdout))]

    assert executor.submit(copies).result(30) == [True, True]
    assert not hasattr(inband.output.KeptOutput.__new__(inband.output.KeptOutput), "encoding")
