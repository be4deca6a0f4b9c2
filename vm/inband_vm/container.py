"""One machine as a container of systemd: the same disk and documents, on this machine's kernel, at its full speed."""

import os
import signal
import subprocess
from pathlib import Path

from . import guest, image, network
from .paths import CACHE

# What nspawn's filter and its capabilities leave out, and packet programs need.
ALLOWED_SYSTEM_CALLS = "bpf perf_event_open"
MAC_OF = {"lan": "52:54:00:77:00:0{}", "mgmt": "52:54:00:99:00:0{}"}


class Container(guest.Guest):
    """A power cut kills all of its processes; what they have written stays."""

    @property
    def place(self):
        return self.folder / str(self.id)

    @property
    def namespace(self):
        return f"{network.NAMESPACE}-{self.id}"

    def best_data_plane(self):
        """That of a veth at a bridge depends on this machine's kernel."""
        return None

    def start(self):
        assert self.process is None, f"guest {self.id} is on"
        root = self.place / "root"
        for name in ["root", "upper", "work"]:
            (self.place / name).mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={CACHE / 'root'},upperdir={self.place / 'upper'},workdir={self.place / 'work'}"
        image.run("mount", "-t", "overlay", "overlay", "-o", layers, root)
        # It has the kernel's command line of this machine.
        names = image.FILES["usr/local/sbin/vm-net"].replace("$(cat /proc/cmdline)", f"vm.id={self.id}")
        (root / "usr/local/sbin/vm-net").write_text(names)
        quietly("ip", "netns", "del", self.namespace)
        network.ip("netns", "add", self.namespace)
        for bridge in MAC_OF:
            self.connect(bridge)
        command = [
            "setpriv", "--pdeathsig", "KILL", "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe",
            f"--directory={root}", f"--machine=vm{self.id}", "--capability=all",
            f"--network-namespace-path=/run/netns/{self.namespace}", f"--system-call-filter={ALLOWED_SYSTEM_CALLS}",
        ]
        environment = os.environ | {"SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}
        with open(self.folder / f"{self.id}.console", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def connect(self, bridge):
        """One end of a veth is at the bridge, the other in the container."""
        own, mac = f"{bridge}{self.id}", MAC_OF[bridge].format(self.id)
        quietly("ip", "link", "del", own)
        network.ip("link", "add", own, "type", "veth", "peer", "name", bridge, "address", mac, "netns", self.namespace)
        network.ip("link", "set", own, "master", bridge)
        network.ip("link", "set", own, "up")
        # No network card splits what the kernel joins, and generic XDP must not see it (docs/bugs.md).
        quietly("ip", "netns", "exec", self.namespace, "ethtool", "-K", bridge, "tso", "off", "gso", "off", "tx-udp-segmentation", "off")

    def wait(self, timeout_s=guest.BOOT_TIMEOUT_S):
        super().wait(timeout_s)
        # Frames that XDP sends on a veth arrive only if the other end polls, which begins only when both are up.
        for switch in ["off", "on"]:
            image.run("ethtool", "-K", f"lan{self.id}", "gro", switch)

    def cut_power(self):
        # Its first process survives nspawn, with all others; if it is killed, they are, too.
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for child in children.split():
            os.kill(int(child), signal.SIGKILL)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None
        image.run("umount", self.place / "root")
        quietly("ip", "netns", "del", self.namespace)


def quietly(*command):
    subprocess.run(command, capture_output=True, check=False)
