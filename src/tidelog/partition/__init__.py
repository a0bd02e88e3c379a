"""The life of a partition's replica on this broker.

What clients ask for
``appending.py``        Produce: append many batches, then wait for acknowledgement
``acknowledgement.py``  when a batch may be acknowledged
``reading.py``          Fetch: read many partitions within limits, or wait
``fetch_sessions.py``   no I/O: incremental fetch sessions
``offset_lookup.py``    ListOffsets: by name or by time
``record_deletion.py``  DeleteRecords
``purgatory.py``        delayed operations: what waits for partitions, with a time limit

One replica
``partition.py``        the replica and its log: leads or follows, and can be read
``leader.py``           appends, in-sync set, high watermark, in one leader epoch
``follower.py``         appends what was fetched, truncates what has diverged
``in_sync.py``          no I/O: what a leader knows of its followers, and what follows from it
``validation.py``       no I/O: the checks and changes of a batch before it is appended
``sequence_gaps.py``    no I/O: a producer's batches that come before their turn

All replicas
``replicas.py``         the partitions of this broker: opened, configured, dropped, kept in order
``flushing.py``         flushes, in one thread
``isr_changes.py``      leaders ask the controller to change in-sync sets
``fetcher_manager.py``  which partition is fetched from which leader
``replica_fetcher.py``  fetch from one leader
``throttle.py``         no I/O: how fast replicas that are reassigned may be copied
``cleaner.py``          compaction, by worker processes
``log_dirs.py``         log directories that take no writes, so that other brokers lead
``log_dir_moves.py``    replicas that move from one log directory to another
``offload.py``          batches that are too large for the event loop, opened by a worker process

A record is committed when all replicas in sync have it: the high watermark, the smallest log
end of the in-sync set, has passed it.  Consumers see what is committed, ``acks=all`` waits for
it, and only a replica in sync may lead, so that what is committed is never lost.
"""
