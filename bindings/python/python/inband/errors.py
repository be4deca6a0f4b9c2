"""Failures outside of the task itself. They are `concurrent.futures.BrokenExecutor`, as users of other executors
expect."""

from concurrent.futures import BrokenExecutor


class ExecutorsLost(BrokenExecutor):
    """The task was started several times, and each time its executor was lost."""


class InterpreterEnded(BrokenExecutor):
    """The interpreter that ran the task exited, or could not be started."""


class DependencyFailed(RuntimeError):
    """A task that this one depends on has failed, so this one was not started."""


class InitializerFailed(BrokenExecutor):
    """The executor's `initializer` raised an exception (the cause) in the interpreter for the task."""
