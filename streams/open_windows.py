"""Windows between their first message and their scoring: which are whole, which have waited long enough. Pure.

To change when a window is whole: `OpenWindows.due`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from analytics.features import merge_parts
from analytics.frames import frame
from streams import Committed
from streams.parts import Part
from telemetry import tables

_MAX_METADATA = 3_500  # Kafka keeps 4096 bytes with a place
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A window that is to be scored now: one row a GPU; `complete` if every partition has told all of it."""

    window_start_ns: int
    window_end_ns: int
    rows: pl.DataFrame
    complete: bool


@dataclass(slots=True)
class _Open:
    end_ns: int
    offset: int
    arrived_ns: int
    parts: dict[int, dict[int, Part]] = field(default_factory=dict)  # by partition, by part


class OpenWindows:
    """Windows of all partitions, oldest first.

    `applied_ns`: start of the last window scored; parts of windows at or before it change nothing.
    """

    def __init__(self, *, grace_ns: int, applied_ns: int | None = None, told: Mapping[int, int] | None = None) -> None:
        self._grace_ns = grace_ns
        self.applied_ns = applied_ns
        self._told = dict(told or {})
        self._open: dict[int, _Open] = {}

    def add(self, part: Part, *, offset: int, now_ns: int) -> bool:
        """Take one message; false if its window had been scored without it."""
        self._told[part.partition] = part.watermark_ns
        if part.parts == 0:
            return True
        if self.applied_ns is not None and part.window_start_ns <= self.applied_ns:
            return False
        window = self._open.get(part.window_start_ns)
        if window is None:
            window = self._open[part.window_start_ns] = _Open(part.window_end_ns, offset, now_ns)
        have = window.parts.setdefault(part.partition, {})
        if any(other.parts != part.parts for other in have.values()):
            have.clear()
        have[part.part] = part
        return True

    def due(self, *, partitions: int, now_ns: int) -> Due | None:
        """The oldest window, if all partitions have passed its end or its grace time is over."""
        if not self._open:
            return None
        start = min(self._open)
        window = self._open[start]
        complete = all(self._has_told(window, partition) for partition in range(partitions))
        if not complete and now_ns - window.arrived_ns < self._grace_ns:
            return None
        return Due(window_start_ns=start, window_end_ns=window.end_ns, rows=_rows(window), complete=complete)

    def _has_told(self, window: _Open, partition: int) -> bool:
        parts = window.parts.get(partition, {})
        whole = bool(parts) and len(parts) == next(iter(parts.values())).parts
        return whole or self._told.get(partition, -1) >= window.end_ns

    def done(self, window_start_ns: int) -> None:
        """The window has been scored: forget it."""
        self._open.pop(window_start_ns, None)
        self.applied_ns = window_start_ns

    def forget(self, window_start_ns: int) -> None:
        """The window says nothing and was not scored: an older one may still be."""
        self._open.pop(window_start_ns, None)

    def place(self, next_offset: int) -> Committed:
        """Where a new scorer has to begin: the first message of a window that is not scored yet."""
        offset = min((window.offset for window in self._open.values()), default=next_offset)
        base = min(self._told.values(), default=0)
        known: dict[str, Any] = {"applied": self.applied_ns, "base": base}
        known["told"] = {str(p): (ns - base) // _SECOND for p, ns in sorted(self._told.items())}
        metadata = json.dumps(known, separators=(",", ":"))
        if len(metadata) > _MAX_METADATA:  # a new scorer then waits for each partition to tell again
            metadata = json.dumps({"applied": self.applied_ns}, separators=(",", ":"))
        return Committed(offset, metadata)


def parse_place(committed: Committed | None) -> tuple[int | None, dict[int, int]]:
    """The window last scored and how far each partition had told; metadata of another making says nothing."""
    try:
        known: Any = json.loads(committed.metadata or "{}") if committed else {}
        applied = known.get("applied")
        told = {int(p): int(known["base"]) + int(s) * _SECOND for p, s in known.get("told", {}).items()}
    except (ValueError, AttributeError, TypeError, KeyError):
        return None, {}
    return (applied if isinstance(applied, int) else None), told


def _rows(window: _Open) -> pl.DataFrame:
    return merged(part for partition in sorted(window.parts) for _, part in sorted(window.parts[partition].items()))


def merged(parts: Iterable[Part]) -> pl.DataFrame:
    """The rows of the parts, one for each GPU and window, by GPU."""
    frames = [part.rows for part in parts if len(part.rows)]
    if not frames:
        return frame(tables.WINDOWS)
    rows = pl.concat(frames)
    keys = list(tables.WINDOWS.key)
    if rows.select(keys).is_duplicated().any():  # one GPU in two partitions: two partitioners, or their number grew
        rows = merge_parts(rows)
    return rows.sort(keys)
