"""Disks of a test's own, to fill up or to break."""

import errno
import subprocess

import pytest


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def mounted(tmp_path):
    """``mounted(options, source)`` mounts on a fresh folder; skips where that is not allowed."""
    path = tmp_path / "disk"
    path.mkdir()

    def mount(*options):
        done = run("mount", *options, str(path))
        if done.returncode:
            pytest.skip(f"this test needs the right to mount: {done.stderr.strip()}")
        return path

    yield mount
    run("umount", "-l", str(path))


def fill(path):
    """Write to a file until the disk is full."""
    try:
        with path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
