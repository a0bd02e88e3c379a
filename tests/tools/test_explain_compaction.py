"""``tidelog topics explain-compaction`` against brokers that compact, or do not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.cli import Result, on_terminal, run
from support.raw_client import RawClient, now_ms
from support.waiting import until

from tidelog.log.checkpoints import CLEANER, read_checkpoint
from tidelog.log.cleaner_jobs import clean_log
from tidelog.log.opening import open_log
from tidelog.settings import LogConfig, Settings
from tidelog.testing import LocalBroker
from tidelog.tools.explain_compaction import (
    GOES_NEXT,
    IN_ACTIVE,
    NEWER_IN_ACTIVE,
    NEWER_TOO_YOUNG,
    NOT_COMPACTED,
    TOO_YOUNG,
)
from tidelog.wire.batch import read_header
from tidelog.wire.records import encode_batch

SEGMENT = 4000


@pytest.fixture(scope="module")
def idle() -> Iterator[LocalBroker]:
    """A broker that does not compact, so that what it would do can be looked at."""
    with LocalBroker({"log.cleaner.enable": "false"}) as broker:
        yield broker


def send(client: RawClient, topic: str, rows: list[tuple[str, str | None]], age_ms: int = 0) -> int:
    batch = encode_batch(
        [
            (now_ms() - age_ms, key.encode(), None if value is None else value.encode(), ())
            for key, value in rows
        ]
    )
    answer = client.produce(topic, batch)
    assert answer.error_code == 0
    return int(answer.base_offset)


def fill(client: RawClient, topic: str, batches: int, keys: int = 5, age_ms: int = 0) -> None:
    for i in range(batches):
        send(client, topic, [(f"k{n}", f"{i}" + 60 * "x") for n in range(keys)], age_ms)


def explained(broker: LocalBroker, topic: str, *options: str) -> Any:
    result = run(
        "topics", "explain-compaction", topic, "--json", *options, bootstrap=broker.bootstrap
    )
    assert result.code == 0, result.err
    (found,) = result.json
    assert (found["name"], found["error"]) == (topic, None)
    return found


def shown(broker: LocalBroker, topic: str, *options: str) -> Result:
    return run("topics", "explain-compaction", topic, *options, bootstrap=broker.bootstrap)


def create(broker: LocalBroker, topic: str, **config: object) -> RawClient:
    client = RawClient(broker.port)
    settings = {"cleanup_policy": "compact", "segment_bytes": SEGMENT, **config}
    client.create_topic(topic, **settings)
    return client


def test_what_would_go(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic) as client:
        fill(client, topic, 30)
        (part,) = explained(idle, topic)["partitions"]
        assert "  max.compaction.lag.ms=no limit" in shown(idle, topic).lines
    files = sorted((idle.data / f"{topic}-0").glob("*.log"))
    assert part["segments"] == len(files) > 3
    assert part["active_segment"] == int(files[-1].stem)
    assert part["active_bytes"] == files[-1].stat().st_size
    active = 150 - part["active_segment"]
    closed = part["active_segment"]
    assert part["older_records"][IN_ACTIVE]["records"] == active - 5
    assert part["older_records"][NEWER_IN_ACTIVE]["records"] == 5
    assert part["older_records"][GOES_NEXT]["records"] == closed - 5
    text = shown(idle, topic)
    assert (text.code, text.err) == (0, "")
    assert "min.cleanable.dirty.ratio=0.5" in text.out
    assert GOES_NEXT in text.out
    assert "A round begins when more than 50% of the closed segments" in text.out


def test_records_that_are_too_young(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic, min_compaction_lag_ms=3_600_000) as client:
        fill(client, topic, 20, age_ms=7_200_000)
        fill(client, topic, 20)
        found = explained(idle, topic, "--key", "k1")
    (part,) = found["partitions"]
    assert {IN_ACTIVE, TOO_YOUNG, GOES_NEXT} <= set(part["older_records"])
    whys = [row["why"] for row in found["versions"]]
    assert len(whys) == 40
    assert whys[-1] == "it is the newest"
    assert NEWER_TOO_YOUNG in whys
    assert whys == sorted(
        whys,
        key=[GOES_NEXT, NEWER_TOO_YOUNG, TOO_YOUNG, IN_ACTIVE, "it is the newest"].index,
    )


def test_a_topic_that_is_not_compacted(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic, cleanup_policy="delete") as client:
        fill(client, topic, 3)
        (part,) = explained(idle, topic)["partitions"]
        assert part["older_records"] == {NOT_COMPACTED: part["older_records"][NOT_COMPACTED]}
        assert "A round begins" not in shown(idle, topic).out


def test_one_version_of_each_key_and_none(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic) as client:
        assert "There are no records with keys." in shown(idle, topic).out
        send(client, topic, [("a", "1"), ("b", None)])
        text = shown(idle, topic, "--key", "b")
        assert "Every key has one record." in text.out
        assert "a tombstone that no round has met yet" in text.out


def test_bad_input(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic):
        pass
    missing = shown(idle, "no-such-topic")
    assert missing.code == 1
    assert missing.err.startswith("Error: ")
    assert "no-such-topic" in missing.err
    assert "has no partition 7; it has only partition 0" in shown(idle, topic, "-p", "7").err
    bad_key = shown(idle, topic, "--key", "xyz", "--key-encoding", "hex")
    assert (bad_key.code, "'xyz' is not hex" in bad_key.err) == (2, True)
    nobody = run("topics", "explain-compaction", topic, "-b", "127.0.0.1:1")
    assert nobody.code == 1
    assert "tidelog up" in nobody.err


def test_a_key_that_is_gone(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic):
        found = shown(idle, topic, "--key", "3")
        assert (found.code, found.err) == (0, "")
        assert "There is no record of key '3': it was never written, or" in found.out
        assert explained(idle, topic, "--key", "3")["versions"] == []


def test_a_key_that_is_no_text(idle: LocalBroker, topic: str) -> None:
    key = b"\x00\xff\x1b[31m"
    with create(idle, topic) as client:
        for value in (b"1", b"2"):
            batch = encode_batch([(now_ms(), key, value, ())])
            assert client.produce(topic, batch).error_code == 0
        for text, encoding in ((key.hex(), "hex"), ("AP8bWzMxbQ==", "base64")):
            found = explained(idle, topic, "--key", text, "--key-encoding", encoding)
            assert len(found["versions"]) == 2


def test_when_the_active_segment_is_closed(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic, segment_ms=3_600_000) as client:
        sent = now_ms()
        fill(client, topic, 2)
        (part,) = explained(idle, topic)["partitions"]
        closes = datetime.fromisoformat(part["active_closes_after"]).timestamp() * 1000
        assert sent + 3_600_000 <= round(closes) <= now_ms() + 3_600_000
        text = shown(idle, topic)
        assert part["active_closes_after"] in text.out
        assert "  segment.bytes=4000\n  segment.ms=3600000\n" in text.out


def test_it_fits_on_a_terminal(idle: LocalBroker, topic: str) -> None:
    with create(idle, topic) as client:
        fill(client, topic, 2)
    lines = on_terminal(
        "topics", "explain-compaction", topic, "--key", "k1", bootstrap=idle.bootstrap
    )
    assert max(map(len, lines)) <= 80
    assert any(re.search(r"  \d\d:\d\d:\d\d  ", line) for line in lines)


def test_it_agrees_with_the_broker(tmp_path: Path) -> None:
    """After a round: what it said would go is gone."""
    data = tmp_path / "data"
    eager = {"log.cleaner.backoff.ms": "50", "log.flush.offset.checkpoint.interval.ms": "100"}
    idle = {**eager, "log.cleaner.enable": "false"}
    with (
        LocalBroker(idle, data=data) as broker,
        create(broker, "t", min_cleanable_dirty_ratio=0.3) as client,
    ):
        fill(client, "t", 40, keys=7)
        (before,) = explained(broker, "t")["partitions"]
    with LocalBroker(eager, data=data) as broker:

        def cleaned() -> int:
            return read_checkpoint(str(data), CLEANER).get(("t", 0), 0)

        until(cleaned, "compaction")
        (after,) = explained(broker, "t")["partitions"]
        gone = before["older_records"][GOES_NEXT]["records"]
        assert after["records"] == before["records"] - gone
        assert cleaned() == after["active_segment"]
        assert set(after["older_records"]) == {IN_ACTIVE, NEWER_IN_ACTIVE}
    config = LogConfig.of(Settings.of({}), {"cleanup.policy": "compact"})
    assert open_log(str(data / "t-0"), config, now_ms()).end_offset == 280


def test_log_dump_says_when_tombstones_may_go(tmp_path: Path) -> None:
    config = LogConfig.of(Settings.of({}), {"cleanup.policy": "compact"})
    log = open_log(str(tmp_path / "t-0"), config, 0)
    data = bytearray(encode_batch([(1000, b"a", None, ()), (2000, b"b", b"", ())]))
    log.append(data, read_header(data), 0, 0)
    log.high_watermark = log.end_offset
    log.roll(0)
    log.flush()
    clean_log(log, 5000)
    (line,) = run("log", "dump", str(log.segments[0].path), "--json").lines
    row = json.loads(line)
    assert (row["delete_horizon"], row["max_timestamp"]) == (86_405_000, 2000)
    text = run("log", "dump", str(log.segments[0].path)).out
    assert "CreateTime up to 1970-01-01T00:00:02.000Z" in text
    assert "tombstones may go from 1970-01-02T00:00:05.000Z on" in text
