"""Kafka Connect in distributed mode: workers are killed with -9, and no line of a file is lost."""

from contextlib import ExitStack
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from interop.building import heavy
from interop.connect import Worker
from interop.reading import read_topic
from support.waiting import until

pytestmark = heavy("java", "mvn")
LINES = 2000
PATIENCE = 120  # seconds; a session has to end before another worker takes over


class Pipe:
    """A file whose lines go into a topic, and from there into another file."""

    def __init__(self, broker, topic, folder):
        self.bootstrap, self.topic = broker.bootstrap, topic
        self.source, self.sink = folder / "source.txt", folder / "sink.txt"
        self.source.touch()
        self.lines = []
        self.workers = [
            Worker(name, folder, broker.bootstrap, f"{topic}-connect") for name in ("one", "two")
        ]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for done in admin.create_topics([NewTopic(topic, 1)]).values():
            done.result(PATIENCE)

    def connect(self, worker):
        package = "org.apache.kafka.connect.file.FileStream"
        for kind, path, name in (("Source", self.source, "topic"), ("Sink", self.sink, "topics")):
            connector = {
                "connector.class": f"{package}{kind}Connector",
                "tasks.max": "1",
                "file": str(path),
                name: self.topic,
            }
            created = partial(worker.ask, f"connectors/{kind}/config", connector)
            until(created, f"{kind} to be created", PATIENCE)

    def append(self):
        new = [f"line {number}" for number in range(len(self.lines), len(self.lines) + LINES)]
        with self.source.open("a") as file:
            file.write("".join(f"{line}\n" for line in new))
        self.lines += new

    def arrived(self):
        """Wait until every line is in the topic and in the other file."""

        def all_there():
            for worker in self.workers:
                if worker.running:
                    worker.check()
            return self.sink.exists() and set(self.lines) <= set(self.sink.read_text().split("\n"))

        try:
            until(all_there, "every line to arrive", PATIENCE)
        except AssertionError as error:
            lost = sorted(set(self.lines) - set(self.sink.read_text().split("\n")))
            logs = "\n".join(worker.log[-4000:] for worker in self.workers)
            raise AssertionError(f"{error}: {len(lost)} lost, {lost[:5]}\n{logs}") from None
        values = [record.value.decode() for record in read_topic(self.bootstrap, self.topic)]
        # A line may come twice, but never before one that stands above it.
        assert list(dict.fromkeys(values)) == self.lines


@pytest.fixture
def pipe(broker, topic, tmp_path):
    made = Pipe(broker, topic, tmp_path)
    with ExitStack() as stack:
        for worker in made.workers:
            stack.enter_context(worker)
        yield made


def test_killed_workers_lose_nothing(pipe):
    one, two = pipe.workers
    pipe.connect(one)
    pipe.append()
    pipe.arrived()
    for killed in (one, two):
        pipe.append()
        killed.kill()
        pipe.append()
        pipe.arrived()  # by the other alone
        killed.start()
        pipe.append()
        until(partial(killed.runs, "Source"), "the worker to come back", PATIENCE)
    one.kill()
    two.kill()
    pipe.append()
    one.start()
    pipe.arrived()
    one.stop()
