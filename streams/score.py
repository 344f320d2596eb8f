"""The score job: windows, events and measurements in; scores and transitions out. One member is active at a time.

To change what a score is: `analytics/scoring.py`; when a window is whole: `streams/open_windows.py`.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import polars as pl

from analytics import scoring
from analytics.frames import frame
from analytics.job_classes import of_jobs
from streams import (
    Assigned,
    Batch,
    Committed,
    Message,
    Outgoing,
    Reader,
    Revoked,
    Source,
    TopicPartition,
    TransactionalProducer,
    Transport,
)
from streams.counters import Counters
from streams.deadletter import Rejected, dead_letters
from streams.inventory import Inventory
from streams.open_windows import OpenWindows, parse_place
from streams.parts import decode_part
from streams.records import decode_json, encode_rows, frames_of
from streams.running_jobs import RunningJobs
from streams.topics import EVENTS, INVENTORY, JOBS, MEASUREMENTS, SCORES, TELEMETRY, TRANSITIONS, WINDOWS
from streams.window import MAX_BACK_OFF_S, close_quietly
from telemetry import tables
from telemetry.errors import BadInput, Fenced, TransportError

GROUP = "isotach-score"
TRANSACTIONAL_ID = "isotach-score"
_SECOND = 1_000_000_000
_WINDOWS = TopicPartition(WINDOWS, 0)
_WINDOW_MESSAGES = 64  # at once: each may be near a megabyte
_RECOUNT_S = 60.0  # between two looks at the number of telemetry partitions
_log = logging.getLogger("isotach.score")


def run_score_job(
    transport: Transport,
    *,
    member: str,
    grace_s: float = 90.0,
    max_skew_s: float = 60.0,
    clock_ns: Callable[[], int] = time.time_ns,
    stop: threading.Event,
    counters: Counters | None = None,
    group: str = GROUP,
    transactional_id: str = TRANSACTIONAL_ID,
    poll_s: float = 0.2,
    back_off_s: float = 1.0,
    thresholds: Mapping[str, Any] = MappingProxyType({}),
    places: pl.DataFrame | None = None,
) -> None:
    """Run until `stop` is set: wait to be elected, then score until the partition of windows goes to another member.

    Delivery: scores, transitions and the places behind them appear together or not at all. When the log cannot be
    used, or a newer scorer has taken over, everything is dropped and begun anew. `thresholds` go to `scoring.apply`.
    `places`: rows of TOPOLOGY from a file, to tell at which level an excess sits; else only what nodes say.
    """
    counters = counters or Counters()
    pause = back_off_s
    while not stop.is_set():
        try:
            with ExitStack() as parts:
                source = transport.subscribe([WINDOWS], group=group, client_id=member)
                parts.callback(close_quietly, source)
                while not stop.is_set():
                    event = source.poll(timeout_s=1.0, max_messages=_WINDOW_MESSAGES)
                    pause = back_off_s
                    if isinstance(event, Assigned) and _WINDOWS in event.partitions:
                        with ExitStack() as active:
                            scorer = _Scorer(
                                transport,
                                source,
                                active,
                                group=group,
                                transactional_id=transactional_id,
                                grace_ns=round(grace_s * _SECOND),
                                max_skew_ns=round(max_skew_s * _SECOND),
                                clock_ns=clock_ns,
                                counters=counters,
                                thresholds=thresholds,
                                places=places,
                            )
                            _log.info("%s is the active scorer", member)
                            active.callback(counters.set, "scorer_active", 0)
                            counters.set("scorer_active", 1)
                            while not stop.is_set() and scorer.step(poll_s):
                                pass
        except TransportError as error:
            counters.add("retries", label="score")
            what = "has been replaced" if isinstance(error, Fenced) else "begins anew"
            _log.warning("score job %s %s, waits %.1f s: %s", member, what, pause, error)
            stop.wait(pause)
            pause = min(2 * pause, MAX_BACK_OFF_S)


class _Scorer:
    """One life of the active scorer: what it knows goes with it."""

    def __init__(
        self,
        transport: Transport,
        source: Source,
        parts: ExitStack,
        *,
        group: str,
        transactional_id: str,
        grace_ns: int,
        max_skew_ns: int,
        clock_ns: Callable[[], int],
        counters: Counters,
        thresholds: Mapping[str, Any],
        places: pl.DataFrame | None,
    ) -> None:
        self._transport = transport
        self._source = source
        self._group = group
        self._max_skew_ns = max_skew_ns
        self._clock_ns = clock_ns
        self._counters = counters
        self._thresholds = thresholds
        # first the fence: after it nobody else changes scores or places
        self._producer: TransactionalProducer = transport.transactional_producer(transactional_id=transactional_id)
        parts.callback(close_quietly, self._producer)
        scores = frames_of(decode_json(_newest(transport, SCORES))[0]).get("scores", frame(tables.SCORES))
        self._state = scoring.restore(scores)
        self._as_of_ns = int(scores["as_of_ns"].to_numpy().max()) if len(scores) else 0
        self._has_history = len(scores) > 0
        place = transport.committed(group, [_WINDOWS]).get(_WINDOWS)
        applied, told = parse_place(place)
        if len(scores):
            applied = max(applied or 0, int(scores["window_start_ns"].to_numpy().max()))
        self._windows = OpenWindows(grace_ns=grace_ns, applied_ns=applied, told=told)
        self._next_offset = self._kept = place.offset if place else 0
        self._inventory = Inventory(places)
        self._inventory_reader = _reader(transport, parts, _partitions(transport, INVENTORY))
        _drain(self._inventory_reader, self._inventory.take)
        jobs = _partitions(transport, JOBS)
        self._jobs = RunningJobs(max_skew_ns=max_skew_ns)
        self._jobs_reader = _reader(transport, parts, jobs, transport.committed(group, jobs))
        _drain(self._jobs_reader, self._jobs.take)
        sides = _partitions(transport, EVENTS) + _partitions(transport, MEASUREMENTS)
        committed = transport.committed(group, sides)
        self._side_reader = _reader(transport, parts, sides, committed)
        self._recounted = time.monotonic()
        self._partition_count = transport.partitions(TELEMETRY)

    def step(self, poll_s: float) -> bool:
        """One poll of everything and the scoring that follows; false once the partition went to another member."""
        found = self._source.poll(timeout_s=poll_s, max_messages=_WINDOW_MESSAGES)
        if isinstance(found, Revoked) and _WINDOWS in found.partitions:
            return False
        self._learn()
        self._hear()
        if isinstance(found, Batch):
            self._gather(found.messages)
        while (due := self._windows.due(partitions=self._partition_count, now_ns=self._clock_ns())) is not None:
            if not len(due.rows) and not self._has_history:
                self._windows.forget(due.window_start_ns)  # nothing has ever been seen: no window to speak of
                continue
            self._windows.done(due.window_start_ns)
            self._has_history = True
            self._as_of_ns = max(self._as_of_ns, due.window_end_ns)
            self._score(
                windows=of_jobs(due.rows, self._jobs.during(due.window_start_ns, due.window_end_ns)),
                window_start_ns=due.window_start_ns,
                as_of_ns=due.window_end_ns,  # not an event's time: of windows that are made up for nobody is late
                complete=due.complete,
            )
            self._counters.add("scored_windows", label="yes" if due.complete else "no")
        if isinstance(found, Batch) and not found.messages:
            self._keep_place()
        return True

    def _keep_place(self) -> None:
        """Commit how far windows were read when nothing came of it: progress told by quiet partitions, for one."""
        place = self._windows.place(self._next_offset)
        if place.offset > self._kept:
            self._source.commit({_WINDOWS: place})
            self._kept = place.offset

    def _gather(self, messages: Sequence[Message]) -> None:
        now = self._clock_ns()
        for message in messages:
            self._next_offset = message.offset + 1
            try:
                part = decode_part(message)
            except BadInput as error:
                self._skip(message, error.rule, error.detail)
                continue
            if max(part.window_end_ns, part.watermark_ns) > message.time_ns + self._max_skew_ns:
                self._skip(message, "future", f"window that ends at {part.window_end_ns}")
                continue
            if not self._windows.add(part, offset=message.offset, now_ns=now) and len(part.rows):
                self._counters.add("stale_windows")

    def _skip(self, message: Message, rule: str, detail: str) -> None:
        """The materialiser sets the message itself aside; the scorer goes on without it."""
        self._counters.add("skipped", label=message.topic)
        _log.info("%s offset %d is skipped: %s: %s", message.topic, message.offset, rule, detail)

    def _learn(self) -> None:
        """Take new inventory and jobs, and count the telemetry partitions from time to time."""
        for reader, take in ((self._inventory_reader, self._inventory.take), (self._jobs_reader, self._jobs.take)):
            while messages := reader.poll(timeout_s=0):
                for one in take(messages):
                    self._skip(messages[one.message], one.rule, one.detail)
        if time.monotonic() - self._recounted >= _RECOUNT_S:
            self._recounted = time.monotonic()
            self._partition_count = self._transport.partitions(TELEMETRY)

    def _hear(self) -> None:
        """Score events and measurements at once, without waiting for a window."""
        messages = self._side_reader.poll(timeout_s=0)
        if not messages:
            return
        records, rejected = decode_json(messages)
        for one in rejected:
            self._skip(messages[one.message], one.rule, one.detail)
        future = [
            record
            for record in records
            for row in next(iter(record.rows.values()))
            if row["time_ns"] > messages[record.message].time_ns + self._max_skew_ns
        ]
        letters = [
            letter
            for record in future
            for letter in dead_letters(
                messages[record.message],
                Rejected(message=record.message, rule="future", detail="stamped well after the log took it in"),
            )
        ]
        self._counters.add("rejected", len(future), "future")
        ahead = {record.message for record in future}
        frames = frames_of([record for record in records if record.message not in ahead])
        times = [int(rows["time_ns"].to_numpy().max()) for rows in frames.values()]
        self._as_of_ns = max(self._as_of_ns, *times) if times else self._as_of_ns
        if frames or letters:
            self._has_history = self._has_history or bool(frames)
            self._score(
                events=frames.get("events"),
                measurements=frames.get("measurements"),
                as_of_ns=self._as_of_ns,
                letters=letters,
            )

    def _score(
        self,
        *,
        as_of_ns: int,
        windows: pl.DataFrame | None = None,
        window_start_ns: int | None = None,
        events: pl.DataFrame | None = None,
        measurements: pl.DataFrame | None = None,
        complete: bool = True,
        letters: Sequence[Outgoing] = (),
    ) -> None:
        """Apply, and publish what came of it together with the places behind it."""
        gpus, nodes = self._inventory.frames()
        self._state, scored = scoring.apply(
            self._state,
            windows=windows,
            window_start_ns=window_start_ns,
            events=frame(tables.EVENTS) if events is None else events,
            measurements=frame(tables.MEASUREMENTS) if measurements is None else measurements,
            gpus=gpus,
            nodes=nodes,
            as_of_ns=as_of_ns,
            complete=complete,
            topology=self._inventory.topology(),
            **self._thresholds,
        )
        messages = [
            *encode_rows(tables.SCORES, scored.scores, topic=SCORES, key="gpu_uuid"),
            *encode_rows(tables.TRANSITIONS, scored.transitions, topic=TRANSITIONS, key="gpu_uuid"),
            *letters,
        ]
        places = {tp: Committed(offset) for tp, offset in self._side_reader.positions().items()}
        places |= self._jobs.places(self._jobs_reader.positions())
        places[_WINDOWS] = self._windows.place(self._next_offset)
        self._producer.publish(messages, group=self._group, places=places, source=self._source)
        self._kept = places[_WINDOWS].offset


def _partitions(transport: Transport, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(transport.partitions(topic))]


def _reader(
    transport: Transport,
    parts: ExitStack,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, Committed] = MappingProxyType({}),
) -> Reader:
    reader = transport.read({tp: committed[tp].offset if tp in committed else 0 for tp in partitions})
    parts.callback(close_quietly, reader)
    return reader


def _drain(reader: Reader, take: Callable[[Sequence[Message]], object]) -> None:
    """Read everything that is in the log now."""
    while True:
        messages = reader.poll(timeout_s=0.1, max_messages=5_000)
        if messages:
            take(messages)
        elif reader.caught_up():
            return


def _newest(transport: Transport, topic: str) -> list[Message]:
    """The newest message of each key of a compacted topic, without those that were deleted."""
    newest: dict[bytes | None, Message] = {}

    def take(messages: Sequence[Message]) -> None:
        for message in messages:
            newest[message.key] = message

    with ExitStack() as parts:
        _drain(_reader(transport, parts, _partitions(transport, topic)), take)
    return [message for message in newest.values() if message.value is not None]
