"""Empty tasks and long arrays through one executor, from one client: `inband bench falcon python`.

    tasks.py inband|processes|dask|ray --executors 2 --tasks 5000 --array-bytes 8000000 --arrays 20 --seconds-max 10

Prints lines of JSON with `metric`, `variant` and `value`:

    tasks_per_s     empty tasks, all submitted and then all awaited: with `submit`, and with `map`
    cpu_us          CPU time per task of `submit`, of a part: a thread of this process, or all processes that it started
    switches        voluntary context switches per task of that part
    array_mb_per_s  a task takes an array (or bytes) and returns it; bytes there and back per second, one task at a time
    copy_mb_per_s   bytes copied per second by this process, between arrays that no cache holds

Inband and `concurrent.futures.ProcessPoolExecutor` (processes) have the same number of processes that run tasks, Dask a
process with one thread for each of them, Ray one process for each CPU it is given.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import glob
import json
import os
import statistics
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable, Iterator, NamedTuple, Optional

#: Buffers of the copy, together more than any cache.
COPY_BUFFERS_BYTES = 128 << 20
COPIES = 32


def nothing(_: Any = None) -> None:
    """The empty task. It is of `__main__`, as in most scripts."""


def same(value: Any) -> Any:
    return value


class System(NamedTuple):
    """How a system runs calls."""

    #: Submits one; what it returns goes to `results`.
    submit: Callable[..., Any]
    #: Waits for all of these.
    results: Callable[[list[Any]], list[Any]]
    #: `map` of the system, if it is not made of `submit`.
    map: Optional[Callable[..., Iterator[Any]]] = None


def of_futures(futures: list[Any]) -> list[Any]:
    return [future.result() for future in futures]


@contextlib.contextmanager
def inband_system(executors: int) -> Iterator[System]:
    import inband

    with inband.Executor(max_workers=executors) as executor:
        yield System(executor.submit, of_futures, executor.map)


@contextlib.contextmanager
def processes_system(executors: int) -> Iterator[System]:
    with ProcessPoolExecutor(executors) as executor:
        yield System(executor.submit, of_futures, executor.map)


@contextlib.contextmanager
def dask_system(executors: int) -> Iterator[System]:
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    with LocalCluster(
        n_workers=executors, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster, Client(cluster) as client:
        # Without `pure=False` it runs equal calls once.
        yield System(lambda fn, *args: client.submit(fn, *args, pure=False), client.gather)


@contextlib.contextmanager
def ray_system(executors: int) -> Iterator[System]:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(num_cpus=executors, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    remote = {fn: ray.remote(num_cpus=1)(fn) for fn in (nothing, same)}
    try:
        yield System(lambda fn, *args: remote[fn].remote(*args), ray.get)
    finally:
        ray.shutdown()


SYSTEMS = {"inband": inband_system, "processes": processes_system, "dask": dask_system, "ray": ray_system}


class Use(NamedTuple):
    """CPU time, and how often a thread went to sleep."""

    cpu_ns: int
    switches: int


def used_by(task: str) -> Use:
    """By a thread, whose directory in /proc this is; nothing if it has ended."""
    try:
        with open(f"{task}/schedstat", encoding="ascii") as file:
            cpu_ns = int(file.read().split()[0])
        with open(f"{task}/status", encoding="utf-8") as file:
            switches = next(line for line in file if line.startswith("voluntary_ctxt_switches"))
        return Use(cpu_ns, int(switches.split()[1]))
    except (FileNotFoundError, ProcessLookupError):
        return Use(0, 0)


def children() -> list[int]:
    """The processes that this one has started."""
    found: list[int] = []
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            found.extend(map(int, file.read().split()))
    return found


def used() -> "dict[str, Use]":
    """By part."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    parts: "dict[str, Use]" = collections.defaultdict(lambda: Use(0, 0))

    def add(part: str, use: Use) -> None:
        parts[part] = Use(*map(sum, zip(parts[part], use)))

    for task in glob.glob("/proc/self/task/*"):
        with contextlib.suppress(FileNotFoundError):
            with open(f"{task}/comm", encoding="utf-8") as file:
                name = names.get(int(os.path.basename(task)), file.read().strip())
            add(name.rstrip("0123456789").rstrip("-_"), used_by(task))
    for child in children():
        for task in glob.glob(f"/proc/{child}/task/*"):
            add("task processes", used_by(task))
    return parts


class Say:
    def __init__(self, file: Any) -> None:
        self._file = file

    def __call__(self, metric: str, variant: str, value: float) -> None:
        print(json.dumps({"metric": metric, "variant": variant, "value": value}), file=self._file, flush=True)


def empty_tasks(system: System, tasks: int, say: Say) -> None:
    before, begun = used(), time.perf_counter()
    system.results([system.submit(nothing) for _ in range(tasks)])
    seconds = time.perf_counter() - begun
    after = used()
    say("tasks_per_s", "submit", tasks / seconds)
    for part, use in after.items():
        cpu_ns, switches = (now - then for now, then in zip(use, before.get(part, Use(0, 0))))
        if cpu_ns > 0:
            say("cpu_us", part, cpu_ns / 1000 / tasks)
            say("switches", part, switches / tasks)
    if system.map is not None:
        begun = time.perf_counter()
        for _ in system.map(nothing, range(tasks)):
            pass
        say("tasks_per_s", "map", tasks / (time.perf_counter() - begun))


def arrays(system: System, array_bytes: int, count: int, seconds_max: float, say: Say) -> None:
    values: "list[tuple[str, Any]]" = [("bytes", os.urandom(array_bytes))]
    with contextlib.suppress(ImportError):
        import numpy

        values.append(("numpy", numpy.frombuffer(values[0][1], dtype=numpy.uint8).copy()))
    for variant, value in values:
        taken_s: list[float] = []
        # One more, which is not counted.
        end_s = time.monotonic() + seconds_max
        while len(taken_s) < count + 1 and (len(taken_s) < 2 or time.monotonic() < end_s):
            begun = time.perf_counter()
            (got,) = system.results([system.submit(same, value)])
            # All of it is read, because it may only be mapped by now.
            is_same = got == value if variant == "bytes" else bool((got == value).all())
            taken_s.append(time.perf_counter() - begun)
            if not is_same:
                raise RuntimeError(f"the task returned {len(got)} other bytes than the {len(value)} it was given")
            del got
        say("array_mb_per_s", variant, 2 * array_bytes / statistics.median(taken_s[1:]) / 1e6)


def copy(array_bytes: int, say: Say) -> None:
    buffers = [bytearray(os.urandom(array_bytes)) for _ in range(max(2, COPY_BUFFERS_BYTES // array_bytes))]
    taken_s = []
    for number in range(COPIES):
        to, of = (buffers[(number + more) % len(buffers)] for more in (0, len(buffers) // 2))
        begun = time.perf_counter()
        memoryview(to)[:] = of
        taken_s.append(time.perf_counter() - begun)
    say("copy_mb_per_s", "", array_bytes / statistics.median(taken_s) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--executors", type=int, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--array-bytes", type=int, required=True)
    parser.add_argument("--arrays", type=int, required=True)
    parser.add_argument("--seconds-max", type=float, required=True, help="for the arrays of one kind")
    args = parser.parse_args()
    # Whatever a library writes to standard output is not ours.
    say = Say(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with SYSTEMS[args.system](args.executors) as system:
        # Until every process is up and has what it needs.
        warm_up = max(args.tasks // 10, 10 * args.executors)
        system.results([system.submit(nothing) for _ in range(warm_up)])
        empty_tasks(system, args.tasks, say)
        arrays(system, args.array_bytes, args.arrays, args.seconds_max, say)
    copy(args.array_bytes, say)


if __name__ == "__main__":
    main()
