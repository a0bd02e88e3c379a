"""What one client writes, every other reads identically, whatever the codec."""

import pytest
from interop.peers import READERS, WRITERS, Kcat
from support.client_records import CODECS, EDGES, codecs_on_disk, compressible


@pytest.fixture(scope="module")
def written(broker):
    """Writes a topic with every codec, once for each writer."""
    done = {}

    def write(peer):
        name = type(peer).__name__
        topic = f"across-{name}"
        if name not in done:
            rows = {c: [*compressible(f"{c}/"), *filter(peer.can_write, EDGES)] for c in CODECS}
            for codec in CODECS:
                peer.write(broker.bootstrap, topic, rows[codec], codec)
            done[name] = [row for codec in CODECS for row in rows[codec]]
        return topic, done[name]

    return write


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_written_by_one_read_by_another(broker, written, writer, reader):
    topic, rows = written(writer)
    assert codecs_on_disk(broker, topic) == set(CODECS)
    read = reader.read(broker.bootstrap, topic, len(rows))
    if isinstance(writer, Kcat):  # it has no say in the timestamps
        rows = [
            row._replace(timestamp=found.timestamp) for row, found in zip(rows, read, strict=True)
        ]
    assert read == rows
