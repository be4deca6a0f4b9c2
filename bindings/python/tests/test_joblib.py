"""Tests joblib's backend: calls run on executors, in order, and a failure cancels the others."""

import os
import time

import joblib
import pytest

import inband.joblib

inband.joblib.register()

WORKERS = 3


@pytest.fixture(scope="module", autouse=True)
def backend():
    with joblib.parallel_config(backend="inband", max_workers=WORKERS):
        yield


def where(number):
    return number, os.getpid()


def fails_at(number, bad):
    if number == bad:
        raise KeyError(number)
    time.sleep(0.01)
    return number


def test_calls_run_elsewhere_and_results_keep_their_order():
    results = joblib.Parallel()(joblib.delayed(where)(number) for number in range(200))
    assert [number for number, _ in results] == list(range(200))
    pids = {pid for _, pid in results}
    assert os.getpid() not in pids and 1 <= len(pids) <= WORKERS


def test_as_many_jobs_as_executors_unless_told():
    assert joblib.effective_n_jobs(-1) == WORKERS
    assert joblib.effective_n_jobs(-2) == WORKERS - 1
    assert joblib.effective_n_jobs(-9) == 1
    assert joblib.effective_n_jobs(2) == 2
    with pytest.raises(ValueError, match="n_jobs == 0"):
        joblib.Parallel(n_jobs=0)(joblib.delayed(where)(number) for number in range(2))


def test_a_failure_is_raised_and_the_next_call_works():
    with pytest.raises(KeyError, match="7"):
        joblib.Parallel()(joblib.delayed(fails_at)(number, 7) for number in range(500))
    results = joblib.Parallel()(joblib.delayed(fails_at)(number, -1) for number in range(5))
    assert results == list(range(5))


def test_a_failure_ends_calls_that_run():
    def sleep_or_fail(number):
        if number == 0:
            raise KeyError(number)
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(KeyError):
        joblib.Parallel()(joblib.delayed(sleep_or_fail)(number) for number in range(WORKERS))
    assert joblib.Parallel()(joblib.delayed(where)(number) for number in range(WORKERS))
    assert time.monotonic() - began < 50, "nobody waited for the sleepers"


def test_results_come_as_a_generator_too():
    results = joblib.Parallel(return_as="generator")(joblib.delayed(pow)(number, 2) for number in range(30))
    assert list(results) == [number**2 for number in range(30)]


def test_a_call_may_make_parallel_calls():
    def inner(number):
        return sum(joblib.Parallel(n_jobs=2)(joblib.delayed(pow)(n, 2) for n in range(number)))

    results = joblib.Parallel()(joblib.delayed(inner)(number) for number in range(6))
    assert results == [sum(n * n for n in range(number)) for number in range(6)]
