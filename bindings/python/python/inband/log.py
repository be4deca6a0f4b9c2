"""A replicated log for your own program: submit, deliver, recover.

    from inband.log import Log

    with Log("host.toml") as log:
        log.submit(b"hello")
        for delivery in log:
            print(delivery.instance, delivery.value)

A `Log` is one host of a cluster, with a configuration file as for `inband run`; to submit and deliver, its node needs the
role `replica`. It is the C library (`bindings/c/inband.h`) on a thread of its own, which runs until `close`.

**Guarantees.** All replicas deliver the same values in the same order, each submitted value once. `submit` returns a
future: its result is the instance, or an exception says what happened to the value. The order of values is not the order
of their submission; to order two, submit the second one after the first was delivered.

**State.** With `positions=True`, each delivery has a `position`. Store it together with the state after that delivery, and
pass it as `saved` at the next start: deliveries continue after it. A replica that has missed more than its peers remember
raises `StateNeeded` from `deliver`: copy a peer's state and the position stored with it, and call `restore`.

**Threads.** Threads may share a `Log`. Callbacks of its futures run on the log's thread: they must not wait for other
futures of the log or call `close`. The log's thread waits while `DELIVERIES_MAX` deliveries have not been taken, and its
host does not take part in the cluster meanwhile. A forked process cannot use its parent's log (`RuntimeError`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import Future
from typing import Iterator, NamedTuple, Optional, Union

from . import _c

__all__ = [
    "DELIVERIES_MAX",
    "VALUE_LEN_MAX_BYTES",
    "WINDOW_VALUES",
    "Closed",
    "ConfigError",
    "Delivery",
    "InRestoredState",
    "Log",
    "LogError",
    "NotApplied",
    "OutcomeUnknown",
    "StateNeeded",
    "WindowFull",
]

VALUE_LEN_MAX_BYTES = _c.VALUE_LEN_MAX_BYTES
WINDOW_VALUES = _c.WINDOW_VALUES
DELIVERIES_MAX = 65536


class LogError(Exception):
    """The library refused the call; the message says what to do. `code` is one of `enum inband_error`."""

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class ConfigError(LogError):
    """The configuration cannot be read or has a mistake."""


class WindowFull(LogError):
    """Too many values or recoveries are in flight. Wait until some have ended."""


class Closed(LogError):
    """The log was closed. The outcome of what was in flight is unknown."""


class NotApplied(LogError):
    """The value was not applied and never will be. Submit it again if it is still needed."""


class OutcomeUnknown(LogError):
    """There was no decision in time. The value may have been applied, may be applied later, or never: check the state
    before you submit it again."""


class InRestoredState(LogError):
    """The restored state already includes the value or the instance."""


class StateNeeded(LogError):
    """This replica needs a peer's state: see `Log.restore`."""


_ERRORS = {_c.ERR_CONFIG: ConfigError, _c.ERR_WINDOW_FULL: WindowFull}
_OUTCOMES = {
    _c.NOT_APPLIED: NotApplied,
    _c.OUTCOME_UNKNOWN: OutcomeUnknown,
    _c.IN_RESTORED_STATE: InRestoredState,
}


def _failure(code: int) -> Exception:
    if code in (_c.ERR_ARGUMENT, _c.ERR_TOO_LONG):
        return ValueError(_c.last_error())
    return _ERRORS.get(code, LogError)(_c.last_error(), code)


class Delivery(NamedTuple):
    """A decided value. `is_noop` only in the result of `recover`: the instance holds no application's value."""

    instance: int
    value: bytes
    is_noop: bool = False
    #: The position after this delivery, if the log was opened with `positions=True`.
    position: Optional[bytes] = None


class Log:
    """Starts the host that the file describes. `saved` is the position at which the application's state was stored;
    without it, the application starts with an empty state.

    Raises `ConfigError` for a mistake in the file, and `LogError` if the host cannot start."""

    def __init__(
        self, config: Union[str, os.PathLike], *, saved: Optional[bytes] = None, positions: bool = False
    ):
        self._changed = threading.Condition()
        self._requests: deque = deque()
        self._deliveries: deque = deque()
        self._submitted: dict[int, Future] = {}
        self._recovering: defaultdict[int, list[Future]] = defaultdict(list)
        self._in_flight = 0
        self._closing = False
        self._ended: Optional[Exception] = None
        self._state_needed = False
        self._positions = positions
        self._process = os.getpid()
        self._context = ctypes.c_void_p()
        code = _c.create(
            os.fsencode(config),
            _c.DATAPLANE_CONFIGURED,
            saved,
            0 if saved is None else len(saved),
            ctypes.byref(self._context),
        )
        if code < 0:
            raise _failure(code)
        # Kept as long as the context, which calls them.
        self._callbacks = (
            _c.DELIVER_FN(self._deliver),
            _c.FAILED_FN(self._fail),
            _c.STATE_NEEDED_FN(self._need_state),
        )
        for register, callback in zip((_c.on_deliver, _c.on_failed, _c.on_state_needed), self._callbacks):
            register(self._context, callback, None)
        self._thread = threading.Thread(target=self._run, name="inband.log", daemon=True)
        self._thread.start()
        # Otherwise the interpreter would end while the library's thread runs.
        atexit.register(self.close)

    # Calls of the application.

    def submit(self, value: bytes) -> Future[int]:
        """Submit a value of at most `VALUE_LEN_MAX_BYTES`. The future's result is its instance, once it is delivered here;
        its exceptions are `NotApplied`, `OutcomeUnknown`, `InRestoredState`, `Closed` and `LogError`.

        Waits while `WINDOW_VALUES` values are in flight; on the log's own thread it raises `WindowFull` instead."""
        value = bytes(value)
        if len(value) > VALUE_LEN_MAX_BYTES:
            raise ValueError(f"the value has {len(value)} bytes, at most {VALUE_LEN_MAX_BYTES} are possible; split it")
        future: Future[int] = Future()
        with self._changed:
            self._check()
            if self._in_flight >= WINDOW_VALUES and threading.current_thread() is self._thread:
                raise WindowFull(f"{WINDOW_VALUES} values are in flight; wait until some have ended", _c.ERR_WINDOW_FULL)
            while self._in_flight >= WINDOW_VALUES:
                self._changed.wait()
                self._check()
            self._in_flight += 1
            self._ask(self._submit, value, future)
        return future

    def recover(self, instance: int, noop: bytes = b"") -> Future[Delivery]:
        """Find out what was decided in an instance, or decide `noop` there. The result is the instance's `Delivery`. Do
        not apply it: a value that takes effect is delivered as always."""
        if not 0 < instance < 1 << 64:
            raise ValueError(f"instance {instance}: instances count from 1")
        future: Future[Delivery] = Future()
        with self._changed:
            self._check()
            self._ask(self._recover, instance, bytes(noop), future)
        return future

    def deliver(self, timeout: Optional[float] = None) -> Delivery:
        """The next value, after at most `timeout` seconds (`TimeoutError`; None: no limit). Raises `StateNeeded`, after
        which `restore` continues, and `Closed` after `close`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._check_process()
            while not self._deliveries:
                if self._ended:
                    raise self._ended
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"no delivery within {timeout} s")
                self._changed.wait(left)
            taken = self._deliveries.popleft()
            self._changed.notify_all()
        if isinstance(taken, Exception):
            raise taken
        return taken

    def __iter__(self) -> Iterator[Delivery]:
        """The values from here on, until the log is closed."""
        while True:
            try:
                yield self.deliver()
            except Closed:
                return

    def restore(self, saved: bytes) -> None:
        """Continue from a state copied from a peer. `saved` is the position stored with that state."""
        future: Future[None] = Future()
        with self._changed:
            self._check()
            self._ask(self._restore, bytes(saved), future)
        future.result()

    def close(self) -> None:
        """Stop the host. Futures that have not ended raise `Closed`."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if not self._ended:
                _c.stop(self._context)
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("this process was forked from the one that has opened the log; open another one here")

    def _check(self) -> None:
        self._check_process()
        if self._closing or self._ended:
            raise self._ended or Closed("the log is closed; open it again")

    def _ask(self, *request) -> None:
        self._requests.append(request)
        _c.stop(self._context)  # wakes the log's thread

    # On the log's thread, which alone uses the context.

    def _run(self) -> None:
        ended: Exception = Closed("the log is closed; open it again")
        while self._may_run():
            while self._requests:
                call, *arguments = self._requests.popleft()
                call(*arguments)
            code = _c.run_once(self._context, -1)
            if code < 0 and code != _c.ERR_STOPPED:
                ended = _failure(code)
                break
        with self._changed:
            self._ended = ended
            _c.free(self._context)
            waiting = [request[-1] for request in self._requests] + list(self._submitted.values())
            waiting += [future for futures in self._recovering.values() for future in futures]
            self._changed.notify_all()
        for future in waiting:
            self._finish(future, error=ended)

    def _may_run(self) -> bool:
        """Waits while too many deliveries have not been taken."""
        with self._changed:
            while len(self._deliveries) >= DELIVERIES_MAX and not self._closing:
                self._changed.wait()
            return not self._closing

    def _submit(self, value: bytes, future: Future) -> None:
        ticket = ctypes.c_uint64()
        code = _c.submit(self._context, value, len(value), ctypes.byref(ticket))
        if code < 0:
            self._end_submission(future, error=_failure(code))
        else:
            self._submitted[ticket.value] = future

    def _recover(self, instance: int, noop: bytes, future: Future) -> None:
        code = _c.recover(self._context, instance, noop, len(noop))
        if code < 0:
            self._finish(future, error=_failure(code))
        else:
            self._recovering[instance].append(future)

    def _restore(self, saved: bytes, future: Future) -> None:
        code = _c.restore(self._context, saved, len(saved))
        self._state_needed = self._state_needed and code < 0
        self._finish(future, error=_failure(code) if code < 0 else None)

    def _deliver(self, _ctx, pointer, _user) -> None:
        seen = pointer.contents
        value = ctypes.string_at(seen.value, seen.value_len_bytes)
        delivery = Delivery(seen.instance, value, seen.kind == _c.NOOP)
        for future in self._recovering.pop(seen.instance, ()):
            self._finish(future, delivery)
        if seen.kind != _c.NEW:
            return
        if self._positions:
            delivery = delivery._replace(position=self._position())
        with self._changed:
            self._deliveries.append(delivery)
            self._changed.notify_all()
        if seen.ticket:
            self._end_submission(self._submitted.pop(seen.ticket, None), seen.instance)

    def _fail(self, _ctx, pointer, _user) -> None:
        seen = pointer.contents
        error = _OUTCOMES[seen.outcome](seen.message.decode(errors="replace"))
        if seen.ticket:
            self._end_submission(self._submitted.pop(seen.ticket, None), error=error)
        for future in self._recovering.pop(seen.instance, ()):
            self._finish(future, error=error)

    def _need_state(self, _ctx, _user) -> None:
        if not self._state_needed:
            self._state_needed = True
            needed = StateNeeded("this replica needs a peer's state: copy it, and call restore with the position stored with it")
            with self._changed:
                self._deliveries.append(needed)
                self._changed.notify_all()

    def _position(self) -> bytes:
        len_bytes = _c.save(self._context, None, 0)
        buffer = ctypes.create_string_buffer(max(len_bytes, 0))
        len_bytes = _c.save(self._context, buffer, len(buffer)) if len_bytes >= 0 else len_bytes
        if len_bytes < 0:
            raise _failure(len_bytes)
        return buffer.raw[:len_bytes]

    def _end_submission(self, future: Optional[Future], instance: int = 0, error: Optional[Exception] = None) -> None:
        with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()
        if future:
            self._finish(future, instance, error)

    @staticmethod
    def _finish(future: Future, result=None, error: Optional[Exception] = None) -> None:
        if not future.set_running_or_notify_cancel():
            return  # the application has cancelled it
        if error:
            future.set_exception(error)
        else:
            future.set_result(result)
