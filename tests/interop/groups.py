"""Members of consumer groups in processes of their own, and what they say.

A member runs on one of the clients; it can end in good order, or be killed with -9.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from support.waiting import until

from tidelog.testing import LocalBroker

HERE = Path(__file__).parent
PATIENCE = 100  # seconds; a busy machine is slow, and clients wait for each other
LONG_SESSION = 60_000  # no live member is given up, however busy the machine
JAVA = {"java-4.1": "kafka-4.1", "java-4.4": "clients-4.4"}
SHORT_SESSION = 6000  # the shortest: for members that are killed, and whose end is waited for


class Member:
    """One process with one consumer."""

    def __init__(self, command: Sequence[str | Path], **task: Any) -> None:
        self.task = task
        self.events: list[dict[str, Any]] = []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*map(str, command), json.dumps(task)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    @property
    def log(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")

    # -- what it said -------------------------------------------------------------

    @property
    def owned(self) -> set[tuple[str, int]]:
        """The partitions that it has now; cooperative members are told only what changes."""
        changes_only = (
            self.task.get("strategy") == "cooperative" or self.task.get("protocol") == "consumer"
        )
        owned: set[tuple[str, int]] = set()
        for event in list(self.events):
            rows = {(topic, partition) for topic, partition in event.get("partitions", ())}
            if event["event"] == "assigned":
                owned = owned | rows if changes_only else rows
            elif event["event"] == "revoked":
                owned -= rows
        return owned

    @property
    def values(self) -> list[str]:
        return [event["value"] for event in list(self.events) if event["event"] == "record"]

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["event"] == kind]

    # -- ends ---------------------------------------------------------------------

    def stop(self) -> None:
        """In good order: the client leaves the group."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)
        self._reader.join()
        assert self.told("closed"), self.log[-3000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._errors.close()


class Groups:
    """Starts members, and looks at them together."""

    def __init__(self, broker: LocalBroker, topic: str, partitions: int) -> None:
        self.broker, self.topic, self.partitions = broker, topic, partitions
        self.members: list[Member] = []
        self.values: list[Any] = []
        self._sent = 0

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.close()

    def start(self, client: str, group: str, session_ms: int = LONG_SESSION, **more: Any) -> Member:
        command: list[str | Path] = [sys.executable, HERE / "group_worker.py"]
        if client == "kafkajs":
            command = ["node", HERE / "kafkajs" / "group.mjs"]
        elif client in ("franz", "sarama"):
            from interop.go_program import program

            command = [program(), f"{client}-group"]
        elif client in JAVA:
            from interop.java import group_command

            command = group_command(JAVA[client])
        member = Member(
            command,
            client=client,
            bootstrap=self.broker.bootstrap,
            group=group,
            topics=[self.topic],
            session_ms=session_ms,
            **more,
        )
        self.members.append(member)
        return member

    def settled(self, *members: Member) -> None:
        """Wait until these members have every partition exactly once, and none has nothing."""
        wanted = Counter((self.topic, i) for i in range(self.partitions))

        def owned() -> bool:
            for member in members:
                assert member.process.poll() is None, member.log[-3000:]
            held = [member.owned for member in members]
            return all(held) and Counter(row for rows in held for row in rows) == wanted

        try:
            until(owned, "every partition to have one owner", PATIENCE)
        except AssertionError as error:
            told = [member.events[-10:] for member in members]
            logs = [member.log[-500:] for member in members]
            raise AssertionError(f"{error}: {told} {logs}") from None

    def send(self, count: int) -> list[str]:
        """Write records to all partitions in turn; returns their values."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        values = [f"{i}" for i in range(self._sent, self._sent + count)]
        self._sent += count
        for i, value in enumerate(values):
            producer.produce(self.topic, value.encode(), partition=i % self.partitions)
        assert producer.flush(PATIENCE) == 0
        return values

    def seen(self, members: Iterable[Member], values: Iterable[str]) -> Counter[str]:
        """Wait until these members have seen all values between them; how often each was."""
        members, wanted = list(members), set(values)

        def all_seen() -> bool:
            return wanted <= {value for member in members for value in member.values}

        try:
            until(all_seen, "every value to be seen", PATIENCE)
        except AssertionError as error:
            told = [member.events[-10:] for member in members]
            raise AssertionError(f"{error}: {told}") from None
        return Counter(value for member in members for value in member.values if value in wanted)
