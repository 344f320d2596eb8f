"""Rows of published tables as JSON: written by anyone, checked column by column before anything trusts them.

To accept a new table: nothing here; `check_row` reads the columns from `tables.py`.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from telemetry.errors import BadInput
from telemetry.records import Event, Measurement, NodeInventory, NodeJobs
from telemetry.tables import CLASSES, EVENTS, GPUS, JOBS, MEASUREMENTS, NODES, Column, Table

MAX_TEXT = 4_096  #: characters in one text value; longer is refused, not cut
_INTEGERS: Mapping[str, tuple[int, int]] = {
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
    "uint32": (0, 2**32 - 1),
    "uint16": (0, 2**16 - 1),
}
_NAME_COLUMNS = frozenset({"node", "gpu_uuid", "subject", "job_id"})
JOB_SOURCES = ("slurm", "kubernetes", "other")


def check_row(table: Table, row: object) -> dict[str, Any]:
    """The row with exactly the table's columns; raises BadInput naming the column and what is wrong with it.

    Unknown keys are ignored, so that a newer producer can be read. Absent and null are the same. An integral float is
    an integer; NaN, infinity, a number where text belongs and the like are refused.
    """
    if not isinstance(row, Mapping):
        raise BadInput("not_an_object", f"{table.name}: expected a JSON object, got {type(row).__name__}")
    get = row.get
    checked = {}
    for column in table.columns:
        name = column.name
        value = get(name)
        plain = _PLAIN.get(column.type)
        # nearly every value is as it should be: only the others are worth the words that say what is wrong
        checked[name] = value if plain is not None and plain(value) else _check_value(table, column, value)
    return checked


def _plain_integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: type(value) is str and 0 < len(value) <= MAX_TEXT and "\x00" not in value,
    "float32": lambda value: type(value) is float and math.isfinite(value),
    "float64": lambda value: type(value) is float and math.isfinite(value),
    **{name: _plain_integer(low, high) for name, (low, high) in _INTEGERS.items()},
}
"""By column type: true for a value that every table takes as it is; the others `_check_value` looks at closely."""


def _check_value(table: Table, column: Column, value: Any) -> Any:
    where = f"{table.name}.{column.name}"
    if value is None:
        if column.nullable:
            return None
        if table is EVENTS and column.name == "gpu_uuid":
            return ""  # the event speaks of the whole node
        if table is EVENTS and column.name == "code":
            return 0
        raise BadInput("missing_field", f"{where} is required")
    if column.type == "json":
        return value
    if column.type == "string":
        if not isinstance(value, str):
            raise BadInput("wrong_type", f"{where} must be text, got {type(value).__name__}")
        if len(value) > MAX_TEXT or "\x00" in value:
            raise BadInput("bad_text", f"{where} is longer than {MAX_TEXT} characters or holds a NUL")
        if column.name in _NAME_COLUMNS and not value and table is not EVENTS:
            raise BadInput("empty_name", f"{where} is empty")
        return value
    if column.type == "bool":
        if not isinstance(value, bool):
            raise BadInput("wrong_type", f"{where} must be true or false, got {value!r:.80}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput("wrong_type", f"{where} must be a number, got {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput("not_finite", f"{where} is {value}")
    if column.type in _INTEGERS:
        low, high = _INTEGERS[column.type]
        if isinstance(value, float) and not value.is_integer():
            raise BadInput("wrong_type", f"{where} must be an integer, got {value}")
        if not low <= value <= high:
            raise BadInput("out_of_range", f"{where} is {value}, outside {column.type}")
        return int(value)
    return float(value)


def check_inventory(message: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One row of `nodes` and its rows of `gpus`, from an inventory message; raises BadInput."""
    if not isinstance(message, Mapping):
        raise BadInput("not_an_object", f"inventory: expected a JSON object, got {type(message).__name__}")
    gpus = message.get("gpus")
    if not isinstance(gpus, list) or not all(isinstance(gpu, Mapping) for gpu in gpus):
        raise BadInput("wrong_type", "inventory.gpus must be a list of objects")
    place = message.get("place") or []
    if not isinstance(place, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) and text for text in pair)
        for pair in place
    ):
        raise BadInput("wrong_type", "inventory.place must be a list of [level, value], nearest first")
    node = check_row(NODES, {**message, "place": place, "seen_gpus": len(gpus)})
    rows = [check_row(GPUS, {**gpu, "node": node["node"], "seen_ns": node["seen_ns"]}) for gpu in gpus]
    if len({row["gpu_uuid"] for row in rows}) != len(rows):
        raise BadInput("repeated_gpu", f"inventory of {node['node']} names a gpu_uuid twice")
    return node, rows


def check_event(message: object) -> dict[str, Any]:
    """One row of `events`; raises BadInput."""
    return check_row(EVENTS, message)


def check_measurement(message: object) -> dict[str, Any]:
    """One row of `measurements`; raises BadInput, also for a class or scope that does not exist."""
    row = check_row(MEASUREMENTS, message)
    if row["workload_class"] not in CLASSES:
        raise BadInput("unknown_class", f"measurements.workload_class is {row['workload_class']!r}; one of {CLASSES}")
    if row["scope"] not in ("gpu", "node"):
        raise BadInput("unknown_scope", f"measurements.scope is {row['scope']!r}; gpu or node")
    if row["value"] <= 0:
        raise BadInput("out_of_range", f"measurements.value is {row['value']}; throughput and time are above 0")
    row["evidence"] = row["evidence"] or {}
    if not isinstance(row["evidence"], Mapping):
        raise BadInput("wrong_type", "measurements.evidence must be an object")
    return row


def check_jobs(message: object) -> tuple[str, list[dict[str, Any]]]:
    """The node, and its rows of `jobs`, maybe none; raises BadInput, also for a class or source that does not exist."""
    if not isinstance(message, Mapping):
        raise BadInput("not_an_object", f"jobs: expected a JSON object, got {type(message).__name__}")
    jobs = message.get("jobs")
    if not isinstance(jobs, list) or not all(isinstance(job, Mapping) for job in jobs):
        raise BadInput("wrong_type", "jobs.jobs must be a list of objects")
    node = _check_value(JOBS, _NODE, message.get("node"))
    rows = []
    for job in jobs:
        ended, seen_ns = job.get("ended"), message.get("seen_ns")
        last_ns = seen_ns if job.get("seen_ns") is None else job["seen_ns"]
        row = check_row(JOBS, {**job, "node": node, "seen_ns": last_ns, "ended": bool(ended is True)})
        if last_ns is not seen_ns and row["seen_ns"] > _check_value(JOBS, _SEEN, seen_ns):
            raise BadInput("out_of_range", f"jobs.seen_ns of {row['job_id']} is after the message's own")
        if ended not in (None, True, False):
            raise BadInput("wrong_type", f"jobs.ended must be true or false, got {ended!r:.80}")
        if row["workload_class"] is not None and row["workload_class"] not in CLASSES:
            raise BadInput("unknown_class", f"jobs.workload_class is {row['workload_class']!r}; one of {CLASSES}")
        if row["source"] not in JOB_SOURCES:
            raise BadInput("unknown_source", f"jobs.source is {row['source']!r}; one of {JOB_SOURCES}")
        rows.append(row)
    if len({(row["gpu_uuid"], row["job_id"], row["started_ns"]) for row in rows}) != len(rows):
        raise BadInput("repeated_job", f"jobs of {node} name a gpu_uuid, job_id and started_ns twice")
    return str(node), rows


_NODE = next(column for column in JOBS.columns if column.name == "node")
_SEEN = next(column for column in JOBS.columns if column.name == "seen_ns")


def to_json(record: NodeInventory | Event | Measurement | NodeJobs) -> bytes:
    """The record as compact JSON with the table's column names, as it goes into a topic."""
    return json.dumps(asdict(record), separators=(",", ":"), allow_nan=False).encode()
