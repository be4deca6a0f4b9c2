"""The namespace with the guests' networks: `lan`, which is under test, and `mgmt`, for the tests' own commands.

A device at the end of `lan` without checksum offload lets tcpdump see every frame as it would be on a cable.
"""

import fcntl
import os
import signal
import subprocess
import sys

from .image import run
from .paths import CACHE

NAMESPACE = "inband-vm"
INSIDE_ENV = "INBAND_VM_INSIDE"
HOST_ID = 254


def ip(*args):
    return run("ip", *args)


def lock():
    """One run at a time: they would share the namespace and the guests' disk."""
    if os.environ.get(INSIDE_ENV):
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    # Held until the process ends.
    lock.file = open(CACHE / "lock", "w", encoding="ascii")
    try:
        fcntl.flock(lock.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"vm-test: another run holds {CACHE}/lock; wait for its end")


def enter():
    """Make the namespace and go on in it, as a new process. Signals go to that, and it cleans up."""
    if os.environ.get(INSIDE_ENV):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return
    subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)
    ip("netns", "add", NAMESPACE)
    # Not `ip netns exec`: containers need the control groups in /sys.
    inside = subprocess.Popen(["nsenter", f"--net=/run/netns/{NAMESPACE}", sys.executable, *sys.argv],
                              env={**os.environ, INSIDE_ENV: "1"}, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: inside.send_signal(number))
    status = inside.wait()
    subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)
    sys.exit(status if status >= 0 else 128 - status)


def make():
    """The two bridges and the listening end."""
    ip("link", "set", "lo", "up")
    for name, address in [("lan", f"192.0.2.{HOST_ID}/24"), ("mgmt", f"10.99.0.{HOST_ID}/24")]:
        ip("link", "add", name, "type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")
        ip("addr", "add", address, "dev", name)
        ip("link", "set", name, "up")
    ip("link", "add", "tapped", "type", "veth", "peer", "name", "listen")
    for name in ["tapped", "listen"]:
        run("ethtool", "-K", name, "tx", "off", "tso", "off", "gso", "off")
    ip("link", "set", "tapped", "master", "lan")
    ip("link", "set", "tapped", "up")
    ip("link", "set", "listen", "up")


def make_tap(name, bridge, queues, mtu=1500):
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)
    ip("tuntap", "add", name, "mode", "tap", "vnet_hdr", *(["multi_queue"] if queues > 1 else []))
    ip("link", "set", name, "mtu", str(mtu), "master", bridge)
    ip("link", "set", name, "up")


class Capture:
    """What was on the network under test, read by tcpdump, which checks lengths and checksums by itself."""

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        ip("link", "set", "lan", "type", "bridge", "ageing_time", "0")
        self.process = subprocess.Popen(["tcpdump", "-i", "listen", "-U", "-w", self.path, "-s", "0", "-B", "8192"],
                                        stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        ip("link", "set", "lan", "type", "bridge", "ageing_time", "30000")

    def lines(self, expression=""):
        out = run("tcpdump", "-r", self.path, "-vv", "-n", "-e", *expression.split())
        # tcpdump writes a packet on several lines; the further ones are indented.
        return [" ".join(line.split()) for line in out.replace("\n\t", " ").replace("\n    ", " ").splitlines()]
