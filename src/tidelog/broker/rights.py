"""What a client must be allowed to do for each API: Kafka's operations on kinds of resources.

The registry says it for every API (``needs=``), so that an authorizer can ask in one place.  There
is none yet: every client may do everything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Resource(IntEnum):
    """Kafka's numbers of the kinds of resources that ACLs are about."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


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


class Right(NamedTuple):
    """An operation on a kind of resource."""

    operation: Operation
    resource: Resource


# All of these are needed.  Of a group one is: which, depends on what the request names (the
# settings of a topic or of a broker), or any of them will do (to create a topic).
Needs = tuple[tuple[Right, ...], ...]

_ON_EACH = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
OPERATIONS: dict[Resource, tuple[Operation, ...]] = {
    Resource.TOPIC: (
        *_ON_EACH,
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
    ),
    Resource.GROUP: (*_ON_EACH, Operation.READ, Operation.DELETE),
    Resource.CLUSTER: (
        *_ON_EACH,
        Operation.CREATE,
        Operation.ALTER,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
    ),
    Resource.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
}


def parse_needs(text: str) -> Needs:
    """``READ GROUP and READ TOPIC``, ``CREATE CLUSTER or CREATE TOPIC``; empty: nothing."""
    groups = text.split(" and ") if text else []
    return tuple(tuple(_right(right) for right in group.split(" or ")) for group in groups)


def _right(text: str) -> Right:
    operation, resource = text.split()
    right = Right(Operation[operation], Resource[resource])
    assert right.operation in OPERATIONS[right.resource], f"ACLs have no {text}"
    return right
