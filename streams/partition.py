"""Windows of one partition of telemetry: what is decided about each row, when a window closes, where a restart begins.

To change when a window closes: `decide` and `idle`; what a restart knows: `streams/place.py`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from analytics.frames import frame
from streams import Message
from streams.deadletter import Rejected
from streams.decode import refuse
from streams.place import Place
from streams.window_samples import columns_of, sorted_samples
from telemetry import tables

EMPTY_AFTER = 5  #: empty windows told after one with rows, when the samples themselves jump ahead
_NEVER = -(2**62)
Features = Callable[..., pl.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """A window of one partition that is complete: its features, maybe no rows.

    `progress` marks one without a window: nothing is left to tell before its end.
    """

    partition: int
    window_start_ns: int
    window_ns: int
    rows: pl.DataFrame
    progress: bool = False

    @property
    def window_end_ns(self) -> int:
        """End of the window, which is as far as the partition has been told with it."""
        return self.window_start_ns + self.window_ns


@dataclass(slots=True)
class PartitionWindows:
    """One partition: all times in ns; None where nothing is known yet."""

    partition: int
    window_ns: int
    lateness_ns: int
    max_skew_ns: int
    start: Place
    features: Features
    position: int = 0
    told: int = 0
    watermark: int = _NEVER
    heard: int = _NEVER  # the watermark as the last message left it
    closed_until: int = _NEVER  # of this process; windows up to `published` have been published before it
    published: int = _NEVER
    told_until: int = _NEVER
    last_rows: int = _NEVER  # start of the last closed window that had rows
    advances: list[tuple[int, int]] = field(default_factory=list)
    rows: dict[int, list[pl.DataFrame]] = field(default_factory=dict)
    open_rows: int = 0
    carry: tuple[int, pl.DataFrame] | None = None  # start of the window it is from
    log: deque[tuple[int, int, int]] = field(default_factory=deque)  # offset, its newest row, watermark before it

    def __post_init__(self) -> None:
        place = self.start
        self.position, self.told, self.advances = place.offset, place.position, list(place.advances)
        if place.watermark is not None:
            self.watermark = self.heard = place.watermark
            self.closed_until = self._floor(place.watermark)
        if place.closed_until is not None:
            self.published = self.told_until = place.closed_until
        if place.last_rows is not None:
            self.last_rows = place.last_rows

    def add(self, messages: Sequence[Message], mine: np.ndarray, rows: pl.DataFrame, rejected: list[Rejected]) -> int:
        """Decide on rows and keep the accepted ones; how many those are."""
        offsets = np.array([messages[i].offset for i in mine], dtype=np.int64)
        if (offsets < self.position).any():
            fresh = offsets >= self.position
            rows = rows.filter(pl.col("message").is_in(pl.Series(mine[fresh], dtype=pl.UInt32).implode()))
            mine, offsets = mine[fresh], offsets[fresh]
        if not len(mine):
            return 0
        taken = np.array([messages[i].time_ns for i in mine], dtype=np.int64)
        local = np.full(int(mine[-1]) + 1, -1, dtype=np.int64)
        local[mine] = np.arange(len(mine))
        of = local[rows["message"].to_numpy()]
        before, future, late = self.decide(offsets, taken, of, rows["time_ns"].to_numpy())
        fine = ~(future | late)
        if not fine.all():
            untold = offsets[of] >= self.told
            rejected += refuse(
                rows.filter(pl.Series(future & untold)),
                "future",
                f"stamped more than {self.max_skew_ns / 1e9:g} s after the log took the message in",
            )
            rejected += refuse(
                rows.filter(pl.Series(late & untold)),
                "late",
                f"the window had ended {self.lateness_ns / 1e9:g} s or more before the newest sample",
            )
            rows, of = rows.filter(pl.Series(fine)), of[fine]
        self.position = int(offsets[-1]) + 1
        self._keep(rows, of, offsets, before)
        return len(rows)

    def decide(
        self, offsets: np.ndarray, taken: np.ndarray, of: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The watermark before each message; which rows are from the future, and which late. Moves the watermark.

        A message moves the watermark by its newest row that is not from the future, and not beyond the time at which
        the log took it in: a clock that is a little fast makes nobody else late.
        """
        future = times > taken[of] + self.max_skew_ns
        newest = np.full(len(offsets), _NEVER, dtype=np.int64)
        np.maximum.at(newest, of[~future], times[~future])
        after = np.where(newest > _NEVER, np.minimum(newest, taken) - self.lateness_ns, _NEVER)
        moved = np.full(len(offsets), self.watermark, dtype=np.int64)
        for offset, watermark in self.advances:  # silences before a restart, where they were
            moved[offsets >= offset] = np.maximum(moved[offsets >= offset], watermark)
        before = np.maximum(moved, np.concatenate(([_NEVER], np.maximum.accumulate(after)[:-1])))
        self.watermark = self.heard = int(max(before[-1], after[-1]))
        ends = times - times % self.window_ns + self.window_ns
        return before, future, (ends <= before[of]) & ~future

    def _keep(self, rows: pl.DataFrame, of: np.ndarray, offsets: np.ndarray, before: np.ndarray) -> None:
        if not len(rows):
            return
        times = rows["time_ns"].to_numpy()
        newest = np.full(len(offsets), _NEVER, dtype=np.int64)
        np.maximum.at(newest, of, times)
        for offset, time_ns, watermark in zip(offsets.tolist(), newest.tolist(), before.tolist(), strict=True):
            if time_ns > _NEVER:
                self.log.append((offset, time_ns, watermark))
        rows = rows.drop("message")
        starts = times - times % self.window_ns
        needed_from = self.published - self.window_ns  # older windows were published, and are nobody's counter base
        for start in np.unique(starts).tolist():
            if start < needed_from:
                continue
            part = rows if (starts == start).all() else rows.filter(pl.Series(starts == start))
            self.rows.setdefault(start, []).append(part)
            self.open_rows += len(part)

    def close(self, *, all_empty: bool) -> list[Closed]:
        """Windows that the watermark has passed, oldest first, without those published before a restart."""
        if self.watermark == _NEVER:
            return []
        until = self._floor(self.watermark)
        known = self.closed_until if self.closed_until > _NEVER else min(self.rows, default=until)
        out: list[Closed] = []
        for start in self._due(known, until, all_empty=all_empty):
            if start in self.rows:
                self.last_rows = max(self.last_rows, start)
            closed = self._close(start)
            if closed is not None:
                out.append(closed)
                self.told_until = closed.window_end_ns
        self.closed_until = max(self.closed_until, until)
        self.published = max(self.published, until)
        if self.told_until < until:  # the samples jumped ahead over windows that nobody needs one by one
            out.append(self.progress(until))
        return out

    def _due(self, known: int, until: int, *, all_empty: bool) -> list[int]:
        """Starts of windows to close: those with rows, and up to `EMPTY_AFTER` empty ones after each."""
        width = self.window_ns
        due = {start for start in self.rows if start + width <= until}
        for start in (self.last_rows, *due):
            if start > _NEVER:
                due.update(range(max(start + width, known), min(start + (EMPTY_AFTER + 1) * width, until), width))
        if all_empty:
            due.update(range(max(known, until - EMPTY_AFTER * width), until, width))
        return sorted(due)

    def _close(self, start: int) -> Closed | None:
        frames = self.rows.pop(start, [])
        self.open_rows -= sum(map(len, frames))
        if start + self.window_ns < self.published:
            return None
        base = self.carry[1] if self.carry is not None and self.carry[0] == start - self.window_ns else None
        self.carry = None
        features = frame(tables.WINDOWS)
        if frames:
            samples = sorted_samples(frames, base)
            last = samples.filter(~pl.col("carry")).group_by("gpu_uuid", maintain_order=True).last()
            self.carry = (start, last.select(columns_of(frames)))
            if start + self.window_ns > self.published:
                features = self.features(samples, window_ns=self.window_ns)
        if start + self.window_ns <= self.published:
            return None
        return Closed(partition=self.partition, window_start_ns=start, window_ns=self.window_ns, rows=features)

    def idle(self, *, silent_ns: int, now_ns: int) -> bool:
        """Move the watermark for a silence; True if there never was a sample to move it from."""
        if self.watermark == _NEVER:
            return True
        moved = min(self.heard + silent_ns, now_ns - self.lateness_ns)
        if moved > self.watermark:
            self.watermark = moved
            self.advances = [(offset, wm) for offset, wm in self.advances if offset < self.position]
            self.advances.append((self.position, moved))
        return False

    def progress(self, until: int) -> Closed:
        """Tell that nothing is left before `until`, without a window."""
        self.told_until = max(self.told_until, self._floor(until))
        return Closed(
            partition=self.partition,
            window_start_ns=self._floor(until) - self.window_ns,
            window_ns=self.window_ns,
            rows=frame(tables.WINDOWS),
            progress=True,
        )

    def place(self) -> Place:
        """The first message with a row of a window that is open, or the counter base of one."""
        base = self.published - self.window_ns if self.published > _NEVER else _NEVER
        while self.log and self.log[0][1] < base:
            self.log.popleft()
        offset, watermark = (self.log[0][0], self.log[0][2]) if self.log else (self.position, self.watermark)
        self.advances = [(at, moved) for at, moved in self.advances if at > offset]
        return Place(
            offset=offset,
            position=max(self.position, self.told),
            watermark=watermark if watermark > _NEVER else None,
            closed_until=self.published if self.published > _NEVER else None,
            last_rows=self.last_rows if self.last_rows > _NEVER else None,
            advances=tuple(self.advances),
        )

    def _floor(self, time_ns: int) -> int:
        return time_ns - time_ns % self.window_ns
