"""One partition's log on disk, byte for byte as Kafka lays it out.

Enters: batches (bytes).  Leaves: file ranges.  Nothing here knows of sockets,
requests or topics as such; time comes from the caller.

Read ``log.py`` first (append, read, roll, truncate), then ``segment.py`` (one file and
its two indexes), ``recovery.py`` (what happens after a crash), ``manager.py`` (all the
logs of a broker, its directories, locks and checkpoints).  ``producer_state.py``,
``leader_epochs.py`` keep their state in files; ``retention.py`` does no I/O.
"""
