"""Where nodes are, gathered line by line: per node an ordered list of (level, value), nearest first.

To read a new format: a file of its own that fills `Places`, then one line in `topology._READERS`.
"""

import re
from collections.abc import Iterable

import polars as pl

from analytics.frames import schema
from analytics.hostlist import check_name
from telemetry.errors import BadInput
from telemetry.tables import TOPOLOGY

RESERVED: tuple[str, ...] = ("node", "fleet")
"""Levels that every topology has by itself."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")
_MAX_TEXT = 1_024


class Places:
    """Levels and values of nodes in the order they are told; a node has one value a level, or BadInput is raised."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._places: dict[str, dict[str, tuple[str, str]]] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def add(self, nodes: Iterable[str], level: str, value: str, *, where: str) -> None:
        """Put nodes into a block, next nearest to what they are in already; `where` is named if that contradicts."""
        level, value = level.strip(), value.strip()
        if level in RESERVED:
            raise BadInput("reserved_level", f"{where}: level {level!r} is always there; give this one another name")
        for kind, text in (("level", level), ("value", value)):
            if not text or len(text) > _MAX_TEXT or _UNPRINTABLE.search(text):
                raise BadInput("bad_name", f"{where}: {kind} {text[:80]!r}; 1 to {_MAX_TEXT} printable characters")
        for node in nodes:
            place = self._places.setdefault(check_name(node), {})
            before, first = place.setdefault(level, (value, where))
            if before != value:
                raise BadInput(
                    "node_placed_twice",
                    f"{where}: node {node} is in {level} {value!r}, but {first} says {before!r}; only one can be",
                )

    def frame(self) -> pl.DataFrame:
        """Rows of `topology`, node by node."""
        rows = [
            (node, position, level, value, self._source)
            for node, place in self._places.items()
            for position, (level, (value, _)) in enumerate(place.items())
        ]
        return pl.DataFrame(rows, schema=schema(TOPOLOGY), orient="row")
