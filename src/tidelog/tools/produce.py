"""``tidelog produce``: records from the keyboard, a file or a pipe.

librdkafka does the sending.  Whether a broker is there, and whether the topic is, our own
client asks first: librdkafka would say so only after minutes, and in its own words.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any

import click
from confluent_kafka import KafkaError, KafkaException, Producer

from tidelog.client.cluster import Cluster, check_topic
from tidelog.clock import SystemClock
from tidelog.errors import ApiError, ErrorCode
from tidelog.text import plural
from tidelog.tools.librdkafka import silent_logger
from tidelog.tools.lines import LineFormat
from tidelog.tools.options import bootstrap_option, connect, unescape
from tidelog.tools.output import complain, note, show_json
from tidelog.tools.pairs import pairs_option
from tidelog.tools.record_json import Outgoing
from tidelog.tools.stop_signal import StopSignal
from tidelog.views.in_sync import why_not_created, why_not_written

_HINTS = {
    "INVALID_RECORD": "; a compacted topic takes only records with a key (-k, --key-separator)",
    "MSG_SIZE_TOO_LARGE": (
        "; the topic takes batches of up to max.message.bytes: "
        "tidelog configs alter --topic NAME --set max.message.bytes=BYTES"
    ),
}
_TIMED_OUT = "Message timed out"
_SHOWN_FAILURES = 5
_GIVE_UP_MS = 30_000  # message.timeout.ms: long enough for a broker to restart
_REMIND_SECONDS = 60
_POLL_SECONDS = 0.2
_SILENT_SECONDS = 2  # without an acknowledgement: longer than an election takes
_LOOK_SECONDS = 5  # for the reason, after so long a wait
_SECURITY = ("security.", "sasl.", "ssl.")


@click.command()
@click.argument("topic")
@click.option(
    "--file", "source", type=click.File("rb"), default="-", help="Default: standard input."
)
@click.option("-k", "--key", help="The key of every record.")
@click.option("--key-separator", metavar="SEP", help=r"Lines are KEY SEP VALUE; \t is a tab.")
@pairs_option(
    "-H", "--header", "headers", help="A header of every record; repeatable.", metavar="NAME=VALUE"
)
@click.option(
    "--headers-separator", metavar="SEP", help="Lines begin with headers, as a=1,b=2 SEP."
)
@click.option("--null", metavar="MARK", help="Keys, values and headers equal to MARK are null.")
@click.option(
    "--json", "as_json", is_flag=True, help="Lines are JSON objects, and so is the summary."
)
@click.option(
    "-p", "--partition", type=click.IntRange(0), help="The partition (default: chosen by the key)."
)
@click.option("--repartition", is_flag=True, help="Ignore the partitions in JSON lines.")
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="The compression of batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all", "-1"]),
    default="all",
    show_default=True,
    help="Wait for no acknowledgement, the leader's, or that of all in-sync replicas (idempotent).",
)
@click.option(
    "--batch-size", type=click.IntRange(1), help="The largest number of records in a batch."
)
@click.option(
    "--timeout",
    type=click.IntRange(0),
    metavar="MS",
    help="How long a batch waits for more records (linger.ms).",
)
@click.option(
    "--sync", is_flag=True, help="Wait for each record to be acknowledged before sending the next."
)
@pairs_option("--property", "properties", help="A librdkafka setting; repeatable.")
@click.option("-q", "--quiet", is_flag=True, help="No prompt and no summary.")
@bootstrap_option
def produce(
    topic: str,
    source: IO[bytes],
    key: str | None,
    key_separator: str | None,
    headers: dict[str, str],
    headers_separator: str | None,
    null: str | None,
    as_json: bool,
    partition: int | None,
    repartition: bool,
    compression: str,
    acks: str,
    batch_size: int | None,
    timeout: int | None,
    sync: bool,
    properties: dict[str, str],
    quiet: bool,
    bootstrap: str,
) -> None:
    """Write records to TOPIC, one per line of input.

    \b
        echo hello | tidelog produce greetings
        tidelog produce clicks --key-separator : --file clicks.txt -z lz4
        tidelog consume clicks --json --exit | tidelog produce copy --json --repartition
    """
    fixed = tuple((name, value.encode()) for name, value in headers.items())
    lines = LineFormat(
        key=None if key is None else key.encode(),
        key_separator=_separator(key_separator, "--key-separator"),
        headers=fixed,
        headers_separator=_separator(headers_separator, "--headers-separator"),
        null=None if null is None else null.encode(),
        json=as_json,
    )
    if as_json and (key_separator or headers_separator or null):
        raise click.UsageError("--json lines carry keys, headers and nulls themselves")
    if key is not None and key_separator is not None:
        raise click.UsageError("give --key or --key-separator, not both")
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "client.id": "tidelog-produce",
        "acks": acks,
        "enable.idempotence": acks in ("all", "-1"),
        "compression.type": compression,
        "message.timeout.ms": _GIVE_UP_MS,
        "message.max.bytes": 100_000_000,  # the topic's max.message.bytes is what counts
        "linger.ms": 0 if sync else 5,
    }
    if timeout is not None:
        settings["linger.ms"] = timeout
        settings["message.timeout.ms"] = max(_GIVE_UP_MS, 2 * timeout)
    if batch_size is not None:
        settings["batch.num.messages"] = batch_size
    settings.update(properties)
    interactive = source.isatty() and not quiet
    sender = _Sender(topic, settings, sync)
    partitions = _check_topic(bootstrap, topic, settings)
    if problem := _no_partition(topic, partitions, partition):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, problem)
    sender.start()
    code, stopped_at = 0, None
    with StopSignal(raising=True) as stop:
        try:
            for number, line in _read(source, interactive):
                try:
                    record = lines.read(line)
                    chosen = partition
                    if chosen is None and not repartition:
                        chosen = record.partition
                        if problem := _no_partition(topic, partitions, chosen):
                            raise ValueError(f"{problem}; --repartition ignores it")
                except ValueError as error:
                    code = 1
                    if interactive:
                        complain(f"line {number}: {error}")
                        continue
                    stopped_at = number
                    complain(f"line {number}: {error}. Stopped there: {_before(number)}")
                    break
                sender.send(record, chosen)
                if sender.hopeless:
                    break
        except KeyboardInterrupt:
            code = 0 if interactive else stop.exit_code
        finally:
            sender.finish()
    if not quiet:
        sender.report(as_json, stopped_at)
    sys.exit(1 if sender.failed else code)


def _no_partition(topic: str, partitions: int | None, chosen: int | None) -> str:
    """Why a record cannot go to a partition; "" if it can, or if that is not known."""
    if chosen is None or partitions is None or chosen < partitions:
        return ""
    return (
        f"topic {topic!r} has {plural(partitions, 'partition')}, so there is no partition {chosen}"
    )


def _before(number: int) -> str:
    """What became of the lines before one that cannot be sent."""
    if number == 1:
        return "nothing was sent"
    if number == 2:
        return "line 1 was sent, nothing after it"
    return f"lines 1 to {number - 1} were sent, nothing after them"


def _separator(text: str | None, option: str) -> bytes | None:
    if text == "":
        raise click.BadParameter("it is empty", param_hint=option)
    return None if text is None else unescape(text).encode()


def _check_topic(bootstrap: str, topic: str, settings: dict[str, Any]) -> int | None:
    """Reach a broker and find (or create) the topic; returns its number of partitions."""
    if _speaks_securely(settings):
        return None  # our own client speaks plain text only; librdkafka reports errors itself
    seconds = _give_up_seconds(settings)
    with connect(bootstrap, patience=seconds) as cluster:
        problem, told_at = "", 0.0
        for _ in cluster.attempts():
            view = cluster.metadata([topic], create=True).topics[topic]
            check_topic(view)
            before, problem = problem, why_not_created(cluster, topic) if view.error else ""
            if not problem:
                return len(view.partitions) or None
            now = SystemClock().monotonic()
            if problem != before or now - told_at >= _REMIND_SECONDS:
                limit = "" if seconds == math.inf else f" (trying for {seconds:g} seconds)"
                note(f"topic {topic!r} cannot be created: {problem}{limit}")
                told_at = now
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"nothing was written to {topic!r}: {problem}")


def _give_up_seconds(settings: dict[str, Any]) -> float:
    """How long librdkafka would try; it says itself what is wrong with the setting."""
    try:
        return int(settings["message.timeout.ms"]) / 1000 or math.inf
    except ValueError:
        return _GIVE_UP_MS / 1000


def _speaks_securely(settings: dict[str, Any]) -> bool:
    return any(name.startswith(_SECURITY) for name in settings)


def _read(source: IO[bytes], interactive: bool) -> Iterator[tuple[int, bytes]]:
    """Numbered lines without their ends; with a prompt if a person types them."""
    number = 0
    while True:
        if interactive:
            click.echo(">", nl=False, err=True)
        line = source.readline()
        if not line:
            if interactive:
                click.echo(err=True)
            return
        number += 1
        yield number, line.removesuffix(b"\n")


class _Sender:
    """librdkafka's producer, with its complaints collected and its results counted."""

    def __init__(self, topic: str, settings: dict[str, Any], sync: bool) -> None:
        self._topic = topic
        self._settings = settings
        self._sync = sync
        self._delivered: Counter[int] = Counter()
        self._failures: Counter[str] = Counter()
        self._producer: Producer
        self._clock = SystemClock()
        self._told = False
        self.hopeless = False

    def start(self) -> None:
        try:
            settings = {**self._settings, "error_cb": self._on_error}
            self._producer = Producer(settings, logger=silent_logger())
        except KafkaException as error:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"--property: {_words(error.args[0])}"
            ) from error

    @property
    def failed(self) -> int:
        return self._failures.total()

    def send(self, record: Outgoing, partition: int | None) -> None:
        options: dict[str, Any] = {}
        if partition is not None:
            options["partition"] = partition
        if record.timestamp is not None:
            options["timestamp"] = record.timestamp
        if record.headers:
            options["headers"] = record.headers
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, on_delivery=self._on_delivery, **options
                )
                break
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: wait for deliveries
            except KafkaException as error:
                self._failures[_words(error.args[0])] += 1
                return
        if self._sync:
            self._flush()
        else:
            self._producer.poll(0)

    def finish(self) -> None:
        """Wait until every record is delivered or given up; Ctrl-C ends the wait."""
        try:
            self._flush()
        except KeyboardInterrupt:
            left = len(self._producer)
            if left:
                self._failures["interrupted"] += left

    def _flush(self) -> None:
        """Wait for all deliveries; if there is none for a while, say so, and why."""
        left, since = 0, self._clock.monotonic()
        while count := self._producer.flush(_POLL_SECONDS):
            now = self._clock.monotonic()
            if count != left:
                left, since = count, now
            elif now - since >= _SILENT_SECONDS and not self._told:
                waiting = f"{plural(count, 'record')} not acknowledged yet{self._why()}"
                self._note_retries(waiting)

    def _note_retries(self, problem: str) -> None:
        """Once: what becomes of the records is reported at the end."""
        if not self._told:
            self._told = True
            seconds = _give_up_seconds(self._settings)
            limit = "until Ctrl-C" if seconds == math.inf else f"for {seconds:g} seconds"
            note(f"{problem}; trying again {limit}")

    def report(self, as_json: bool, stopped_at: int | None) -> None:
        """How many records went where."""
        total = self._delivered.total()
        if as_json:
            where = {str(p): n for p, n in sorted(self._delivered.items())}
            show_json(
                {
                    "topic": self._topic,
                    "records": total,
                    "partitions": where,
                    "failed": self.failed,
                    "errors": dict(self._failures),
                    "stopped_at_line": stopped_at,
                }
            )
        elif total or not self.failed:
            parts = [f"{n:,} to partition {p}" for p, n in sorted(self._delivered.items())]
            where_text = f": {', '.join(parts)}" if parts else ""
            note(f"{plural(total, 'record')} to {self._topic}{where_text}")
        for reason, count in self._failures.most_common(_SHOWN_FAILURES):
            hint = _HINTS.get(reason.partition(":")[0], "")
            if reason == _TIMED_OUT:
                hint = self._why()
            complain(f"{plural(count, 'record')} not written: {reason}{hint}")

    def _why(self) -> str:
        """librdkafka keeps to itself what the broker has answered: look at the topic."""
        if _speaks_securely(self._settings):
            return ""
        try:
            with Cluster(
                str(self._settings["bootstrap.servers"]), timeout=_LOOK_SECONDS
            ) as cluster:
                reason = why_not_written(cluster, self._topic, str(self._settings["acks"]))
        except ApiError:
            return ""
        return f" ({reason})" if reason else ""

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failures[_words(error)] += 1
            # A record that is too large fails alone; without a broker all the others would fail.
            self.hopeless = (
                self.hopeless or error.fatal() or error.code() == KafkaError._MSG_TIMED_OUT
            )
        else:
            self._delivered[message.partition()] += 1

    def _on_error(self, error: KafkaError) -> None:
        self._note_retries(_words(error))


def _words(error: KafkaError) -> str:
    """librdkafka's error in a sentence that begins with Kafka's name for it."""
    text = str(error.str()).replace("Broker: ", "").replace("Local: ", "")
    return f"{error.name()}: {text}" if error.code() > 0 else text
