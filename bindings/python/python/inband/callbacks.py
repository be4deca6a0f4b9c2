"""The thread that runs callbacks of futures: one that waits for another future must not keep results from arriving."""

from __future__ import annotations

import collections
import threading
from typing import Callable

#: A thread without callbacks ends after so long.
_IDLE_S = 1.0


class Callbacks:
    """Runs callbacks one after another, in the order in which they were added, in a thread that exists while it is needed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: "collections.deque[Callable[[], None]]" = collections.deque()
        self._thread: "threading.Thread | None" = None
        self._is_running = False

    def add(self, callback: Callable[[], None]) -> None:
        with self._changed:
            self._waiting.append(callback)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inband-callbacks", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self) -> None:
        """Until all have returned. A callback that calls this does not wait for itself."""
        with self._changed:
            if self._thread is not threading.current_thread():
                self._changed.wait_for(lambda: not self._waiting and not self._is_running)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_running = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._waiting, _IDLE_S):
                    self._thread = None
                    return
                self._is_running = True
                callback = self._waiting.popleft()
            callback()
            del callback
