"""Karapace, a schema registry that keeps its schemas in a compacted topic.

It comes from PyPI if it is there.  ``TIDELOG_KARAPACE`` names the Python of an environment that
has it already.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from interop.building import build, heavy, run_build, run_fetch
from support.waiting import until

from tidelog.testing import LocalBroker
from tidelog.testing.ports import free_port

pytestmark = heavy()
_JSON = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
_LIMIT = 120  # seconds for a registry to come up or to end, on a busy machine


def record(*fields):
    """An Avro schema; each field is a name and a type, perhaps a default."""
    names = ("name", "type", "default")
    described = [dict(zip(names, field, strict=False)) for field in fields]
    return json.dumps({"type": "record", "name": "click", "fields": described})


FIRST = record(("user", "string"))
SECOND = record(("user", "string"), ("place", "string", ""))
WRONG = record(("user", "string"), ("place", "string", ""), ("cost", "int"))  # no default


def interpreter() -> str:
    """The newest Python here: Karapace wants a newer one than we do."""
    for name in ("python3.14", "python3.13", "python3.12"):
        works = [name, "-c", "import ensurepip, venv"]
        if shutil.which(name) and not subprocess.run(works, capture_output=True).returncode:
            return name
    return sys.executable


def python():
    """The interpreter of an environment with Karapace."""
    if installed := os.environ.get("TIDELOG_KARAPACE"):
        return installed

    def install(folder):
        run_build(interpreter(), "-m", "venv", "--clear", folder)
        run_fetch(folder / "bin" / "python", "-m", "pip", "install", "-q", "karapace")

    return build("karapace", [], install) / "bin" / "python"


class Registry:
    """One process of Karapace."""

    def __init__(self, broker: LocalBroker, log) -> None:
        self._port = free_port()
        settings = {
            "bootstrap_uri": broker.bootstrap,
            "host": "127.0.0.1",
            "port": self._port,
            "advertised_hostname": "127.0.0.1",
            "log_level": "WARNING",
            "karapace_registry": "true",
        }
        environment = {f"KARAPACE_{name.upper()}": str(value) for name, value in settings.items()}
        self._log = log
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [python(), "-m", "karapace"],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def __enter__(self):
        # Only its leader, elected in a group, may write.
        until(self._ready, "Karapace to serve", _LIMIT)
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_LIMIT)
        finally:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        try:
            return self("GET", "/subjects")[0] == 200
        except OSError:
            return False

    def __call__(self, method, path, **body):
        """The status and the answer."""
        data = json.dumps(body).encode() if body else None
        address = f"http://127.0.0.1:{self._port}{path}"
        request = urllib.request.Request(address, data, _JSON, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def register(self, schema):
        return self("POST", "/subjects/clicks/versions", schema=schema)


@pytest.mark.timeout(900)
def test_schemas_survive_restarts(tmp_path):
    log = tmp_path / "log"
    check = "/compatibility/subjects/clicks/versions/latest"
    with LocalBroker() as broker:
        with Registry(broker, log) as registry:
            until(lambda: registry.register(FIRST)[0] == 200, "the first schema", _LIMIT)
            assert registry.register(SECOND) == (200, {"id": 2})
            assert registry.register(FIRST) == (200, {"id": 1})
            assert registry("POST", check, schema=WRONG)[1]["is_compatible"] is False
            assert registry.register(WRONG)[0] == 409
            assert registry("PUT", "/config/clicks", compatibility="NONE")[0] == 200
            assert registry.register(WRONG)[0] == 200
            assert registry("PUT", "/config/clicks", compatibility="FULL")[0] == 200
            assert registry("POST", "/subjects/gone/versions", schema=FIRST)[0] == 200
            assert registry("DELETE", "/subjects/gone")[0] == 200
        resource = ConfigResource(ConfigResource.Type.TOPIC, "_schemas")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        described = admin.describe_configs([resource])
        assert described[resource].result(60)["cleanup.policy"].value == "compact"
        broker.kill()
        broker.start()
        with Registry(broker, log) as registry:
            until(lambda: registry("GET", "/subjects")[1] == ["clicks"], "the schemas", _LIMIT)
            assert registry("GET", "/subjects/clicks/versions") == (200, [1, 2, 3])
            found = [registry("GET", f"/schemas/ids/{number}")[1]["schema"] for number in (1, 2, 3)]
            assert list(map(json.loads, found)) == list(map(json.loads, (FIRST, SECOND, WRONG)))
            assert registry("GET", "/config/clicks")[1] == {"compatibilityLevel": "FULL"}
            assert registry("POST", check, schema=SECOND)[1]["is_compatible"] is False
            assert registry.register(FIRST) == (200, {"id": 1})
        assert "Traceback" not in broker.log
