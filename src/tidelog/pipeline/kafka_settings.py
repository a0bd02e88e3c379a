"""The settings of Kafka's clients, which users write as options ``kafka.<name>``.

A job that moves here from Spark's JVM connector keeps its options.  Each setting is therefore
known, in one of three ways: our client acts on it (``ClientOptions``), it means nothing to our
client and is accepted (a receive buffer, a metrics reporter), or it is refused with the reason.
A name that stands nowhere here is a mistake, and the error names the nearest right one.
"""

from __future__ import annotations

# What every Kafka client knows.
_COMMON = """
auto.include.jmx.reporter bootstrap.servers client.dns.lookup client.id client.rack
connections.max.idle.ms default.api.timeout.ms enable.metrics.push metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
"""
_CONSUMER = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs
config.providers enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
heartbeat.interval.ms interceptor.classes internal.leave.group.on.close isolation.level
key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records
partition.assignment.strategy session.timeout.ms share.acknowledgement.mode value.deserializer
"""
_PRODUCER = """
acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
compression.zstd.level config.providers delivery.timeout.ms enable.idempotence
interceptor.classes key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys transaction.timeout.ms transaction.two.phase.commit.enable
transactional.id value.serializer
"""
_SECURITY = """
sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
sasl.mechanism sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode
sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates
ssl.truststore.location ssl.truststore.password ssl.truststore.type
"""

SECURITY = frozenset(_SECURITY.split())
CONSUMER = frozenset((_COMMON + _CONSUMER).split()) | SECURITY
PRODUCER = frozenset((_COMMON + _PRODUCER).split()) | SECURITY
ALL_SETTINGS = CONSUMER | PRODUCER

# What our client acts on when it reads.
UNDERSTOOD = {
    "bootstrap.servers": "where to find the cluster: `host:9092,host:9092`",
    "group.id": "makes a stream a visible group: its offsets are committed after each finished "
    "batch, so that any tool shows its lag; the checkpoint stays the truth",
    "isolation.level": "`read_committed`: aborted transactions are left out, and a batch ends "
    "before the first open one",
    "client.id": "how the client calls itself",
    "request.timeout.ms": "how long to wait for one answer",
    "default.api.timeout.ms": "how long a question is repeated if no broker can be reached",
    "socket.connection.setup.timeout.ms": "how long to wait for a connection",
    "fetch.max.bytes": "at most so much in one answer,",
    "max.partition.fetch.bytes": "and so much of one partition",
    "fetch.max.wait.ms": "how long a broker waits for records that are not there yet",
}

# What Spark's connector refuses as well, and what to write instead.
REFUSED_BY_SOURCE = {
    "auto.offset.reset": "a query says where it begins with startingOffsets",
    "key.deserializer": "keys are binary: cast or decode the column",
    "value.deserializer": "values are binary: cast or decode the column",
    "enable.auto.commit": "offsets are committed after each finished batch if kafka.group.id "
    "is set",
    "interceptor.classes": "no Java class can run in this client",
}
REFUSED_BY_SINK = {
    "partitioner.class": "no Java class can run in this client: write a column partition, or "
    "kafka.partitioner with one of librdkafka's",
    "transactional.id": "Spark repeats tasks, and a transaction of a task that was repeated "
    "cannot be told from another; writes are idempotent within a task",
    "key.serializer": "keys are strings or binary: cast or encode the column",
    "value.serializer": "values are strings or binary: cast or encode the column",
    "interceptor.classes": "no Java class can run in this client",
}
