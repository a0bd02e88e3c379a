"""One story each: a broker, load, faults, and the check at the end.

The ordinary tests play short ones, ``./dev soak`` long ones, with other seeds.
"""

from faults.history import History
from faults.load import Load, RawWriter, whole_log
from faults.power_cut import cut_power
from support.raw_client import RawClient
from support.waiting import until

from tidelog.log.checkpoints import RECOVERY_POINT, read_checkpoint
from tidelog.testing import LocalBroker

# Every acknowledged record is flushed, in one way or the other.
FLUSHED = {
    "flushed before the answer": {"flush_messages": 1},
    "seen when flushed": {"visibility": "flushed", "flush_ms": 5},
}


def kills(data, rng, count, told=lambda text: None):
    """kill -9 under full load; returns how many records were acknowledged."""
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            # Small segments: some kills meet a roll.
            client.create_topic("t", partitions=2, segment_bytes=rng.randrange(50_000, 400_000))
        load = Load(broker, "t")
        with load:
            for done in range(1, count + 1):
                load.wait_for_progress(rng.randrange(1, 60))
                broker.kill()
                broker.start()
                told(f"kill {done}, {load.history.total():,} records acknowledged")
            load.wait_for_progress(1)
        load.check()
        broker.restart()
        load.check()
        assert "Traceback" not in broker.log, broker.log
        return load.history.total()


def power_cuts(data, rng, count, how, told=lambda text: None):
    """kill -9, and what was not flushed is lost or spoilt; returns the records acknowledged."""
    history = History()
    with LocalBroker(data=data) as broker:
        with RawClient(broker.port) as client:
            client.create_topic("t", segment_bytes=20_000, **FLUSHED[how])
        writers = [
            RawWriter(history, broker.port, "t", 0, f"raw{i}", idempotent=True, size=50)
            for i in range(3)
        ]
        for writer in writers:
            writer.start()
        try:
            for done in range(1, count + 1):
                goal = history.total() + rng.randrange(100, 600)
                until(lambda goal=goal: history.total() >= goal, "progress")
                broker.kill()
                for writer in writers:
                    writer.wait_until_cut_off()
                point = read_checkpoint(str(data), RECOVERY_POINT).get(("t", 0), 0)
                flushed = max(history.acknowledged_end(0), point)
                damage = cut_power(str(data / "t-0"), flushed, rng)
                if rng.random() < 0.3:
                    (data / RECOVERY_POINT).unlink(missing_ok=True)
                broker.start()
                told(f"power cut {done} after offset {flushed}: {'; '.join(damage)}")
                with RawClient(broker.port) as client:
                    assert client.list_offset("t", -1).offset >= flushed
        finally:
            for writer in writers:
                writer.stop()
        for writer in writers:
            writer.done()
        history.check(0, *whole_log(broker.port, "t", 0))
        assert "Traceback" not in broker.log, broker.log
        return history.total()
