"""The ``authorized_operations`` of answers: what the client may do, as bits (KIP-430).

There is no authorizer, so a client may do all that the type of resource knows, as in a Kafka
without one.  A client that has not asked gets ``NOT_ASKED``.
"""

from __future__ import annotations

from tidelog.broker.rights import OPERATIONS, Resource

NOT_ASKED = -(2**31)

_BITS = {
    resource: sum(1 << operation for operation in operations)
    for resource, operations in OPERATIONS.items()
}


def on_topic(asked: bool = True) -> int:
    return _BITS[Resource.TOPIC] if asked else NOT_ASKED


def on_group(asked: bool) -> int:
    return _BITS[Resource.GROUP] if asked else NOT_ASKED


def on_cluster(asked: bool) -> int:
    return _BITS[Resource.CLUSTER] if asked else NOT_ASKED
