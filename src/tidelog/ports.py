"""Is a port free, or does a process listen there?"""

from __future__ import annotations

import socket

_PROBE_SECONDS = 1.0


def in_use(port: int) -> bool:
    """Does another socket have it?  Ends of old connections do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def answers(host: str, port: int) -> bool:
    """Does a process listen there?"""
    try:
        with socket.create_connection((host, port), _PROBE_SECONDS):
            return True
    except OSError:
        return False
