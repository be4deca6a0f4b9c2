"""Run Python functions on the executors of Falcon, Inband's in-network task scheduler.

    from inband import Executor

    with Executor() as executor:
        print(list(executor.map(pow, [2, 3], [10, 10])))

Without an address, `Executor` starts a scheduler and executors on this machine, and stops them when it ends. With an
address, it uses the executors of that scheduler.
"""

from .errors import DependencyFailed, ExecutorsLost, InitializerFailed, InterpreterEnded
from .executor import Executor, Future, current

__all__ = ["DependencyFailed", "Executor", "ExecutorsLost", "Future", "InitializerFailed", "InterpreterEnded", "current"]
