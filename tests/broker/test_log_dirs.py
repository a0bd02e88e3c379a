"""Log directories that take no writes for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidelog.broker.log_dirs import LogDirs


def test_a_directory_fails_and_works_again(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()

    async def work() -> None:
        directories = LogDirs([str(good), str(bad)])
        told: asyncio.Queue[bool] = asyncio.Queue()

        async def tell() -> None:
            told.put_nowait(directories.takes_writes(str(bad / "t-0")))

        watch = asyncio.create_task(directories.watch(tell))
        directories.write_failed(str(bad / "t-0"))
        directories.write_failed(str(bad / "t-1"))
        assert await told.get() is False
        assert directories.takes_writes(str(good / "t-0"))
        bad.mkdir()  # now there is something to write to
        assert await told.get() is True
        watch.cancel()
        assert told.empty()
        assert list(bad.iterdir()) == [], "trying leaves nothing behind"

    asyncio.run(asyncio.wait_for(work(), 100))
