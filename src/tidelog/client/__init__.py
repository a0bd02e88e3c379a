"""A small synchronous client over our own wire layer.

Enters: ``host:port`` addresses and questions.  Leaves: answers as plain data, and record
batches as they are in the log.  It serves the command line, and later Spark's executors and
the replication tools; it is not a producer or a group consumer (confluent-kafka is).

Read ``connection.py`` first (one socket: versions are negotiated once, then each message goes
out in the highest version that both sides know), then ``cluster.py`` (which broker to ask),
``admin.py`` (topics, settings), ``partitions.py`` (offsets, sizes, deleting records),
``fetcher.py`` (raw batches from many partitions) and ``offsets.py`` (the one language in which
a user names an offset).
"""
