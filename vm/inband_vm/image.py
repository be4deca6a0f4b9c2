"""The guests' disk: one root file system with Debian 12's kernel and the backported one.

Made from Debian packages only, from the mirror that this machine's apt uses, and kept in target/vm until what it is
made of changes.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

from . import document
from .paths import CACHE, PROGRAM
from .paths import PACKAGES as PACKAGES_BUILT


def our_package():
    """What `make deb` has built; it must be newer than the program that runs on this machine."""
    found = list(PACKAGES_BUILT.glob("inband_*_amd64.deb"))
    if len(found) != 1:
        raise SystemExit(f"vm-test: {PACKAGES_BUILT} has {len(found)} packages, not one; run make deb")
    if found[0].stat().st_mtime < PROGRAM.stat().st_mtime:
        raise SystemExit(f"vm-test: {found[0]} is older than {PROGRAM}; run make deb")
    return found[0]


def depends(package):
    """What a package file needs, by the first name of each alternative."""
    fields = run("dpkg-deb", "--field", package, "Depends").strip()
    return [field.split("|")[0].split("(")[0].strip() for field in fields.split(",")]


def documented_packages():
    """What docs/deploy.md tells a host to install. Guests do not reach the mirror, so the disk has it already; a package
    that the page forgets is missing in the guests, too. Of our package, it has the dependencies."""
    lines = [line for block in document.blocks("docs/deploy.md") if block.file is None for line in block.text.splitlines()]
    installs = [line.split() for line in lines if line.startswith("apt-get install ")]
    words = [word for words in installs for word in words[2:] if not word.startswith("-")]
    found = [word for word in words if not word.endswith(".deb")]
    if len(found) == len(words):
        raise SystemExit("vm-test: docs/deploy.md does not install the package")
    return found + depends(our_package())


BASE_PACKAGES = [
    "systemd-sysv", "udev", "dbus", "kmod", "initramfs-tools", "iproute2", "ethtool", "procps", "iputils-ping",
    "linux-image-amd64", "e2fsprogs", "curl",
]
DISK_SIZE = "2000M"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCES = [Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")]
SUITE = "bookworm"
# Modules that the initial RAM disk needs to reach the root file system, and no others: it boots in half the time.
INITRD_MODULES = ["virtio_pci", "virtio_blk", "ext4", "crc32c", "crc32c_generic"]

AGENT_PORT = 5514

FILES = {
    # The tests talk to a root shell on the management network, which exists only inside the test's namespace.
    "etc/systemd/system/vm-agent.socket": f"""[Unit]
DefaultDependencies=no
After=vm-net.service
Requires=vm-net.service
[Socket]
ListenStream={AGENT_PORT}
Accept=yes
MaxConnections=64
[Install]
WantedBy=multi-user.target
""",
    "etc/systemd/system/vm-agent@.service": """[Unit]
DefaultDependencies=no
CollectMode=inactive-or-failed
[Service]
ExecStart=-/bin/bash -s
Environment=HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WorkingDirectory=/root
StandardInput=socket
StandardOutput=socket
StandardError=socket
KillMode=process
""",
    "etc/systemd/system/vm-net.service": """[Unit]
DefaultDependencies=no
After=systemd-udev-trigger.service
Before=network.target network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/sbin/vm-net
[Install]
WantedBy=multi-user.target network-online.target
""",
    # vm.id=N on the kernel's command line. The network under test is eth0, the tests' own is mgmt0; a guest with
    # more has eth1. They are told apart by MAC address, because drivers are loaded in any order.
    "usr/local/sbin/vm-net": """#!/bin/bash
set -eu
for word in $(cat /proc/cmdline); do case $word in vm.*=*) declare "${word%%=*}" 2>/dev/null || true; eval "${word//./_}";; esac; done
name_of() { for i in /sys/class/net/*; do [ "$(cat $i/address)" = "$1" ] && basename $i && return; done; return 1; }
place() {
    for attempt in $(seq 300); do name=$(name_of $1) && break; sleep 0.1; done
    ip link set $name down; ip link set $name name $2
}
hostname vm$vm_id
ip link set lo up
place 52:54:00:77:00:0$vm_id vmtmp0
place 52:54:00:99:00:0$vm_id mgmt0
ip link set vmtmp0 name eth0
ip addr add 10.99.0.$vm_id/24 dev mgmt0
ip link set mgmt0 up
ip addr add 192.0.2.$vm_id/24 dev eth0
ip link set eth0 up
""",
    "etc/fstab": "/dev/vda / ext4 defaults,noatime 0 1\n",
    "etc/hostname": "vm\n",
    "etc/initramfs-tools/conf.d/vm": "MODULES=list\nCOMPRESS=gzip\nRESUME=none\n",
    "etc/initramfs-tools/modules": "\n".join(INITRD_MODULES) + "\n",
    # A power cut must lose what was not synced, and nothing else: no journal that grows, no cleaning timers.
    "etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\nForwardToConsole=no\n",
    "etc/machine-id": "",
}
MASKED = [
    "e2scrub_all.timer", "e2scrub_reap.service", "apt-daily.timer", "apt-daily-upgrade.timer", "fstrim.timer",
    "dpkg-db-backup.timer", "systemd-networkd-wait-online.service", "systemd-udev-settle.service", "getty@tty1.service",
    "systemd-timesyncd.service", "logrotate.timer", "man-db.timer", "systemd-pstore.service", "systemd-logind.service",
]
ENABLED = {
    "multi-user.target.wants": ["vm-agent.socket", "vm-net.service"],
    "network-online.target.wants": ["vm-net.service"],
}


def run(*args, **options):
    """A command whose failure is an error with what it printed."""
    # What is read from the output is English.
    environment = os.environ | {"LC_ALL": "C.UTF-8"}
    done = subprocess.run([str(arg) for arg in args], text=True, capture_output=True, env=environment, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, args))}: exit status {done.returncode}\n{done.stderr or done.stdout}")
    return done.stdout


def mirror():
    """The mirror that this machine's apt uses for Debian."""
    for path in SOURCES:
        if not path.exists():
            continue
        for line in path.read_text().splitlines():
            words = line.split()
            if line.startswith("URIs:"):
                return words[1]
            if line.startswith("deb "):
                return next(word for word in words if "://" in word)
    raise RuntimeError(f"no Debian mirror in {' or '.join(map(str, SOURCES))}")


def add_backported_kernel(root):
    """Add the newest kernel of the suite's backports."""
    apt = CACHE / "apt"
    for name in ["lists/partial", "cache/archives/partial", "packages"]:
        (apt / name).mkdir(parents=True, exist_ok=True)
    sources = apt / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror()} {SUITE}-backports main\n")
    options = ["-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=/dev/null", "-o",
               f"Dir::State::lists={apt}/lists", "-o", f"Dir::Cache={apt}/cache", "-o", "APT::Sandbox::User=root"]
    run("apt-get", *options, "update", "-qq")
    depends = run("apt-cache", *options, "depends", "linux-image-amd64")
    package = [line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line][-1]
    run("apt-get", *options, "download", "-qq", package, cwd=apt / "packages")
    [archive] = (apt / "packages").glob(f"{package}_*.deb")
    unpacked = CACHE / "backported"
    shutil.rmtree(unpacked, ignore_errors=True)
    run("dpkg", "-x", archive, unpacked)
    # Not straight into the root: its /lib is a link, which the package's folder of that name would replace.
    shutil.copytree(unpacked / "lib/modules", root / "usr/lib/modules", dirs_exist_ok=True, symlinks=True)
    shutil.copytree(unpacked / "boot", root / "boot", dirs_exist_ok=True)
    shutil.rmtree(unpacked)


def make_base(root, packages):
    """Debian and the two kernels, without what is ours: the long part."""
    shutil.rmtree(root, ignore_errors=True)
    sources = next(path for path in SOURCES if path.exists())
    run("mmdebstrap", "--mode=root", "--variant=minbase", "--aptopt=Apt::Install-Recommends \"false\"",
        "--aptopt=Acquire::Languages \"none\"", "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
        f"--include={','.join(packages)}", SUITE, root, sources)
    add_backported_kernel(root)
    run("chroot", root, "passwd", "-d", "root")


def add_files(root):
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "usr/local/sbin/vm-net").chmod(0o755)
    units = root / "etc/systemd/system"
    links = {name: "/dev/null" for name in MASKED}
    for target, names in ENABLED.items():
        (units / target).mkdir(exist_ok=True)
        links |= {f"{target}/{name}": f"../{name}" for name in names}
    for name, target in links.items():
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to(target)


def kernels():
    """Release by short name ("6.1", "6.12") of the kernels in the image, the oldest first."""
    releases = [path.name.removeprefix("vmlinuz-") for path in (CACHE / "boot").glob("vmlinuz-*")]
    releases.sort(key=lambda release: [int(part) for part in release.split(".")[:2]])
    return {".".join(release.split(".")[:2]): release for release in releases}


def check_release():
    """The program that is built here has to run in the guests: both are of one Debian release."""
    release = platform.freedesktop_os_release()
    if release.get("VERSION_CODENAME") != SUITE:
        raise SystemExit(f"vm-test: the guests are Debian {SUITE}; this machine has {release.get('PRETTY_NAME', 'another system')}, and a program "
                         f"that is built here does not start there: run this on Debian {SUITE}")


def ensure():
    """Make the root disk and the kernels unless they are there already."""
    check_release()
    CACHE.mkdir(parents=True, exist_ok=True)
    root = CACHE / "root"
    packages = [*BASE_PACKAGES, *sorted(documented_packages())]
    once("base", [packages, SUITE], lambda: make_base(root, packages), "installing Debian for the guests (two minutes, once)")
    once("disk", [packages, SUITE, FILES, MASKED, ENABLED, DISK_SIZE], lambda: make_disk(root), "making the guests' disk")


def once(name, inputs, make, message):
    """Unless it was made from the same inputs already."""
    made_of = hashlib.sha256(repr(inputs).encode()).hexdigest()
    stamp = CACHE / f"{name}.stamp"
    if stamp.exists() and stamp.read_text() == made_of:
        return
    print(f"vm: {message}", flush=True)
    make()
    stamp.write_text(made_of)


def make_disk(root):
    add_files(root)
    for release in sorted(path.name for path in (root / "usr/lib/modules").iterdir()):
        run("chroot", root, "depmod", release)
        run("chroot", root, "mkinitramfs", "-o", f"/boot/initrd.img-{release}", release)
    shutil.rmtree(CACHE / "boot", ignore_errors=True)
    shutil.copytree(root / "boot", CACHE / "boot")
    disk = CACHE / "root.ext4"
    disk.unlink(missing_ok=True)
    run("mke2fs", "-q", "-t", "ext4", "-d", root, disk, DISK_SIZE)
