"""Tests `inband.memory` on a real cluster of three servers and two switches on 127.0.0.1."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest
from ports import free_port

from inband.memory import Memory, OutcomeUnknown

ROOT = pathlib.Path(__file__).parents[3]
NODES = {"server": [1, 2, 3], "switch": [16, 17]}


class Cluster:
    def __init__(self, dir):
        self.dir, self.processes = dir, {}
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(5)]
        self.servers, self.switches = addresses[:3], addresses[3:]
        self.key_file = dir / "keys.toml"
        self.key_file.write_text(
            f'digest_key = "{"11" * 16}"\nactive = 1\n[[key]]\nid = 1\nsecret = "{"22" * 16}"\n'
        )
        self.key_file.chmod(0o600)
        for server in (1, 2, 3):
            self.start("server", server, "--new")
        for switch in (1, 2):
            self.start("switch", switch)

    def start(self, kind, number, *more):
        program = ROOT / "target/release/inband-memory"
        address = (self.servers if kind == "server" else self.switches)[number - 1]
        data = self.dir / f"{kind}-{number}"
        node = NODES[kind][number - 1]
        log = open(self.dir / f"{kind}-{number}.log", "a")
        self.processes[kind, number] = subprocess.Popen(
            [program, kind, f"--node={node}", f"--listen={address}", f"--servers={','.join(self.servers)}",
             "--space=4MiB", f"--data={data}", f"--key-file={self.key_file}", *more],
            stdout=log, stderr=log,
        )  # fmt: skip

    def kill(self, kind, number):
        process = self.processes.pop((kind, number))
        process.kill()
        process.wait()

    def connect(self, **options):
        return Memory(switches=self.switches, key_file=self.key_file, **options)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("memory"))
    yield cluster
    for process in cluster.processes.values():
        process.kill()
        process.wait()


def test_lines_are_registers(cluster):
    with cluster.connect() as memory:
        assert len(memory) == (4 << 20) // 64
        assert memory.read(5) == bytes(64)
        memory.write(5, b"five")
        assert memory.read(5) == b"five".ljust(64, b"\0")
        values = {line * 37: f"value {line}".encode() for line in range(100)}
        memory.write_many(values)
        lines = list(values)[::-1] + [0, 0]
        assert [line.rstrip(b"\0") for line in memory.read_many(lines)] == [values[line] for line in lines]
        assert memory.read_many([]) == []


def test_wrong_calls_are_refused(cluster, tmp_path):
    with cluster.connect() as memory:
        for line in (-1, len(memory)):
            with pytest.raises(IndexError, match=f"line {line}"):
                memory.read(line)
        with pytest.raises(ValueError, match="65 bytes; a line has 64"):
            memory.write(1, bytes(65))
    with pytest.raises(RuntimeError, match="closed"):
        memory.read(1)
    with pytest.raises(ValueError, match="cluster.json.*inband up memory --data"):
        Memory(tmp_path)
    with pytest.raises(ValueError, match="give a directory, or switches"):
        Memory()
    with pytest.raises(ValueError, match="seconds"):
        cluster.connect(timeout_s=0)
    with pytest.raises(ValueError, match="is not an address"):
        Memory(switches=["nowhere"])
    exposed = tmp_path / "exposed.toml"
    exposed.write_text(cluster.key_file.read_text())
    exposed.chmod(0o644)
    with pytest.raises(ValueError, match="exposed.toml"):
        Memory(switches=cluster.switches, key_file=exposed)
    # Without the key there is no answer.
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="within 200 ms"):
        Memory(switches=cluster.switches, timeout_s=0.2)
    assert time.monotonic() - began < 20


def test_threads_wait_for_each_other(cluster):
    failed = []

    def count(memory, line):
        for number in range(200):
            memory.write(line, str(number).encode())
            if memory.read(line).rstrip(b"\0") != str(number).encode():
                failed.append((line, number))

    with cluster.connect() as memory:
        threads = [threading.Thread(target=count, args=(memory, line)) for line in range(1000, 1004)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed


def test_a_forked_process_cannot_use_it(cluster):
    with cluster.connect() as memory:
        memory.write(9, b"nine")
        child = os.fork()
        if child == 0:
            try:
                memory.read(9)
            except RuntimeError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert memory.read(9).startswith(b"nine")


def test_nothing_is_lost_when_a_server_and_a_switch_are_killed(cluster):
    with cluster.connect() as memory:
        memory.write_many({line: f"kept {line}".encode() for line in range(64)})
        cluster.kill("server", 1)
        cluster.kill("switch", 1)
        for line in range(64):
            try:
                memory.write(line, b"new")
            except OutcomeUnknown as unknown:
                assert unknown.lines == [line]
                memory.write(line, b"new")
        assert all(line.startswith(b"new") for line in memory.read_many(range(64)))
        cluster.start("server", 1)
        cluster.start("switch", 1)
        assert memory.read(63).startswith(b"new")


def test_without_a_majority_calls_end(cluster):
    deadline = time.monotonic() + 60

    def connect_briefly():
        while True:
            try:
                return cluster.connect(timeout_s=0.3)
            except ConnectionError:
                assert time.monotonic() < deadline

    with cluster.connect() as memory, connect_briefly() as brief:
        memory.write(3, b"three")
        while "serving" not in status(cluster, 1):
            assert time.monotonic() < deadline, "server 1 does not serve again"
            time.sleep(0.05)
        for server in (2, 3):
            cluster.processes["server", server].send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknown) as unknown:
                brief.write(3, b"four")
            assert unknown.value.lines == [3]
            with pytest.raises(TimeoutError, match="line 3"):
                brief.read(3)
        finally:
            for server in (2, 3):
                cluster.processes["server", server].send_signal(signal.SIGCONT)
        assert memory.read(3)[:5] in (b"three", b"four\0")


def status(cluster, server):
    """A server's status; None while it starts."""
    with socket.socket(socket.AF_UNIX) as control:
        try:
            control.connect(str(cluster.dir / f"server-{server}" / "control.sock"))
        except OSError:
            return ""
        control.sendall(b"null\n")
        return control.makefile().readline()
