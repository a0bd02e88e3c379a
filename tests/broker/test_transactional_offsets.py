"""Offsets that Kafka committed inside transactions, found in ``__consumer_offsets``."""

import pytest
from support.group_client import GroupClient
from support.log import NOW, append, open_in
from support.raw_client import batch_of
from support.waiting import until

from tidelog.coordinators.groups.offsets import Committed, encode_commit
from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.batch import TRANSACTIONAL, read_header
from tidelog.wire.markers import Marker, encode_marker
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidelog.wire.records import encode_batch

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def commits(group, *places, producer_id=-1):
    """A batch of commits for (topic, partition, offset), in a transaction or in none."""
    rows = [
        (NOW, *encode_commit(group, topic, index, Committed(offset, -1, "", NOW)))
        for topic, index, offset in places
    ]
    transaction = {"producer_epoch": 0, "attributes": TRANSACTIONAL} if producer_id >= 0 else {}
    return encode_batch(rows, producer_id=producer_id, **transaction)


def write(log, batch):
    """As a coordinator of Kafka writes it: without a sequence."""
    data = bytearray(batch)
    data[:8] = log.end_offset.to_bytes(8, "big")
    log.append_replicated(data, read_header(data), NOW)
    log.high_watermark = log.end_offset


@pytest.fixture
def broker(tmp_path):
    """Partition 0 has a plain commit of 10; 1 to 3 have none.  Then transactions: producer 1
    commits 41, producer 2 aborts 42, producer 3 is open with 43, for the partition of their
    number; producer 3 also has 44 for partition 0."""
    for index in range(4):
        log = open_in(tmp_path / f"t-{index}")
        append(log, batch_of(b"x", timestamp=NOW))
        log.close()
    log = open_in(tmp_path / "__consumer_offsets-0")
    write(log, commits("g", ("t", 0, 10)))
    for producer_id in (1, 2, 3):
        write(log, commits("g", ("t", producer_id, 40 + producer_id), producer_id=producer_id))
    write(log, commits("g", ("t", 0, 44), producer_id=3))
    write(log, commits("only", ("t", 0, 45), producer_id=3))
    write(log, encode_marker(Marker(True, 0), 1, 0, NOW))
    write(log, encode_marker(Marker(False, 0), 2, 0, NOW))
    log.close()
    settings = {"log.retention.ms": -1, "offsets.topic.num.partitions": 1}
    with LocalBroker(settings, data=tmp_path) as running:
        yield running


def stored(client, group, *, stable, version=9):
    """What OffsetFetch says for the four partitions: an offset, or an error."""
    indexes = [0, 1, 2, 3]
    if version < 8:
        rows = [OffsetFetchRequestTopic(name="t", partition_indexes=indexes)]
        request = OffsetFetchRequest(group_id=group, topics=rows, require_stable=stable)
        answer = client.call(request, OffsetFetchResponse, version)
    else:
        rows = [OffsetFetchRequestTopics(name="t", partition_indexes=indexes)]
        asked = OffsetFetchRequestGroup(group_id=group, topics=rows)
        request = OffsetFetchRequest(groups=[asked], require_stable=stable)
        answer = client.call(request, OffsetFetchResponse, version).groups[0]
    if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return None
    assert answer.error_code == 0
    return [part.error_code or part.committed_offset for part in answer.topics[0].partitions]


def test_only_what_is_committed_counts(broker):
    with GroupClient(broker.port) as client:
        found = until(lambda: stored(client, "g", stable=False), "the groups to be loaded")
        assert found == [10, 41, -1, -1]
        for version in (7, 8, 9):
            expected = [UNSTABLE, 41, -1, UNSTABLE]
            assert stored(client, "g", stable=True, version=version) == expected
        assert stored(client, "only", stable=True) == [UNSTABLE, -1, -1, -1]
        assert stored(client, "only", stable=False) == [-1] * 4
        # Everything that a group has: without the partition that has nothing but the pending one.
        asked = OffsetFetchRequestGroup(group_id="g", topics=None)
        request = OffsetFetchRequest(groups=[asked], require_stable=True)
        (topic,) = client.call(request, OffsetFetchResponse, 9).groups[0].topics
        rows = {p.partition_index: p.error_code or p.committed_offset for p in topic.partitions}
        assert rows == {0: UNSTABLE, 1: 41}


def test_the_way_out_of_a_transaction_that_never_ends(broker):
    """A plain commit counts but the transaction stays open; deleting drops what is pending."""
    with GroupClient(broker.port) as client:
        until(lambda: stored(client, "g", stable=False), "the groups to be loaded")
        assert client.commit("g", "t", 7, partition=3) == 0
        assert stored(client, "g", stable=False) == [10, 41, -1, 7]
        assert stored(client, "g", stable=True) == [UNSTABLE, 41, -1, UNSTABLE]
        assert client.delete_offset("g", "t", partition=3) == 0
        assert stored(client, "g", stable=True) == [UNSTABLE, 41, -1, -1]
        assert client.delete("g", "only") == [0, 0]
        for group in ("g", "only"):
            assert stored(client, group, stable=True) == [-1] * 4
        broker.restart()
    with GroupClient(broker.port) as client:
        until(lambda: stored(client, "g", stable=True), "the groups to be loaded")
        for group in ("g", "only"):
            assert stored(client, group, stable=True) == [-1] * 4
