"""`Executor`: the interface of `concurrent.futures` for Falcon."""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import os
import sys
import threading
import time
import weakref
from concurrent.futures._base import CANCELLED, PENDING, RUNNING
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, TypeVar

from . import _native, shared
from .callbacks import Callbacks
from .calls import EXCEPTION, Preparation, dump_call, load_answer
from .errors import DependencyFailed, ExecutorsLost, InterpreterEnded

T = TypeVar("T")

# Kinds of events from `_native.Client.wait`.
_STARTED, _OUTPUT, _ERROR, _LATE, _CANCELLED, _LOST, _BEFORE = range(7)

# Timeout of one wait for events; after each, the thread checks whether its executor still exists.
_WAIT_MS = 200

_executors: "weakref.WeakSet[Executor]" = weakref.WeakSet()
# Executors with tasks. This keeps them alive until their tasks are done, even if there are no other references.
_busy: "set[Executor]" = set()
_threads: "set[threading.Thread]" = set()
_all_callbacks: "weakref.WeakSet[Callbacks]" = weakref.WeakSet()
_is_ending = threading.Event()


# Priority, resource, worker, and timeout in ms, in the form of `_native.Client.submit`.
_Wishes = tuple[Any, ...]
_TIMEOUT_MAX_S = 10**9


def _wishes(
    priority: Optional[int], resource: Optional[int], worker: Optional[int], timeout: Optional[float]
) -> "_Wishes":
    if timeout is not None and not 0 <= timeout <= _TIMEOUT_MAX_S:
        raise ValueError(f"timeout is {timeout}; give seconds from 0 to {_TIMEOUT_MAX_S}")
    return priority, resource, worker, None if timeout is None else round(timeout * 1000)


class Future(concurrent.futures.Future):
    """The future of a task. In addition to `concurrent.futures.Future`, it has `kill`, which also ends a running task.

    Callbacks of an executor's futures run one after another in a separate thread, so they may wait for other futures, but
    not for later callbacks.
    """

    _task: tuple[int, int]
    # Until the task is done: keeps the executor alive while there are futures to wait for.
    _executor: "Optional[Executor]"
    _client: _native.Client
    _callbacks: Callbacks
    _output = ""
    # Of the long parts of its call.
    _file: Optional[str] = None

    @property
    def output(self) -> str:
        """The task's output to `sys.stdout`, at most the last 65,536 characters, once it is done. Empty if it was
        cancelled, its interpreter exited, or its result is 128 MiB or longer."""
        return self._output

    def cancel(self) -> bool:
        """Cancel the task if no executor has started it; then it will never run. Returns False if it has been started
        or is done."""
        executor = self._executor
        with self._condition:  # atomically: no event of the task may come in between
            if self.cancelled():
                return True
            if executor is None or not executor._client.cancel(*self._task):
                return False
            self._state = CANCELLED
            self._condition.notify_all()
        # Without the lock: callbacks may take long.
        super()._invoke_callbacks()
        return True

    def kill(self) -> bool:
        """Cancel the task even if it is running. Returns False if it is done."""
        executor = self._executor
        with self._condition:
            if executor is None or self.cancelled() or not executor._client.kill(*self._task):
                return False
            self._state = CANCELLED
            self._condition.notify_all()
        super()._invoke_callbacks()
        return True

    def result(self, timeout: Optional[float] = None) -> Any:
        """Like `concurrent.futures.Future.result`, but that ignores exceptions whose truth value is false."""
        try:
            exception = self.exception(timeout)
            if exception is not None:
                raise exception
            return self._result
        finally:
            # Break the reference cycle: the exception's traceback refers to this frame.
            exception = None
            self = None

    def _invoke_callbacks(self) -> None:
        # Called by the thread that receives results.
        for callback in self._done_callbacks:
            self._callbacks.add(functools.partial(callback, self))

    def _forget_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # it has gone with the directory
                os.unlink(file)

    def _become_running(self) -> None:
        with self._condition:
            if self._state == PENDING:
                self._state = RUNNING


class _Maps:
    """`map` based on `submit`."""

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: Optional[float] = None,
        chunksize: int = 1,
        buffersize: Optional[int] = None,
    ) -> Iterator[T]:
        """Like `concurrent.futures.ProcessPoolExecutor.map`: a task runs `chunksize` calls. `buffersize` limits the
        number of submitted tasks whose results have not been consumed; the iterables are read no further than that."""
        if chunksize < 1:
            raise ValueError(f"chunksize is {chunksize}; at least 1 is needed")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError(f"buffersize is {buffersize!r}; give a number of tasks")
        if buffersize is not None and buffersize < 1:
            raise ValueError(f"buffersize is {buffersize}; at least 1 is needed")
        end_s = None if timeout is None else time.monotonic() + timeout
        calls = zip(*iterables)
        if chunksize == 1:
            return _results(self, fn, calls, buffersize, end_s)
        chunks = ((chunk,) for chunk in _chunks(calls, chunksize))
        results = _results(self, functools.partial(_call_each, fn), chunks, buffersize, end_s)
        return itertools.chain.from_iterable(results)


class Options(_Maps):
    """`submit` and `map` of an executor, with other options: see `Executor.options`."""

    def __init__(self, executor: "Executor", wishes: "_Wishes", after: "Sequence[Future]") -> None:
        self._executor, self._wishes, self._after = executor, wishes, after

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future":
        """Like `Executor.submit`."""
        return self._executor._submit(self._wishes, self._after, fn, args, kwargs)


class Executor(_Maps, concurrent.futures.Executor):
    """Runs calls on the executors of Falcon.

    max_workers: number of executors to start here, by default one per CPU. Must not be combined with an address. A string
        is taken as the address.
    address: a scheduler's `host:port`; by default `$INBAND_FALCON`. Without either, a scheduler and executors are started
        on this machine and end with this object.
    key_file: the key file of the cluster at that address, as printed by `inband up falcon`; by default
        `$INBAND_FALCON_KEY_FILE`.
    initializer, initargs: called once in every interpreter before the first of this executor's calls there; if it raises,
        the call fails with `InitializerFailed`. On a cluster, interpreters are shared by all clients.
    max_tasks_per_child: an interpreter exits after this many of this executor's calls.
    priority: 0 (first) to 7, for schedulers with priorities.
    resource: 1 to 63, the resource that tasks need, for schedulers with resources; 0: none.
    worker: the number of the preferred worker, for schedulers with locality.
    timeout: seconds after which a task that is not done fails with `TimeoutError`.

    Arrays (whatever pickles as `pickle.PickleBuffer`) and bytes of 256 KiB or more reach executors that were started here,
    and come back from them, in shared memory (/dev/shm), if it has room.

    Calls, arguments and results are pickled with cloudpickle, so functions of `__main__`, lambdas and closures can be
    submitted. A call's output to stdout or stderr goes to the stderr of the process that runs it: this process for local
    executors, the worker on a cluster. The end of its output to `sys.stdout` is also returned, as `Future.output`. A task
    may run more than once if its executor is lost; only one result is used. Threads may share objects of this class, but
    a forked process must create its own.
    """

    def __init__(
        self,
        max_workers: "Optional[int | str]" = None,
        *,
        address: Optional[str] = None,
        key_file: "Optional[str | os.PathLike[str]]" = None,
        initializer: Optional[Callable[..., Any]] = None,
        initargs: Sequence[Any] = (),
        max_tasks_per_child: Optional[int] = None,
        priority: int = 0,
        resource: int = 0,
        worker: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> None:
        if isinstance(max_workers, str):
            if address is not None:
                raise TypeError(f"two addresses, {max_workers!r} and {address!r}; give one")
            max_workers, address = None, max_workers
        if max_workers is not None and not isinstance(max_workers, int):
            raise TypeError(f"max_workers is {max_workers!r}; give a number of executors, or address=\"host:port\"")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer is {initializer!r}, which cannot be called")
        if max_tasks_per_child is not None and not isinstance(max_tasks_per_child, int):
            raise TypeError(f"max_tasks_per_child is {max_tasks_per_child!r}; give a number of calls")
        if max_tasks_per_child is not None and max_tasks_per_child < 1:
            raise ValueError(f"max_tasks_per_child is {max_tasks_per_child}; at least 1 is needed")
        self._preparation: Optional[Preparation] = None
        if initializer is not None or max_tasks_per_child is not None:
            self._preparation = Preparation(os.urandom(16), initializer, initargs, max_tasks_per_child)
        address = address or os.environ.get("INBAND_FALCON")
        if address and max_workers is not None:
            raise ValueError("max_workers is for executors on this machine; the number of workers at an address is fixed")
        if key_file and not address:
            raise ValueError("key_file is for a cluster at an address; what is started on this machine has keys of its own")
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"max_workers is {max_workers}; at least 1 is needed")
        self._cluster: Optional[_native.LocalCluster] = None
        self._arrays: Optional[str] = None
        if address:
            key_file = key_file or os.environ.get("INBAND_FALCON_KEY_FILE")
            self._client = _native.Client(address, os.fspath(key_file) if key_file else None)
        else:
            # Modules that can be imported here must be importable there.
            path = os.pathsep.join(sys.path)
            self._key_dir, self._key_dir_lock = shared.make_directory()
            key_file = os.path.join(self._key_dir, "key")
            try:
                self._cluster = _native.LocalCluster(max_workers or os.cpu_count() or 1, sys.executable, path, key_file)
            except BaseException:
                shared.remove_directory(self._key_dir, self._key_dir_lock)
                raise
            self._arrays = shared.arrays_of(key_file)
            self._client = self._cluster.client()
        self._wishes = _wishes(priority, resource, worker, timeout)
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._futures: dict[tuple[int, int], Future] = {}
        self._is_shut_down = False
        # Dask reads this attribute.
        self._max_workers = self._client.executors()
        self._ended = threading.Event()
        self._callbacks = Callbacks()
        _all_callbacks.add(self._callbacks)
        thread = threading.Thread(
            target=_hear,
            args=(weakref.ref(self), self._client, self._callbacks, self._ended),
            name="inband",
            daemon=True,
        )
        _threads.add(thread)
        thread.start()
        _executors.add(self)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future":
        """Like `concurrent.futures.Executor.submit`."""
        return self._submit(self._wishes, (), fn, args, kwargs)

    def options(
        self,
        *,
        priority: Optional[int] = None,
        resource: Optional[int] = None,
        worker: Optional[int] = None,
        timeout: Optional[float] = None,
        after: "Iterable[Future]" = (),
    ) -> Options:
        """This executor with other options for some tasks: `executor.options(priority=0).submit(abs, -1)`.

        priority, resource, worker, timeout: as for the executor, which provides the defaults.
        after: futures of this executor. A task starts once they are done; if one of them fails, it fails with
            `DependencyFailed`. It does not get their results.
        """
        wishes = _wishes(priority, resource, worker, timeout)
        wishes = tuple(own if wish is None else wish for wish, own in zip(wishes, self._wishes))
        after = tuple(after)
        for future in after:
            if not isinstance(future, Future) or future._client is not self._client:
                raise ValueError(f"after has {future!r}, which is not a future of this executor")
        return Options(self, wishes, after)

    def _submit(
        self,
        wishes: "_Wishes",
        after: "Sequence[Future]",
        fn: Callable[..., Any],
        args: "tuple[Any, ...]",
        kwargs: "dict[str, Any]",
    ) -> "Future":
        if not self._is_of_this_process():
            raise RuntimeError("this process was forked from the one that has made this executor; make another one here")
        call, file = dump_call(fn, args, kwargs, self._arrays)
        if self._preparation is not None:
            call = self._preparation.around(call)
        future = Future()
        future._executor, future._client, future._callbacks = self, self._client, self._callbacks
        future._file = file
        try:
            # Events of the task wait until the future is registered.
            with self._lock:
                if self._is_shut_down:
                    raise RuntimeError("cannot schedule new futures after shutdown")
                future._task = self._client.submit(call, wishes, [future._task[0] for future in after])
                self._futures[future._task] = future
                _busy.add(self)
        except BaseException:
            future._forget_file()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Like `concurrent.futures.Executor.shutdown`. Does nothing in a forked process."""
        if not self._is_of_this_process():
            return
        with self._lock:
            self._is_shut_down = True
            futures = list(self._futures.values())
        if cancel_futures:
            for future in futures:
                future.cancel()
        has_ended = not futures and self._end()
        if wait:
            concurrent.futures.wait(futures)
            if not has_ended:
                self._ended.wait()
            self._callbacks.wait()

    def _on_events(self, events: "Sequence[tuple[int, int, int, bytes]]") -> None:
        with self._lock:
            futures = [self._futures.get((job, task)) for job, task, _, _ in events]
        ended = []
        try:
            for future, (_, _, kind, said) in zip(futures, events):
                if future is None:
                    continue
                if kind == _STARTED:
                    future._become_running()
                    continue
                ended.append(future._task)
                future._executor = None
                future._forget_file()
                _tell(future, kind, said)
        finally:
            # Only now, because `shutdown` waits for the remaining futures.
            with self._lock:
                for task in ended:
                    self._futures.pop(task, None)
                if not self._futures:
                    _busy.discard(self)

    def _is_of_this_process(self) -> bool:
        # A forked process has no thread that receives events, and the lock may have been held during the fork.
        return self._process == os.getpid()

    def _end(self) -> bool:
        """Close everything if there is nothing left to do."""
        with self._lock:
            if not self._is_shut_down or self._futures:
                return False
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()
            shared.remove_directory(self._key_dir, self._key_dir_lock)
        self._ended.set()
        return True


_current_lock = threading.Lock()
_current: Optional[Executor] = None


def current() -> Executor:
    """The executor of the cluster that runs this task, for tasks that submit others. All tasks of an interpreter share the
    same object; do not shut it down.

    A task that waits for others occupies its executor: if there are as many such tasks as executors, none of them can
    finish. Pass a `timeout` to the wait, or return the futures' inputs and let the caller submit.
    """
    global _current
    address = os.environ.get("INBAND_CURRENT_SCHEDULER")
    if not address:
        raise RuntimeError("this is not a task of an executor; make an Executor instead")
    with _current_lock:
        if _current is None or _current._is_shut_down:
            key_file = os.environ.get("INBAND_CURRENT_KEY_FILE")
            _current = Executor(address=address, key_file=key_file or None)
        return _current


def _hear(
    executor: "weakref.ref[Executor]", client: _native.Client, callbacks: Callbacks, ended: threading.Event
) -> None:
    """Receive events until the executor is shut down or, if it has no tasks, garbage-collected."""
    try:
        while not ended.is_set() and not _is_ending.is_set():
            events = client.wait(_WAIT_MS)
            hearer = executor()
            if hearer is None:
                client.close()
                break
            if events:
                hearer._on_events(events)
            # Otherwise results would live until the next events.
            del events
            hearer._end()
            del hearer
    finally:
        # Also after an error, because `shutdown` waits for this.
        ended.set()
        callbacks.close()
        _threads.discard(threading.current_thread())


def _tell(future: Future, kind: int, said: bytes) -> None:
    if kind == _CANCELLED:
        # The caller of `cancel` has set the state.
        future.set_running_or_notify_cancel()
        return
    try:
        result, exception = None, None
        if kind == _OUTPUT:
            result, future._output = load_answer(said)
        elif kind == _ERROR and said[:1] == bytes([EXCEPTION]):
            exception, future._output = load_answer(said[1:])
        else:
            exception = _failure(kind, said)
    except BaseException as broken:  # from unpickling: something is missing in this process
        exception, result = broken, None
    if exception is not None:
        future.set_exception(exception)
    else:
        future.set_result(result)


def _failure(kind: int, said: bytes) -> BaseException:
    text = said.decode(errors="replace")
    if kind == _ERROR:
        return InterpreterEnded(text.lstrip("\2"))
    if kind == _LATE:
        return TimeoutError(text)
    if kind == _BEFORE:
        return DependencyFailed(text)
    return ExecutorsLost(text)


def _results(
    executor: Executor,
    fn: Callable[..., T],
    calls: Iterator[tuple[Any, ...]],
    buffersize: Optional[int],
    end_s: Optional[float],
) -> Iterator[T]:
    """Submit these calls now, up to `buffersize`. Returns their results in order, as they are requested."""
    first = calls if buffersize is None else itertools.islice(calls, buffersize)
    futures = collections.deque(executor.submit(fn, *args) for args in first)

    def results() -> Iterator[T]:
        try:
            while futures:
                if buffersize is not None:
                    futures.extend(executor.submit(fn, *args) for args in itertools.islice(calls, 1))
                # Do not hold a reference to the result while the caller uses it.
                yield _result_or_cancel(futures.popleft(), end_s)
        finally:
            for future in futures:
                future.cancel()

    return results()


def _result_or_cancel(future: Future, end_s: Optional[float]) -> Any:
    try:
        try:
            return future.result(None if end_s is None else end_s - time.monotonic())
        finally:
            future.cancel()
    finally:
        del future


def _chunks(calls: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    calls = iter(calls)
    while chunk := list(itertools.islice(calls, size)):
        yield chunk


def _call_each(fn: Callable[..., T], chunk: "list[tuple[Any, ...]]") -> "list[T]":
    return [fn(*args) for args in chunk]


@atexit.register
def _shut_all_down() -> None:
    for executor in list(_executors):
        executor.shutdown()
    # A thread in native code during interpreter finalization would abort the process.
    _is_ending.set()
    for thread in list(_threads):
        thread.join()
    for callbacks in list(_all_callbacks):
        callbacks.wait()
