"""What a user of Spark may ask of the format ``tidelog``.  Pure.

Names, defaults and precedence are those of Spark's own Kafka connector, so that moving a job
is one word; what goes beyond it is marked in the table of ``SourceOptions``.  Names are
case-insensitive, as everywhere in Spark.  A wrong value and a name that does not exist are
refused before anything is read, in a sentence that says what to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelog.client.cluster import Cluster
from tidelog.client.connection import CONNECT_TIMEOUT, REQUEST_TIMEOUT
from tidelog.clock import Clock
from tidelog.errors import ApiError
from tidelog.pipeline.kafka_settings import ALL_SETTINGS

KAFKA_PREFIX = "kafka."
CLIENT_ID = "tidelog-spark"
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"


class OptionError(ValueError):
    """An option that cannot be; the message names it and says what to write."""


def unknown_option(name: str, known: Iterable[str]) -> OptionError:
    """There is no such option; perhaps there is one that is spelt nearly so."""
    by_lower = {row.lower(): row for row in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    hint = f"; did you mean {by_lower[close[0]]}?" if close else ""
    return OptionError(f"{name}: there is no such option{hint}")


# -- the client -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to talk to the cluster: what the ``kafka.*`` options say.  Travels to executors.

    Times are in seconds, as in our client.  ``settings`` holds every ``kafka.*`` option as it
    was written, without the prefix and sorted: the sink hands them to librdkafka.
    """

    bootstrap: str
    client_id: str = CLIENT_ID
    connect_timeout: float = CONNECT_TIMEOUT  # socket.connection.setup.timeout.ms
    timeout: float = REQUEST_TIMEOUT  # request.timeout.ms
    api_timeout: float = 60.0  # default.api.timeout.ms: a question, with all its repetitions
    read_committed: bool = False  # isolation.level
    group_id: str | None = None
    fetch_max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 4 * 1024 * 1024  # max.partition.fetch.bytes
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold passwords

    @classmethod
    def parse(
        cls,
        options: Mapping[str, str],
        *,
        refused: Mapping[str, str] | None = None,
        known: Iterable[str] = ALL_SETTINGS,
    ) -> ClientOptions:
        """Read the ``kafka.*`` options among ``options``; ``refused`` gives reasons by name."""
        settings = kafka_settings(options)
        for name, value in settings.items():
            if name in (refused or {}):
                reason = (refused or {})[name]
                raise OptionError(f"{KAFKA_PREFIX}{name} cannot be set: {reason}")
            if name not in known:
                raise unknown_option(KAFKA_PREFIX + name, [KAFKA_PREFIX + row for row in known])
            if name == "security.protocol" and value.strip().upper() != "PLAINTEXT":
                raise OptionError(
                    f"kafka.security.protocol={value}: TLS and SASL are not supported yet; "
                    "use a PLAINTEXT listener of the cluster and leave this option out"
                )
        bootstrap = settings.get("bootstrap.servers", "").strip()
        if not bootstrap:
            raise OptionError(
                "kafka.bootstrap.servers is missing: write "
                '.option("kafka.bootstrap.servers", "host:9092,host:9092")'
            )
        isolation = settings.get("isolation.level", READ_UNCOMMITTED).strip().lower()
        if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise OptionError(
                f"kafka.isolation.level={isolation}: write {READ_COMMITTED} or {READ_UNCOMMITTED}"
            )
        own = cls(bootstrap)

        def number(name: str, default: int, least: int) -> int:
            return whole_number(KAFKA_PREFIX + name, settings.get(name), default, least)

        def seconds(name: str, default: float) -> float:
            return number(name, round(default * 1000), 1) / 1000

        result = cls(
            bootstrap,
            client_id=settings.get("client.id") or CLIENT_ID,
            connect_timeout=seconds("socket.connection.setup.timeout.ms", own.connect_timeout),
            timeout=seconds("request.timeout.ms", own.timeout),
            api_timeout=seconds("default.api.timeout.ms", own.api_timeout),
            read_committed=isolation == READ_COMMITTED,
            group_id=settings.get("group.id") or None,
            fetch_max_bytes=number("fetch.max.bytes", own.fetch_max_bytes, 1),
            partition_max_bytes=number("max.partition.fetch.bytes", own.partition_max_bytes, 1),
            fetch_min_bytes=number("fetch.min.bytes", own.fetch_min_bytes, 0),
            fetch_max_wait_ms=number("fetch.max.wait.ms", own.fetch_max_wait_ms, 0),
            settings=tuple(sorted(settings.items())),
        )
        try:
            result.cluster().close()  # it connects when it is first used: this reads addresses
        except ApiError as error:
            reason = str(error).removeprefix("bootstrap: ")
            raise OptionError(f"kafka.bootstrap.servers={bootstrap}: {reason}") from None
        return result

    def cluster(self, *, patience: float | None = None, clock: Clock | None = None) -> Cluster:
        """A client of the cluster; it connects when it is first asked something."""
        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            connect_timeout=self.connect_timeout,
            timeout=self.timeout,
            patience=min(self.api_timeout, 10.0) if patience is None else patience,
            clock=clock,
        )


def kafka_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The ``kafka.*`` options under the names that Kafka gives them.

    ``kafkaConsumer.pollTimeoutMs`` is not one of them: the dot comes later.
    """
    return {
        name.lower().removeprefix(KAFKA_PREFIX): str(value)
        for name, value in options.items()
        if name.lower().startswith(KAFKA_PREFIX)
    }


# -- values ---------------------------------------------------------------------


def whole_number(name: str, text: str | None, default: int, least: int = 0) -> int:
    """A whole number, or a sentence that says what it may be."""
    if text is None:
        return default
    try:
        number = int(text.strip().replace("_", ""))
    except ValueError:
        raise OptionError(f"{name}={text}: write a whole number") from None
    if not least <= number < 2**63:
        raise OptionError(f"{name}={text}: write a whole number that is at least {least}")
    return number


def truth(name: str, text: str | None, default: bool) -> bool:
    """``true`` or ``false``."""
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name}={text}: write true or false")
    return text.strip().lower() == "true"
