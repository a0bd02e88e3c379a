"""Settings of single consumer groups (KIP-848): how often members come, and when they are dead."""

import pytest
from support.group_client import GroupClient
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.messages.alter_configs import (
    AlterableConfig as NewValue,
)
from tidelog.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
)
from tidelog.wire.messages.alter_configs import (
    AlterConfigsResource as WholeResource,
)
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

GROUP, OWN, STATIC, DEFAULT = 32, 8, 4, 5  # kind of resource; sources of a value
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.fixture
def client(broker):
    with GroupClient(broker.port) as connected:
        connected.find()
        yield connected


def alter(client, group, config, operation=0):
    rows = [
        AlterableConfig(name=name, config_operation=operation, value=value)
        for name, value in config.items()
    ]
    resource = AlterConfigsResource(resource_type=GROUP, resource_name=group, configs=rows)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    return client.call(request, IncrementalAlterConfigsResponse, 1).responses[0]


def described(client, group):
    resource = DescribeConfigsResource(
        resource_type=GROUP, resource_name=group, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    answer = client.call(request, DescribeConfigsResponse, 4).results[0]
    assert answer.error_code == 0, answer.error_message
    return {row.name: (row.value, row.config_source) for row in answer.configs}


def interval(client, group, epoch=0):
    """The heartbeat interval that a member is told at most."""
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=["none"],
        topic_partitions=[],
    )
    return client.call(request, ConsumerGroupHeartbeatResponse, 1)


def test_set_describe_list_and_delete(client):
    assert described(client, "a/b") == {SESSION: ("45000", DEFAULT), HEARTBEAT: ("5000", DEFAULT)}
    assert alter(client, "a/b", {SESSION: "50000", HEARTBEAT: "6000"}).error_code == 0
    assert described(client, "a/b") == {SESSION: ("50000", OWN), HEARTBEAT: ("6000", OWN)}
    request = ListConfigResourcesRequest(resource_types=[GROUP])
    listed = client.call(request, ListConfigResourcesResponse, 1).config_resources
    assert [(row.resource_name, row.resource_type) for row in listed] == [("a/b", GROUP)]
    assert alter(client, "a/b", {SESSION: None}, operation=1).error_code == 0
    assert described(client, "a/b") == {SESSION: ("45000", DEFAULT), HEARTBEAT: ("6000", OWN)}
    # AlterConfigs replaces all of them.
    whole = WholeResource(
        resource_type=GROUP, resource_name="a/b", configs=[NewValue(name=SESSION, value="46000")]
    )
    request = AlterConfigsRequest(resources=[whole], validate_only=False)
    assert client.call(request, AlterConfigsResponse, 2).responses[0].error_code == 0
    assert described(client, "a/b") == {SESSION: ("46000", OWN), HEARTBEAT: ("5000", DEFAULT)}
    assert alter(client, "a/b", {SESSION: None}, operation=1).error_code == 0
    assert (
        client.call(
            ListConfigResourcesRequest(resource_types=[GROUP]), ListConfigResourcesResponse, 1
        ).config_resources
        == []
    )


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({SESSION: "44999"}, "group.consumer.min.session.timeout.ms"),
        ({SESSION: "60001"}, "group.consumer.max.session.timeout.ms"),
        ({HEARTBEAT: "4999"}, "group.consumer.min.heartbeat.interval.ms"),
        ({HEARTBEAT: "15001"}, "group.consumer.max.heartbeat.interval.ms"),
        ({HEARTBEAT: "often"}, HEARTBEAT),
        ({"consumer.session.timeout": "50000"}, "did you mean consumer.session.timeout.ms?"),
    ],
)
def test_bad_values(client, config, says):
    refused = alter(client, "g", config)
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert says in refused.error_message
    assert described(client, "g")[SESSION] == ("45000", DEFAULT)


def test_a_group_has_a_name(client):
    assert alter(client, "", {SESSION: "50000"}).error_code == ErrorCode.INVALID_REQUEST


def test_members_go_by_the_settings_of_their_group(tmp_path):
    settings = {
        "group.consumer.heartbeat.interval.ms": 400,
        "group.consumer.min.heartbeat.interval.ms": 100,
        "group.consumer.min.session.timeout.ms": 200,
    }
    with LocalBroker(settings, tmp_path / "data") as broker:
        with GroupClient(broker.port) as client:
            client.find()
            assert described(client, "g")[HEARTBEAT] == ("400", STATIC)
            joined = interval(client, "g")
            assert joined.heartbeat_interval_ms == 400
            assert alter(client, "g", {HEARTBEAT: "200"}).error_code == 0
            beat = interval(client, "g", joined.member_epoch)  # the group is there already
            assert beat.heartbeat_interval_ms == 200
            both = alter(client, "g", {HEARTBEAT: "200", SESSION: "200"})
            assert "above consumer.heartbeat.interval.ms" in both.error_message
        broker.restart()
        with GroupClient(broker.port) as client:
            assert described(client, "g")[HEARTBEAT] == ("200", OWN)
            client.find()
            assert interval(client, "h").heartbeat_interval_ms == 400
            assert alter(client, "h", {SESSION: "250", HEARTBEAT: "100"}).error_code == 0
            interval(client, "h", -1)
            interval(client, "h")
            empty = {"states_filter": ["Empty"]}
            until(
                lambda: "h" in {row.group_id for row in client.list(**empty)}, "the member to die"
            )
