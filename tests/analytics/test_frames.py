"""Frames of published tables.

To add a table: nothing here; every table is tried.
"""

import polars as pl
import pytest

from analytics.frames import frame, schema
from telemetry.tables import MEASUREMENTS, TABLES, Table


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_every_table_has_an_empty_frame_of_its_types(table: Table) -> None:
    """Columns in the table's order, JSON as text."""
    empty = frame(table)
    assert empty.schema == pl.Schema(schema(table))
    assert tuple(empty.columns) == table.names
    assert empty.is_empty()


def test_rows_become_columns_with_nulls_for_what_is_absent_and_json_for_objects() -> None:
    """What a row does not say is null; what the table does not know is left out."""
    row = frame(MEASUREMENTS, [{"time_ns": 1, "value": 2, "evidence": {"freq": 1365.0}, "stranger": 1}]).row(
        0, named=True
    )
    assert (row["value"], row["node"], row["evidence"]) == (2.0, None, '{"freq":1365.0}')
    assert "stranger" not in row
