"""The table of docs/deploy.md: what was tried on which kernel, and its result."""

from . import image
from .paths import REPOSITORY

DOCUMENT = REPOSITORY / "docs/deploy.md"
BEGIN = "<!-- Written by `make vm-test ARGS=--record`. -->\n"
END = "<!-- End of the table. -->\n"
DRIVERS = {"virtio-net-pci": "virtio-net"}


def machine(one):
    name = DRIVERS.get(one["nic"], one["nic"])
    queues = one.get("queues", 1)
    return f"{name}, {queues} queues" if queues > 1 else name


def text(rows, machines):
    kernels = list(dict.fromkeys(kernel for kernel, *_ in rows))
    drivers = "; ".join(f"host-{one['id']}: {machine(one)}" for one in machines)
    releases = image.kernels()
    lines = [f"Interfaces: {drivers}.", "", "| tried | " + " | ".join(f"Linux {releases[kernel]}" for kernel in kernels) + " |"]
    lines.append("|---" * (len(kernels) + 1) + "|")
    for what in dict.fromkeys(what for _, what, *_ in rows):
        results = {kernel: result for kernel, tried, result, _ in rows if tried == what}
        cells = [results.get(kernel, "not tried").replace("|", "/") for kernel in kernels]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def record(rows, machines):
    document = DOCUMENT.read_text()
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{DOCUMENT} has no place for the table, between {BEGIN.strip()} and {END.strip()}")
    DOCUMENT.write_text(f"{before}{BEGIN}{text(rows, machines)}\n{END}{after}")
