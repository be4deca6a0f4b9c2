"""One scheduler under the load of `inband bench falcon peers`, at higher and higher rates.

    peer.py ray|dask|inband --executors 60 --sleep-ms 10 --jobs-per-s 200 --rates 250,500,1000 --seconds 2 --warm-up-s 0.5

Jobs come periodically, of so many tasks that the rate is met; each task notes when it begins, by the clock that all
processes share. For each rate a line of JSON: what was submitted and begun in the time counted, and how long tasks waited.
It ends with the first rate that is not held. `inband bench falcon peers` says what that means.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from typing import Any, Callable, Iterator

#: Submits so many tasks; returns something from which `begun` makes when they began.
Submit = Callable[[int], Any]
Begun = Callable[[list[Any]], list[int]]

#: Of the tasks submitted in the time counted, so many must begin in it, or the rate is not held.
HELD = 0.97
#: How long the last tasks may take.
DRAIN_S = 30.0
#: What workers do until all are up, and how often.
WARM_NAP_S = 1.0
WARM_UPS_MAX = 30


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def nap(seconds: float) -> int:
    begun_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    time.sleep(seconds)
    return begun_ns


def warm_up(nap_on_all: Callable[[], Any]) -> None:
    """Until every worker is up: all of them sleep side by side."""
    for _ in range(WARM_UPS_MAX):
        begin_ns = now_ns()
        nap_on_all()
        if now_ns() - begin_ns < 1.5 * WARM_NAP_S * 1e9:
            return


@contextlib.contextmanager
def ray_peer(executors: int, seconds: float) -> Iterator[tuple[Submit, Begun]]:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(num_cpus=executors, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    remote_nap = ray.remote(num_cpus=1)(nap)
    warm_up(lambda: ray.get([remote_nap.remote(WARM_NAP_S) for _ in range(executors)]))

    def submit(count: int) -> Any:
        return [remote_nap.remote(seconds) for _ in range(count)]

    def begun(submitted: list[Any]) -> list[int]:
        return ray.get([ref for refs in submitted for ref in refs], timeout=DRAIN_S)

    try:
        yield submit, begun
    finally:
        ray.shutdown()


@contextlib.contextmanager
def dask_peer(executors: int, seconds: float) -> Iterator[tuple[Submit, Begun]]:
    import dask
    from distributed import Client, LocalCluster, wait

    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    processes = 2
    with LocalCluster(
        n_workers=processes,
        threads_per_worker=executors // processes,
        processes=True,
        dashboard_address=None,
        silence_logs=50,
    ) as cluster, Client(cluster) as client:
        warm_up(lambda: client.gather(client.map(nap, [WARM_NAP_S] * executors, pure=False)))

        def submit(count: int) -> Any:
            return client.map(nap, [seconds] * count, pure=False)

        def begun(submitted: list[Any]) -> list[int]:
            all_of_them = [future for futures in submitted for future in futures]
            wait(all_of_them, timeout=DRAIN_S)
            return client.gather(all_of_them)

        yield submit, begun


@contextlib.contextmanager
def inband_peer(executors: int, seconds: float) -> Iterator[tuple[Submit, Begun]]:
    import inband

    with inband.Executor(max_workers=executors) as executor:
        warm_up(lambda: list(executor.map(nap, [WARM_NAP_S] * executors)))

        def submit(count: int) -> Any:
            return [executor.submit(nap, seconds) for _ in range(count)]

        def begun(submitted: list[Any]) -> list[int]:
            return [future.result(timeout=DRAIN_S) for futures in submitted for future in futures]

        yield submit, begun


PEERS = {"ray": ray_peer, "dask": dask_peer, "inband": inband_peer}


def quantile(ordered: list[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def measure(submit: Submit, begun: Begun, rate: float, args: argparse.Namespace) -> dict[str, Any]:
    """Load it at this rate."""
    period_ns = 1e9 / args.jobs_per_s
    tasks_per_job = rate / args.jobs_per_s
    jobs = round((args.warm_up_s + args.seconds) * args.jobs_per_s)
    start_ns = now_ns() + 50_000_000
    submitted_ns: list[int] = []
    handles: list[Any] = []
    late_ns: list[int] = []
    tasks = 0
    for number in range(jobs):
        due_ns = start_ns + round(number * period_ns)
        count = int((number + 1) * tasks_per_job) - tasks
        tasks += count
        wait_ns = due_ns - now_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        at_ns = now_ns()
        late_ns.append(at_ns - due_ns)
        if count:
            handles.append(submit(count))
            submitted_ns.extend([at_ns] * count)
    from_ns = start_ns + round(args.warm_up_s * 1e9)
    until_ns = from_ns + round(args.seconds * 1e9)
    begun_ns = begun(handles)
    # When the client itself is too slow, the rate is not held either.
    wanted = round(rate * args.seconds)
    in_time = sum(from_ns <= at_ns < until_ns for at_ns in begun_ns)
    pairs = zip(submitted_ns, begun_ns)
    delays_us = sorted((at - of) / 1000 for of, at in pairs if of >= from_ns)
    return {
        "rate_per_s": rate,
        "wanted": wanted,
        "begun": in_time,
        "is_held": in_time >= HELD * wanted,
        "p50_us": quantile(delays_us, 0.5),
        "p95_us": quantile(delays_us, 0.95),
        "late_p50_us": statistics.median(late_ns) / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--executors", type=int, required=True)
    parser.add_argument("--sleep-ms", type=float, required=True)
    parser.add_argument("--jobs-per-s", type=float, required=True)
    parser.add_argument("--rates", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    args = parser.parse_args()
    # Whatever a library writes to standard output is not ours.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with PEERS[args.peer](args.executors, args.sleep_ms / 1000) as (submit, begun):
        for rate in map(float, args.rates.split(",")):
            measured = measure(submit, begun, rate, args)
            print(json.dumps(measured), file=output, flush=True)
            if not measured["is_held"]:
                break


if __name__ == "__main__":
    main()
