"""Tests `inband.log` on a real cluster on 127.0.0.1."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import threading

import pytest
from log_cluster import HOSTS, REPLICAS, LogCluster

from inband import log as log_module
from inband.log import Closed, ConfigError, Log, LogError, WindowFull
from test_examples import EXAMPLES

TIMEOUT_S = 60
LEADER = HOSTS[0]


@pytest.fixture
def cluster(tmp_path):
    cluster = LogCluster(tmp_path)
    yield cluster
    cluster.end()


def start_counter(config, count, total):
    command = [sys.executable, EXAMPLES / "log_counter.py", config, str(count), str(total)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def lines_until_sum(replica):
    lines = []
    while not (lines and lines[-1].startswith("sum")) and (line := replica.stdout.readline()):
        lines.append(line)
    return lines


def test_the_example_loses_nothing_when_the_leader_is_killed(cluster):
    count = 3000
    replicas = [start_counter(cluster.config(node), count, 2 * count) for node in REPLICAS]
    limit = threading.Timer(TIMEOUT_S, lambda: [replica.kill() for replica in replicas])
    limit.start()
    first = [replicas[0].stdout.readline() for _ in range(100)]
    cluster.kill(LEADER)
    # At once: the second one must not wait for a reader.
    with concurrent.futures.ThreadPoolExecutor(2) as readers:
        outputs = list(readers.map(lines_until_sum, replicas))
    outputs[0] = first + outputs[0]
    for replica in replicas:
        replica.stdin.close()
    assert [replica.wait() for replica in replicas] == [0, 0]
    limit.cancel()

    assert outputs[0] == outputs[1]
    assert outputs[0][-1] == f"sum {count * (count + 1)}\n"
    deliveries = [tuple(map(int, line.split())) for line in outputs[0][:-1]]
    assert [instance for instance, *_ in deliveries] == sorted({instance for instance, *_ in deliveries})
    expected = {(replica.pid, number) for replica in replicas for number in range(1, count + 1)}
    assert {(origin, number) for _, origin, number in deliveries} == expected


def test_a_log_continues_from_a_position(cluster):
    config = cluster.config(REPLICAS[0])
    with Log(config, positions=True) as log:
        futures = [log.submit(value) for value in (b"", b"\0one", bytes(log_module.VALUE_LEN_MAX_BYTES))]
        instances = [future.result(TIMEOUT_S) for future in futures]
        deliveries = [log.deliver(TIMEOUT_S) for _ in range(3)]
        assert {delivery.instance: delivery.value for delivery in deliveries} == dict(
            zip(instances, (b"", b"\0one", bytes(log_module.VALUE_LEN_MAX_BYTES)))
        )
        answer = log.recover(deliveries[0].instance).result(TIMEOUT_S)
        assert answer[:3] == (*deliveries[0][:2], False)
        with pytest.raises(TimeoutError):
            log.deliver(0.05)  # the answer is not delivered again
        with pytest.raises(LogError, match="delivered already"):
            log.restore(deliveries[0].position)
        beyond = deliveries[-1].instance + 1
        recovered = log.recover(beyond, b"nothing").result(TIMEOUT_S)
        assert (recovered.instance, recovered.is_noop) == (beyond, True)
    # The application's state has the first delivery only.
    with Log(config, saved=deliveries[0].position) as log:
        again = [log.deliver(TIMEOUT_S) for _ in range(2)]
        assert [delivery[:2] for delivery in again] == [delivery[:2] for delivery in deliveries[1:]]


def test_iteration_ends_when_another_thread_closes(cluster):
    log = Log(cluster.config(REPLICAS[0]))
    threading.Timer(0.3, log.close).start()
    assert list(log) == []
    with pytest.raises(Closed):
        log.submit(b"late")
    with pytest.raises(Closed):
        log.deliver()
    log.close()


def test_without_a_majority_the_window_fills_and_close_ends_every_future(cluster):
    cluster.kill(1)
    cluster.kill(2)
    with Log(cluster.config(REPLICAS[0])) as log:
        futures = [log.submit(b"stuck") for _ in range(log_module.WINDOW_VALUES)]
        waiting = threading.Thread(target=lambda: pytest.raises(Closed, log.submit, b"one more"))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        assert not any(future.done() for future in futures)
    waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()
    assert all(isinstance(future.exception(0), Closed) for future in futures)


def test_a_callback_gets_window_full_instead_of_waiting_for_itself(cluster):
    with Log(cluster.config(REPLICAS[0])) as log:
        seen: concurrent.futures.Future = concurrent.futures.Future()

        def fill(_):
            try:
                for _ in range(2 * log_module.WINDOW_VALUES):
                    log.submit(b"more")
            except Exception as error:
                seen.set_exception(error)

        log.submit(b"first").add_done_callback(fill)
        assert isinstance(seen.exception(TIMEOUT_S), WindowFull)


def test_mistakes_are_refused(cluster, tmp_path):
    with pytest.raises(ConfigError, match="missing.toml"):
        Log(tmp_path / "missing.toml")
    with pytest.raises(LogError):
        Log(cluster.config(REPLICAS[0]), saved=b"damaged")
    with Log(cluster.config(REPLICAS[0])) as log:
        with pytest.raises(ValueError, match="split"):
            log.submit(bytes(log_module.VALUE_LEN_MAX_BYTES + 1))
        with pytest.raises(ValueError):
            log.recover(0)
        with pytest.raises(LogError):
            log.recover(1 << 40).result(TIMEOUT_S)
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
        else:
            try:
                log.submit(b"child")
            except RuntimeError:
                os._exit(0)
            os._exit(1)
