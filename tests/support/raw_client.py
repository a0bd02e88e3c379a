"""A client that can be wrong on purpose: raw frames in, raw frames out."""

import socket
import time

from support.waiting import LIMIT

from tidelog.wire.batch import MAGIC, BatchHeader
from tidelog.wire.compression import Codec
from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.records import decode_batch, encode_batch, seal, split_batches


def now_ms():
    return int(time.time() * 1000)


def batch_of(*values, **options):
    """A batch with these values, stamped now."""
    stamp = options.pop("timestamp", now_ms())
    key = options.pop("key", None)
    return encode_batch([(stamp, key, value, []) for value in values], **options)


class RawClient:
    """One connection; every call waits for its answer."""

    def __init__(self, port, timeout=LIMIT):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def send(self, message, version):
        self._correlation += 1
        self.sock.sendall(encode_request(message, version, self._correlation, "raw"))
        return self._correlation

    def read_frame(self):
        size = int.from_bytes(self._read(4), "big")
        return self._read(size)

    def _read(self, size):
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.sock.recv(size - len(data))
            except TimeoutError:
                raise TimeoutError(f"no answer in {self.sock.gettimeout()} s") from None
            if not piece:
                raise ConnectionError("the broker hung up")
            data += piece
        return bytes(data)

    def receive(self, response, version):
        correlation, message = decode_response(response, version, self.read_frame())
        return correlation, message

    def call(self, message, response, version):
        sent = self.send(message, version)
        correlation, answer = self.receive(response, version)
        assert correlation == sent
        return answer

    def hung_up(self):
        """Did the broker close the connection (and say nothing more)?"""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    # -- the usual requests -----------------------------------------------------

    def create_topic(self, name, partitions=1, **config):
        configs = [
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in config.items()
        ]
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=configs,
        )
        answer = self.call(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7)
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        return answer.topics[0].topic_id

    @staticmethod
    def produce_request(topic, records, *, partition=0, acks=-1, timeout_ms=60_000):
        named = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
        data = PartitionProduceData(index=partition, records=records)
        return ProduceRequest(
            transactional_id=None,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[TopicProduceData(partition_data=[data], **named)],
        )

    def produce(self, topic, records, *, version=9, **options):
        """The answer for the one partition."""
        request = self.produce_request(topic, records, **options)
        answer = self.call(request, ProduceResponse, version)
        return answer.responses[0].partition_responses[0]

    @staticmethod
    def fetch_request(*rows, max_wait_ms=0, min_bytes=1, max_bytes=1 << 25, **options):
        """Rows are ``(topic, partition, offset)`` or with a partition limit behind."""
        topics = []
        for topic, partition, offset, *limit in rows:
            named = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
            row = FetchPartition(
                partition=partition,
                fetch_offset=offset,
                partition_max_bytes=limit[0] if limit else 1 << 20,
            )
            topics.append(FetchTopic(partitions=[row], **named))
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            topics=topics,
            **options,
        )

    def fetch(self, *rows, version=12, **options):
        """The answers for the partitions, flat."""
        answer = self.call(self.fetch_request(*rows, **options), FetchResponse, version)
        assert answer.error_code == 0
        return [part for topic in answer.responses for part in topic.partitions]

    def read_values(self, topic, offset=0, partition=0):
        """Every visible value from an offset on."""
        values = []
        while True:
            (part,) = self.fetch((topic, partition, offset))
            assert part.error_code == 0, part.error_code
            found = values_of(part.records, offset)
            if not found:
                return values
            values += [value for _, value in found]
            offset = found[-1][0] + 1

    @staticmethod
    def list_offset_request(topic, timestamp, partition=0, isolation_level=0):
        row = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsTopic(name=topic, partitions=[row])],
        )

    def list_offset(self, topic, timestamp, partition=0, version=7, isolation_level=0):
        request = self.list_offset_request(topic, timestamp, partition, isolation_level)
        return self.call(request, ListOffsetsResponse, version).topics[0].partitions[0]


def values_of(records, start=0):
    """``(offset, value)`` of the records at or after an offset."""
    return [
        (record.offset, record.value)
        for batch in split_batches(records or b"")
        for record in decode_batch(batch)
        if record.offset >= start
    ]


def sealed(packed, count, codec=Codec.ZSTD, **fields):
    """A batch that says what we want it to say."""
    now = now_ms()
    header = BatchHeader(0, 0, 0, MAGIC, 0, codec, count - 1, now, now, -1, -1, -1, count)
    return seal(header._replace(**fields), packed)


def many(count, **options):
    """A batch of so many small records, too many to be looked at in the event loop."""
    row = (now_ms(), b"k", b"v", [])
    return encode_batch([row] * count, codec=Codec.ZSTD, **options)
