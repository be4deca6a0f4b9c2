"""How calls and what comes of them travel between `Executor` and the interpreters that run them."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, Callable, Mapping, Sequence

import cloudpickle

#: First byte of an answer.
RESULT, EXCEPTION, TEXT = 0, 1, 2


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


def dump_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """A call, for `answer`."""
    return cloudpickle.dumps((function, tuple(args), dict(kwargs)))


def answer(call: bytes) -> bytes:
    """Make the call. Whatever it raises becomes the answer, as with the executors of `concurrent.futures`."""
    try:
        function, args, kwargs = pickle.loads(call)
        return bytes([RESULT]) + cloudpickle.dumps(function(*args, **kwargs))
    except BaseException as exception:  # SystemExit, too: the interpreter is not the task's to end
        return bytes([EXCEPTION]) + _dump_exception(exception)


def _dump_exception(exception: BaseException) -> bytes:
    text = '\n"""\n' + "".join(traceback.format_exception(type(exception), exception, exception.__traceback__)) + '"""'
    exception.__traceback__ = None
    try:
        pickled = cloudpickle.dumps(_Raised(exception, text))
        pickle.loads(pickled)  # some exceptions can be pickled and not be unpickled
        return pickled
    except Exception:
        return cloudpickle.dumps(_Raised(RuntimeError(f"an exception that cannot be pickled: {exception!r}"), text))
