"""Real brokers for tests: yours and ours.

    from tidelog.testing import LocalBroker

    with LocalBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

Each broker is a process of its own on a free port, with its data in a temporary
folder, so it can be killed and started again like a real one.  With pytest, the fixture
``tidelog_broker`` gives a fresh one to each test (add ``tidelog.testing.plugin``).
"""

from tidelog.testing.cluster import LocalCluster
from tidelog.testing.local import LocalBroker

__all__ = ["LocalBroker", "LocalCluster"]
