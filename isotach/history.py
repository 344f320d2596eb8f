"""The history of a Prometheus as messages: what the collector dcgm would have sent at the time.

To take over another kind of history: one that gives `Moment`s.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from collectors import Reading
from collectors.dcgm.exposition import Series
from collectors.dcgm.labels import Labels
from collectors.dcgm.node import Node
from collectors.job_book import JobBook
from isotach.prometheus import Moment, Prometheus
from isotach.recorded import RecordedClock
from streams import Outgoing
from streams.topics import EVENTS, INVENTORY, JOBS, TELEMETRY
from telemetry.codec import JSON, Encoder
from telemetry.errors import IsotachError
from telemetry.rows import to_json

_HEADERS = {"content-type": JSON.encode()}
SHOWN_SHARE = 0.1  #: of the span, between two lines of progress


def messages(
    prometheus: Prometheus,
    *,
    start_s: float,
    end_s: float,
    step_s: float,
    clock: RecordedClock,
    count: Callable[[str, int], None],
    show: Callable[[str], None],
) -> Iterator[tuple[Outgoing, int]]:
    """Messages in order of time, each with its number of samples.

    `count` is told what could not be used, by rule; `show` how far it is. An error in the middle says where to go on.
    """
    nodes: dict[str, Node] = {}
    book, encoder = JobBook(), Encoder()
    reached_s, shown = start_s, 0.0
    try:
        moments = prometheus.moments(start_s, end_s, step_s, reject=lambda rule: count(rule, 1))
        for moment in moments:
            clock.reach(round(moment.time_s * 1e9))
            for reading in _readings(moment, nodes, step_s):
                for rule, number in reading.rejected.items():
                    count(rule, number)
                yield from _outgoing(reading, encoder, book, now=moment.time_s)
            reached_s = moment.time_s
            share = (reached_s - start_s) / max(step_s, end_s - start_s)
            if share >= shown + SHOWN_SHARE or moment.time_s + step_s > end_s:
                shown = share
                show(f"{share:.0%} read, until {_iso(reached_s)}")
    except IsotachError as error:
        if reached_s > start_s:
            raise IsotachError(f"{error}; what was read is kept: go on with --start {_iso(reached_s)}") from None
        raise


def _readings(moment: Moment, nodes: dict[str, Node], step_s: float) -> Iterator[Reading]:
    by_node: dict[str, list[Series[Labels]]] = {}
    nameless = 0
    for series in moment.series:
        if series.labels.node is None:
            nameless += 1
        else:
            by_node.setdefault(series.labels.node, []).append(series)
    if nameless:
        yield Reading(rejected={"no_node": nameless})
    time_ns = round(moment.time_s * 1e9)
    for name, some in by_node.items():
        node = nodes.get(name)
        if node is None:
            node = nodes[name] = Node(name, interval_s=step_s)
        yield node.read(some, time_ns=time_ns, now=moment.time_s, damaged=False, taken=frozenset())


def _outgoing(reading: Reading, encoder: Encoder, book: JobBook, *, now: float) -> Iterator[tuple[Outgoing, int]]:
    for inventory in reading.inventory:
        yield _json(INVENTORY, inventory.node, to_json(inventory)), 0
    for event in reading.events:
        yield _json(EVENTS, event.gpu_uuid or event.node, to_json(event)), 0
    for jobs in reading.jobs:
        if (news := book.news(jobs, now=now)) is not None:
            yield _json(JOBS, news.node, to_json(news)), 0
    for batch in reading.samples:
        made = encoder.encode(batch)
        yield Outgoing(topic=TELEMETRY, key=made.key, headers=made.headers, value=made.value), len(batch)


def _json(topic: str, key: str, value: bytes) -> Outgoing:
    return Outgoing(topic=topic, key=key.encode(), value=value, headers=_HEADERS)


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
