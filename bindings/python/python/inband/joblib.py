"""Runs joblib's parallel calls, including those of scikit-learn, on the executors of Falcon.

    import joblib
    import inband.joblib

    inband.joblib.register()
    with joblib.parallel_config(backend="inband"):
        search.fit(x, y)

Other arguments of `parallel_config` than `backend` and `n_jobs` are passed to `inband.Executor`: `address="host:port"`
for the executors of a scheduler, `max_workers=8` for that many on this machine.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from joblib.parallel import AutoBatchingMixin, ParallelBackendBase, register_parallel_backend

from .executor import Executor, Future

__all__ = ["InbandBackend", "register"]


class InbandBackend(AutoBatchingMixin, ParallelBackendBase):
    """A joblib backend. Its executor is started on first use, and serves all calls of one `parallel_config`."""

    supports_retrieve_callback = True
    # All executors by default.
    default_n_jobs = -1
    # A task costs a fraction of a millisecond, so batches may be shorter than joblib's default for processes.
    MIN_IDEAL_BATCH_DURATION = 0.02
    MAX_IDEAL_BATCH_DURATION = 0.2

    def __init__(
        self,
        nesting_level: Optional[int] = None,
        inner_max_num_threads: Optional[int] = None,
        **executor_options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._options = executor_options
        self._executor: Optional[Executor] = None
        self._futures: "set[Future]" = set()

    def effective_n_jobs(self, n_jobs: Optional[int]) -> int:
        """The number of concurrent tasks: as requested, or -1 for the number of executors."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        return max(self._started()._max_workers + 1 + n_jobs, 1)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: Optional[str] = None,
        require: Optional[str] = None,
        **for_processes: Any,
    ) -> int:
        """A call of Parallel begins. The other arguments are for local processes, such as where to map arrays."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Optional[Callable[[Future], None]] = None) -> Future:
        """Run a batch of calls."""
        future = self._started().submit(func)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: Future) -> Any:
        """The result of a batch."""
        return future.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """A call has failed: cancel the others."""
        for future in list(self._futures):
            if not future.cancel():
                future.kill()

    def terminate(self) -> None:
        """A call of Parallel has ended. The executor is kept for the next one, and ends with this object."""
        self.reset_batch_stats()

    def _started(self) -> Executor:
        if self._executor is None:
            self._executor = Executor(**self._options)
        return self._executor


def register(make_default: bool = False) -> None:
    """Register the backend "inband" for `joblib.parallel_config`; with `make_default` also as the default backend."""
    register_parallel_backend("inband", InbandBackend, make_default=make_default)
