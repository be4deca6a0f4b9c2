"""Clients of the store: writers that know what was acknowledged and how long nobody was served."""

import itertools
import threading
import time
from contextlib import contextmanager

import redis

CLIENT_TIMEOUT_S = 2.0
RETRY_S = 0.02
# Slower than the cluster can: the guests share two cores with this process.
WRITE_INTERVAL_S = 0.01


def client(address, timeout_s=CLIENT_TIMEOUT_S, **options):
    return redis.Redis(host=address, port=6379, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, **options)


class Writer(threading.Thread):
    """Writes a new key at one replica at a time, and counts on nothing but its own acknowledgements."""

    def __init__(self, address, options, run):
        super().__init__(daemon=True)
        self.address = address
        self.options = options
        self.prefix = f"{run}:{address}"
        self.acknowledged = {}
        self.acknowledged_at_s = []
        self.errors = {}
        self.stopping = threading.Event()

    def run(self):
        connection = client(self.address, **self.options)
        for number in itertools.count():
            if self.stopping.is_set():
                return
            key, value = f"{self.prefix}:{number}", f"value-{number}"
            try:
                connection.set(key, value)
                self.acknowledged[key] = value
                self.acknowledged_at_s.append(time.monotonic())
                self.stopping.wait(WRITE_INTERVAL_S)
            except redis.RedisError as error:
                text = str(error)
                self.errors[text] = self.errors.get(text, 0) + 1
                self.stopping.wait(RETRY_S)


class Load:
    """What the writers at all replicas saw while a fault went on."""

    runs = itertools.count()

    def __init__(self, addresses, options):
        number = next(self.runs)
        self.writers = [Writer(address, options, number) for address in addresses]
        self.acknowledged = {}

    @contextmanager
    def running(self, before_s=3.0, after_s=5.0):
        """Writers run a while before and after what the caller does."""
        self.start_s = time.monotonic()
        for writer in self.writers:
            writer.start()
        try:
            time.sleep(before_s)
            yield self
            time.sleep(after_s)
        finally:
            for writer in self.writers:
                writer.stopping.set()
            self.end_s = time.monotonic()
            for writer in self.writers:
                writer.join()
                self.acknowledged.update(writer.acknowledged)

    def pause_s(self, addresses=None):
        """The longest time in which no client of these replicas (all, unless named) was served."""
        times = [at for writer in self.writers if addresses is None or writer.address in addresses for at in writer.acknowledged_at_s]
        times = [self.start_s, *sorted(times), self.end_s]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def errors(self):
        return {f"{writer.address}: {text}": count for writer in self.writers for text, count in writer.errors.items()}


def missing(address, acknowledged, options):
    """Acknowledged keys that a replica does not have with their value."""
    connection = client(address, timeout_s=20, **options)
    keys = list(acknowledged)
    lost = []
    for start in range(0, len(keys), 100):
        part = keys[start:start + 100]
        values = connection.mget(part)
        lost += [key for key, value in zip(part, values) if value != acknowledged[key].encode()]
    return lost
