"""kill -9 and the page cache lost as well: what was acknowledged as flushed is still there."""

import os
import random

import pytest
from faults.history import History
from faults.load import RawWriter, whole_log
from faults.power_cut import cut_power
from raw_client import RawClient
from waiting import until

from tidelog.log.checkpoints import RECOVERY_POINT, read_checkpoint
from tidelog.testing import LocalBroker

CUTS = 5
# Every acknowledged record is flushed, in one way or the other.
SETTINGS = {
    "flushed before the answer": {"flush_messages": 1},
    "seen when flushed": {"visibility": "flushed", "flush_ms": 5},
}


@pytest.mark.parametrize("how", SETTINGS)
def test_what_was_flushed_survives(tmp_path, how):
    seed = int(os.environ.get("FAULT_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"FAULT_SEED={seed}")
    rng = random.Random(seed)
    data, history = tmp_path / "data", History()
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t", segment_bytes=20_000, **SETTINGS[how])
        writers = [
            RawWriter(history, broker.port, "t", 0, f"raw{i}", idempotent=True, size=50)
            for i in range(3)
        ]
        for writer in writers:
            writer.start()
        for _ in range(CUTS):
            goal = history.total() + rng.randrange(200, 1000)
            until(lambda goal=goal: history.total() >= goal, "progress", timeout=60)
            broker.kill()
            told = read_checkpoint(str(data), RECOVERY_POINT).get(("t", 0), 0)
            flushed = max(history.acknowledged_end(0), told)
            print(flushed, cut_power(str(data / "t-0"), flushed, rng))
            if rng.random() < 0.3:
                (data / RECOVERY_POINT).unlink(missing_ok=True)
            broker.start()
            with RawClient(broker.port) as client:
                assert client.list_offset("t", -1).offset >= flushed
        for writer in writers:
            writer.stop()
        for writer in writers:
            writer.done()
        history.check(0, *whole_log(broker.port, "t", 0))
        assert "Traceback" not in broker.log
