"""The state machine of windows: decoded samples in, closed windows and refused rows out. No log, no clock, no thread.

To change what is decided about a row or a window: `streams/partition.py`; here is only the spread over partitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from analytics.features import window_features
from streams import Committed, Message
from streams.deadletter import Rejected
from streams.decode import Decoded
from streams.partition import Closed, Features, PartitionWindows
from streams.place import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What some messages led to: refused rows, windows to publish in this order, and how many rows were accepted."""

    rejected: Sequence[Rejected]
    closed: Sequence[Closed]
    accepted: int


class Windows:
    """Windows of any number of partitions, each with a state of its own.

    Everything is decided message by message in offset order: the same messages give the same windows, refusals and
    places, whatever the batches were. Publish what `add` and `idle` return, then commit what `place` says.
    """

    def __init__(
        self,
        *,
        window_ns: int,
        lateness_ns: int,
        max_skew_ns: int,
        features: Features = window_features,
    ) -> None:
        self.window_ns = window_ns
        self._lateness_ns = lateness_ns
        self._max_skew_ns = max_skew_ns
        self._features = features
        self._partitions: dict[int, PartitionWindows] = {}

    def assign(self, partition: int, committed: Committed | None) -> None:
        """Begin with a partition where the group is; what was known of it before is forgotten."""
        self._partitions[partition] = PartitionWindows(
            partition, self.window_ns, self._lateness_ns, self._max_skew_ns, Place.parse(committed), self._features
        )

    def revoke(self, partition: int) -> None:
        """Forget a partition."""
        self._partitions.pop(partition, None)

    @property
    def partitions(self) -> Sequence[int]:
        """Partitions assigned."""
        return list(self._partitions)

    @property
    def open_rows(self) -> int:
        """Rows held in open windows."""
        return sum(state.open_rows for state in self._partitions.values())

    def open_rows_of(self, partition: int) -> int:
        """Rows held in open windows of one partition."""
        return self._partitions[partition].open_rows

    def position(self, partition: int) -> int:
        """The next offset that has not been added."""
        return self._partitions[partition].position

    def is_new(self, message: Message) -> bool:
        """False for a message that was added before, or whose refusals were told before a restart."""
        state = self._partitions.get(message.partition)
        return state is not None and message.offset >= max(state.position, state.told)

    def add(self, messages: Sequence[Message], decoded: Decoded) -> Added:
        """Take decoded messages, each partition's in offset order; those of partitions not assigned are left out.

        `rejected` of `decoded` is not repeated in the result.
        """
        rejected: list[Rejected] = []
        closed: list[Closed] = []
        accepted = 0
        owner = np.array([message.partition for message in messages], dtype=np.int64)
        for partition in dict.fromkeys(owner.tolist()):
            state = self._partitions.get(partition)
            if state is None:
                continue
            rows = decoded.rows
            if len(rows) and (owner != partition).any():
                rows = rows.filter(pl.Series(owner[rows["message"].to_numpy()] == partition))
            accepted += state.add(messages, np.flatnonzero(owner == partition), rows, rejected)
            closed.extend(state.close(all_empty=False))
        rejected.sort(key=lambda one: one.message)
        return Added(rejected=rejected, closed=closed, accepted=accepted)

    def idle(self, partition: int, *, silent_ns: int, now_ns: int) -> Sequence[Closed]:
        """Move the watermark of a partition that has had nothing to read for `silent_ns`; windows to publish.

        The watermark moves as fast as the clock, from where the last sample left it, and never beyond the clock less
        the lateness. A partition that never had a sample tells progress and stays open for any time.
        """
        state = self._partitions[partition]
        if state.idle(silent_ns=silent_ns, now_ns=now_ns):
            return [state.progress(now_ns - self._lateness_ns)]
        return state.close(all_empty=True)

    def place(self, partition: int) -> Committed:
        """Where a restart has to begin, once everything returned so far has been published."""
        return self._partitions[partition].place().commit()
