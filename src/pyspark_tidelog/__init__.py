"""Spark looks for modules named ``pyspark_*`` and registers their ``DefaultSource``."""
