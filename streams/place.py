"""What a window job writes beside its offset, so that a restart decides as it would have decided without one.

To keep more: a field with a default here, filled in `streams/windows.py`; Kafka allows 4096 bytes in all.
"""

import json
from dataclasses import dataclass
from typing import Any

from streams import Committed

_MAX_ADVANCES = 40  # each follows a silence of a minute or so; those of two windows are needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to begin reading, and what was known there; times in ns, None if nothing was known.

    `offset`: the next message to read. `watermark`: as it was before that message. `position`: the first message that
    had not been read. `closed_until`: windows that end there or before have been published. `last_rows`: start of the
    last of them that had rows. `taken`: the latest time at which the log took in a message before `offset`. `advances`:
    silences that moved the watermark, as (next unread offset, watermark).
    """

    offset: int = 0
    position: int = 0
    watermark: int | None = None
    closed_until: int | None = None
    last_rows: int | None = None
    taken: int | None = None
    advances: tuple[tuple[int, int], ...] = ()

    def commit(self) -> Committed:
        """The place as a group keeps it."""
        known = {
            "watermark": self.watermark,
            "closed_until": self.closed_until,
            "position": self.position,
            "last_rows": self.last_rows,
            "taken": self.taken,
            "advances": [list(pair) for pair in self.advances[-_MAX_ADVANCES:]],
        }
        told = {name: value for name, value in known.items() if value not in (None, [])}
        return Committed(self.offset, json.dumps(told, separators=(",", ":")))

    @classmethod
    def parse(cls, committed: Committed | None) -> "Place":
        """The place that was committed. Metadata of another making, as after a reset by an operator's tool, is no
        memory: reading begins there as for the first time."""
        if committed is None:
            return cls()
        try:
            known: Any = json.loads(committed.metadata or "{}")
            numbers = {name: known.get(name) for name in ("watermark", "closed_until", "last_rows", "taken")}
            advances = tuple((int(offset), int(moved)) for offset, moved in known.get("advances", ()))
            position = known.get("position", committed.offset)
        except (ValueError, AttributeError, TypeError):
            return cls(offset=committed.offset, position=committed.offset)
        if not isinstance(position, int) or any(not isinstance(n, int | None) for n in numbers.values()):
            return cls(offset=committed.offset, position=committed.offset)
        return cls(offset=committed.offset, position=max(position, committed.offset), advances=advances, **numbers)
