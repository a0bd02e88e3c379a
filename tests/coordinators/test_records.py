"""The records of ``__consumer_offsets``, byte by byte as Kafka writes them."""

import pytest

from tidelog.coordinators.groups.records import (
    SERDE,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tidelog.coordinators.records import CoordinatorRecord
from tidelog.coordinators.runtime import partition_for
from tidelog.wire.primitives import ProtocolError

KEY = OffsetCommitKey(group="g", topic="t", partition=3)


def test_an_offset_as_kafka_writes_it():
    value = OffsetCommitValue(offset=7, leader_epoch=2, metadata="m", commit_timestamp=9)
    key, encoded, headers = SERDE.encode(CoordinatorRecord(KEY, value))
    assert key == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
    assert encoded == b"\0\3" + bytes(7) + b"\7" + b"\0\0\0\2" + b"\0\1m" + bytes(7) + b"\x09"
    assert headers == ()
    found = SERDE.decode(key, encoded)
    assert (found.key, found.value) == (KEY, value)
    assert SERDE.decode(b"\0\0" + key[2:], encoded).key == KEY  # of Kafka 0.8.2


@pytest.mark.parametrize("version", range(5))
def test_every_version_is_read(version):
    value = OffsetCommitValue(offset=7, metadata="m", commit_timestamp=9)
    _, encoded, _ = SERDE.encode(CoordinatorRecord(KEY, value, version=version))
    assert int.from_bytes(encoded[:2], "big") == version
    key, _, _ = SERDE.encode(CoordinatorRecord(KEY, value))
    assert SERDE.decode(key, encoded).value == value


@pytest.mark.parametrize("version", range(5))
def test_groups(version):
    member = MemberMetadata(
        member_id="a", client_id="c", client_host="h", session_timeout=1, subscription=b"s",
        assignment=b"x",
    )  # fmt: skip
    value = GroupMetadataValue(
        protocol_type="consumer", generation=4, protocol="range", leader="a", members=[member]
    )
    record = CoordinatorRecord(GroupMetadataKey(group="g"), value, version=version)
    key, encoded, _ = SERDE.encode(record)
    assert key == b"\0\2\0\1g"
    assert SERDE.decode(key, encoded).value == value


def test_a_tombstone_may_say_why():
    key, value, headers = SERDE.encode(CoordinatorRecord(KEY, None, "too old"))
    assert (value, headers) == (None, (("tidelog.reason", b"too old"),))
    assert SERDE.decode(key, value, headers) == CoordinatorRecord(KEY, None, "too old")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0", b""),
        (b"\0\1", b"\0\3"),
        (b"\0\1\0\1g\0\1t\0\0\0\3", b""),
        (b"\0\1\0\1g\0\1t\0\0\0\3", b"\0\3"),
        (b"\0\1\0\1g\0\1t\0\0\0\3", b"\0\x63" + bytes(40)),
        (b"\0\2\0\1g", b"\0\3\xff"),
    ],
)
def test_damaged_records_are_told_from_good_ones(key, value):
    with pytest.raises(ProtocolError):
        SERDE.decode(key, value)


def test_types_of_the_future_are_left_alone():
    assert SERDE.decode(b"\0\x63whatever", b"whatever") is None


@pytest.mark.parametrize(
    ("group", "partition"),
    [  # computed with Kafka's Utils.abs(groupId.hashCode) % 50
        ("", 0),
        ("test", 48),
        ("my-group", 12),
        ("console-consumer-12345", 6),
        ("polygenelubricants", 0),  # its hash is the smallest number of all
        ("é漢🌊", 37),
    ],
)
def test_the_partition_of_a_group(group, partition):
    assert partition_for(group, 50) == partition
