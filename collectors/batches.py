"""Batches: the short sample batches of a node joined to messages of about ten seconds, and long ones left as they are.

To change how much goes into one message: `batch_s`, or `MAX_ROWS` for its limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from telemetry.records import SampleBatch, Value

T = TypeVar("T")
MAX_ROWS = 8_192  #: rows in one message: about 0.6 MB compressed, below what a log takes


@dataclass(slots=True, kw_only=True)
class _Open:
    """The batches of one node, source and interval that wait for each other."""

    since: float
    first_ns: int
    last_ns: int
    rows: int = 0
    parts: list[SampleBatch] = field(default_factory=list)


class Batches:
    """Joins batches of equal node, source and interval, in order of arrival. Not for several threads at once."""

    def __init__(self, *, batch_s: float) -> None:
        self._batch_s = batch_s
        self._open: dict[tuple[str, str, float], _Open] = {}

    def add(self, batch: SampleBatch, *, now: float) -> list[SampleBatch]:
        """Batches that are full now. One that is long enough by itself passes at once, its rows never looked at."""
        if not len(batch):
            return []
        key = (batch.node, batch.source, batch.interval_s)
        if len(batch) * batch.interval_s >= self._batch_s * max(1, len(batch.gpus)):
            return [*self._close(key), *_split(batch)]
        first, last = min(batch.time_ns), max(batch.time_ns)
        held = self._open.setdefault(key, _Open(since=now, first_ns=first, last_ns=last))
        held.parts.append(batch)
        held.rows += len(batch)
        held.first_ns, held.last_ns = min(held.first_ns, first), max(held.last_ns, last)
        full = (held.last_ns - held.first_ns) / 1e9 + batch.interval_s >= self._batch_s - 1e-6
        return self._close(key) if full or held.rows >= MAX_ROWS else []

    def due(self, *, now: float) -> list[SampleBatch]:
        """Batches whose first part has waited for `batch_s`: a slow or stuck source does not hold back what it gave."""
        late = [key for key, held in self._open.items() if now - held.since >= self._batch_s]
        return [batch for key in late for batch in self._close(key)]

    def drain(self) -> list[SampleBatch]:
        """Everything that waits."""
        return [batch for key in list(self._open) for batch in self._close(key)]

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
