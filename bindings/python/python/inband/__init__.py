"""Run Python functions on the executors of Falcon, Inband's task scheduler in the network.

    from inband import Executor

    with Executor() as executor:
        print(list(executor.map(pow, [2, 3], [10, 10])))

Without an address, `Executor` starts a scheduler and executors on this machine and ends them with it. With one, it
uses those of that scheduler.
"""

from .errors import DependencyFailed, ExecutorsLost, InitializerFailed, InterpreterEnded
from .executor import Executor, Future, current

__all__ = ["DependencyFailed", "Executor", "ExecutorsLost", "Future", "InitializerFailed", "InterpreterEnded", "current"]
