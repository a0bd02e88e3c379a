"""A broker with a log that it has not written itself: holes, transactions, whatever is needed."""

from __future__ import annotations

from pathlib import Path

from pipeline.logs import NOW, Log, build
from support.filling import make_topic

from tidelog.client.cluster import Cluster
from tidelog.pipeline.ranges import OffsetRange
from tidelog.testing import LocalBroker
from tidelog.wire.batch import TRANSACTIONAL, place
from tidelog.wire.compression import Codec
from tidelog.wire.markers import Marker, encode_marker
from tidelog.wire.records import Record


class Planted:
    """A broker whose partition holds what a test wrote, as if it had always been there."""

    topic = "planted"

    def __init__(self, folder: Path, segments: dict[int, bytes]) -> None:
        self.broker = LocalBroker(data=folder / "data")
        with self.broker:
            make_topic(self.broker.bootstrap, self.topic)
            with Cluster(self.broker.bootstrap) as cluster:
                self.topic_id = cluster.topics([self.topic])[self.topic].topic_id
            self.broker.kill()
        (partition,) = (folder / "data").rglob(f"{self.topic}-0")
        for path in partition.iterdir():
            if path.suffix in (".log", ".index", ".timeindex"):
                path.unlink()
        for base, data in segments.items():
            (partition / f"{base:020}.log").write_bytes(data)

    def part(self, start: int, end: int) -> OffsetRange:
        return OffsetRange(self.topic, 0, start, end, self.topic_id)


def some(count: int, base: int) -> list[Record]:
    return [Record(base + i, NOW, b"k", b"v%d" % i) for i in range(count)]


def marker(offset: int, producer_id: int, *, committed: bool) -> bytes:
    batch = bytearray(encode_marker(Marker(committed, 0), producer_id, 0, NOW))
    place(batch, offset, 0)
    return bytes(batch)


def transactions() -> Log:
    """Two producers, one transaction inside another, one committed and one not."""

    def batch(base: int, producer_id: int, codec: Codec = Codec.NONE) -> bytes:
        kind = TRANSACTIONAL if producer_id > 0 else 0
        rows = some(4, base)
        return build(rows, base, base + 3, codec=codec, attributes=kind, producer_id=producer_id)

    data = batch(0, 11) + batch(4, 12, Codec.ZSTD) + batch(8, -1) + batch(12, 11)
    data += marker(16, 12, committed=True) + marker(17, 11, committed=False)
    data += batch(18, 11) + marker(22, 11, committed=True) + batch(23, 12, Codec.LZ4)
    data += marker(27, 12, committed=False)
    return Log(data, 28, [(11, 0), (12, 23)])


def damage(broker: LocalBroker, topic: str, needle: bytes) -> None:
    """Change a byte of the log on disk, under the running broker."""
    (partition,) = broker.data.rglob(f"{topic}-0")
    (path,) = partition.glob("*.log")
    at = path.read_bytes().index(needle)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"!")
