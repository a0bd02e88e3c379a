"""Real requests of every API and version: what the fuzzer starts from.

The samples of tests/support/request_samples.py, and more of the kinds that have more to go
wrong: batches of every codec, fetch sessions, topics that are made and deleted.
"""

import random

from support import request_samples as every
from support.raw_client import batch_of, now_ms

from tidelog.wire.compression import Codec
from tidelog.wire.messages import (
    create_partitions,
    delete_topics,
    describe_log_dirs,
    fetch,
    incremental_alter_configs,
    metadata,
    produce,
)
from tidelog.wire.records import encode_batch

TOPIC = every.TOPIC
LOOKED_INTO = "looked-into"  # its batches are decompressed and decoded by the broker
LOOKED_INTO_CONFIG = {"cleanup_policy": "compact", "compression_type": "zstd"}
PLAIN_CONFIG = {"segment_bytes": 100_000, "retention_bytes": 1_000_000}


def batches():
    """One of each kind that a producer may send."""
    rows = [
        (now_ms() + i, b"key %d" % i, b"value " * 10, [("header", b"h"), ("none", None)])
        for i in range(3)
    ]
    yield batch_of(b"x")
    yield encode_batch(rows, producer_id=5, producer_epoch=0, base_sequence=0)
    for codec in Codec:
        yield encode_batch(rows, codec=codec)


class Corpus:
    """``(key, version, make)`` rows; ``make(version)`` gives a new message."""

    def __init__(self, rng: random.Random, topic_id: bytes):
        every.TOPIC_ID = topic_id
        self._random = rng
        self._batches = list(batches())
        self.rows = [(key, version, every.SAMPLES[key]) for key, version in every.CASES]
        more = {
            0: [self._produce] * 3,
            1: [self._fetch_in_session, self._fetch_and_wait],
            2: [self._list_offsets],
            3: [self._metadata],
            20: [self._delete_topics],
            35: [self._log_dirs],
            37: [self._create_partitions],
            44: [self._append_config],
        }
        self.rows += [
            (key, version, make) for key, version in every.CASES for make in more.get(key, ())
        ]

    def _produce(self, v):
        topic = self._random.choice((TOPIC, LOOKED_INTO, LOOKED_INTO))
        named = {"topic_id": every.TOPIC_ID} if v >= 13 else {"name": topic}
        data = produce.PartitionProduceData(index=0, records=self._random.choice(self._batches))
        row = produce.TopicProduceData(partition_data=[data], **named)
        acks = self._random.choice((1, 1, 1, -1, -1, -1, -1, 0))
        return produce.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[row])

    def _fetch_in_session(self, v):
        request = every.sample_fetch(v)
        request.session_id, request.session_epoch = self._random.choice(((0, 0), (0, -1), (1, 1)))
        request.forgotten_topics_data = [
            fetch.ForgottenTopic(partitions=[0, 1], **every.named(v, 13, "topic"))
        ]
        return request

    def _fetch_and_wait(self, v):
        request = every.sample_fetch(v)
        request.max_wait_ms, request.min_bytes = 5, 1
        request.topics[0].partitions[0].fetch_offset = self._random.randrange(3)
        return request

    def _list_offsets(self, v):
        request = every.sample_list_offsets(v)
        request.topics[0].partitions[0].timestamp = self._random.choice((-2, -3, -4, now_ms()))
        return request

    def _metadata(self, v):
        names = self._random.choice((None if v else (), (TOPIC, LOOKED_INTO, "made")))
        topics = (
            names if names is None else [metadata.MetadataRequestTopic(name=name) for name in names]
        )
        return metadata.MetadataRequest(topics=topics)

    def _delete_topics(self, v):
        name = self._random.choice(("made", f"created-by-v{self._random.randrange(8)}"))
        if v >= 6:
            topics = [delete_topics.DeleteTopicState(name=name)]
            return delete_topics.DeleteTopicsRequest(topics=topics, timeout_ms=1000)
        return delete_topics.DeleteTopicsRequest(topic_names=[name], timeout_ms=1000)

    def _log_dirs(self, _):
        topic = describe_log_dirs.DescribableLogDirTopic(topic=TOPIC, partitions=[0, 1])
        return describe_log_dirs.DescribeLogDirsRequest(topics=[topic])

    def _create_partitions(self, _):
        count = self._random.randrange(1, 5)
        topic = create_partitions.CreatePartitionsTopic(name="made", count=count, assignments=None)
        return create_partitions.CreatePartitionsRequest(
            topics=[topic], timeout_ms=1000, validate_only=False
        )

    def _append_config(self, _):
        row = incremental_alter_configs.AlterableConfig(
            name="cleanup.policy", config_operation=self._random.randrange(4), value="compact"
        )
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=2, resource_name=TOPIC, configs=[row]
        )
        return incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=False
        )
