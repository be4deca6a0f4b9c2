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


def columns_of(rows):
    """{kernel's release: {what was tried: result}} of one run."""
    releases, columns = image.kernels(), {}
    for kernel, what, result, _ in rows:
        columns.setdefault(releases.get(kernel, kernel), {})[what] = result.replace("|", "/")
    return columns


def text(columns, machines):
    drivers = "; ".join(f"host-{one['id']}: {machine(one)}" for one in machines)
    lines = [f"Interfaces: {drivers}; each has a second one, for administration, which Inband leaves alone.", "", "| tried | " + " | ".join(f"Linux {release}" for release in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for what in dict.fromkeys(what for results in columns.values() for what in results):
        cells = [results.get(what, "not tried") for results in columns.values()]
        lines.append(f"| {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def recorded(table):
    """The columns of a table that `text` wrote."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|") and not line.startswith("|---")]
    rows = [[cell.strip() for cell in line] for line in lines]
    if not rows:
        return {}
    releases = [name.removeprefix("Linux ") for name in rows[0][1:]]
    return {release: {row[0]: row[number] for row in rows[1:]} for number, release in enumerate(releases, 1)}


def record(rows, machines):
    """Kernels that this run did not try keep their columns, if the image still has them."""
    document = DOCUMENT.read_text()
    before, begin, rest = document.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise RuntimeError(f"{DOCUMENT} has no place for the table, between {BEGIN.strip()} and {END.strip()}")
    known = recorded(old) | columns_of(rows)
    columns = {release: known[release] for release in image.kernels().values() if release in known}
    DOCUMENT.write_text(f"{before}{BEGIN}{text(columns, machines)}\n{END}{after}")
