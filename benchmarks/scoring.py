"""One step of the scorer for a whole fleet, and what publishing its outcome costs.

To time another size: `SIZES`.
"""

import gc
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from analytics import scoring
from benchmarks import Figure
from benchmarks.scored import gpus_table, nodes_table, step, uuids, windows
from benchmarks.timing import milliseconds
from streams import Message, Outgoing
from streams.materialise import tables_of
from streams.records import encode_rows
from streams.topics import SCORES as TOPIC
from telemetry.tables import SCORES

SIZES = (100_000, 1_000_000)
KNOWN_AFTER = 2  # windows; newcomers number all GPUs anew
_REFERENCES_MS = {100_000: 300.0, 1_000_000: 2_000.0}
_REFERENCE_OF = "the aim; robust z of ten features and nested medians alone take half of it"
_MEMORY_GB = {1_000_000: 2.0}


def figures(*, quick: bool) -> Iterator[Figure]:
    """Each window after the first two, which make the fleet known: to all but those absent, then to them."""
    for gpus in (10_000,) if quick else SIZES:
        times = 5 if gpus <= 100_000 else 2
        found = _steps(gpus, times)
        yield Figure(
            name=f"scoring one window of {gpus:,} GPUs, verdicts included",
            unit="ms",
            values=milliseconds(found["judging"]),
            more_is_better=False,
            reference=_REFERENCES_MS.get(gpus),
            reference_of=_REFERENCE_OF,
        )
        yield Figure(
            name="most memory that the process held until then",
            unit="GB",
            values=found["memory"][-1:],
            more_is_better=False,
            reference=_MEMORY_GB.get(gpus),
            reference_of="what a scorer of that size may take" if gpus in _MEMORY_GB else "",
        )
        if gpus <= 100_000:
            yield Figure(
                name="publishing: the rows with their state as JSON",
                unit="ms",
                values=milliseconds(found["rows"]),
                more_is_better=False,
            )
            yield Figure(
                name="publishing: one message a GPU",
                unit="ms",
                values=milliseconds(found["messages"]),
                more_is_better=False,
            )
            yield Figure(
                name="materialiser: those messages to checked rows",
                unit="ms",
                values=milliseconds(found["read"]),
                more_is_better=False,
            )
            yield Figure(
                name="a new scorer takes over: state from the rows",
                unit="ms",
                values=milliseconds(found["restore"]),
                more_is_better=False,
            )


def _steps(gpus: int, times: int) -> dict[str, list[float]]:
    """CPU seconds of each part of each step."""
    names = uuids(gpus)
    inventory = gpus_table(gpus, names=names), nodes_table(gpus)
    found: dict[str, list[float]] = {"judging": [], "rows": [], "messages": [], "read": [], "restore": [], "memory": []}
    state = scoring.empty()
    for at in range(times + KNOWN_AFTER):
        closed = windows(gpus, at=at, names=names)
        gc.collect()
        start = time.process_time()
        state, scored = step(state, closed, inventory, at=at)
        judged = time.process_time()
        if at < KNOWN_AFTER:
            continue
        found["judging"].append(judged - start)
        found["memory"].append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)
        if gpus > 100_000:
            continue
        rows = scored.scores
        found["rows"].append(time.process_time() - judged)
        messages = _as_read(encode_rows(SCORES, rows, topic=TOPIC, key="gpu_uuid"))
        found["messages"].append(_cpu_s(encode_rows, SCORES, rows, topic=TOPIC, key="gpu_uuid"))
        found["read"].append(_cpu_s(_read, messages))
        found["restore"].append(_cpu_s(scoring.restore, rows))
    return found


def _as_read(written: Sequence[Outgoing]) -> list[Message]:
    return [
        Message(topic=one.topic, partition=0, offset=i, time_ns=0, key=one.key, headers=one.headers, value=one.value)
        for i, one in enumerate(written)
    ]


def _read(messages: Sequence[Message]) -> None:
    for i in range(0, len(messages), 5_000):  # as many as it takes at once
        tables_of(messages[i : i + 5_000])


def _cpu_s(function: Callable[..., object], *arguments: Any, **named: Any) -> float:
    start = time.process_time()
    function(*arguments, **named)
    return time.process_time() - start
