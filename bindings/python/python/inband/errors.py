"""What ends a task beside itself. `concurrent.futures.BrokenExecutor`, as users of other executors expect."""

from concurrent.futures import BrokenExecutor


class ExecutorsLost(BrokenExecutor):
    """The task was begun several times, and each time its executor was not heard of any more."""


class InterpreterEnded(BrokenExecutor):
    """The interpreter that ran the task ended, or none could be started."""


class DependencyFailed(RuntimeError):
    """A task that this one was to run after has failed, so this one was not begun."""


class InitializerFailed(BrokenExecutor):
    """The executor's `initializer` raised an exception, its cause, in the interpreter that was to run the task."""
