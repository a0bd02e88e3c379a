"""Log directories, and single partitions, that take no writes for a while."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tidelog.clock import FakeClock
from tidelog.keeper.keeper import NoNode
from tidelog.log.flush import RecordsLost
from tidelog.partition.log_dirs import LogDirs

FULL = OSError(errno.ENOSPC, "No space left on device")
QUIET_MS = 6000


async def test_a_directory_fails_and_works_again(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    clock = FakeClock()
    directories = LogDirs([str(good), str(bad)], clock)
    told: asyncio.Queue[bool] = asyncio.Queue()

    async def tell() -> None:
        told.put_nowait(directories.takes_writes(str(bad / "t-0")))

    watch = asyncio.create_task(directories.watch(tell))
    directories.write_failed(str(bad / "t-0"), FULL)
    directories.write_failed(str(bad / "t-1"), FULL)
    assert await told.get() is False
    assert directories.takes_writes(str(good / "t-0"))
    clock.advance(QUIET_MS)
    bad.mkdir()  # now there is something to write to
    assert await told.get() is True
    watch.cancel()
    assert told.empty()
    assert list(bad.iterdir()) == [], "trying leaves nothing behind"


async def test_a_mark_goes_when_nothing_has_failed_for_a_while(tmp_path: Path) -> None:
    """Each time that it comes back soon, it takes twice as long, up to a minute."""
    partition = str(tmp_path / "t-0")
    clock = FakeClock()
    directories = LogDirs([str(tmp_path)], clock)

    async def works_after(ms: int) -> bool:
        clock.advance(ms)
        await directories._try_again()
        return directories.takes_writes(partition)

    for seconds in (6, 12, 24, 48, 60, 60):
        directories.write_failed(partition, FULL)
        assert not await works_after(seconds * 1000 - 1)
        directories.write_failed(partition, FULL)
        assert not await works_after(seconds * 1000 - 1)
        assert await works_after(1)
    clock.advance(600_000)  # another day, another full disk
    directories.write_failed(partition, FULL)
    assert await works_after(QUIET_MS)


@pytest.mark.parametrize(
    "error",
    [RecordsLost(errno.EIO, "records were lost"), OSError(errno.EACCES, "Permission denied")],
    ids=["its records are lost", "it may not be written"],
)
async def test_an_error_of_one_partition_is_not_one_of_its_directory(
    tmp_path: Path, error: OSError
) -> None:
    bad, good = str(tmp_path / "t-0"), str(tmp_path / "t-1")
    clock = FakeClock()
    directories = LogDirs([str(tmp_path)], clock)
    told: asyncio.Queue[bool] = asyncio.Queue()

    async def tell() -> None:
        told.put_nowait(directories.takes_writes(bad))

    watch = asyncio.create_task(directories.watch(tell))
    directories.write_failed(bad, error)
    assert await told.get() is False, "the controller hears of it all the same"
    assert directories.takes_writes(good)
    clock.advance(QUIET_MS)
    assert await told.get() is True
    watch.cancel()


async def test_what_cannot_be_told_is_told_later(tmp_path: Path) -> None:
    directories = LogDirs([str(tmp_path)], FakeClock())
    told = asyncio.Event()
    failures = [NoNode("/log_dir_event_notification"), NoNode("it is still not there")]

    async def tell() -> None:
        if failures:
            raise failures.pop()
        told.set()

    watch = asyncio.create_task(directories.watch(tell))
    directories.write_failed(str(tmp_path / "t-0"), FULL)
    await told.wait()
    assert not watch.done()
    watch.cancel()
