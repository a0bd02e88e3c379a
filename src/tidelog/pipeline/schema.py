"""The columns as Arrow types: exactly what Spark makes of the schema of its Kafka connector."""

from __future__ import annotations

import pyarrow as pa

from tidelog.pipeline.ranges import HEADERS, Columns

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", HEADER_TYPE)),
}


def arrow_schema(columns: Columns) -> pa.Schema:
    """The wanted columns, in the wanted order."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns.names])


# With the option ``ranges``: the plan of the driver instead of records.
RANGES = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)
