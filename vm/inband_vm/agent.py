"""Commands in a guest: the protocol of the shell that vm-agent.socket starts for every connection."""

import shlex
import socket

from .image import AGENT_PORT

COMMAND_TIMEOUT_S = 120
CONNECT_TIMEOUT_S = 20
# The last line of what a shell prints: the exit status of the script.
STATUS_MARK = "--vm-exit-status:"


class CommandFailed(Exception):
    """A command in a guest ended with an exit status that is not 0."""


def run(address, script, timeout_s=COMMAND_TIMEOUT_S, stdin=b""):
    """Exit status and what a root shell printed, both streams; `stdin` follows the script for a command that reads it."""
    with socket.create_connection((address, AGENT_PORT), timeout=min(timeout_s, CONNECT_TIMEOUT_S)) as connection:
        connection.settimeout(timeout_s)
        # One line for the shell: it has read it to the end before any command of it reads `stdin`.
        connection.sendall(f"(\n{script}\n); echo {STATUS_MARK}$?; exit\n".encode() + stdin)
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while chunk := connection.recv(65536):
            said += chunk
    text, mark, status = said.decode(errors="replace").rpartition(STATUS_MARK)
    if not mark:
        raise CommandFailed(f"{address}: the shell ended without a status: {script}\n{said.decode(errors='replace')}")
    return int(status), text


def put(address, content, path, mode):
    """Write a file; its size is checked after the copy."""
    path = shlex.quote(str(path))
    script = (f"head -c {len(content)} > {path}.new && chmod {mode:o} {path}.new && "
              f"[ $(stat -c %s {path}.new) = {len(content)} ] && mv {path}.new {path} || {{ cat > /dev/null; false; }}")
    status, text = run(address, script, stdin=content)
    if status != 0:
        raise CommandFailed(f"{address}: cannot write {path}: {text}")
