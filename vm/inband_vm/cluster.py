"""A cluster of guests, deployed as docs/deploy.md says."""

import os
import re
import shlex
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import redis

from . import document, load
from .agent import COMMAND_TIMEOUT_S, CommandFailed
from .paths import PROGRAM, SHIMS

DEPLOY = "docs/deploy.md"
SECURITY = "docs/security.md"
# Of the emulated machines: a host needs seconds of its processor to load the programs.
READY_TIMEOUT_S = 120
BLOCK_TIMEOUT_S = 300
POLL_S = 0.3


class Failed(Exception):
    """Something did not work as the documents say."""


class Cluster:
    """`admin` is a folder on this machine; its `ssh` and `scp` reach the guests' shells."""

    def __init__(self, guests, admin):
        self.guests = {guest.id: guest for guest in guests}
        self.admin = admin
        self.hosts = [1, 2, 3]

    def each(self, action, hosts=None):
        """At the same time on several guests; results in their order."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda host: action(self.guests[host]), hosts or self.hosts))

    def on_admin(self, script, timeout_s=BLOCK_TIMEOUT_S):
        path = f"{SHIMS}:{PROGRAM.parent}:{os.environ['PATH']}"
        done = subprocess.run(["sh", "-e", "-c", script], cwd=self.admin, env={**os.environ, "PATH": path}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False)
        if done.returncode:
            raise CommandFailed(f"admin: exit status {done.returncode} of: {script}\n{done.stdout}")
        return done.stdout

    def carry_out(self, block, timeout_s=BLOCK_TIMEOUT_S):
        """One block of a document."""
        if block.where == "admin":
            if block.file:
                (self.admin / block.file).write_text(block.text)
                return
            self.on_admin(block.text, timeout_s)
            return
        hosts = self.hosts if block.where == "every-host" else [int(block.where.removeprefix("host-"))]
        if block.file:
            self.each(lambda guest: guest.put(block.text, block.file, block.mode), hosts)
        else:
            self.each(lambda guest: guest.run(f"sh -e -c {shlex.quote(block.text)}", timeout_s=timeout_s), hosts)

    def carry_out_all(self, name, when=None, on=None, timeout_s=BLOCK_TIMEOUT_S):
        """All blocks of a document that are for this time, in order; a failure says where it stands. `on`: the host on
        which to run them instead of the one that the document has as its example."""
        blocks = [block for block in document.blocks(name) if block.when == when]
        if not blocks:
            raise Failed(f"{name} has no block with when={when}")
        for block in blocks:
            block.where = on or block.where
            try:
                self.carry_out(block, timeout_s)
            except (CommandFailed, OSError, subprocess.TimeoutExpired) as error:
                raise Failed(f"{block.place} does not work as written: {error}") from error

    def power_on(self):
        """A scenario may have left hosts without power."""
        off = [self.guests[host] for host in self.hosts if self.guests[host].process is None]
        for guest in off:
            guest.start()
        for guest in off:
            guest.wait()

    def found_again(self, edit=lambda text: text):
        """A new cluster on the first three machines: no state, each host's configuration edited."""
        self.hosts = [1, 2, 3]
        for host, guest in self.guests.items():
            if host not in self.hosts and guest.process is not None:
                guest.cut_power()
        self.power_on()
        self.each(lambda guest: guest.run("systemctl stop inband; systemctl reset-failed inband; rm -rf /var/lib/inband"))
        for host in self.hosts:
            path = self.admin / f"host-{host}.toml"
            original = self.admin / f"host-{host}.toml.original"
            if not original.exists():
                original.write_text(path.read_text())
            path.write_text(edit(original.read_text()))
        self.copy_configurations()
        self.each(lambda guest: guest.run("systemctl start --no-block inband"))

    def copy_configurations(self):
        """As the documents' own steps do."""
        for block in document.blocks(DEPLOY):
            if block.where == "admin" and "/etc/inband/host.toml" in block.text:
                self.on_admin(block.text)

    def password(self):
        path = self.admin / "password"
        return path.read_text().strip() if path.exists() else None

    def client(self, host, timeout_s=load.CLIENT_TIMEOUT_S, address=None):
        return load.client(address or self.guests[host].address, timeout_s=timeout_s, password=self.password())

    def load(self, hosts=None):
        return load.Load([self.guests[host].address for host in hosts or self.hosts], {"password": self.password()})

    def wait_until_served(self, hosts=None, timeout_s=READY_TIMEOUT_S):
        """Until a SET and a GET succeed at each of these replicas."""
        deadline = time.monotonic() + timeout_s
        for host in hosts or self.hosts:
            said = None
            while True:
                try:
                    client = self.client(host)
                    client.set(f"ready:{host}", "yes")
                    said = client.get(f"ready:{host}")
                    if said == b"yes":
                        break
                except redis.RedisError as error:
                    said = error
                if time.monotonic() > deadline:
                    raise Failed(f"host-{host} did not serve within {timeout_s} s: {said}\n{self.log(host)}")
                time.sleep(POLL_S)

    def metrics(self, host):
        """Values by name with labels."""
        with urllib.request.urlopen(f"http://{self.guests[host].address}:9464/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))}

    def wait_until_voting(self, hosts=None, timeout_s=READY_TIMEOUT_S):
        """Until the acceptors of these hosts vote in every partition."""
        deadline = time.monotonic() + timeout_s
        for host in hosts or self.hosts:
            while True:
                try:
                    voting = [value for name, value in self.metrics(host).items() if name.startswith("inband_acceptor_voting")]
                    if voting and all(voting):
                        break
                except OSError:
                    pass
                if time.monotonic() > deadline:
                    raise Failed(f"the acceptor of host-{host} did not vote within {timeout_s} s\n{self.log(host)}")
                time.sleep(POLL_S)

    def wait_until_whole(self):
        self.wait_until_served()
        self.wait_until_voting()

    def log(self, host, lines=30, word=""):
        """The last lines of a host's log, of those with this word."""
        found = f"journalctl -u inband -o cat --no-pager | grep -F {shlex.quote(word)} | tail -{lines}"
        return self.guests[host].run(found, check=False)

    def data_planes(self):
        """What each host's `auto` chose at its last start."""
        chosen = {}
        for host in self.hosts:
            found = re.findall(rf"host-{host}: dataplane (\S+) \(", self.log(host, 400))
            chosen[host] = found[-1] if found else "unknown"
        return chosen

    def check_data_planes(self):
        """Each host chose the best that its driver and kernel allow."""
        chosen = self.data_planes()
        for host, plane in chosen.items():
            best = self.guests[host].best_data_plane()
            if best and plane != best:
                raise Failed(f"host-{host} ({self.guests[host].nic}) runs on {plane}, not on {best}\n{self.log(host)}")
        return ", ".join(f"host-{host} {plane}" for host, plane in chosen.items())

    def check_nothing_lost(self, acknowledged):
        """Every acknowledged write is at every replica."""
        if not acknowledged:
            raise Failed("no write was acknowledged, so this shows nothing")
        for host in self.hosts:
            lost = load.missing(self.guests[host].address, acknowledged, {"password": self.password()})
            if lost:
                raise Failed(f"host-{host} lost {len(lost)} of {len(acknowledged)} acknowledged writes, for instance {lost[0]}")
