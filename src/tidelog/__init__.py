"""tidelog: a Kafka-compatible log in Python.

    from tidelog import Broker

Read ``broker/__init__.py`` for what happens to a request, ``log/__init__.py`` for what
happens on disk, and ``docs/design.md`` for why.
"""

from typing import TYPE_CHECKING, Any

from tidelog.version import __version__

__all__ = ["Broker", "__version__"]

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


def __getattr__(name: str) -> Any:
    """Import the broker only when it is asked for: the command line starts quicker."""
    if name == "Broker":
        from tidelog.broker.broker import Broker

        return Broker
    raise AttributeError(name)
