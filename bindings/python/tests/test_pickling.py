"""Checks that functions which are pickled once are those whose pickle says the same each time."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from inband import Executor, pickling

factor = 2
numbers = [1]


def scaled(number, more=1):
    return factor * number + more + int(math.sqrt(4))


def by_value(source, **known):
    """The function `f` of a script; pytest's modules can be imported."""
    known["__name__"] = "__main__"
    exec(source, known)
    return known["f"]


def call(dumped):
    pickled, file = dumped
    assert file is None
    function, args, kwargs = pickle.loads(pickled)
    return function(*args, **kwargs)


def is_constant(function):
    return pickling._sent(function) is not None


def test_a_constant_function_is_pickled_and_unpickled_once():
    function = by_value("def f(a, b=2): return a * b * k + m.floor(1.5)", k=3, m=math)
    assert is_constant(function)
    one, other = (pickling.dump_call(function, (n,), {}) for n in (1, 2))
    assert pickle.loads(one[0])[0] is pickle.loads(other[0])[0]
    assert [call(one), call(other)] == [7, 13]


def test_what_has_changed_is_pickled_again():
    function = by_value("def f(): return k, len(())", k=3)
    assert call(pickling.dump_call(function, (), {})) == (3, 0)
    function.__globals__["k"] = 4
    assert call(pickling.dump_call(function, (), {})) == (4, 0)
    function.__globals__["len"] = 5
    function.__code__ = (lambda: 8).__code__
    assert call(pickling.dump_call(function, (), {})) == 8
    function.__globals__["k"] = numbers
    function.__code__ = (lambda: k).__code__  # noqa: F821
    assert not is_constant(function)


@pytest.mark.parametrize(
    "source",
    [
        "def f(): return numbers",
        "def f(a=numbers): return a",
        "def f(*, a=1): return a",
        "def f():\n global k\n k = 1",
        "def f():\n def g():\n  global k\n  k = 1\n return g",
        "def f(): return globals()",
        "def f(): return f.__name__",
        "def f(): return path.os.path",
        "def f():\n return 1\nf.a = 1",
        "def g(a):\n def f(): return a\n return f\nf = g(1)",
    ],
)
def test_what_may_change_is_pickled_each_time(source):
    assert not is_constant(by_value(source, numbers=numbers, path=__import__("concurrent.futures")))


def test_functions_of_modules_are_pickled_by_name():
    assert not is_constant(scaled)
    assert call(pickling.dump_call(scaled, (1,), {"more": 2})) == 6
    assert not is_constant(abs)


def test_values_of_every_kind_come_back():
    for value in (None, True, 1 << 80, 1.5, 2j, "a", b"b", [1], {"a": (b"c",)}, math, scaled):
        assert pickle.loads(pickling.dump_result(value, None)) == value
    with Executor(max_workers=1) as executor:
        assert executor.submit(scaled, 1, more=[]).exception(30) is not None
        kept = [executor.submit(by_value("def f(n, k=2): return n * k"), n) for n in range(20)]
        assert [future.result(30) for future in kept] == [2 * n for n in range(20)]


def test_the_benchmark_measures_this_package():
    script = Path(__file__).parents[3] / "bench" / "falcon" / "tasks.py"
    for system in ("inband", "processes"):
        arguments = [system, "--executors=2", "--tasks=20", "--array-bytes=100000", "--arrays=2", "--seconds-max=5"]
        ran = subprocess.run([sys.executable, script, *arguments], capture_output=True, check=True, text=True)
        for metric in ("tasks_per_s", "cpu_us", "array_mb_per_s", "copy_mb_per_s"):
            assert f'"metric": "{metric}"' in ran.stdout, ran
