"""All the logs of one broker: directories, locks, checkpoints, and how they are closed.

A data directory holds one folder per partition (``topic-0``) and beside them

    .lock                 held while a broker runs; contains its process id
    meta.properties       which broker and which cluster the data belongs to
    .kafka_cleanshutdown  left by a clean stop, removed at start
    *-checkpoint          see checkpoints.py
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import partial

from tidelog import files, ids, workers
from tidelog.clock import Clock
from tidelog.errors import SettingError
from tidelog.files import remove, sync_directory, write_atomically
from tidelog.log import checkpoints
from tidelog.log.checkpoints import PartitionKey, read_checkpoint, write_checkpoint
from tidelog.log.log import Log
from tidelog.log.moved import is_unfinished_copy, one_directory_each, unmark
from tidelog.log.opening import create_log, open_log
from tidelog.settings import LogConfig, read_properties
from tidelog.topic_partition import directory_name
from tidelog.wire.uuids import parse_uuid, uuid_text

_PARTITION = re.compile(r"(.+)-(0|[1-9][0-9]*)")
_STRAY = "-stray"
CLEAN_MARK = ".kafka_cleanshutdown"
_META = "meta.properties"
_CHECKPOINTS = (
    checkpoints.RECOVERY_POINT,
    checkpoints.HIGH_WATERMARK,
    checkpoints.LOG_START,
    checkpoints.CLEANER,
)
TOPIC_ID = "partition.metadata"
_FLUSHES_AT_ONCE = 16
_PROGRESS_SECONDS = 2.0

log = logging.getLogger(__name__)


class DirectoryInUse(Exception):
    """Another broker works on this directory."""


class WrongCluster(Exception):
    """The data belongs to another cluster or broker."""


@dataclass(slots=True)
class Opened:
    """One partition as found on disk."""

    log: Log
    topic_id: bytes | None


class LogManager:
    """See the module.  ``open`` first, then ``load``; ``close`` at the end."""

    def __init__(self, directories: list[str], clock: Clock) -> None:
        self.directories = [os.path.abspath(directory) for directory in directories]
        self.clock = clock
        self.logs: dict[PartitionKey, Log] = {}
        self.topic_ids: dict[PartitionKey, bytes] = {}  # as found on disk
        # Where to make a log that is to come, of which topic.
        self.preferred: dict[PartitionKey, tuple[bytes, str]] = {}
        self._locks: list[int] = []
        self._checkpointed: dict[str, set[PartitionKey]] = {}  # who is named in the files
        self._checkpoint_lock = threading.Lock()
        self._notes = self._newest_note = 0
        self._cleaned: dict[str, dict[PartitionKey, int]] = {}  # as last written

    # -- directories ------------------------------------------------------------

    def open(self) -> None:
        """Take the directories: create and lock them."""
        for directory in self.directories:
            try:
                files.makedirs(directory, exist_ok=True)
                self._locks.append(_lock(directory))
            except OSError as error:
                raise SettingError(
                    f"log.dirs: {directory} cannot be used: "
                    + (
                        "it is a file"
                        if isinstance(error, FileExistsError)
                        else str(error.strerror)
                    )
                ) from error

    def _identities(self) -> dict[str, dict[str, str]]:
        known: dict[str, dict[str, str]] = {}
        for directory in self.directories:
            path = os.path.join(directory, _META)
            try:
                known[directory] = read_properties(files.read_file(path).decode())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise SettingError(f"{path} cannot be read: {error}") from error
        return known

    def cluster_id(self) -> str | None:
        """The cluster that the data on disk belongs to, if it says so."""
        ids = (meta.get("cluster.id") for meta in self._identities().values())
        return next((found for found in ids if found), None)

    def identify(self, broker_id: int, cluster_id: str) -> None:
        """Check meta.properties, and write it where it is missing."""
        known = self._identities()
        for directory, meta in known.items():
            found = meta.get("cluster.id", cluster_id)
            if found != cluster_id:
                raise WrongCluster(
                    f"{directory} belongs to cluster {found}, this broker to {cluster_id}: "
                    "choose another directory, or the data of this cluster"
                )
            found = meta.get("broker.id", meta.get("node.id", str(broker_id)))
            if found != str(broker_id):
                raise WrongCluster(
                    f"{directory} belongs to broker {found}, this is broker {broker_id}: "
                    f"start it with --set broker.id={found}, or choose another directory"
                )
        for directory in self.directories:
            if directory not in known:
                text = f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n"
                write_atomically(os.path.join(directory, _META), text.encode())

    # -- logs -------------------------------------------------------------------

    def load(
        self, config_of: Callable[[str], LogConfig], progress: Callable[[int, int], None]
    ) -> dict[PartitionKey, Opened]:
        """Open every log.  ``progress(done, all)`` is called after each.

        From here on a stop is unclean unless :meth:`close` says otherwise.
        """
        clean = {directory: _take_mark(directory) for directory in self.directories}
        found: list[tuple[PartitionKey, str]] = []
        for directory in self.directories:
            for name in files.listdir(directory):
                path = os.path.join(directory, name)
                if not files.is_dir(path):
                    continue
                if name.endswith("-delete"):
                    files.remove_tree(path)
                elif is_unfinished_copy(path):
                    log.warning("%s: a move that did not come to its end; ask for it again", path)
                    files.remove_tree(path)
                elif name.endswith(_STRAY):
                    log.warning(
                        "%s (%.1f MiB) was quarantined, as it is of no known topic; it stays until "
                        "you delete it",
                        path,
                        _size(path) / (1 << 20),
                    )
                elif match := _PARTITION.fullmatch(name):
                    found.append(((match[1], int(match[2])), directory))
                else:
                    log.warning("%s is not a partition; it is left alone", path)
        found, moved = one_directory_each(found) if len(self.directories) > 1 else (found, {})
        points: dict[tuple[str, str], dict[PartitionKey, int]] = {
            (directory, name): read_checkpoint(directory, name)
            for directory in self.directories
            for name in _CHECKPOINTS
        }
        for (directory, _), offsets in points.items():
            self._checkpointed.setdefault(directory, set()).update(offsets)
        for key, (old, new) in moved.items():
            for name in _CHECKPOINTS:
                if key in points[old, name]:
                    points[new, name].setdefault(key, points[old, name][key])
        result: dict[PartitionKey, Opened] = {}
        now_ms = self.clock.now_ms()
        for done, (key, directory) in enumerate(found, 1):
            path = os.path.join(directory, f"{key[0]}-{key[1]}")
            opened = open_log(
                path,
                config_of(key[0]),
                now_ms,
                clean=clean[directory],
                recovery_point=points[directory, checkpoints.RECOVERY_POINT].get(key, 0),
                log_start_offset=points[directory, checkpoints.LOG_START].get(key),
            )
            opened.cleaned_offset = points[directory, checkpoints.CLEANER].get(key)
            watermark = points[directory, checkpoints.HIGH_WATERMARK].get(key)
            if watermark is not None:
                committed = min(watermark, opened.end_offset)
                opened.high_watermark = max(committed, opened.log_start_offset)
            self.logs[key] = opened
            result[key] = Opened(opened, _read_topic_id(path))
            if (topic_id := result[key].topic_id) is not None:
                self.topic_ids[key] = topic_id
            progress(done, len(found))
        if moved:
            self.write_checkpoints()
        for key, (old, new) in moved.items():
            name = directory_name(*key)
            doomed = self.delete_directory(os.path.join(old, name))
            sync_directory(old)
            unmark(os.path.join(new, name))
            files.remove_tree(doomed)
        return result

    def create(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> Log:
        """A new, empty log, in the directory that has the fewest."""
        name = directory_name(topic, partition)
        load = dict.fromkeys(self.directories, 0)
        if len(load) > 1:
            for existing in self.logs.values():
                load[os.path.dirname(existing.directory)] += 1
        wanted_by, parent = self.preferred.pop((topic, partition), (b"", ""))
        if wanted_by != topic_id:
            parent = min(load, key=lambda d: load[d])
        if any((topic, partition) in names for names in self._checkpointed.values()):
            # An older log of this name is in the checkpoints; its offsets are not ours.
            self.write_checkpoints()
        directory = os.path.join(parent, name)
        if files.exists(directory):  # of a topic whose deletion did not work out
            files.rename(directory, self._other_name(directory, "stray"))
        created = create_log(directory, config, self.clock.now_ms())
        # Neither synced nor renamed into place: a lost id is taken from the registry.
        fd = files.open(os.path.join(directory, TOPIC_ID), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            files.write(fd, f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode())
        finally:
            files.close(fd)
        self.logs[topic, partition] = created
        self.topic_ids.pop((topic, partition), None)
        return created

    def delete(self, topic: str, partition: int) -> str | None:
        """Rename the log away; returns the directory to remove (it may be large)."""
        doomed = self.logs.pop((topic, partition), None)
        return None if doomed is None else self.delete_directory(doomed.directory)

    def delete_directory(self, directory: str) -> str:
        """Rename a partition's directory away; returns what is to be removed."""
        path = self._other_name(directory, "delete")
        files.rename(directory, path)
        return path

    def future_directory(self, directory: str, parent: str) -> str:
        """Where to copy a partition's directory that is to move."""
        return self._other_name(os.path.join(parent, os.path.basename(directory)), "future")

    def set_aside(self, topic: str, partition: int) -> None:
        """Rename a log that belongs to no topic.  As in Kafka it is never deleted: who is right,
        the disk or the registry, is for a person to say."""
        stray = self.logs.pop((topic, partition))
        path = self._other_name(stray.directory, "stray")
        files.rename(stray.directory, path)
        log.warning("%s is of no known topic; quarantined as %s", stray.directory, path)

    def _other_name(self, directory: str, why: str) -> str:
        """``topic-0.<unique>-delete``, cut so that it is a legal file name."""
        parent, name = os.path.split(directory)
        topic, partition = name.rsplit("-", 1)
        suffix = f"-{partition}.{ids.random_uuid().hex()}-{why}"
        return os.path.join(parent, topic[: 255 - len(suffix)] + suffix)

    # -- checkpoints and closing ------------------------------------------------

    def write_checkpoints(self) -> None:
        """Write down recovery points, high watermarks and log starts, now."""
        self.note_checkpoints()()

    def note_checkpoints(self) -> Callable[[], None]:
        """Note the offsets of this moment; what is returned writes them, in any thread.

        A second note is taken when the first is written, or written before it: then the first
        never is.  It may name a topic that has been deleted and made again since.
        """
        self._notes += 1
        noted: list[tuple[str, str, dict[PartitionKey, int]]] = []
        for directory in self.directories:
            mine = {
                key: existing
                for key, existing in self.logs.items()
                if os.path.dirname(existing.directory) == directory
            }
            points = {key: existing.recovery_point for key, existing in mine.items()}
            watermarks = {key: existing.high_watermark for key, existing in mine.items()}
            starts = {
                key: existing.log_start_offset
                for key, existing in mine.items()
                if existing.log_start_offset > existing.segments[0].base_offset
            }
            cleaned = {
                key: existing.cleaned_offset
                for key, existing in mine.items()
                if existing.cleaned_offset is not None
            }
            noted += [
                (directory, checkpoints.RECOVERY_POINT, points),
                (directory, checkpoints.HIGH_WATERMARK, watermarks),
                (directory, checkpoints.LOG_START, starts),
                (directory, checkpoints.CLEANER, cleaned),
            ]
            self._checkpointed.setdefault(directory, set()).update(mine)
        return partial(self._write_note, self._notes, noted)

    def _write_note(
        self, number: int, noted: list[tuple[str, str, dict[PartitionKey, int]]]
    ) -> None:
        with self._checkpoint_lock:
            if number < self._newest_note:
                return
            self._newest_note = number
            for directory, name, offsets in noted:
                if name == checkpoints.CLEANER and offsets == self._cleaned.get(directory):
                    continue  # few logs are compacted, and seldom
                write_checkpoint(directory, name, offsets)
                if name == checkpoints.CLEANER:
                    self._cleaned[directory] = offsets
            for directory, name, offsets in noted:
                if name == checkpoints.RECOVERY_POINT:
                    self._checkpointed[directory] = set(offsets)

    def close(self, broker_epoch: int = -1) -> dict[str, OSError]:
        """Flush everything and mark the directories clean, as far as the disk allows.

        Returns what is not on disk, and why.
        """
        failed = self._close_logs()
        dirty = {os.path.dirname(path) for path in failed}
        try:
            self.write_checkpoints()
        except OSError as error:
            log.error("checkpoints not written at stop: %s", error)
            failed.update(dict.fromkeys(self.directories, error))
            dirty.update(self.directories)
        mark = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
        for directory in self.directories:
            if directory not in dirty:
                try:
                    write_atomically(os.path.join(directory, CLEAN_MARK), mark)
                except OSError as error:
                    log.error("%s: not marked clean at stop: %s", directory, error)
                    failed[directory] = error
        self.release()
        return failed

    def _close_logs(self) -> dict[str, OSError]:
        """A flush waits for the disk, and the disk likes to have many at once."""
        failed: dict[str, OSError] = {}
        said = self.clock.monotonic()
        with workers.pool(_FLUSHES_AT_ONCE, "close") as threads:
            closing = {threads.submit(each.close): each.directory for each in self.logs.values()}
            for done, future in enumerate(as_completed(closing), 1):
                directory, error = closing[future], future.exception()
                if isinstance(error, OSError):
                    log.error("%s: not flushed at stop: %s", directory, error)
                    failed[directory] = error
                elif error is not None:
                    raise error
                if self.clock.monotonic() - said >= _PROGRESS_SECONDS:
                    said = self.clock.monotonic()
                    log.info("stopping: %d of %d logs are on disk", done, len(closing))
        return failed

    def release(self) -> None:
        """Give the directories back without marking them clean."""
        self.logs.clear()
        for fd in self._locks:
            files.close(fd)
        self._locks.clear()


def _lock(directory: str) -> int:
    fd = files.open(os.path.join(directory, ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        files.lock(fd)
    except BlockingIOError:
        owner = files.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
        files.close(fd)
        raise DirectoryInUse(
            f"{directory} is in use by the broker with process id {owner}: "
            "stop it first, or give this one another directory"
        ) from None
    files.ftruncate(fd, 0)
    files.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _size(directory: str) -> int:
    total = 0
    for name in files.listdir(directory):
        with contextlib.suppress(OSError):
            total += files.size(os.path.join(directory, name))
    return total


def _take_mark(directory: str) -> bool:
    """Was the last stop clean?  The mark is gone for good before anything is written."""
    mark = os.path.join(directory, CLEAN_MARK)
    if files.exists(mark):
        remove(mark)
        sync_directory(directory)
        return True
    return not any(_PARTITION.fullmatch(name) for name in files.listdir(directory))


def _read_topic_id(path: str) -> bytes | None:
    try:
        text = files.read_file(os.path.join(path, TOPIC_ID)).decode()
        return parse_uuid(read_properties(text)["topic_id"])
    except (OSError, ValueError, KeyError):
        return None
