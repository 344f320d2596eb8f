"""A window job without a log: the state machine of windows driven as the job drives it.

To add what a test looks at: a field of `Machine`, filled in `_publish` or `add`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl
from polars.testing import assert_frame_equal
from support.fleet import SECOND, START

from streams import Committed, Message
from streams.decode import decode
from streams.partition import Closed
from streams.windows import Windows

WIDTH = 10 * SECOND
NOW = START + 100 * SECOND


def _samples(samples: pl.DataFrame, *, window_ns: int) -> pl.DataFrame:
    """Instead of features the samples themselves: every difference shows."""
    del window_ns
    return samples


def make(*, lateness_s: int = 5, max_skew_s: int = 20) -> Windows:
    return Windows(window_ns=WIDTH, lateness_ns=lateness_s * SECOND, max_skew_ns=max_skew_s * SECOND, features=_samples)


@dataclass
class Machine:
    """A window job without a log: what it published, refused and committed."""

    windows: Windows = field(default_factory=make)
    committed: Committed | None = None
    published: dict[int, pl.DataFrame] = field(default_factory=dict)
    refused: list[tuple[int, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windows.assign(0, None)

    def add(self, messages: Sequence[Message]) -> None:
        added = self.windows.add(messages, decode(messages))
        for one in added.rejected:
            assert one.rows is not None
            offset = messages[one.message].offset
            self.refused += [(offset, one.rule, time_ns) for time_ns in one.rows["time_ns"].to_list()]
        self._publish(added.closed)

    def idle(self, silent_s: float) -> None:
        self._publish(self.windows.idle(0, silent_ns=int(silent_s * SECOND), now_ns=NOW + 10**6 * SECOND))
        self.commit()

    def commit(self) -> None:
        self.committed = self.windows.place(0)

    def crash(self) -> int:
        """Begin anew from the committed place; the offset to read on from."""
        self.windows = make()
        self.windows.assign(0, self.committed)
        return self.windows.position(0)

    def _publish(self, closed: Sequence[Closed]) -> None:
        for window in closed:
            if window.progress:
                continue
            before = self.published.get(window.window_start_ns)
            if before is not None:
                assert_frame_equal(before, window.rows)
            self.published[window.window_start_ns] = window.rows

    def starts(self) -> list[int]:
        """Windows with rows, as seconds after START."""
        return [(start - START) // SECOND for start, rows in self.published.items() if len(rows)]


def same(one: Machine, other: Machine) -> None:
    assert one.published.keys() == other.published.keys()
    for start, rows in one.published.items():
        assert_frame_equal(rows, other.published[start])
