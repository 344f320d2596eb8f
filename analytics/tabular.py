"""Anyone's tables as ours: results of benchmarks as measurements, recorded telemetry as sample batches.

To import another kind of table: a module of its own beside `recorded.py`, named here.
"""

from collections.abc import Mapping, Sequence

import polars as pl

from analytics.cells import numbers, texts, times_ns
from analytics.column_names import check_columns, guess_columns, parts_of
from analytics.frames import frame, schema
from analytics.identity import gpu_identity, is_index, node_names
from analytics.recorded import batches, is_telemetry, telemetry
from analytics.table_file import ROW, RejectedRow, TableFile, scan
from telemetry.errors import BadInput
from telemetry.tables import CLASSES, MEASUREMENTS

__all__ = [
    "ROW",
    "RejectedRow",
    "TableFile",
    "batches",
    "guess_columns",
    "is_telemetry",
    "measurements",
    "scan",
    "telemetry",
]

_MAX_NAME = 253


def measurements(
    table: pl.DataFrame,
    *,
    columns: Mapping[str, str],
    workload_class: str,
    unit: str,
    higher_is_better: bool,
    name: str,
    default_time_ns: int,
    evidence: Sequence[str] | None = None,
) -> tuple[pl.DataFrame, list[RejectedRow]]:
    """Rows of `measurements` in the order of the table's, and the rows that are none, each with its number and rule.

    `columns` says which column is the gpu, node, value, time, class, name or unit; the last three replace the
    arguments row by row. With a gpu column a row speaks of a GPU, else of its node. A GPU that is given as an index or
    bus id becomes `node/index`; other texts are identities as they stand. A node of -1 or none is null. Without a time
    (or with -1) a row gets `default_time_ns` plus its number, so that order is kept. `evidence` names the columns to
    keep beside the result, by default all others. Raises BadInput for columns that are not there and for a class that
    does not exist.
    """
    there = [column for column in table.columns if column != ROW]
    check_columns(columns, there)
    if "value" not in columns:
        raise BadInput("unknown_role", "no column is named as the value")
    if "gpu" not in columns and "node" not in columns:
        raise BadInput("unknown_role", "a measurement speaks of a GPU or a node: name the column of at least one")
    if workload_class not in CLASSES:
        raise BadInput("unknown_class", f"workload class {workload_class!r}; one of {', '.join(CLASSES)}")
    used = {
        part for role, column in columns.items() for part in (parts_of(column, there) if role == "node" else [column])
    }
    kept = [column for column in there if column not in used] if evidence is None else list(evidence)
    for column in kept:
        check_columns({"value": column}, there)
    if not table.height:
        return frame(MEASUREMENTS), []
    work = _work(table, columns, there).with_columns(
        workload_class=pl.coalesce("class", pl.lit(workload_class)),
        name=pl.coalesce("name", pl.lit(name)),
        unit=pl.coalesce("unit", pl.lit(unit)),
        time_ns=pl.when("untimed").then(pl.col("row") + default_time_ns).otherwise("time_ns"),
        scope=pl.lit("gpu" if "gpu" in columns else "node"),
        higher_is_better=pl.lit(higher_is_better),
        evidence=evidence_json(table, kept),
    )
    work = work.with_columns(rule=_rule(columns))
    good = work.filter(pl.col("rule").is_null()).select(
        pl.col(column).cast(dtype) for column, dtype in schema(MEASUREMENTS).items()
    )
    bad = work.filter(pl.col("rule").is_not_null())
    return good, [
        RejectedRow(row=row, rule=rule, detail=_detail(rule, cells, columns))
        for row, rule, cells in zip(bad["row"], bad["rule"], bad["cells"].to_list(), strict=True)
    ]


def _work(table: pl.DataFrame, columns: Mapping[str, str], there: Sequence[str]) -> pl.DataFrame:
    """row, gpu, node, subject, value, time_ns, class, name, unit, cells: one row per row of the table."""
    height = table.height
    nothing = pl.Series([None] * height, dtype=pl.String)
    row = table[ROW] if ROW in table.columns else pl.Series(range(1, height + 1), dtype=pl.Int64)
    text = {role: texts(table[columns[role]]) for role in ("gpu", "class", "name", "unit") if role in columns}
    node = node_names(table, columns["node"], there) if "node" in columns else nothing
    cells = [
        texts(table[columns[role]]).fill_null("nothing").alias(role)
        for role in ("gpu", "value", "time")
        if role in columns
    ]
    work = pl.DataFrame(
        {
            "row": row.cast(pl.Int64),
            "gpu": text.get("gpu", nothing),
            "node": node,
            "value": numbers(table[columns["value"]]),
            "time_ns": times_ns(table[columns["time"]]) if "time" in columns else nothing.cast(pl.Int64),
            "untimed": texts(table[columns["time"]]).replace("-1", None).is_null() if "time" in columns else True,
            **{role: text.get(role, nothing) for role in ("class", "name", "unit")},
            "cells": pl.DataFrame(cells).to_struct("cells"),
        }
    )
    work = work.with_columns(gpu=gpu_identity("gpu", "node"))
    return work.with_columns(subject=pl.col("gpu") if "gpu" in columns else pl.col("node"))


def _rule(columns: Mapping[str, str]) -> pl.Expr:
    """The first rule that a row breaks, null if none."""
    subject = pl.col("subject")
    rules: dict[str, pl.Expr] = {
        "not_a_number": pl.col("value").is_null(),
        "not_above_zero": pl.col("value") <= 0,
    }
    if "gpu" in columns:
        rules["index_without_node"] = subject.is_null() & is_index(pl.col("cells").struct.field("gpu"))
        rules["mig_slice"] = subject.str.starts_with("MIG-")
    rules["no_gpu" if "gpu" in columns else "no_node"] = subject.is_null()
    rules["name_too_long"] = subject.str.len_chars() > _MAX_NAME
    rules["bad_time"] = pl.col("time_ns").is_null()
    rules["unknown_class"] = ~pl.col("workload_class").is_in(CLASSES)
    return pl.coalesce(pl.when(broken).then(pl.lit(rule)) for rule, broken in rules.items())


def _detail(rule: str, cells: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """One line for a person: what stood there."""
    if rule == "index_without_node":
        return f"GPU {cells['gpu']!r} of which node? its node is unknown, or no node column was named"
    if rule == "mig_slice":
        return f"{cells['gpu']!r} is a MIG slice: physical GPUs are scored"
    where = {"not_a_number": "value", "not_above_zero": "value", "bad_time": "time", "no_gpu": "gpu"}.get(rule, "")
    if where in cells:
        return f"column {columns[where]!r} holds {cells[where][:80]!r}"
    return {"no_node": "the node is unknown", "unknown_class": f"the class is none of {', '.join(CLASSES)}"}.get(
        rule, rule
    )


def evidence_json(table: pl.DataFrame, kept: Sequence[str]) -> pl.Series:
    """One JSON object a row: a column is numbers if all of its cells are, else text; columns of lists are left out."""
    series = [_evidence(table[column]) for column in kept if not table[column].dtype.is_nested()]
    if not series:
        return pl.Series("evidence", ["{}"] * table.height, dtype=pl.String)
    return pl.DataFrame(series).select(pl.struct(pl.all()).struct.json_encode().alias("evidence")).to_series()


def _evidence(column: pl.Series) -> pl.Series:
    if column.dtype.is_float():
        return column.fill_nan(None)
    if column.dtype.is_integer() or column.dtype == pl.Boolean:
        return column
    text = texts(column)
    if text.str.contains(r"^[-+]?0[0-9]+$").any():
        return text  # a name with leading zeros
    whole, number = text.cast(pl.Int64, strict=False), numbers(text)
    for typed in (whole, number):
        if typed.null_count() == text.null_count():
            return typed
    return text
