"""franz-go's own tests of its client ``kgo``, from its module, against a broker of ours."""

import json
import re
import shutil
import subprocess

import pytest
from interop.building import build, heavy, run_build, run_fetch
from interop.go_program import FOLDER
from interop.suites import TRANSACTIONS, Outcome, judge, run_suite

from tidelog.testing import LocalBroker

pytestmark = heavy("go")
_MODULE = "github.com/twmb/franz-go"
_LIMIT = 420  # seconds; it takes one minute on a machine with two cores to itself
_RECORDS = 10_000  # of 500,000 by default
# Tests by name that need what is not there, and why.
SKIPPED = {"TestTxnEtl": TRANSACTIONS}

_ENDED = re.compile(r"^--- (PASS|FAIL|SKIP): (\w+) \(([\d.]+)s\)$")
_SAID = re.compile(r"^ +\w+\.go:\d+: (?!deleting )(.*)$")
_STATES = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}


def module() -> dict[str, str]:
    """What Go knows of the module that go.mod names, when it has been fetched."""
    run_fetch("go", "mod", "download", _MODULE, cwd=FOLDER)
    command = ["go", "mod", "download", "-json", _MODULE]
    return json.loads(subprocess.check_output(command, cwd=FOLDER, text=True, timeout=60))


def program(found: dict[str, str]):
    """The folder ``pkg/kgo`` of the module, with its tests compiled."""
    inside = f"{_MODULE}@{found['Version']}"

    def compile_(folder):
        shutil.unpack_archive(found["Zip"], folder, "zip")
        run_fetch("go", "mod", "download", cwd=folder / inside)
        run_build("go", "test", "-c", ".", cwd=folder / inside / "pkg" / "kgo")

    sources = [FOLDER / "go.mod", FOLDER / "go.sum"]
    return build("franz-go-tests", sources, compile_) / inside / "pkg" / "kgo"


def outcomes(text: str) -> dict[str, Outcome]:
    found, said = {}, ""
    for line in text.splitlines():
        if match := _SAID.match(line):
            said = match[1]
        elif match := _ENDED.match(line):
            state, name, seconds = match.groups()
            reason = said if state == "SKIP" else ""
            found[name] = Outcome(_STATES[state], float(seconds), reason)
    return found | {name: Outcome("skipped", 0, reason) for name, reason in SKIPPED.items()}


@pytest.mark.timeout(1200)
def test_kgo(tmp_path):
    found = module()
    folder = program(found)
    log = tmp_path / "log"
    with LocalBroker() as broker:
        code = run_suite(
            [
                folder / "kgo.test",
                *("-test.v", f"-test.timeout={_LIMIT}s"),
                f"-test.skip=^({'|'.join(SKIPPED)})$",
            ],
            folder,
            _LIMIT + 30,
            log,
            KGO_SEEDS=broker.bootstrap,
            KGO_TEST_RF="1",
            KGO_TEST_RECORDS=str(_RECORDS),
            KGO_LOG_LEVEL="none",
        )
        assert "Traceback" not in broker.log
    text = log.read_text(errors="replace")
    judge("franz-go", found["Version"].removeprefix("v"), outcomes(text), code, text)
