"""The published tables: what every reader of them relies on."""

import pytest

from telemetry.tables import SCORES, TABLES, WINDOWS, Table


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_table_says_what_it_is(table: Table) -> None:
    """Every table has a grain, a key of its own columns that is never null, and help for each column."""
    assert table.grain
    assert len(set(table.names)) == len(table.columns)
    for key in table.key:
        assert not next(column for column in table.columns if column.name == key).nullable
    assert all(column.help.endswith(".") for column in table.columns)


def test_a_score_can_be_resumed_from_its_row() -> None:
    """The scorer goes on from the compacted topic alone: state and last window are in the row."""
    assert {"state", "window_start_ns"} <= set(SCORES.names)


def test_every_window_column_has_a_merge_rule() -> None:
    """Two parts of one window become one by rule, the key excepted."""
    assert {column.name for column in WINDOWS.columns if column.merge == "key"} == set(WINDOWS.key)
