"""How partitions have replicas: followers fetch, and the leader knows who is in sync.

``in_sync.py``     pure: what a leader knows of its followers, and what follows from it
``fetcher.py``     a follower's side: fetch from leaders, append, cut off what has diverged
``isr_changes.py`` a leader's side: ask the controller to change the in-sync set
``gaps.py``        pure: batches of a producer that come before their turn after a change of leaders
``throttle.py``    pure: how fast replicas that are moved may be copied

A record is committed when all replicas in sync have it: the high watermark, the smallest log
end of the in-sync set, has passed it.  Consumers see what is committed, ``acks=all`` waits for
it, and only a replica in sync may lead, so that what is committed is never lost.
"""
