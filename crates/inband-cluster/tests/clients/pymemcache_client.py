"""The Python client "pymemcache" against a memcached server: write|check HOST PORT. What write leaves behind, check finds."""

import sys

from pymemcache.client.base import Client

KEYS = 20
LARGE = b"inband" * 20_000


def write(client: Client) -> None:
    for n in range(KEYS):
        assert client.set(f"py{n}", str(n), noreply=False)
    assert client.set_many({"py-many": "m", "py-large": LARGE}, noreply=False) == []
    assert not client.add("py0", "x", noreply=False)
    assert client.add("py-added", "a", noreply=False)
    assert not client.replace("py-absent", "x", noreply=False)
    assert client.append("py-added", "b", noreply=False)
    assert client.prepend("py-added", "_", noreply=False)
    value, unique = client.gets("py2")
    assert value == b"2"
    assert client.cas("py2", "swapped", unique, noreply=False) is True
    assert client.cas("py2", "again", unique, noreply=False) is False
    assert client.incr("py1", 41) == 42
    assert client.decr("py5", 2) == 3
    assert client.incr("py-absent", 1) is None
    assert client.delete("py3", noreply=False)
    assert not client.delete("py3", noreply=False)
    assert client.touch("py4", 1000, noreply=False)
    client.set("py-quiet", "q", noreply=True)
    assert client.get("py-quiet") == b"q"
    assert client.version().startswith(b"1.")
    assert b"pid" in client.stats()


def check(client: Client) -> None:
    expected = {f"py{n}": str(n).encode() for n in range(KEYS) if n != 3}
    expected |= {"py1": b"42", "py2": b"swapped", "py5": b"3", "py-added": b"_ab", "py-many": b"m"}
    expected |= {"py-large": LARGE, "py-quiet": b"q"}
    found = client.get_many([*expected, "py3", "py-absent"])
    assert found == expected, {key: found.get(key) for key in expected if found.get(key) != expected[key]}


with_client = {"write": write, "check": check}[sys.argv[1]]
with_client(Client((sys.argv[2], int(sys.argv[3])), connect_timeout=20, timeout=20, no_delay=True))
