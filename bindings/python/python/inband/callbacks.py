"""The thread that runs callbacks of futures, so that a callback that waits for another future does not block
results."""

from __future__ import annotations

import collections
import logging
import os
import threading
from typing import Callable

# `concurrent.futures` logs exceptions of callbacks to this logger.
_logger = logging.getLogger("concurrent.futures")


class Callbacks:
    """Runs callbacks in the order in which they were added, in a separate thread, until closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: "collections.deque[Callable[[], object]]" = collections.deque()
        self._is_running = False
        self._is_closed = False
        self._process = os.getpid()
        # Started now: Python 3.12 starts no threads during interpreter shutdown, when results still arrive.
        self._thread = threading.Thread(target=self._run, name="inband-callbacks", daemon=True)
        self._thread.start()

    def add(self, callback: Callable[[], object]) -> None:
        with self._changed:
            self._waiting.append(callback)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all have returned. A callback that calls this does not wait for itself."""
        # A forked process does not have the thread, and the lock may have been held during the fork.
        if self._process != os.getpid() or self._thread is threading.current_thread():
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_running)

    def close(self) -> None:
        """No more callbacks will be added: the thread ends after the pending ones."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_running = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                self._is_running = True
                callback = self._waiting.popleft()
            try:
                callback()
            except BaseException:  # including SystemExit: a callback must not end this thread
                _logger.exception("exception calling callback %r", callback)
            del callback
