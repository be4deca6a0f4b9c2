"""How calls and what comes of them travel between `Executor` and the interpreters that run them."""

from __future__ import annotations

import pickle
import traceback
from collections import OrderedDict
from typing import Any, Callable, Mapping, Optional, Sequence

import cloudpickle

from .output import KeptOutput, Printed

#: First byte of an answer.
RESULT, EXCEPTION, TEXT = 0, 1, 2
#: Added to it: the interpreter ends after this answer.
LAST = 128

#: Output is not sent with results that are longer: together they could be too long.
_WITH_OUTPUT_LEN_MAX = 128 << 20

#: Executors that an interpreter remembers. It runs the initializer of one that it has forgotten once more.
_EXECUTORS_MAX = 256
#: Tasks that this interpreter has run of executors that want it prepared, by the executor's key.
_tasks: "OrderedDict[bytes, int]" = OrderedDict()


class RemoteTraceback(Exception):
    """The cause of an exception that a task raised: what its traceback was where it ran."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


def _raised(exception: BaseException, text: str) -> BaseException:
    exception.__cause__ = RemoteTraceback(text)
    return exception


class _Raised:
    """An exception on its way, with its traceback as text: tracebacks cannot be pickled."""

    def __init__(self, exception: BaseException, text: str) -> None:
        self.exception, self.text = exception, text

    def __reduce__(self) -> tuple[Callable[..., BaseException], tuple[BaseException, str]]:
        return _raised, (self.exception, self.text)


class Preparation:
    """How an executor wants the interpreters that run its calls: an initializer is called first in each, and each ends
    after `tasks_max` of them."""

    def __init__(self, key: bytes, initializer: Optional[Callable[..., Any]], initargs: Sequence[Any], tasks_max: Optional[int]) -> None:
        pickled = None if initializer is None else cloudpickle.dumps((initializer, tuple(initargs)))
        self._wishes = (key, pickled, tasks_max)

    def around(self, call: bytes) -> bytes:
        """The call with what has to happen before it is even unpickled."""
        return pickle.dumps((*self._wishes, call), protocol=pickle.HIGHEST_PROTOCOL)


def dump_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A call, for `answer`."""
    return cloudpickle.dumps((function, tuple(args), dict(kwargs)))


def _initialize(pickled: bytes) -> None:
    from .errors import InitializerFailed

    try:
        initializer, initargs = pickle.loads(pickled)
        initializer(*initargs)
    except BaseException as exception:
        text = "".join(traceback.format_exception(type(exception), exception, exception.__traceback__))
        raise InitializerFailed(f"the executor's initializer failed: {exception!r}\n{text}") from None


def _prepare(key: bytes, pickled: Optional[bytes], tasks_max: Optional[int]) -> bool:
    """Returns whether the interpreter is to end after this call."""
    tasks = _tasks.pop(key, 0)
    if pickled is not None and tasks == 0:
        _initialize(pickled)
    while len(_tasks) >= _EXECUTORS_MAX:
        _tasks.popitem(last=False)
    _tasks[key] = tasks + 1
    return tasks_max is not None and tasks + 1 >= tasks_max


def answer(call: bytes, output: KeptOutput) -> bytes:
    """Make the call. Whatever it raises becomes the answer, as with the executors of `concurrent.futures`. What it prints is
    sent with the answer."""
    output.take()  # of threads that an earlier task has left
    first, pickled = _result(call)
    text = output.take()
    if text and len(pickled) < _WITH_OUTPUT_LEN_MAX:
        pickled = pickle.dumps(Printed(text, pickled), protocol=pickle.HIGHEST_PROTOCOL)
    return bytes([first]) + pickled


def load_answer(pickled: bytes) -> tuple[Any, str]:
    """The result or exception of an answer, and what the task printed."""
    answered = pickle.loads(pickled)
    if type(answered) is Printed:
        return pickle.loads(answered.pickled), answered.text
    return answered, ""


def _result(call: bytes) -> tuple[int, bytes]:
    last = 0
    try:
        parts = pickle.loads(call)
        if len(parts) == 4:
            *wishes, call = parts
            # What an initializer has left undone is not built upon.
            last = LAST
            last = LAST if _prepare(*wishes) else 0
            parts = pickle.loads(call)
        function, args, kwargs = parts
        return RESULT | last, cloudpickle.dumps(function(*args, **kwargs))
    except BaseException as exception:  # SystemExit, too: the interpreter is not the task's to end
        return EXCEPTION | last, _dump_exception(exception)


def _dump_exception(exception: BaseException) -> bytes:
    text = '\n"""\n' + "".join(traceback.format_exception(type(exception), exception, exception.__traceback__)) + '"""'
    exception.__traceback__ = None
    try:
        pickled = cloudpickle.dumps(_Raised(exception, text))
        pickle.loads(pickled)  # some exceptions can be pickled and not be unpickled
        return pickled
    except Exception:
        return cloudpickle.dumps(_Raised(RuntimeError(f"an exception that cannot be pickled: {exception!r}"), text))
