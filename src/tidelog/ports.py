"""Is a port of this machine free?"""

from __future__ import annotations

import socket


def in_use(port: int) -> bool:
    """Does another socket have it?  Ends of old connections do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
