"""Windows of one partition of telemetry: what is decided about each row, when a window closes, where a restart begins.

To change when a window closes: `decide` and `idle`; what a restart knows: `streams/place.py`.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from analytics.frames import frame
from streams import Message
from streams.backlog import Backlog, Heard, Kept
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
    log: deque[Heard] = field(default_factory=deque)
    backlog: Backlog | None = None
    kept: list[Kept] = field(default_factory=list)  # waits that are over, and that open windows still rest on
    last_taken: int | None = None

    def __post_init__(self) -> None:
        place = self.start
        self.position, self.told, self.advances = place.offset, place.position, list(place.advances)
        if place.watermark is not None:
            self.watermark = self.heard = place.watermark
            self.closed_until = self._floor(place.watermark)
        if place.closed_until is not None:
            self.published = self.told_until = place.closed_until
        self.last_taken = place.taken
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
        accepted = 0
        for first, end in self._runs(taken):
            some = (of >= first) & (of < end)
            part = rows if some.all() else rows.filter(pl.Series(some))
            accepted += self._add(part, of[some] - first, offsets[first:end], taken[first:end], rejected)
        return accepted

    def _runs(self, taken: np.ndarray) -> list[tuple[int, int]]:
        """The messages cut where the log had a gap; what came before the first of them is compared too."""
        before = taken[:1] if self.last_taken is None else np.array([self.last_taken])
        latest = np.maximum.accumulate(np.concatenate([before, taken]))
        cuts = np.flatnonzero(latest[1:] - latest[:-1] >= self.lateness_ns).tolist()
        edges = sorted({0, *cuts, len(taken)})
        return list(itertools.pairwise(edges))

    def _add(
        self, rows: pl.DataFrame, of: np.ndarray, offsets: np.ndarray, taken: np.ndarray, rejected: list[Rejected]
    ) -> int:
        """Decide on messages that follow each other without a gap, but for one before them."""
        firsts = np.flatnonzero(np.diff(of, prepend=-1))
        nodes: list[str | None] = [None] * len(offsets)
        for i, node in zip(of[firsts].tolist(), rows["node"].gather(firsts).to_list(), strict=True):
            nodes[i] = node
        last_taken = self.last_taken
        before, future, late = self.decide(offsets, taken, of, rows["time_ns"].to_numpy(), nodes)
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
        self._keep(rows, of, offsets, before, taken, nodes, last_taken)
        return len(rows)

    def decide(
        self,
        offsets: np.ndarray,
        taken: np.ndarray,
        of: np.ndarray,
        times: np.ndarray,
        nodes: Sequence[str | None],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The watermark before each message; which rows are from the future, and which late. Moves the watermark.

        A message moves the watermark by its newest row that is not from the future, and not beyond the time at which
        the log took it in: a clock that is a little fast makes nobody else late. After a gap it waits for the nodes
        that were there before (`streams/backlog.py`).
        """
        future = times > taken[of] + self.max_skew_ns
        newest = np.full(len(offsets), _NEVER, dtype=np.int64)
        np.maximum.at(newest, of[~future], times[~future])
        after = np.where(newest > _NEVER, np.minimum(newest, taken) - self.lateness_ns, _NEVER)
        moved = np.full(len(offsets), self.watermark, dtype=np.int64)
        for offset, watermark in self.advances:  # silences before a restart, where they were
            moved[offsets >= offset] = np.maximum(moved[offsets >= offset], watermark)
        self._look_for_gap(int(taken[0]))
        if self.backlog is None:
            before = np.maximum(moved, np.concatenate(([_NEVER], np.maximum.accumulate(after)[:-1])))
            self.watermark = self.heard = int(max(before[-1], after[-1]))
        else:
            before = self._waiting(offsets, taken, newest, nodes, moved, after)
        self.last_taken = max(int(taken.max()), self.last_taken or _NEVER)
        ends = times - times % self.window_ns + self.window_ns
        return before, future, (ends <= before[of]) & ~future

    def _look_for_gap(self, taken: int) -> None:
        """Begin to wait, or wait anew, if the log was silent before this message."""
        if self.last_taken is None or taken - self.last_taken < self.lateness_ns:
            return
        self.backlog = Backlog.after(
            self.last_taken,
            taken,
            self.log,
            lateness_ns=self.lateness_ns,
            watermark=self.watermark,
            needed_from=self._floor(self.watermark) - self.window_ns,
            before=self.backlog,
        )

    def _waiting(
        self,
        offsets: np.ndarray,
        taken: np.ndarray,
        newest: np.ndarray,
        nodes: Sequence[str | None],
        moved: np.ndarray,
        after: np.ndarray,
    ) -> np.ndarray:
        """The watermark before each message, one by one: it goes no further than whom it waits for."""
        before = np.empty_like(moved)
        now, latest = self.watermark, self.last_taken or _NEVER
        for i, node in enumerate(nodes):
            before[i] = now = max(now, int(moved[i]))
            latest = max(latest, int(taken[i]))
            reached, backlog = int(after[i]), self.backlog
            if backlog is not None:
                reached = backlog.potential = max(backlog.potential, reached)
                limit = backlog.limit(node if newest[i] > _NEVER else None, int(newest[i]), latest)
                if limit is None:
                    self.kept.append(Kept(backlog.first, int(offsets[i])))
                    self.backlog = None
                else:
                    reached = min(reached, limit)
            now = max(now, reached)
        self.watermark = self.heard = now
        return before

    def _keep(
        self,
        rows: pl.DataFrame,
        of: np.ndarray,
        offsets: np.ndarray,
        before: np.ndarray,
        taken: np.ndarray,
        nodes: Sequence[str | None],
        last_taken: int | None,
    ) -> None:
        if not len(rows):
            return
        times = rows["time_ns"].to_numpy()
        newest = np.full(len(offsets), _NEVER, dtype=np.int64)
        np.maximum.at(newest, of, times)
        earlier = _NEVER if last_taken is None else last_taken
        latest = np.maximum.accumulate(np.concatenate(([earlier], taken[:-1])))
        columns = (offsets, newest, before, taken, latest)
        for node, (offset, time_ns, watermark, at, last) in zip(nodes, np.column_stack(columns).tolist(), strict=True):
            if time_ns > _NEVER and node is not None:
                self.log.append(Heard(offset, time_ns, watermark, at, node, last if last > _NEVER else None))
        delay = ((taken - newest) / 1e9).astype(np.float32)
        rows = rows.drop("message").with_columns(pl.Series("delivery_delay_s", delay[of]))
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
        heard = self.heard if self.backlog is None else max(self.heard, self.backlog.potential)  # nobody comes any more
        moved = min(heard + silent_ns, now_ns - self.lateness_ns)
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
        # While what had been published is read again, the watermark is behind it: whom a gap finds depends on the log.
        closed = min(self.published, self._floor(self.watermark)) if self.watermark > _NEVER else _NEVER
        base = closed - self.window_ns if closed > _NEVER else _NEVER
        while self.log and self.log[0].newest < base:
            self.log.popleft()
        first = self.log[0] if self.log else None
        offset = first.offset if first else self.position
        self.kept = [one for one in self.kept if one.until >= offset]
        waits = [one.first for one in self.kept] + ([self.backlog.first] if self.backlog else [])
        if waits and waits[0].offset < offset:
            first, offset = waits[0], waits[0].offset
        watermark, taken = (first.watermark, first.latest) if first else (self.watermark, self.last_taken)
        self.advances = [(at, moved) for at, moved in self.advances if at > offset]
        return Place(
            offset=offset,
            position=max(self.position, self.told),
            watermark=watermark if watermark > _NEVER else None,
            closed_until=self.published if self.published > _NEVER else None,
            last_rows=self.last_rows if self.last_rows > _NEVER else None,
            advances=tuple(self.advances),
            taken=taken,
        )

    def _floor(self, time_ns: int) -> int:
        return time_ns - time_ns % self.window_ns
