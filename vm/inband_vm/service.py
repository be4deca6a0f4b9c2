"""The package's service, as systemd and apt see it."""

import time

import redis

from .cluster import READY_TIMEOUT_S, Failed
from .scenarios import check_pause, seconds

POLL_S = 0.2
# As `TimeoutStopSec` of the unit: later, systemd kills it.
STOP_TIMEOUT_S = 15


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


def the_package_is_as_documented(cluster, guest):
    """Not root, /etc/inband closed, enabled and ready."""
    wait_until(guest, ActiveState="active", StatusText="ready")
    expect(guest, UnitFileState="enabled", NRestarts="0", FragmentPath="/lib/systemd/system/inband.service")
    user = guest.run(f"ps -o user= -p {property_of(guest, 'MainPID')}").strip()
    folder = guest.run("stat -c '%U:%G %a' /etc/inband /var/lib/inband").split("\n")[:2]
    if user != "inband" or folder != ["inband:inband 700", "inband:inband 755"]:
        raise Failed(f"host-{guest.id} runs as {user}; /etc/inband and /var/lib/inband: {folder}")


def reload(cluster, guest):
    """`systemctl reload`: new log level and certificate; the process and the clients' connections stay."""
    client = cluster.client(guest.id)
    before = (property_of(guest, "MainPID"), client.client_id())
    cluster.on_admin(f"""
        inband certificate new --config host-{guest.id}.toml --authority authority --out renewed
        scp -p renewed/certificate.pem renewed/key.pem root@host-{guest.id}:/etc/inband/
        ssh root@host-{guest.id} chown inband:inband /etc/inband/certificate.pem /etc/inband/key.pem
    """)
    guest.run("printf '\\n[log]\\nlevel = \"debug\"\\n' >> /etc/inband/host.toml; systemctl reload inband")
    deadline = time.monotonic() + READY_TIMEOUT_S
    while "SIGHUP: done" not in cluster.log(guest.id, 400):
        if time.monotonic() > deadline:
            raise Failed(f"host-{guest.id} says nothing of a reload\n{cluster.log(guest.id)}")
        time.sleep(POLL_S)
    said = cluster.log(guest.id, 400)
    if "SIGHUP: certificates: " not in said or "what was read before stays in use" in said:
        raise Failed(f"host-{guest.id} did not take the certificate\n{said}")
    wait_until(guest, ActiveState="active", StatusText="ready")
    after = (property_of(guest, "MainPID"), client.client_id())
    if before != after:
        raise Failed(f"host-{guest.id}: process and connection were {before} and are {after}")


def leader(cluster):
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        for host in cluster.hosts:
            if any(value for name, value in cluster.metrics(host).items() if name.startswith("inband_leader_active")):
                return cluster.guests[host]
        time.sleep(POLL_S)
    raise Failed("no host leads")


def stop(cluster, guest):
    """`systemctl stop` of the leader hands over, and ends well within the unit's time."""
    began_s = time.monotonic()
    guest.run("systemctl stop inband")
    took_s = time.monotonic() - began_s
    expect(guest, ActiveState="inactive", Result="success", ExecMainStatus="0")
    if "handed over the logs" not in cluster.log(guest.id, 100):
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


def upgrade(guest):
    """An upgrade restarts nothing."""
    pid = property_of(guest, "MainPID")
    guest.run("apt-get install -y --reinstall /tmp/inband_*_amd64.deb")
    expect(guest, MainPID=pid, ActiveState="active", UnitFileState="enabled")


def removal(guest):
    """Removing the package stops the host, and leaves its state and its secrets; it joins again once installed."""
    kept = "cd / && find etc/inband var/lib/inband -maxdepth 1 | sort"
    before = guest.run(kept)
    guest.run("apt-get remove -y inband && ! systemctl is-active inband")
    if before != guest.run(kept):
        raise Failed(f"host-{guest.id}: of /etc/inband and /var/lib/inband there was\n{before}and is\n{guest.run(kept)}")
    guest.run("apt-get install -y /tmp/inband_*_amd64.deb && systemctl enable --now --no-block inband")


def by_systemd(cluster):
    """The service from its installation to its removal, under load."""
    cluster.wait_until_whole()
    for host in cluster.hosts:
        the_package_is_as_documented(cluster, cluster.guests[host])
    load = cluster.load()
    with load.running():
        reload(cluster, cluster.guests[cluster.hosts[1]])
        guest = leader(cluster)
        stop(cluster, guest)
        start(cluster, guest)
        cluster.wait_until_whole()
        upgrade(guest)
        removal(guest)
        cluster.wait_until_whole()
    pause_s = check_pause(load, "reload, stop, start, upgrade and removal")
    cluster.check_nothing_lost(load.acknowledged)
    return f"works; longest pause {seconds(pause_s)}"
