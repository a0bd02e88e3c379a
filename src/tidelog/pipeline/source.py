"""The format ``tidelog``, as Spark calls it.

    spark.read.format("tidelog").option("kafka.bootstrap.servers", "localhost:9092")
        .option("subscribe", "clicks").load()

Spark makes these objects in Python processes of its own: one that plans a batch, one that
plans a stream as long as that runs, and one for each task.  Batches are read by ``readers.py``,
streams by ``streams.py``, and both write with ``sink.py``.

Filters are not pushed down: Spark applies those of one query to another one on the same
DataFrame.  What to read is in the options.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidelog.pipeline.options import OptionError, SourceOptions
from tidelog.pipeline.readers import BatchReader
from tidelog.pipeline.schema import RANGES, arrow_schema
from tidelog.pipeline.streams import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

_log = logging.getLogger(__name__)


class TidelogDataSource(DataSource):
    """Topics as tables and streams; see the module."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        options = SourceOptions.parse(self.options)
        return from_arrow_schema(RANGES if options.ranges else arrow_schema(options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        for text in SourceOptions.unused_by_batch(self.options):
            _log.warning("%s", text)
        return BatchReader(SourceOptions.parse(self.options).for_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._check(schema)
        return StreamReader(SourceOptions.parse(self.options).for_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from tidelog.pipeline import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from tidelog.pipeline import sink

        return sink.stream_writer(self.options, schema, overwrite)

    def _check(self, schema: StructType) -> None:
        own = self.schema()
        if [(row.name, row.dataType) for row in schema] != [
            (row.name, row.dataType) for row in own
        ]:
            raise OptionError(
                f"the schema of a topic is fixed, it is {own.simpleString()}: leave out "
                ".schema(...), choose columns with the option columns, and cast afterwards"
            )
