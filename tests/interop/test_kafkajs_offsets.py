"""kafkajs where offsets are out of range, and its fetchOffsets, setOffsets and resetOffsets.

kafkajs commits -1 or -2 where it wants the end or the beginning, and finds out later where
that is.
"""

import pytest
from interop.groups import Groups
from interop.kafkajs_driver import kafkajs
from interop.peers import needs_kafkajs
from support.waiting import until

pytestmark = [needs_kafkajs, pytest.mark.timeout(300)]
RECORDS = 5


@pytest.fixture
def groups(broker, topic):
    with Groups(broker, topic, partitions=1) as running:
        running.values = running.send(RECORDS)  # creates the topic
        yield running


def at(topic, offset):
    return {"topic": topic, "partition": 0, "offset": offset}


def offsets(topic, *, resolve=False):
    argument = {"groupId": topic, "topics": [topic], "resolveOffsets": resolve}
    return ["admin", "fetchOffsets", argument]


def found(answer):
    """The offset of partition 0, the only one."""
    [described] = answer
    [partition] = described["partitions"]
    return partition["offset"]


def test_a_seek_out_of_range_begins_at_the_beginning(groups, topic):
    member = groups.start("kafkajs", topic, seek=[at(topic, "100")])
    groups.seen([member], groups.values)
    assert member.values == groups.values
    assert not member.told("error")
    member.stop()
    [answer] = kafkajs(groups.broker.bootstrap, offsets(topic))
    assert found(answer) == str(RECORDS)


def test_a_seek_out_of_range_goes_to_the_end(groups, topic):
    seek = [at(topic, "100")]
    member = groups.start("kafkajs", topic, seek=seek, from_beginning=False)
    until(lambda: groups.send(1) and member.values, "a record behind the end to be seen")
    assert not set(groups.values) & set(member.values)
    assert not member.told("error")


def test_a_seek_before_the_first_record(groups, topic):
    delete = {"topic": topic, "partitions": [{"partition": 0, "offset": "3"}]}
    kafkajs(
        groups.broker.bootstrap,
        ["admin", "fetchTopicOffsets", topic],  # its admin must have heard of the topic
        ["admin", "deleteTopicRecords", delete],
    )
    member = groups.start("kafkajs", topic, seek=[at(topic, "1")])
    groups.seen([member], groups.values[3:])
    assert member.values == groups.values[3:]


@pytest.mark.slow  # kafkajs takes eight seconds to set an offset
def test_reset_offsets(groups, topic):
    def set_to(offset):
        place = {"partition": 0, "offset": offset}
        return ["admin", "setOffsets", {"groupId": topic, "topic": topic, "partitions": [place]}]

    def reset(earliest):
        return ["admin", "resetOffsets", {"groupId": topic, "topic": topic, "earliest": earliest}]

    never, _, two, _, latest, last, _, earliest, first = kafkajs(
        groups.broker.bootstrap,
        *(offsets(topic), set_to("2"), offsets(topic)),
        *(reset(False), offsets(topic), offsets(topic, resolve=True)),
        *(reset(True), offsets(topic), offsets(topic, resolve=True)),
    )
    assert [found(never), found(two)] == ["-1", "2"]
    assert [found(latest), found(last)] == ["-1", str(RECORDS)]
    assert [found(earliest), found(first)] == ["-2", "0"]
    member = groups.start("kafkajs", topic)
    groups.seen([member], groups.values)
    assert member.values == groups.values
