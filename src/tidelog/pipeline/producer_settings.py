"""``kafka.*`` options of a sink as librdkafka's settings.  No I/O.

Users write the settings of Kafka's Java producer, as for Spark's JVM connector.  Most have the
same name in librdkafka; some have another; some mean nothing there and are left out.  Names of
librdkafka itself are taken too.  What is not set is chosen for a job that writes much and must
not lose anything: idempotent, acks=all, large batches, a buffer that is not endless, and keys
spread over partitions as Java does it, so that both may write to one topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.pipeline.option_values import KAFKA_PREFIX, whole_number

# librdkafka's own, for a sink; beside the names that it shares with the Java producer.
_LIBRDKAFKA = """
batch.num.messages broker.address.family broker.address.ttl compression.codec
compression.level connections.max.idle.ms debug enable.gapless.guarantee
enable.ssl.certificate.verification log_level message.copy.max.bytes message.max.bytes
message.send.max.retries message.timeout.ms metadata.broker.list msg_order_cmp partitioner
queue.buffering.backpressure.threshold queue.buffering.max.kbytes
queue.buffering.max.messages queue.buffering.max.ms sasl.mechanisms sasl.password
sasl.username socket.keepalive.enable socket.max.fails socket.nagle.disable
socket.receive.buffer.bytes socket.send.buffer.bytes socket.timeout.ms ssl.ca.location
ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem
sticky.partitioning.linger.ms topic.metadata.propagation.max.ms
topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
"""
# What has the same name in both.
_SHARED = """
acks batch.size bootstrap.servers client.dns.lookup client.id client.rack compression.type
connections.max.idle.ms delivery.timeout.ms enable.idempotence linger.ms
max.in.flight.requests.per.connection metadata.max.age.ms reconnect.backoff.max.ms
reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.mechanism security.protocol socket.connection.setup.timeout.ms ssl.cipher.suites
ssl.endpoint.identification.algorithm ssl.key.password ssl.keystore.location
ssl.keystore.password
"""
_RENAMED = {
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_DEFAULTS = {
    "acks": "all",
    "batch.num.messages": "100000",
    "batch.size": "1000000",
    "delivery.timeout.ms": "120000",  # Java's; librdkafka would wait for five minutes
    "enable.idempotence": "true",
    "linger.ms": "20",  # flush at the end of a task does not wait for it
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": "65536",
    "queue.buffering.max.messages": "500000",
}
_ALIASES = {
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
}


LIBRDKAFKA = frozenset(_LIBRDKAFKA.split())
_TAKEN = LIBRDKAFKA | frozenset(_SHARED.split())


def producer_settings(given: Mapping[str, str], client_id: str) -> dict[str, str]:
    """What to give librdkafka for these settings (without the prefix ``kafka.``)."""
    chosen: dict[str, str] = {"client.id": client_id}
    for name, value in given.items():
        if name in _TAKEN:
            chosen[_ALIASES.get(name, name)] = value
        elif name in _RENAMED:
            chosen[_RENAMED[name]] = value
        elif name == "buffer.memory":
            size = whole_number(KAFKA_PREFIX + name, value, 0, 1024)
            chosen["queue.buffering.max.kbytes"] = str(size >> 10)
    codec = chosen.get("compression.type", "none").strip().lower()
    if level := given.get(f"compression.{codec}.level"):
        chosen["compression.level"] = level
    if "enable.idempotence" not in given and not _may_be_idempotent(chosen):
        chosen["enable.idempotence"] = "false"  # as Java: what was asked for wins over a default
    if "debug" not in chosen:
        # Whatever matters fails the task; a kept producer would only log brokers that left.
        chosen.setdefault("log_level", "2")
    return {**_DEFAULTS, **chosen}


def _may_be_idempotent(chosen: Mapping[str, str]) -> bool:
    if chosen.get("acks", "all").strip().lower() not in ("all", "-1"):
        return False
    name = "max.in.flight.requests.per.connection"
    in_flight = whole_number(KAFKA_PREFIX + name, chosen.get(name), 1, 1)
    retries = whole_number(KAFKA_PREFIX + "retries", chosen.get("retries"), 1)
    return in_flight <= 5 and retries > 0
