"""What the commands share that use librdkafka."""

from __future__ import annotations

import logging


def silent_logger() -> logging.Logger:
    """librdkafka's own log is for its authors; errors come through callbacks."""
    logger = logging.getLogger("tidelog.librdkafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
