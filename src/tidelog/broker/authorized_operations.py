"""The ``authorized_operations`` of answers: what the client may do, as bits (KIP-430).

There is no authorizer, so a client may do all that the type of resource knows, as in a Kafka
without one.  A client that has not asked gets ``NOT_ASKED``.
"""

from __future__ import annotations

from enum import IntEnum

NOT_ASKED = -(2**31)


class Operation(IntEnum):
    """Kafka's numbers of the operations of ACLs."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


_OF_EACH = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_TOPIC = _bits(
    *_OF_EACH,
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
)
_GROUP = _bits(*_OF_EACH, Operation.READ, Operation.DELETE)
_CLUSTER = _bits(
    *_OF_EACH,
    Operation.CREATE,
    Operation.ALTER,
    Operation.CLUSTER_ACTION,
    Operation.IDEMPOTENT_WRITE,
)


def on_topic(asked: bool = True) -> int:
    return _TOPIC if asked else NOT_ASKED


def on_group(asked: bool) -> int:
    return _GROUP if asked else NOT_ASKED


def on_cluster(asked: bool) -> int:
    return _CLUSTER if asked else NOT_ASKED
