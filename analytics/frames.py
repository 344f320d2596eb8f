"""Polars frames of published tables: their types, and a frame from rows.

To add a column type: one line in `_TYPES`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson
import polars as pl

from telemetry.metrics import SAMPLED
from telemetry.tables import Table

_TYPES: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "string": pl.String(),
        "int16": pl.Int16(),
        "int64": pl.Int64(),
        "uint64": pl.UInt64(),
        "uint32": pl.UInt32(),
        "uint16": pl.UInt16(),
        "uint8": pl.UInt8(),
        "float64": pl.Float64(),
        "float32": pl.Float32(),
        "bool": pl.Boolean(),
        "json": pl.String(),
    }
)

SAMPLE_KEYS: Mapping[str, pl.DataType] = MappingProxyType(
    {
        "gpu_uuid": pl.String(),
        "node": pl.String(),
        "time_ns": pl.Int64(),
        "interval_s": pl.Float32(),
        "rejected_values": pl.UInt16(),
        "delivery_delay_s": pl.Float32(),
        "carry": pl.Boolean(),
    }
)
"""Columns of a samples frame before its metrics."""


def dtype(name: str) -> pl.DataType:
    """The polars type of a column type of `telemetry.tables` or of a metric; raises KeyError for an unknown one."""
    return _TYPES[name]


def schema(table: Table) -> dict[str, pl.DataType]:
    """Polars types of the table's columns, in order; JSON is text."""
    return {column.name: _TYPES[column.type] for column in table.columns}


def sample_schema() -> dict[str, pl.DataType]:
    """Polars types of a samples frame: `SAMPLE_KEYS`, then every sampled metric in wire order."""
    return dict(SAMPLE_KEYS) | {metric.name: _TYPES[metric.type] for metric in SAMPLED}


def frame(table: Table, rows: Sequence[Mapping[str, Any]] = ()) -> pl.DataFrame:
    """A frame with exactly the table's columns and types; absent keys are null, unknown keys are left out.

    A value of a json column that is not yet text is written as JSON. Raises polars' own error for a value that does
    not fit its column: rows from outside go through `telemetry.rows` first.
    """
    types = schema(table)
    as_json = {column.name for column in table.columns if column.type == "json"}
    data = {name: [_text(row.get(name)) if name in as_json else row.get(name) for row in rows] for name in types}
    return pl.DataFrame(data, schema=types, strict=True)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()
