"""What a broker's process uses, and what its log says."""

import contextlib
import os

from support.waiting import until

MIB = 1 << 20

# For a broker whose memory is watched.  By itself glibc keeps up to 64 MiB of what was freed;
# with a fixed threshold large blocks go back at once, and what grows is a leak.
GIVE_BACK = ("MALLOC_MMAP_THRESHOLD_", "131072")


def resident(broker):
    """Resident memory in bytes, without the pages of mapped log files."""
    return _status(broker, "RssAnon")


def peak(broker):
    """The most resident memory that it ever had, in bytes."""
    return _status(broker, "VmHWM")


def _status(broker, name):
    with open(f"/proc/{broker.pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status if ":" in line)
    return int(fields[name].split()[0]) * 1024


def descriptors(broker):
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def closed_again(broker, count):
    """Wait until there are only so many descriptors; else say which there are."""
    try:
        return until(lambda: found if (found := descriptors(broker)) <= count else 0)
    except AssertionError:
        found = []
        for name in os.listdir(f"/proc/{broker.pid}/fd"):
            with contextlib.suppress(OSError):  # closed in between
                found.append(os.readlink(f"/proc/{broker.pid}/fd/{name}"))
        raise AssertionError(f"{count} descriptors have become {sorted(found)}") from None


def check_log(text):
    """Nothing in this piece of a broker's log that is a bug of ours."""
    _, found, trace = text.partition("Traceback")
    assert not found, trace[:3000]
    for line in text.splitlines():
        # Batches may hold anything, and a topic may be told to compact them.
        assert " ERROR " not in line or "it cannot be compacted" in line, line


def in_memory():
    """Where a flush is quick, if there is such a place: thousands of topics come and go."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
