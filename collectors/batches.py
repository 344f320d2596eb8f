"""Batches: the short sample batches of a node joined to messages of about ten seconds, and long ones left as they are.

To change how much goes into one message: `batch_s`, or `MAX_ROWS` for its limit.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from collectors.clock import STEP_S
from telemetry.records import SampleBatch, Value

T = TypeVar("T")
MAX_ROWS = 8_192  #: rows in one message: about 0.6 MB compressed, below what a log takes


@dataclass(slots=True, kw_only=True)
class _Open:
    """The batches of one node, source and interval that wait for each other."""

    since: float
    span_s: float
    first_ns: int
    last_ns: int
    rows: int = 0
    parts: list[SampleBatch] = field(default_factory=list)


class Batches:
    """Joins batches of equal node, source and interval, in order of arrival. Not for several threads at once.

    The first message of a node and source is as long as `first_s` says, so that those who start together do not send
    together ever after. What lies further apart than one message is long was stamped before and after a step of the
    clock, and comes in messages of its own.
    """

    def __init__(self, *, batch_s: float, first_s: Callable[[], float] | None = None) -> None:
        self.batch_s = batch_s
        self._first_s = first_s
        self._begun: set[tuple[str, str]] = set()
        self._open: dict[tuple[str, str, float], _Open] = {}

    def add(self, batch: SampleBatch, *, now: float) -> list[SampleBatch]:
        """Batches that are full now. One that is long enough by itself passes at once, its rows never looked at."""
        if not len(batch):
            return []
        key = (batch.node, batch.source, batch.interval_s)
        if len(batch) * batch.interval_s >= self.batch_s * max(1, len(batch.gpus)):
            return [*self._close(key), *_split(batch)]
        first, last = min(batch.time_ns), max(batch.time_ns)
        span_ns = round((self.batch_s + STEP_S) * 1e9)
        if last - first > span_ns:
            return [ready for part in _parted(batch, (first + last) // 2) for ready in self.add(part, now=now)]
        stepped = []
        if (held := self._open.get(key)) and max(held.last_ns, last) - min(held.first_ns, first) > span_ns:
            stepped = self._close(key)
        held = self._open.get(key)
        if held is None:
            held = self._open[key] = _Open(since=now, span_s=self._span_s(key[:2]), first_ns=first, last_ns=last)
        held.parts.append(batch)
        held.rows += len(batch)
        held.first_ns, held.last_ns = min(held.first_ns, first), max(held.last_ns, last)
        full = (held.last_ns - held.first_ns) / 1e9 + batch.interval_s >= held.span_s - 1e-6
        return [*stepped, *self._close(key)] if full or held.rows >= MAX_ROWS else stepped

    def due(self, *, now: float) -> list[SampleBatch]:
        """Batches whose first part has waited for `batch_s`: a slow or stuck source does not hold back what it gave."""
        late = [key for key, held in self._open.items() if now - held.since >= held.span_s]
        return [batch for key in late for batch in self._close(key)]

    def drain(self) -> list[SampleBatch]:
        """Everything that waits."""
        return [batch for key in list(self._open) for batch in self._close(key)]

    def _span_s(self, key: tuple[str, str]) -> float:
        if self._first_s is None or key in self._begun:
            return self.batch_s
        self._begun.add(key)
        return min(self.batch_s, self._first_s())

    def _close(self, key: tuple[str, str, float]) -> list[SampleBatch]:
        held = self._open.pop(key, None)
        return [] if held is None else list(_split(join(held.parts)))


def join(parts: Sequence[SampleBatch]) -> SampleBatch:
    """One batch with the rows of all, in order; a column that a part lacks is null for its rows."""
    if len(parts) == 1:
        return parts[0]
    gpus = tuple(dict.fromkeys(gpu for part in parts for gpu in part.gpus))
    place = {gpu: i for i, gpu in enumerate(gpus)}
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns: dict[str, list[Value]] = {name: [] for name in names}
    index: list[int] = []
    for part in parts:
        places = [place[gpu] for gpu in part.gpus]
        index += [places[i] for i in part.gpu]
        for name, values in columns.items():
            values += _plain(part.columns[name]) if name in part.columns else [None] * len(part)
    times = [time for part in parts for time in _plain(part.time_ns)]
    return replace(parts[0], gpus=gpus, time_ns=times, gpu=index, columns=columns)


def _plain(values: Sequence[T]) -> list[T]:
    """The values as a list of Python's own numbers, also of an array (whose `+` adds, and whose items stay its own)."""
    plain: list[T] = values.tolist() if hasattr(values, "tolist") else list(values)
    return plain


def halves(batch: SampleBatch) -> tuple[SampleBatch, SampleBatch]:
    """The batch in two, for one whose message is too large."""
    middle = len(batch) // 2
    return _rows(batch, 0, middle), _rows(batch, middle, len(batch))


def _parted(batch: SampleBatch, middle_ns: int) -> Iterator[SampleBatch]:
    """The rows before a time, and the others."""
    for early in (True, False):
        rows = [i for i, time_ns in enumerate(batch.time_ns) if (time_ns < middle_ns) is early]
        yield replace(
            batch,
            time_ns=[batch.time_ns[i] for i in rows],
            gpu=[batch.gpu[i] for i in rows],
            columns={name: [_plain(values)[i] for i in rows] for name, values in batch.columns.items()},
        )


def _split(batch: SampleBatch) -> Iterator[SampleBatch]:
    if len(batch) <= MAX_ROWS:
        yield batch
        return
    for start in range(0, len(batch), MAX_ROWS):
        yield _rows(batch, start, start + MAX_ROWS)


def _rows(batch: SampleBatch, start: int, end: int) -> SampleBatch:
    return replace(
        batch,
        time_ns=batch.time_ns[start:end],
        gpu=batch.gpu[start:end],
        columns={name: values[start:end] for name, values in batch.columns.items()},
    )
