"""Waiting, in tests and in their tasks."""

import time



def until_exists(path):
    while not path.exists():
        time.sleep(0.01)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
