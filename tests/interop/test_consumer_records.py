"""Kafka's own kafka-dump-log reads the records of consumer groups that we write."""

import json
import re

import pytest
from interop.building import heavy
from interop.java import NEWEST, WITH_TOOLS, dump_log
from support.group_client import ConsumerGroupClient

from tidelog.testing import LocalBroker

pytestmark = heavy("java", "mvn")


@pytest.mark.parametrize("libraries", WITH_TOOLS)
def test_kafka_reads_our_records(tmp_path, libraries):
    with LocalBroker({"offsets.topic.num.partitions": 1}, data=tmp_path / "data") as broker:
        with ConsumerGroupClient(broker.port) as client:
            client.create_topic("clicks", partitions=4)
            client.find()
            old = client.join("g", topics=["clicks"])
            client.sync("g", old, {old.member_id: b""})
            more = {"instance_id": "one", "rack_id": "r", "server_assignor": "range"}
            client.beat("g", "new", subscribed_topic_regex="cl.*", **more)
            client.join("g", old.member_id, topics=["clicks"])
        broker.stop()
    (path,) = (tmp_path / "data" / "__consumer_offsets-0").glob("*.log")
    told = dump_log(libraries, "--offsets-decoder", "--files", path)
    last = {}
    for key, payload in re.findall(r"key: (\{.*\}) payload: (.*)$", told, re.M):
        found = json.loads(key)
        name = found["data"].get("memberId") or found["data"].get("regularExpression") or ""
        value = None if payload == "<DELETE>" else json.loads(payload)["data"]
        last[int(found["type"]), name.replace(old.member_id, "old")] = value
    assert set(last) == {
        *((2, ""), (3, ""), (6, ""), (16, "cl.*")),
        *((kind, name) for kind in (5, 7, 8) for name in ("new", "old")),
    }
    assert last[2, ""] is None  # it is not a classic group any more
    assert last[3, ""]["epoch"] == last[6, ""]["assignmentEpoch"] == 2
    assert last[16, "cl.*"]["topics"] == ["clicks"]
    new, classic = last[5, "new"], last[5, "old"]
    assert (new["instanceId"], new["rackId"], new["serverAssignor"]) == ("one", "r", "range")
    assert (new["subscribedTopicNames"], new["subscribedTopicRegex"]) == (["clicks"], "cl.*")
    assert classic["classicMemberMetadata"]["sessionTimeoutMs"] == 60_000
    assert [p["name"] for p in classic["classicMemberMetadata"]["supportedProtocols"]] == ["range"]
    for name, partitions in (("new", [0, 1]), ("old", [2, 3])):
        assert last[7, name]["topicPartitions"][0]["partitions"] == partitions
        current = last[8, name]
        assert (current["memberEpoch"], current["state"]) == (2, 0)
        assert current["assignedPartitions"][0]["partitions"] == partitions
        if libraries == NEWEST:  # KIP-1251
            assert current["assignedPartitions"][0]["assignmentEpochs"] == [2, 2]
