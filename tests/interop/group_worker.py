"""A member of a consumer group as a program of its own, on the Python clients.

    python group_worker.py '{"client": "confluent", "bootstrap": ..., "group": ..., "topics": []}'

It says what happens in lines of JSON: ``assigned`` and ``revoked`` with partitions, ``record``
with partition, offset and value (after it is committed), ``error``, and ``closed`` at the end.
SIGTERM ends it in good order; kill -9 does not.
Options: ``instance`` (static member), ``strategy`` (range, sticky, cooperative),
``session_ms``, ``protocol`` (classic or consumer).
"""

import asyncio
import json
import signal
import sys
import threading

END = threading.Event()


def say(event, **more):
    sys.stdout.write(json.dumps({"event": event, **more}) + "\n")
    sys.stdout.flush()


def rows(partitions):
    return sorted([p.topic, p.partition] for p in partitions)


def on_confluent(task):
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    strategies = {"range": "range", "sticky": "roundrobin", "cooperative": "cooperative-sticky"}
    config = {
        "bootstrap.servers": task["bootstrap"],
        "group.id": task["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if task.get("protocol", "classic") == "consumer":
        config["group.protocol"] = "consumer"
    else:
        config["session.timeout.ms"] = task["session_ms"]
        config["heartbeat.interval.ms"] = 500
        config["partition.assignment.strategy"] = strategies[task["strategy"]]
    if task.get("instance"):
        config["group.instance.id"] = task["instance"]
    consumer = Consumer(config)
    consumer.subscribe(
        task["topics"],
        on_assign=lambda _, parts: say("assigned", partitions=rows(parts)),
        on_revoke=lambda _, parts: say("revoked", partitions=rows(parts)),
        on_lost=lambda _, parts: say("revoked", partitions=rows(parts), lost=True),
    )
    while not END.is_set():
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error():
            say("error", text=str(message.error()))
            if "fenced" in str(message.error()):
                break
            continue
        place = TopicPartition(message.topic(), message.partition(), message.offset() + 1)
        try:
            consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            say("error", text=str(error))
            continue
        value = message.value().decode()
        say("record", partition=message.partition(), offset=message.offset(), value=value)
    consumer.close()


def on_kafka_python(task):
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    assignors = {"range": RangePartitionAssignor, "sticky": StickyPartitionAssignor}

    class Listener(kafka.ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            say("assigned", partitions=rows(assigned))

        def on_partitions_revoked(self, revoked):
            say("revoked", partitions=rows(revoked))

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=task["bootstrap"],
        group_id=task["group"],
        group_instance_id=task.get("instance"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=task["session_ms"],
        heartbeat_interval_ms=500,
        partition_assignment_strategy=[assignors[task["strategy"]]],
    )
    consumer.subscribe(task["topics"], listener=Listener())
    while not END.is_set():
        try:
            found = consumer.poll(timeout_ms=1000, max_records=1)
            for place, records in found.items():
                for record in records:
                    meta = kafka.structs.OffsetAndMetadata(record.offset + 1, "", -1)
                    consumer.commit({place: meta})
                    value = record.value.decode()
                    say("record", partition=place.partition, offset=record.offset, value=value)
        except KafkaError as error:
            say("error", text=repr(error))
            if "Fenced" in repr(error):
                break
    consumer.close()


async def on_aiokafka(task):
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {"range": RangePartitionAssignor, "sticky": StickyPartitionAssignor}

    class Listener(aiokafka.ConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned):
            say("assigned", partitions=rows(assigned))

        async def on_partitions_revoked(self, revoked):
            say("revoked", partitions=rows(revoked))

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=task["bootstrap"],
        group_id=task["group"],
        group_instance_id=task.get("instance"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=task["session_ms"],
        heartbeat_interval_ms=500,
        partition_assignment_strategy=[assignors[task["strategy"]]],
    )
    consumer.subscribe(task["topics"], listener=Listener())
    await consumer.start()
    while not END.is_set():
        try:
            found = await consumer.getmany(timeout_ms=100, max_records=1)
            for place, records in found.items():
                for record in records:
                    await consumer.commit({place: record.offset + 1})
                    value = record.value.decode()
                    say("record", partition=place.partition, offset=record.offset, value=value)
        except KafkaError as error:
            say("error", text=repr(error))
            if "Fenced" in repr(error):
                break
    await consumer.stop()


def main():
    signal.signal(signal.SIGTERM, lambda *_: END.set())
    task = {"strategy": "range", **json.loads(sys.argv[1])}
    if task["client"] == "confluent":
        on_confluent(task)
    elif task["client"] == "kafka-python":
        on_kafka_python(task)
    else:
        asyncio.run(on_aiokafka(task))
    say("closed")


if __name__ == "__main__":
    main()
