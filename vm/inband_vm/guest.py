"""One virtual machine: power, and a root shell over the management network."""

import os
import shlex
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import agent, image, network
from .agent import COMMAND_TIMEOUT_S
from .paths import CACHE

BOOT_TIMEOUT_S = 240
POLL_S = 0.5


@dataclass
class Guest:
    """`nic` is QEMU's model of the interface under test; `queues` above 1 need virtio-net."""

    id: int
    kernel: str
    nic: str = "virtio-net-pci"
    queues: int = 1
    cpus: int = 1
    memory_mib: int = 512
    mtu: int = 1500
    accelerator: str = "tcg"
    folder: Path = field(default=None)
    process: subprocess.Popen = None

    @property
    def address(self):
        return f"192.0.2.{self.id}"

    @property
    def management_address(self):
        return f"10.99.0.{self.id}"

    def best_data_plane(self):
        """What `auto` must find: virtio-net has native XDP, e1000e has not, and generic mode needs Linux 6.6."""
        if self.nic == "virtio-net-pci":
            return "xdp"
        return "xdp-generic" if tuple(map(int, self.kernel.split("."))) >= (6, 6) else "udp"

    def start(self):
        """Power on; `wait` for the shell."""
        assert self.process is None, f"guest {self.id} is on"
        disk = self.folder / f"{self.id}.qcow2"
        if not disk.exists():
            image.run("qemu-img", "create", "-q", "-f", "qcow2", "-b", CACHE / "root.ext4", "-F", "raw", disk)
        network.make_tap(f"lan{self.id}", "lan", self.queues, self.mtu)
        network.make_tap(f"mgmt{self.id}", "mgmt", 1)
        release = image.kernels()[self.kernel]
        several = f",queues={self.queues}" if self.queues > 1 else ""
        lan = f"{self.nic},netdev=lan,mac=52:54:00:77:00:0{self.id}"
        if self.queues > 1:
            lan += f",mq=on,vectors={2 * self.queues + 2}"
        if self.mtu != 1500:
            lan += f",host_mtu={self.mtu}" if self.nic.startswith("virtio") else ""
        command = [
            # It ends with this process, however that ends.
            "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-name", f"inband-{self.id}", "-accel", self.accelerator, "-cpu", "max", "-smp", str(self.cpus),
            "-m", str(self.memory_mib), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", CACHE / f"boot/vmlinuz-{release}", "-initrd", CACHE / f"boot/initrd.img-{release}",
            "-append", f"root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet mitigations=off no_timer_check vm.id={self.id}",
            "-drive", f"file={disk},if=virtio,format=qcow2,cache=writeback",
            "-netdev", f"tap,id=lan,ifname=lan{self.id},script=no,downscript=no{several}", "-device", lan,
            "-netdev", f"tap,id=mgmt,ifname=mgmt{self.id},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=mgmt,mac=52:54:00:99:00:0{self.id}",
            "-device", "virtio-rng-pci", "-serial", f"file:{self.folder}/{self.id}.console",
        ]
        with open(self.folder / f"{self.id}.qemu", "ab") as log:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self, timeout_s=BOOT_TIMEOUT_S):
        """Until the guest takes commands."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"guest {self.id} ended by itself: see {self.folder}/{self.id}.qemu")
            try:
                self.run("true", timeout_s=10)
                return
            except (OSError, agent.CommandFailed):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"guest {self.id} did not start within {timeout_s} s: see {self.folder}/{self.id}.console") from None
                time.sleep(POLL_S)

    def cut_power(self):
        """What was not synced in the guest is lost."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def run(self, script, timeout_s=COMMAND_TIMEOUT_S, check=True, stdin=b""):
        """What a root shell prints, both streams; `stdin` follows the script for a command that reads it."""
        status, text = agent.run(self.management_address, script, timeout_s, stdin)
        if check and status != 0:
            raise agent.CommandFailed(f"guest {self.id}: exit status {status} of: {script}\n{text}")
        return text

    def put(self, content, path, mode=0o644):
        """Write a file and check its size after the copy."""
        self.run(f"mkdir -p $(dirname {shlex.quote(path)})")
        agent.put(self.management_address, content if isinstance(content, bytes) else content.encode(), path, mode)


def accelerator():
    """`kvm` if a guest really boots with it (the device alone proves nothing), else `tcg`."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    release = next(iter(image.kernels().values()))
    with tempfile.TemporaryDirectory() as folder:
        console = Path(folder) / "console"
        probe = subprocess.Popen(
            ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-no-user-config", "-display", "none",
             "-no-reboot", "-kernel", str(CACHE / f"boot/vmlinuz-{release}"), "-append", "console=ttyS0 panic=-1", "-serial", f"file:{console}"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 15
        # Without a root file system a kernel that runs panics, and `panic=-1` ends the machine.
        while probe.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        ended = probe.poll() is not None
        if not ended:
            probe.kill()
            probe.wait()
        return "kvm" if ended and console.exists() and "Linux version" in console.read_text(errors="replace") else "tcg"


def management_address(name):
    """`root@host-2` or `host-2`: where the tests reach that guest."""
    user, at, host = name.rpartition("@")
    if user not in ("", "root") or not host.startswith("host-"):
        raise ValueError(f"{name!r} is none of root@host-1, root@host-2, ...")
    return f"10.99.0.{int(host.removeprefix('host-'))}"
