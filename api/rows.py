"""Rows of frames as JSON objects.

To inline another JSON column: it is one as soon as `telemetry/tables.py` says so.
"""

from collections.abc import Sequence
from typing import Any

import orjson
import polars as pl

from telemetry.tables import Table


def objects(frame: pl.DataFrame, table: Table, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """One object per row with these keys in this order, all of the table's if None.

    Text of the table's JSON columns becomes JSON, unreadable text null.
    """
    rows = frame.select(table.names if columns is None else columns).to_dicts()
    for name in [column.name for column in table.columns if column.type == "json"]:
        if not rows or name not in rows[0]:
            continue
        for row in rows:
            row[name] = _loaded(row[name])
    return rows


def _loaded(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def page(frame: pl.DataFrame, *, offset: int, limit: int) -> pl.DataFrame:
    """The rows from `offset` on, at most `limit` of them; 0 is all."""
    return frame.slice(offset, limit or None)
