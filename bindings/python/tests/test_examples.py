"""Runs the examples."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
SAYS = {
    "log_counter.py": None,  # needs a cluster: test_log.py runs it
    "map.py": "[1, 2, 4, 8, 16, 32, 64, 128]",
    "dask_sum.py": "328350",
    "grid_search.py": "{'C': 1, 'gamma': 0.1}: 0.980",
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", [name for name in SAYS if SAYS[name]])
def test_example(name):
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, SAYS[name]), ended.stderr
