"""kill -9 in the middle of full load, again and again; ``./dev soak`` does it for longer."""

import pytest
from faults.episodes import kills
from faults.seeds import seeded
from support.raw_client import RawClient, batch_of

from tidelog.testing import LocalBroker

KILLS = 8


def test_kill_9_under_load_loses_nothing(tmp_path):
    assert kills(tmp_path / "data", seeded(), KILLS, told=print) > 0


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("segment_bytes", [1_000_000, 600])
def test_five_batches_on_their_way_are_known_again(tmp_path, end, segment_bytes):
    """A snapshot holds one batch for each producer; the others are found in the log."""
    with LocalBroker(data=tmp_path / "data") as broker:

        def send(client, sequence):
            batch = batch_of(bytes(100), producer_id=7, producer_epoch=0, base_sequence=sequence)
            return client.produce("t", batch)

        with RawClient(broker.port) as client:
            client.create_topic("t", segment_bytes=segment_bytes)
            for sequence in range(20):
                assert send(client, sequence).base_offset == 2 * sequence
                client.produce("t", batch_of(b"from another"))
        getattr(broker, end)()
        broker.start()
        with RawClient(broker.port) as client:
            for sequence in range(15, 20):
                answer = send(client, sequence)
                assert (answer.error_code, answer.base_offset) == (0, 2 * sequence)
            assert send(client, 20).base_offset == 40
