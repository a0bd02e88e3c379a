"""What each API needs, and what a client may do where there is no authorizer."""

from tidelog.broker import authorized_operations
from tidelog.broker.broker import Broker  # noqa: F401  (fills the registry)
from tidelog.broker.registry import REGISTRY
from tidelog.broker.rights import Operation, Resource, Right

FOR_EVERY_CLIENT = {18, 60}  # ApiVersions, DescribeCluster
BETWEEN_BROKERS = {4, 5, 6, 7, 56}


def test_every_api_says_what_it_needs() -> None:
    without = {api.key for api in REGISTRY.values() if not api.needs}
    assert without == FOR_EVERY_CLIENT, "all others need a right, as in Kafka"


def test_only_brokers_may_do_what_brokers_ask_each_other() -> None:
    cluster_action = Right(Operation.CLUSTER_ACTION, Resource.CLUSTER)
    only = {api.key for api in REGISTRY.values() if api.needs == ((cluster_action,),)}
    assert only == BETWEEN_BROKERS


def test_both_or_one_of_them() -> None:
    both, one = REGISTRY[8].needs, REGISTRY[19].needs
    assert both == (
        (Right(Operation.READ, Resource.GROUP),),
        (Right(Operation.READ, Resource.TOPIC),),
    )
    assert one == (
        (Right(Operation.CREATE, Resource.CLUSTER), Right(Operation.CREATE, Resource.TOPIC)),
    )


def test_the_bits_are_those_of_kafka_without_an_authorizer() -> None:
    assert authorized_operations.on_topic() == 3576
    assert authorized_operations.on_group(True) == 3400
    assert authorized_operations.on_cluster(True) == 8096
    assert authorized_operations.on_cluster(False) == -(2**31)
