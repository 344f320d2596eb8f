"""Rows on their way into the store: their columns checked, one row a key, in order of time, rounded.

To round another unit: one line in `DECIMALS`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

from analytics.frames import schema
from telemetry.errors import StoreError
from telemetry.tables import TABLES, WINDOWS, Table

DECIMALS: Mapping[str, int] = MappingProxyType(
    {"MHz": 1, "W": 1, "C": 1, "ratio": 4, "s": 3, "J": 0, "bytes/s": 0, "lanes": 0, "generation": 0}
)
"""Decimals that a window's float keeps, by unit: finer than any sensor, and a third less on disk (ALP compression)."""

_ORDER: Mapping[str, str] = MappingProxyType(
    {
        "windows": "window_start_ns",
        "transitions": "time_ns",
        "events": "time_ns",
        "measurements": "time_ns",
        "scores": "as_of_ns",
        "gpus": "seen_ns",
        "nodes": "seen_ns",
        "blocks": "as_of_ns",
        "variance": "as_of_ns",
    }
)
"""The time that rows are sorted by: the newest of equal keys comes last, and zone maps stay narrow."""


def prepared(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with exactly the table's columns and types, one row a key, oldest first; raises StoreError.

    Among rows of one key the newest stays, the last one among equals. NaN and infinity become null.
    """
    if name not in TABLES:
        raise StoreError(f"no table {name!r}; there are {', '.join(TABLES)}")
    table = TABLES[name]
    unknown = sorted(set(frame.columns) - set(table.names))
    missing = [column.name for column in table.columns if not column.nullable and column.name not in frame.columns]
    if unknown or missing:
        raise StoreError(f"{name}: columns missing {missing}, unknown {unknown}")
    try:
        frame = frame.select(_columns(table, frame))
    except pl.exceptions.PolarsError as error:
        raise StoreError(f"{name}: {str(error).splitlines()[0]}") from None
    if name in _ORDER and not frame[_ORDER[name]].is_sorted():
        frame = frame.sort(_ORDER[name], maintain_order=True)
    return frame.unique(subset=list(table.key), keep="last", maintain_order=True)


def _columns(table: Table, frame: pl.DataFrame) -> list[pl.Expr]:
    expressions = []
    for column in table.columns:
        kind = schema(table)[column.name]
        if column.name not in frame.columns:
            expressions.append(pl.lit(None, dtype=kind).alias(column.name))
            continue
        value = pl.col(column.name).cast(kind)
        if kind.is_float():
            value = pl.when(value.is_finite()).then(value)
            if table is WINDOWS and column.unit in DECIMALS:
                value = value.round(DECIMALS[column.unit])
        expressions.append(value.alias(column.name))
    return expressions
