"""Topics into a folder of Parquet files, each record exactly once.

Enters: topics and a folder.  Leaves: Parquet files that every reader knows, and a ledger beside
them that records which offsets they hold.

Read ``ledger.py`` first: the format, how a load is published and what a crash leaves.  Then, on
Spark's driver: ``load.py`` (plan, run, publish) with ``options.py`` (and ``ddl.py`` for
``--schema``), ``plan.py`` (which offsets), ``driver.py`` (the tasks and one schema for them) and
``jobs.py`` (Spark).  In a task: ``writing.py``, ``values.py`` and ``json_rows.py`` (bytes, text,
JSON, CSV into columns), ``schemas.py`` (how columns grow), ``layout.py`` (folders) and
``parquet.py`` (files).  ``rewriting.py`` merges small files and gives a column one type in all of
them, ``continuous.py`` is the load that does not end, ``dead_letters.py`` has the records that did
not decode, ``verify.py`` checks that every offset is there, ``reading.py`` reads through the
ledger, ``files.py`` is the file system and the lock.
"""
