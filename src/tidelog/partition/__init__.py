"""The life of a partition's replica on this broker.

``partition.py``        one replica: the only writer of its log, leader or follower
``replicas.py``         all replicas of this broker, and the timers that they share
``in_sync.py``          no I/O: what a leader knows of its followers, and what follows from it
``isr_changes.py``      a leader's side: ask the controller to change the in-sync set
``replica_fetcher.py``  a follower's side: fetch from leaders, append, truncate what has diverged
``validation.py``       the checks and changes of a batch before it is appended
``sequence_gaps.py``    no I/O: a producer's batches that come before their turn
``throttle.py``         no I/O: how fast replicas that are reassigned may be copied
``cleaner.py``          compaction, by a worker process
``log_dirs.py``         directories that take no writes, so that other brokers lead
``log_dir_moves.py``    replicas that move from one directory to another
``offload.py``          batches that are too large for the event loop, checked by another process

A record is committed when all replicas in sync have it: the high watermark, the smallest log
end of the in-sync set, has passed it.  Consumers see what is committed, ``acks=all`` waits for
it, and only a replica in sync may lead, so that what is committed is never lost.
"""
