"""Encoding of calls and their results between `Executor` and the interpreters that run them."""

from __future__ import annotations

import os
import pickle
import traceback
from collections import OrderedDict
from typing import Any, Callable, Optional, Sequence

import cloudpickle

from .output import KeptOutput, Printed
from .pickling import dump_call, dump_result

__all__ = ["EXCEPTION", "LAST", "RESULT", "TEXT", "Preparation", "RemoteTraceback", "answer", "dump_call", "load_answer"]

#: First byte of an answer.
RESULT, EXCEPTION, TEXT = 0, 1, 2
# Added to the first byte if the interpreter ends after this answer.
LAST = 128

# Longer results are sent without output, because together they could be too long.
_WITH_OUTPUT_LEN_MAX = 128 << 20

# Executors that an interpreter remembers. For a forgotten executor it runs the initializer again.
_EXECUTORS_MAX = 256
# For executors with a `Preparation`, the number of tasks that this interpreter has run, by the executor's key.
_tasks: "OrderedDict[bytes, int]" = OrderedDict()


class RemoteTraceback(Exception):
    """The cause of an exception that a task raised: its traceback in the process that ran the task."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def _raised(exception: BaseException, text: str) -> BaseException:
    exception.__cause__ = RemoteTraceback(text)
    return exception


class _Raised:
    """A pickled exception, with its traceback as text, because tracebacks cannot be pickled."""

    def __init__(self, exception: BaseException, text: str) -> None:
        self.exception, self.text = exception, text

    def __reduce__(self) -> tuple[Callable[..., BaseException], tuple[BaseException, str]]:
        return _raised, (self.exception, self.text)


class Preparation:
    """An executor's requirements for the interpreters that run its calls: an initializer to call first in each, and the
    number of calls after which each ends."""

    def __init__(self, key: bytes, initializer: Optional[Callable[..., Any]], initargs: Sequence[Any], tasks_max: Optional[int]) -> None:
        pickled = None if initializer is None else cloudpickle.dumps((initializer, tuple(initargs)))
        self._wishes = (key, pickled, tasks_max)

    def around(self, call: bytes) -> bytes:
        """The call, preceded by what must be done before it is even unpickled."""
        return pickle.dumps((*self._wishes, call), protocol=pickle.HIGHEST_PROTOCOL)


def _initialize(pickled: bytes) -> None:
    from .errors import InitializerFailed

    try:
        initializer, initargs = pickle.loads(pickled)
        initializer(*initargs)
    except BaseException as exception:
        text = "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
        raise InitializerFailed(f"the executor's initializer failed: {exception!r}\n{text}") from None


def _prepare(key: bytes, pickled: Optional[bytes], tasks_max: Optional[int]) -> bool:
    """Returns whether the interpreter must end after this call."""
    tasks = _tasks.pop(key, 0)
    if pickled is not None and tasks == 0:
        _initialize(pickled)
    while len(_tasks) >= _EXECUTORS_MAX:
        _tasks.popitem(last=False)
    _tasks[key] = tasks + 1
    return tasks_max is not None and tasks + 1 >= tasks_max


def answer(call: bytes, output: KeptOutput, arrays: Optional[str]) -> tuple[int, bytes]:
    """Make the call. Returns the first byte of its answer and the rest, including the output. Exceptions are part of the
    answer, as with the executors of `concurrent.futures`. `arrays`: see `shared`."""
    output.take()  # of threads left by an earlier task
    first, pickled = _result(call, arrays)
    text = output.take()
    if text and len(pickled) < _WITH_OUTPUT_LEN_MAX:
        pickled = pickle.dumps(Printed(text, pickled), protocol=pickle.HIGHEST_PROTOCOL)
    return first, pickled


def load_answer(pickled: bytes) -> tuple[Any, str]:
    """The result or exception of an answer, and the task's output."""
    answered = pickle.loads(pickled)
    if type(answered) is Printed:
        return pickle.loads(answered.pickled), answered.text
    return answered, ""


def _result(call: bytes, arrays: Optional[str]) -> tuple[int, bytes]:
    last, process = 0, os.getpid()
    try:
        parts = pickle.loads(call)
        if len(parts) == 4:
            *wishes, call = parts
            # If the initializer fails, its partial effects must not be used.
            last = LAST
            last = LAST if _prepare(*wishes) else 0
            parts = pickle.loads(call)
        function, args, kwargs = parts
        return RESULT | last, dump_result(function(*args, **kwargs), arrays)
    except BaseException as exception:  # including SystemExit: a task must not end the interpreter
        if os.getpid() != process:  # a child that the task forked ends as any script
            raise
        return EXCEPTION | last, _dump_exception(exception)


def _dump_exception(exception: BaseException) -> bytes:
    text = '\n"""\n' + "".join(traceback.format_exception(type(exception), exception, exception.__traceback__)) + '"""'
    exception.__traceback__ = None
    try:
        pickled = cloudpickle.dumps(_Raised(exception, text))
        pickle.loads(pickled)  # some exceptions can be pickled but not unpickled
        return pickled
    except Exception:
        return cloudpickle.dumps(_Raised(RuntimeError(f"an exception that cannot be pickled: {exception!r}"), text))
