"""The newest inventory of every node, as frames.

To keep more of an inventory message: its table in `telemetry/tables.py`; this only holds the newest rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from analytics.frames import frame
from analytics.node_names import under_names_of
from analytics.topology import combine, from_inventory
from streams import Message
from streams.deadletter import Rejected
from streams.records import decode_json
from telemetry.tables import GPUS, NODES

_Row = dict[str, Any]


class Inventory:
    """Nodes and GPUs as they last said. A tombstone forgets a node; a GPU belongs to the node that saw it last.

    `places`: rows of TOPOLOGY from a file, which win over what nodes say of themselves.
    """

    def __init__(self, places: pl.DataFrame | None = None) -> None:
        self._places = places
        self._nodes: dict[str, tuple[_Row, Sequence[_Row]]] = {}
        self._frames: tuple[pl.DataFrame, pl.DataFrame] | None = None
        self._topology: pl.DataFrame | None = None

    def take(self, messages: Sequence[Message]) -> Sequence[Rejected]:
        """Learn from messages of the inventory topic, in order; what was no inventory."""
        records, rejected = decode_json(messages)
        for record in records:
            if record.deleted is not None:
                if self._nodes.pop(record.deleted, None) is None:
                    continue
            else:
                (node,) = record.rows["nodes"]
                before = self._nodes.get(node["node"])
                self._nodes[node["node"]] = node, record.rows["gpus"]
                # Nodes repeat themselves: that they are still there is told by their telemetry.
                if before is not None and _said(*before) == _said(node, record.rows["gpus"]):
                    continue
            self._frames = self._topology = None
        return rejected

    def frames(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """GPUs and nodes, with the columns of their tables; the same objects until something changes."""
        if self._frames is None:
            gpus: dict[str, Mapping[str, Any]] = {}
            for _, rows in self._nodes.values():
                for row in rows:
                    other = gpus.get(row["gpu_uuid"])
                    if other is None or other["seen_ns"] <= row["seen_ns"]:
                        gpus[row["gpu_uuid"]] = row
            self._frames = frame(GPUS, list(gpus.values())), frame(NODES, [node for node, _ in self._nodes.values()])
        return self._frames

    def topology(self) -> pl.DataFrame:
        """Rows of TOPOLOGY: where nodes are, by the file and by what they say."""
        if self._topology is None:
            gpus, nodes = self.frames()
            told = from_inventory(nodes, gpus)
            if self._places is None:
                self._topology = told
            else:
                self._topology = combine(under_names_of(self._places, nodes["node"]), told)
        return self._topology


def _said(node: _Row, gpus: Sequence[_Row]) -> tuple[_Row, list[_Row]]:
    """What an inventory says, without when."""
    return _timeless(node), [_timeless(row) for row in gpus]


def _timeless(row: Mapping[str, Any]) -> _Row:
    return {name: value for name, value in row.items() if name != "seen_ns"}
