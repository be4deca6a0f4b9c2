"""Ports of 127.0.0.1 for programs under test, reserved as in crates/inband-testing/src/port.rs."""

import os
import socket

# Below those that the kernel gives to clients, which might take a port before the program under test binds it.
PORTS = range(10_000, 20_000)
PORTS_BETWEEN_PROCESSES = 331

reservations = []


def free_port():
    """A port that nobody has; until this process ends, it is returned neither here nor in another process."""
    first = os.getpid() * PORTS_BETWEEN_PROCESSES
    for number in range(len(PORTS)):
        port = PORTS[(first + number) % len(PORTS)]
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0inband-port-{port}")
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with socket.socket(socket.AF_INET, kind) as free:
                    free.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        reservations.append(reservation)
        return port
    raise RuntimeError(f"no free port in {PORTS}")
