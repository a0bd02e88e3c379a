"""A broker's log manager on directories of a test, and logs in it."""

from __future__ import annotations

from pathlib import Path

from support.log import NOW, append, contents, log_config, make_batch

from tidelog.clock import FakeClock
from tidelog.log.manager import LogManager, Opened

MARK = ".kafka_cleanshutdown"
TOPIC_ID = bytes(range(16))
Found = dict[tuple[str, int], Opened]


def open_manager(*directories: Path) -> LogManager:
    manager = LogManager([str(path) for path in directories], FakeClock(NOW))
    manager.open()
    return manager


def load(manager: LogManager) -> Found:
    found = manager.load(lambda topic: log_config(), lambda done, total: None)
    for opened in found.values():
        opened.log.high_watermark = opened.log.end_offset
    return found


def start(*directories: Path) -> tuple[LogManager, Found]:
    manager = open_manager(*directories)
    manager.identify(0, "cluster")
    return manager, load(manager)


def make(manager: LogManager, topic: str = "t", partition: int = 0, records: int = 3) -> None:
    log = manager.create(topic, partition, TOPIC_ID, log_config())
    for i in range(records):
        append(log, make_batch([b"%d" % i]))


def values(manager: LogManager, topic: str = "t", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in contents(manager.logs[topic, partition])]
