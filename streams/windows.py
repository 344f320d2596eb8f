"""The state machine of windows: decoded samples in, closed windows and refused rows out. No log, no clock, no thread.

To change when a window closes: `_Partition.decide` and `_Partition.idle`; what a restart knows: `streams/place.py`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from analytics.features import window_features
from analytics.frames import frame, sample_schema
from streams import Committed, Message
from streams.deadletter import Rejected
from streams.decode import Decoded, refuse
from streams.place import Place
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
        self._partitions: dict[int, _Partition] = {}

    def assign(self, partition: int, committed: Committed | None) -> None:
        """Begin with a partition where the group is; what was known of it before is forgotten."""
        self._partitions[partition] = _Partition(
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


@dataclass(slots=True)
class _Partition:
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
            samples = sorted_samples(frames, base, start)
            last = samples.filter(~pl.col("carry")).group_by("gpu_uuid", maintain_order=True).last()
            self.carry = (start, last.select(frames_columns(frames)))
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


def frames_columns(frames: Sequence[pl.DataFrame]) -> list[str]:
    """The columns that occur in any of the frames, in the order of a samples frame."""
    present = {name for one in frames for name in one.columns}
    return [name for name in sample_schema() if name in present]


def sorted_samples(frames: Sequence[pl.DataFrame], base: pl.DataFrame | None, start_ns: int) -> pl.DataFrame:
    """Rows of one window in the form that features want: every column, by GPU and time, equal ones once.

    Of rows with equal gpu_uuid and time_ns the one that came first stays. `base` are the rows of the window before.
    """
    flagged = [one.with_columns(pl.lit(False).alias("carry")) for one in frames]
    if base is not None:
        flagged.append(base.with_columns(pl.lit(True).alias("carry")))
    rows = pl.concat(flagged, how="diagonal") if len(flagged) > 1 else flagged[0]
    names = rows["gpu_uuid"].unique().sort()
    # one integer key sorts several times faster than text and time: rank of the GPU, then time
    rank = rows["gpu_uuid"].cast(pl.Enum(names)).to_physical().cast(pl.UInt64).to_numpy()
    times = rows["time_ns"].to_numpy()
    first = int(times.min())
    span = np.uint64(int(times.max()) - first + 1)
    key = rank * span + (times - first).astype(np.uint64)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    order = order[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    rows = rows[order]
    types = sample_schema()
    return rows.select(
        pl.col(name) if name in rows.columns else pl.lit(None, dtype).alias(name) for name, dtype in types.items()
    )
