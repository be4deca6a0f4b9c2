"""What is tried on the guests. Each returns one sentence for the table; it raises if something does not work."""

import re
import shutil
import tempfile
import time
from pathlib import Path

import redis

from . import checksums, image, network
from .cluster import DEPLOY, SECURITY, Failed

# Longest time that clients may wait when one of three hosts is lost: suspicion and one take-over, on guests that are
# emulated and share two cores. On real machines it is milliseconds (`inband bench failover`).
PAUSE_MAX_S = 5.0
VALUE_LEN_MAX_BYTES = 1 << 20
LARGE_TIMEOUT_S = 120


def seconds(value):
    return f"{value:.1f} s"


def check_pause(load, what, hosts=None):
    pause_s = load.pause_s(hosts)
    for text, count in sorted(load.errors().items()):
        print(f"      {count} x {text}")
    print(f"      {len(load.acknowledged)} writes acknowledged, longest pause of all clients {seconds(pause_s)}", flush=True)
    if pause_s > PAUSE_MAX_S:
        raise Failed(f"{what}: no client was served for {seconds(pause_s)}, {seconds(PAUSE_MAX_S)} are allowed")
    return pause_s


def deploy_by_the_documents(cluster):
    """docs/deploy.md, step by step, on new machines."""
    shutil.copy(image.our_package(), cluster.admin)
    cluster.carry_out_all(DEPLOY)
    cluster.wait_until_whole()
    return f"works: {cluster.check_data_planes()}"


def secure_by_the_documents(cluster):
    """docs/security.md: keys are rotated under load."""
    load = cluster.load()
    with load.running():
        cluster.carry_out_all(SECURITY)
    check_pause(load, "key rotation")
    cluster.check_nothing_lost(load.acknowledged)
    return "works"


def values_up_to_the_limit(cluster):
    """SET and GET of 1 B to 1 MiB, each read at another replica; one byte more is refused."""
    for length in [0, 1, 7, 64, 65, 1000, 1376, 1377, 4096, 65536, VALUE_LEN_MAX_BYTES]:
        value = bytes(number % 251 for number in range(length))
        cluster.client(cluster.hosts[0], LARGE_TIMEOUT_S).set(f"value:{length}", value)
        got = cluster.client(cluster.hosts[1], LARGE_TIMEOUT_S).get(f"value:{length}")
        if got != value:
            raise Failed(f"a value of {length} B comes back as {len(got or b'')} B")
    try:
        cluster.client(cluster.hosts[0], LARGE_TIMEOUT_S).set("too-long", b"x" * (VALUE_LEN_MAX_BYTES + 1))
    except redis.ResponseError as error:
        return f"works up to {VALUE_LEN_MAX_BYTES} B; a longer value is refused ({error})"
    raise Failed(f"a value of {VALUE_LEN_MAX_BYTES + 1} B was taken")


def kill_a_process(cluster):
    """kill -9 of a host's process, of each host in turn; systemd starts it again."""
    pauses = []
    for host in cluster.hosts:
        load = cluster.load()
        with load.running(after_s=8):
            cluster.guests[host].run("systemctl kill --kill-whom=main -s KILL inband")
        pauses.append(check_pause(load, f"kill -9 of host-{host}"))
        cluster.wait_until_whole()
        cluster.check_nothing_lost(load.acknowledged)
    cluster.check_data_planes()
    return f"works; longest pause {seconds(max(pauses))}"


def power_off_one(cluster):
    """A machine loses its power, and comes back later."""
    guest = cluster.guests[cluster.hosts[0]]
    load = cluster.load()
    with load.running(after_s=10):
        guest.cut_power()
    pause_s = check_pause(load, f"power-off of host-{guest.id}")
    guest.start()
    guest.wait()
    cluster.wait_until_whole()
    cluster.check_nothing_lost(load.acknowledged)
    return f"works; longest pause {seconds(pause_s)}"


def rolling_restart(cluster):
    """Every host is restarted, one after another, while clients write."""
    load = cluster.load()
    with load.running():
        for host in cluster.hosts:
            # Until it has been stopped, the cluster looks whole.
            cluster.guests[host].run(
                "old=$(systemctl show -P MainPID inband); systemctl restart --no-block inband; "
                'while [ "$(systemctl show -P MainPID inband)" = "$old" ]; do sleep 0.1; done'
            )
            cluster.wait_until_whole()
    pause_s = check_pause(load, "rolling restart")
    cluster.check_nothing_lost(load.acknowledged)
    return f"works; longest pause {seconds(pause_s)}"


def replace_a_member(cluster):
    """A host is lost for good; a fourth machine takes its place."""
    old, new = cluster.hosts[-1], 4
    spare = cluster.guests[new]
    spare.start()
    spare.wait()
    example = (cluster.admin / "host-1.toml").read_text()
    text = re.sub(r"^node = 1$", f"node = {new}", example, flags=re.MULTILINE)
    text += f'\n[[node]]\nid = {new}\nname = "host-{new}"\naddress = "{spare.address}:7400"\nroles = ["acceptor", "replica", "leader", "controller"]\n'
    (cluster.admin / f"host-{new}.toml").write_text(text)
    name = f"host-{new}"
    cluster.on_admin(f"""
        inband certificate new --config {name}.toml --authority authority --out {name}
        scp inband_*_amd64.deb root@{name}:/tmp/
        ssh root@{name} "apt-get install -y /tmp/inband_*_amd64.deb"
        scp -p {name}.toml root@{name}:/etc/inband/host.toml
        scp -p keys.toml password {name}/ca.pem {name}/certificate.pem {name}/key.pem root@{name}:/etc/inband/
        ssh root@{name} chown -R inband:inband /etc/inband
    """)
    cluster.guests[old].cut_power()
    load = cluster.load([host for host in cluster.hosts if host != old])
    with load.running():
        spare.run("systemctl enable --now --no-block inband")
        said = spare.run(f"inband member replace host-{old} --config /etc/inband/host.toml", timeout_s=180)
    print("      " + said.strip().replace("\n", "\n      "))
    cluster.hosts = [host for host in cluster.hosts if host != old] + [new]
    check_pause(load, "member replace")
    cluster.wait_until_whole()
    cluster.check_nothing_lost(load.acknowledged)
    return "works"


def power_cut_of_all(cluster):
    """`sync`: all machines lose their power at once, under load."""
    cluster.found_again(lambda text: text.replace('durability = "memory"', 'durability = "sync"'))
    cluster.wait_until_whole()
    load = cluster.load()
    with load.running(after_s=0):
        for host in cluster.hosts:
            cluster.guests[host].cut_power()
    for host in cluster.hosts:
        cluster.guests[host].start()
    for host in cluster.hosts:
        cluster.guests[host].wait()
    cluster.wait_until_whole()
    cluster.check_nothing_lost(load.acknowledged)
    return f"works; {len(load.acknowledged)} acknowledged writes, none lost"


def smaller_mtu(cluster):
    """All interfaces have an MTU of 1450."""
    cluster.each(lambda guest: guest.run("systemctl stop inband; ip link set eth0 mtu 1450"))
    try:
        cluster.found_again(lambda text: text.replace('[cluster]\n', '[cluster]\nmtu = 1450\n'))
        cluster.wait_until_whole()
        load = cluster.load()
        with load.running():
            cluster.guests[cluster.hosts[0]].run("systemctl kill --kill-whom=main -s KILL inband")
        pause_s = check_pause(load, "kill -9 at MTU 1450")
        cluster.wait_until_whole()
        cluster.check_nothing_lost(load.acknowledged)
    finally:
        cluster.each(lambda guest: guest.run("systemctl stop inband; ip link set eth0 mtu 1500"))
    return f"works; longest pause after kill -9 {seconds(pause_s)}"


def vlan(cluster):
    """The cluster is on a VLAN interface; `auto` finds what works there."""
    cluster.each(lambda guest: guest.run(
        "systemctl stop inband; ip link add link eth0 name eth0.7 type vlan id 7; "
        f"ip addr del {guest.address}/24 dev eth0; ip addr add {guest.address}/24 dev eth0.7; ip link set eth0.7 up"))
    host = cluster.hosts[0]
    try:
        with tempfile.TemporaryDirectory() as folder:
            with network.Capture(Path(folder) / "vlan.pcap") as capture:
                found_on_vlan(cluster, host)
            checksums.check(capture, "vlan 7 and udp port 7400", packets_min=100)
        planes = ", ".join(sorted(set(cluster.data_planes().values())))
    finally:
        cluster.each(lambda guest: guest.run(
            f"systemctl stop inband; ip link del eth0.7; ip addr add {guest.address}/24 dev eth0", check=False))
    return f"works: {planes}"


def found_on_vlan(cluster, host):
    cluster.found_again(lambda text: text.replace('interface = "eth0"', 'interface = "eth0.7"'))
    script = "REDISCLI_AUTH=$(cat /etc/inband/password) redis-cli -e %s"
    deadline = time.monotonic() + 120
    while True:
        said = cluster.guests[host].run(script % "set vlan yes", check=False)
        if said.strip() == "OK":
            break
        if time.monotonic() > deadline:
            raise Failed(f"no SET succeeded on the VLAN: {said}\n{cluster.log(host)}")
        time.sleep(1)
    for other in cluster.hosts:
        deadline = time.monotonic() + 60
        while cluster.guests[other].run(script % "get vlan", check=False).strip() != "yes":
            if time.monotonic() > deadline:
                raise Failed(f"host-{other} does not read what was written\n{cluster.log(other)}")
            time.sleep(1)


def ipv6_only(cluster):
    """Addresses of IPv6 are refused by one sentence."""
    host = cluster.hosts[0]
    guest = cluster.guests[host]
    guest.run("sed 's/192\\.0\\.2\\.\\([0-9]*\\):7400/[2001:db8::\\1]:7400/' /etc/inband/host.toml > /tmp/ipv6.toml")
    said = guest.run("inband run --config /tmp/ipv6.toml; test $? != 0").strip()
    if "IPv6" not in said or len(said.splitlines()) > 3:
        raise Failed(f"an IPv6 address is not refused by a sentence that says so: {said}")
    return f"refused: {said.splitlines()[-1]}"


def neighbour_changes(cluster):
    """A host's MAC address changes, as when a machine is replaced by another with the same IP address. Then another
    host is lost, so that the two left must reach each other at the new address."""
    cluster.found_again()
    cluster.wait_until_whole()
    guest = cluster.guests[cluster.hosts[1]]
    load = cluster.load([host for host in cluster.hosts if host != guest.id])
    with load.running(after_s=10):
        guest.run(f"ip link set eth0 down; ip link set eth0 address 52:54:00:77:01:0{guest.id}; ip link set eth0 up")
    pause_s = check_pause(load, "MAC address")
    cluster.wait_until_whole()
    cluster.check_nothing_lost(load.acknowledged)
    lost = cluster.guests[cluster.hosts[2]]
    load = cluster.load([host for host in cluster.hosts if host != lost.id])
    with load.running(after_s=8):
        lost.run("systemctl stop inband")
    pause_s = max(pause_s, check_pause(load, "another host stops after the MAC address has changed"))
    lost.run("systemctl start --no-block inband")
    cluster.wait_until_whole()
    guest.run(f"ip link set eth0 down; ip link set eth0 address 52:54:00:77:00:0{guest.id}; ip link set eth0 up")
    return f"works, also when another host stops then; longest pause {seconds(pause_s)}"


# Nothing of the host but its own files and the network: no capabilities, none to be had, no root.
SANDBOX = """[Service]
User=nobody
Group=nogroup
AmbientCapabilities=
CapabilityBoundingSet=
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectKernelTunables=yes
RestrictNamespaces=yes
StateDirectory=inband
"""


def plain_user(cluster):
    """A plain user without any capability, in a sandbox as of a container: `auto` takes `udp` and says why."""
    drop_in = "/etc/systemd/system/inband.service.d/sandbox.conf"
    cluster.each(lambda guest: guest.put(SANDBOX, drop_in))
    cluster.each(lambda guest: guest.run("chown -R nobody:nogroup /etc/inband; systemctl daemon-reload"))
    try:
        cluster.found_again()
        cluster.each(lambda guest: guest.run("chown -R nobody:nogroup /etc/inband; systemctl restart --no-block inband"))
        cluster.wait_until_whole()
        planes = set(cluster.data_planes().values())
        if planes != {"udp"}:
            raise Failed(f"the data plane is {planes}, not udp")
    finally:
        cluster.each(lambda guest: guest.run(f"systemctl stop inband; rm {drop_in}; chown -R inband:inband /etc/inband; systemctl daemon-reload"))
    return "works: udp"
