"""Writes the reference pages from the code: ``./dev docs``.

``python docs/generate.py --check`` fails if a page is out of date; ``./dev check`` runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tidelog.broker.broker import Broker  # noqa: F401  (fills the registry)
from tidelog.broker.registry import REGISTRY
from tidelog.pipeline.kafka_settings import REFUSED_BY_SOURCE, UNDERSTOOD
from tidelog.pipeline.options import SOURCE_OPTIONS
from tidelog.settings_legacy import GONE, PER_TOPIC, RENAMED
from tidelog.settings_table import GROUPS, INT_MAX, LONG_MAX, Setting, text_of

HERE = Path(__file__).parent
SEEN = HERE.parent / "tests" / "interop" / "seen.json"
SUITES = HERE.parent / "tests" / "interop" / "suites.json"
# What clients call themselves in ApiVersions, where people know them by another name.
SOFTWARE = {
    "apache-kafka-java": "Java",
    "confluent-kafka-python": "confluent-kafka",
    "kgo": "franz-go",
}
ALSO_RUN = (
    "Kafka's command-line tools, 4.1 and 4.3: topics, configs, consumer-groups and groups (both "
    "protocols), log-dirs, delete-records, get-offsets, producer-perf-test, consumer-perf-test, "
    "verifiable-producer, verifiable-consumer (both protocols), console-producer, "
    "console-consumer (by partition), cluster, broker-api-versions; and on three brokers "
    "reassign-partitions and leader-election.",
    "Kafka's dump-log, 4.1 and 4.3, on our directories, with all its checks: after rolls, "
    "retention, restarts, clean stops and kill -9.",
    "Kafka Streams 4.3, at least once, two instances with state stores, changelog and repartition "
    "topics: killed with -9 in turn and together, restored from their own state and from the "
    "changelogs; no record is lost. The application reset tool.",
    "Kafka Connect 4.3 in distributed mode, two workers with a file source and a file sink: "
    "killed with -9 in turn and together; no line is lost.",
    "MirrorMaker 2 of Kafka 4.3 between tidelog and Kafka (3.9 and 4.3), both ways at once: the "
    "same records offset by offset, topic settings as they change, new partitions, the offsets of "
    "groups; killed with -9, it loses nothing.",
    "Karapace, a schema registry, with Avro schemas: schemas and settings in its compacted topic, "
    "after restarts of the registry and kill -9 of the broker. It is not on PyPI: it was run once "
    "from its source, without its Protobuf library and with PyPI's avro; elsewhere the test is "
    "skipped.",
    "kafkajs where offsets are out of range; its fetchOffsets, setOffsets and resetOffsets.",
    "Kafka 3.9 with ZooKeeper: tidelog starts on a directory that it wrote and it starts on "
    "one that tidelog wrote, after clean stops and kill -9; each reads what the other wrote and "
    "goes on appending. Of transactions that it wrote (committed, aborted, still open), "
    "`read_committed` consumers see what it would show them itself, and groups have the offsets "
    "that it would give them.",
)
NOTICE = "<!-- Written by docs/generate.py; run ./dev docs after a change. -->\n"


def settings_page() -> str:
    lines = [
        NOTICE,
        "# Settings",
        "",
        "Names, meanings and defaults are Kafka's. Give them in a properties file "
        "(`tidelog server --config`), with `--set name=value`, or from Python "
        "(`Broker({...})`). A setting with a topic name can be overridden for a topic "
        "(`tidelog configs alter --topic T --set name=value`); a dynamic one can be changed "
        "while the broker runs (`--broker ID` or `--all-brokers`).",
        "",
    ]
    for group, settings in GROUPS.items():
        lines += [
            f"## {group}",
            "",
            "| setting | type | default | topic setting | dynamic | meaning |",
            "|---|---|---|---|---|---|",
            *(_row(setting) for setting in settings),
            "",
        ]
    lines += [
        "## Names from Kafka 0.7",
        "",
        "They still work, and the broker says the modern name when it starts.",
        "",
        "| old name | today |",
        "|---|---|",
        *(f"| `{old}` | `{new}` |" for old, new in RENAMED.items()),
        "| `log.cleanup.interval.mins` | `log.retention.check.interval.ms` (in ms) |",
        "| `hostname`, `host.name`, `port` | `listeners` |",
        "| `enable.zookeeper` | leave `zookeeper.connect` empty |",
        *(f"| `{old}` (a map) | topic setting `{new}` |" for old, (new, _) in PER_TOPIC.items()),
        "| `topic.partition.count.map` | the same; or `tidelog topics create --partitions` |",
        *(f"| `{old}` | gone: {why} |" for old, why in GONE.items()),
        "",
    ]
    return "\n".join(lines)


def _row(setting: Setting) -> str:
    default = "" if setting.default is None else f"`{_number(setting.default)}`"
    topic = f"`{setting.topic}`" if setting.topic else ""
    kind = " \\| ".join(setting.choices) if setting.choices else setting.kind.name
    dynamic = "yes" if setting.dynamic else ""
    return f"| `{setting.name}` | {kind} | {default} | {topic} | {dynamic} | {setting.doc} |"


def _number(value: object) -> str:
    if value in (INT_MAX, LONG_MAX):
        return "no limit"
    return text_of(value)


def apis_page() -> str:
    lines = [
        NOTICE,
        "# APIs",
        "",
        "What a broker serves, from its own registry. Versions are Kafka's; a client picks "
        "the highest that both know.",
        "",
        "| key | API | versions | what it does |",
        "|---|---|---|---|",
    ]
    for _, api in sorted(REGISTRY.items()):
        low, high = api.versions
        versions = f"{low}–{high}" if low != high else f"{low}"  # noqa: RUF001
        if api.announce_from != low:
            versions += f" (announced from {api.announce_from})"
        lines.append(f"| {api.key} | {api.name} | {versions} | {api.summary} |")
    lines += [
        "",
        "Produce is announced from version 0, as Kafka 4 does: librdkafka before 2.11 takes a "
        'higher minimum for "no compression". Versions 0 to 2 carry message formats from '
        "before Kafka 0.11 and are answered `UNSUPPORTED_VERSION`. With acks=0 there is no answer: "
        "the connection is closed, the records are lost, and a warning in the broker's log names "
        "the client and its address. Upgrade such a client, or have it speak the protocol of Kafka "
        "0.11 or newer (`api_version` in kafka-python, `Version` in sarama, "
        "`broker.version.fallback` in librdkafka).",
        "",
        "Not there yet: transactions (24-28), SASL (17, 36).",
        "",
    ]
    return "\n".join(lines)


def compatibility_page() -> str:
    """Who was seen using what, from the last ``./dev test --clients --record``."""
    seen: dict[str, dict[str, list[int]]] = json.loads(SEEN.read_text())
    lines = [
        NOTICE,
        "# Compatibility",
        "",
        "Clients that the tests run against a broker, and the versions of each API that they "
        "were seen using on the wire. Names and versions are the ones that clients give in "
        "ApiVersions; those that give none go by their client id. librdkafka alone is kcat's, of "
        "the system, and the one in rust-rdkafka. A cell is empty if no test of that client "
        "used the API; it may work all the same. "
        "`./dev test --clients --record` writes this anew.",
        "",
        f"| API | served | {' | '.join(map(_client_name, seen))} |",
        "|---" * (len(seen) + 2) + "|",
    ]
    for key, api in sorted(REGISTRY.items()):
        low, high = api.versions
        # A client may try a newer ApiVersions first; it is told what is served.
        used = [_span([v for v in apis.get(str(key), []) if v <= high]) for apis in seen.values()]
        lines.append(f"| {api.name} ({key}) | {_span([low, high])} | {' | '.join(used)} |")
    beyond = sorted({int(key) for apis in seen.values() for key in apis} - REGISTRY.keys())
    lines += suites_table()
    lines += [
        "",
        "## Also run against it",
        "",
        *(f"- {line}" for line in ALSO_RUN),
        "",
    ]
    assert not beyond, f"APIs {beyond} were used but are not served"
    return "\n".join(lines)


def suites_table() -> list[str]:
    """What foreign suites gave in the last ``./dev test --clients --record`` that ran them."""
    lines = [
        "",
        "## Clients' own test suites",
        "",
        "They are run against one broker with `./dev test --clients`; of librdkafka's those that "
        "need a broker, with four partitions by default. What is not passed is skipped, for the "
        "reason given.",
        "",
        "| suite | passed | skipped |",
        "|---|---|---|",
    ]
    results: dict[str, dict[str, Any]] = json.loads(SUITES.read_text())
    for name, result in sorted(results.items()):
        skipped = "; ".join(
            f"{_counted(tests)} ({reason})" for reason, tests in result["skipped"].items()
        )
        lines.append(f"| {name} {result['version']} | {len(result['passed'])} | {skipped} |")
    return lines


def _counted(tests: list[str]) -> str:
    return ", ".join(tests) if len(tests) < 5 else f"{len(tests)} tests"


def spark_page() -> str:
    lines = [
        NOTICE,
        "# Options of the Spark source",
        "",
        '`spark.read` and `spark.readStream` with `.format("tidelog")`. Names, defaults and '
        "precedence are those of Spark's own Kafka connector; what it does not have is marked. "
        "Names are case-insensitive; one that does not exist is refused. A stream refuses what is "
        "for batches; a batch says that it does not use what is for streams, and reads on.",
        "",
        "`kafka.bootstrap.servers` is needed, and one of the first three.",
        "",
        "| option | default | for | beyond Spark | meaning |",
        "|---|---|---|---|---|",
        *(
            f"| `{name}` | {row.default} | {row.queries} | {'yes' if row.beyond else ''} "
            f"| {row.meaning} |"
            for name, row in SOURCE_OPTIONS.items()
        ),
        "",
        "## Kafka's own settings: `kafka.*`",
        "",
        "| option | meaning |",
        "|---|---|",
        *(f"| `kafka.{name}` | {meaning} |" for name, meaning in UNDERSTOOD.items()),
        "",
        "Refused:",
        "",
        *(f"- `kafka.{name}`: {why}." for name, why in REFUSED_BY_SOURCE.items()),
        "- `kafka.security.protocol` other than `PLAINTEXT`: there is no TLS and no SASL yet.",
        "",
        "Any other setting of Kafka's clients is accepted; it means nothing to this one.",
        "",
    ]
    return "\n".join(lines)


def _client_name(client: str) -> str:
    name, _, version = client.partition(" ")
    return f"{SOFTWARE.get(name, name)} {version.replace('-rdkafka-', ', librdkafka ')}"


def _span(versions: list[int]) -> str:
    if not versions:
        return ""
    low, high = min(versions), max(versions)
    return f"{low}–{high}" if low != high else f"{low}"  # noqa: RUF001


def main() -> int:
    pages = {
        "settings.md": settings_page(),
        "apis.md": apis_page(),
        "compatibility.md": compatibility_page(),
        "spark-options.md": spark_page(),
    }
    stale = []
    for name, text in pages.items():
        path = HERE / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"docs/{', docs/'.join(stale)}: out of date; run ./dev docs\n")
        return 1
    return 0


sys.exit(main())
