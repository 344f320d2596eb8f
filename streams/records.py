"""Events, measurements, inventory, jobs, scores, transitions: JSON messages to checked rows of their tables, and back.

To add a topic of rows: one line in `_CHECKS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl

from analytics.frames import frame
from streams import Message, Outgoing
from streams.deadletter import Rejected
from streams.samples_json import parse_json
from streams.topics import EVENTS, INVENTORY, JOBS, MEASUREMENTS, SCORES, TRANSITIONS
from telemetry import tables
from telemetry.errors import BadInput
from telemetry.rows import check_event, check_inventory, check_jobs, check_measurement, check_row
from telemetry.tables import Table

Rows = Mapping[str, Sequence[dict[str, Any]]]


def _inventory(value: object) -> Rows:
    node, gpus = check_inventory(value)
    return {"nodes": [node], "gpus": gpus}


_AS_JSON: Mapping[str, tuple[str, ...]] = {
    table.name: tuple(column.name for column in table.columns if column.type == "json")
    for table in (tables.SCORES, tables.TRANSITIONS)
}


def _flat(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    """The row with its JSON as text, which is how frames hold it.

    At once, not with the frame: a hundred thousand scores kept as nested objects cost the garbage collector four times
    what reading them costs.
    """
    for name in _AS_JSON[table.name]:
        value = row[name]
        if value is not None and not isinstance(value, str):
            row[name] = orjson.dumps(value).decode()
    return row


_CHECKS: Mapping[str, Callable[[object], Rows]] = {
    EVENTS: lambda value: {"events": [check_event(value)]},
    MEASUREMENTS: lambda value: {"measurements": [check_measurement(value)]},
    INVENTORY: _inventory,
    JOBS: lambda value: {"jobs": check_jobs(value)[1]},
    SCORES: lambda value: {"scores": [_flat(tables.SCORES, check_row(tables.SCORES, value))]},
    TRANSITIONS: lambda value: {"transitions": [_flat(tables.TRANSITIONS, check_row(tables.TRANSITIONS, value))]},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one message said: rows by table, or, with `deleted`, that its key is gone.

    Rows of one message: one, or for the inventory one of `nodes` and those of `gpus`, or for jobs any number.
    """

    message: int
    rows: Rows
    deleted: str | None = None


def decode_json(messages: Sequence[Message]) -> tuple[list[Record], list[Rejected]]:
    """The rows of messages of the JSON topics, in order, and what was refused. Never raises for what they hold.

    A null value in a compacted topic (scores, inventory) deletes its key; elsewhere, and an empty value anywhere, is
    refused.
    """
    records: list[Record] = []
    rejected: list[Rejected] = []
    for i, message in enumerate(messages):
        try:
            if message.value is None and message.topic in (SCORES, INVENTORY) and message.key:
                records.append(Record(message=i, rows={}, deleted=_key(message.key)))
                continue
            if not message.value:
                raise BadInput("empty", f"{message.topic}: the message has no value")
            records.append(Record(message=i, rows=_CHECKS[message.topic](parse_json(message.value))))
        except BadInput as error:
            rejected.append(Rejected(message=i, rule=error.rule, detail=error.detail))
    return records, rejected


def _key(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise BadInput("bad_header", f"key {key[:40]!r} is no UTF-8") from None


def frames_of(records: Sequence[Record]) -> dict[str, pl.DataFrame]:
    """Frames by table, rows in message order."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        for table, found in record.rows.items():
            rows.setdefault(table, []).extend(found)
    return {table: frame(tables.TABLES[table], found) for table, found in rows.items()}


def encode_rows(table: Table, rows: pl.DataFrame, *, topic: str, key: str) -> list[Outgoing]:
    """One message for each row: a JSON object with the table's columns, the key column's value as key."""
    as_json = [column.name for column in table.columns if column.type == "json"]
    out = []
    for row in rows.select(table.names).iter_rows(named=True):
        for name in as_json:
            if row[name] is not None:
                row[name] = orjson.Fragment(row[name])
        out.append(Outgoing(topic=topic, key=str(row[key]).encode(), value=orjson.dumps(row), headers=_HEADERS))
    return out


_HEADERS: Mapping[str, bytes] = {"content-type": b"application/json"}
