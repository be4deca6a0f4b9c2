"""The package's service, as systemd and apt see it, from its installation to its removal."""

import re
import time

import redis

from .cluster import DEPLOY, READY_TIMEOUT_S, Failed
from .image import run
from .scenarios import check_pause, seconds

POLL_S = 0.2
# As `TimeoutStopSec` of the unit: later, systemd kills it.
STOP_TIMEOUT_S = 15
# `systemctl restart` of three hosts.
RESTART_TIMEOUT_S = 600


def property_of(guest, name):
    return guest.run(f"systemctl show --property {name} --value inband").strip()


def expect(guest, **properties):
    for name, wanted in properties.items():
        said = property_of(guest, name)
        if said != wanted:
            raise Failed(f"host-{guest.id}: systemd says {name}={said}, not {wanted}")


def wait_until(guest, **properties):
    """systemd asks the host for its state every few seconds only."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            return expect(guest, **properties)
        except Failed:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def the_package_is_as_documented(guest):
    """Not root, /etc/inband closed, enabled and ready."""
    wait_until(guest, ActiveState="active", StatusText="ready")
    expect(guest, UnitFileState="enabled", NRestarts="0", FragmentPath="/lib/systemd/system/inband.service")
    user = guest.run(f"ps -o user= -p {property_of(guest, 'MainPID')}").strip()
    folder = guest.run("stat -c '%U:%G %a' /etc/inband /var/lib/inband").split("\n")[:2]
    if user != "inband" or folder != ["inband:inband 700", "inband:inband 755"]:
        raise Failed(f"host-{guest.id} runs as {user}; /etc/inband and /var/lib/inband: {folder}")


def reload(cluster):
    """New certificates by `systemctl reload`: the processes and the clients' connections stay."""
    clients = {host: cluster.client(host, timeout_s=READY_TIMEOUT_S) for host in cluster.hosts}

    def identity(host):
        return property_of(cluster.guests[host], "MainPID"), clients[host].client_id()

    before = {host: identity(host) for host in cluster.hosts}
    cluster.carry_out_all(DEPLOY, when="reload")
    for host in cluster.hosts:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while "SIGHUP: done" not in (said := cluster.log(host, word="SIGHUP")):
            if time.monotonic() > deadline:
                raise Failed(f"host-{host} says nothing of a reload\n{cluster.log(host)}")
            time.sleep(POLL_S)
        if "SIGHUP: certificates: " not in said or "what was read before stays in use" in said:
            raise Failed(f"host-{host} did not take the certificate\n{said}")
        wait_until(cluster.guests[host], ActiveState="active", StatusText="ready")
    after = {host: identity(host) for host in cluster.hosts}
    if before != after:
        raise Failed(f"processes and connections were {before} and are {after}")


def leader(cluster):
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        for host in cluster.hosts:
            if any(value for name, value in cluster.metrics(host).items() if name.startswith("inband_leader_active")):
                return cluster.guests[host]
        time.sleep(POLL_S)
    raise Failed("no host leads")


def stop(cluster, guest):
    """A stop of the leader hands over, and ends well within the unit's time."""
    began_s = time.monotonic()
    cluster.carry_out_all(DEPLOY, when="stop", on=f"host-{guest.id}")
    took_s = time.monotonic() - began_s
    expect(guest, ActiveState="inactive", Result="success", ExecMainStatus="0")
    if "handed over the logs" not in cluster.log(guest.id, word="handed over"):
        raise Failed(f"host-{guest.id} led and handed nothing over\n{cluster.log(guest.id)}")
    if took_s > STOP_TIMEOUT_S:
        raise Failed(f"the stop took {seconds(took_s)}")


def start(cluster, guest):
    """While it starts, systemd shows `activating` and clients get -LOADING."""
    guest.run("systemctl start --no-block inband")
    answers, states = set(), set()
    deadline = time.monotonic() + READY_TIMEOUT_S
    while "served" not in answers and time.monotonic() < deadline:
        try:
            cluster.client(guest.id).get("greeting")
            answers.add("served")
        except redis.BusyLoadingError:
            answers.add("loading")
            states.add(property_of(guest, "ActiveState"))
        except redis.RedisError as error:
            answers.add(str(error).split(":")[0])
    if not {"loading", "served"} <= answers or "activating" not in states:
        raise Failed(f"host-{guest.id} answered {answers} while it started; states while it loaded: {states}\n{cluster.log(guest.id)}")


def next_version(cluster):
    """Replaces admin's package by the same with a higher version."""
    [package] = cluster.admin.glob("inband_*_amd64.deb")
    unpacked = cluster.admin / "next"
    run("dpkg-deb", "--raw-extract", package, unpacked)
    control = unpacked / "DEBIAN/control"
    version = re.search(r"^Version: (.*)$", control.read_text(), re.MULTILINE)[1] + "+next"
    control.write_text(re.sub(r"^Version: .*$", f"Version: {version}", control.read_text(), flags=re.MULTILINE))
    package.unlink()
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", unpacked, cluster.admin / f"inband_{version}_amd64.deb")
    return version


def upgrade(cluster):
    """An upgrade restarts nothing; a restart of one host after another puts it into force."""
    version = next_version(cluster)
    before = [property_of(cluster.guests[host], "MainPID") for host in cluster.hosts]
    cluster.carry_out_all(DEPLOY, when="upgrade")
    for host, pid in zip(cluster.hosts, before):
        guest = cluster.guests[host]
        installed = guest.run("dpkg-query --show --showformat '${Version} ${Status}' inband")
        if installed != f"{version} install ok installed":
            raise Failed(f"host-{host} has the package {installed}, not {version}")
        expect(guest, MainPID=pid, ActiveState="active", UnitFileState="enabled")
        if "(deleted)" not in guest.run(f"readlink /proc/{pid}/exe"):
            raise Failed(f"host-{host} runs a program that was not replaced")
    cluster.carry_out_all(DEPLOY, when="restart", timeout_s=RESTART_TIMEOUT_S)
    for host in cluster.hosts:
        guest = cluster.guests[host]
        expect(guest, ActiveState="active", NRestarts="0")
        running = guest.run(f"readlink /proc/{property_of(guest, 'MainPID')}/exe").strip()
        if running != "/usr/bin/inband":
            raise Failed(f"host-{host} runs {running} after its restart")


def removal(cluster, guest):
    """Removing the package stops the host, and leaves its state and its secrets; it joins again once installed."""
    # A process that stops removes its socket.
    kept = "cd / && find etc/inband var/lib/inband -maxdepth 1 -not -type s | sort"
    before = guest.run(kept)
    cluster.carry_out_all(DEPLOY, when="removal", on=f"host-{guest.id}")
    guest.run("! systemctl is-active inband && ! pgrep -x inband")
    if before != guest.run(kept):
        raise Failed(f"host-{guest.id}: of /etc/inband and /var/lib/inband there was\n{before}and is\n{guest.run(kept)}")
    guest.run("apt-get install -y /tmp/inband_*_amd64.deb && systemctl enable --now --no-block inband")


def by_systemd(cluster):
    """The service from its installation to its removal, under load."""
    cluster.wait_until_whole()
    for host in cluster.hosts:
        # Earlier scenarios kill processes, and systemd counts their restarts.
        cluster.guests[host].run("systemctl reset-failed inband")
        the_package_is_as_documented(cluster.guests[host])
    load = cluster.load()
    with load.running():
        reload(cluster)
        print("      reloaded", flush=True)
        guest = leader(cluster)
        stop(cluster, guest)
        print(f"      host-{guest.id} stopped", flush=True)
        start(cluster, guest)
        cluster.wait_until_whole()
        print("      and started", flush=True)
        upgrade(cluster)
        cluster.wait_until_whole()
        print("      upgraded", flush=True)
        removal(cluster, cluster.guests[cluster.hosts[-1]])
        cluster.wait_until_whole()
    pause_s = check_pause(load, "reload, stop, start, upgrade and removal")
    cluster.check_nothing_lost(load.acknowledged)
    return f"works; longest pause {seconds(pause_s)}"
