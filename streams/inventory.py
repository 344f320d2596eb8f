"""The newest inventory of every node, as frames.

To keep more of an inventory message: its table in `telemetry/tables.py`; this only holds the newest rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from analytics.frames import frame
from streams import Message
from streams.deadletter import Rejected
from streams.records import decode_json
from telemetry.tables import GPUS, NODES

_Row = dict[str, Any]


class Inventory:
    """Nodes and GPUs as they last said. A tombstone forgets a node; a GPU belongs to the node that saw it last."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[_Row, Sequence[_Row]]] = {}
        self._frames: tuple[pl.DataFrame, pl.DataFrame] | None = None

    def take(self, messages: Sequence[Message]) -> Sequence[Rejected]:
        """Learn from messages of the inventory topic, in order; what was no inventory."""
        records, rejected = decode_json(messages)
        for record in records:
            if record.deleted is not None:
                self._nodes.pop(record.deleted, None)
            else:
                (node,) = record.rows["nodes"]
                self._nodes[node["node"]] = node, record.rows["gpus"]
        if records:
            self._frames = None
        return rejected

    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """GPUs and nodes, with the columns of their tables."""
        if self._frames is None:
            gpus: dict[str, Mapping[str, Any]] = {}
            for _, rows in self._nodes.values():
                for row in rows:
                    other = gpus.get(row["gpu_uuid"])
                    if other is None or other["seen_ns"] <= row["seen_ns"]:
                        gpus[row["gpu_uuid"]] = row
            self._frames = frame(GPUS, list(gpus.values())), frame(NODES, [node for node, _ in self._nodes.values()])
        return self._frames
