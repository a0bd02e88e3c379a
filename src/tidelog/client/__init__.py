"""A small synchronous client over our own wire layer.

Enters: ``host:port`` addresses and questions.  Leaves: answers as plain data, and record batches
as they are in the log.  It serves the command line and Spark's tasks; it is not a producer or a
group consumer (confluent-kafka is).  ``peer.py`` is the asynchronous connection of one broker to
another.

Read ``connection.py`` first (one socket: versions are negotiated once, then each message goes out
in the highest version that both sides know), then ``cluster.py`` (which broker to ask),
``admin.py`` (topics, settings), ``groups.py``, ``partitions.py`` (offsets, sizes, deleting
records), ``fetcher.py`` (raw batches from many partitions) and ``offsets.py`` (the one language
in which a user names an offset).
"""
