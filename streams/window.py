"""The window job: telemetry in, windows, dead letters and clock-skew events out. Any number of members share the work.

To change what is decided: `streams/windows.py`, which knows neither the log nor time; here is only the loop.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import polars as pl

from streams import (
    Assigned,
    Batch,
    Message,
    Outgoing,
    Producer,
    Reader,
    Revoked,
    Source,
    TopicPartition,
    TransactionalProducer,
    Transport,
)
from streams.counters import Counters
from streams.deadletter import Rejected, dead_letters
from streams.decode import decode, slices
from streams.partition import Closed
from streams.parts import encode_progress, encode_window
from streams.topics import EVENTS, TELEMETRY
from streams.windows import Windows
from telemetry.errors import TransportError
from telemetry.records import Event
from telemetry.rows import to_json

GROUP = "isotach-window"
_SECOND = 1_000_000_000
_SKEW_AGAIN_NS = 3_600 * _SECOND  # a node whose clock stays wrong is reported once an hour
_MAX_SKEWED = 100_000  # nodes remembered: names come from outside
_RESUME_SHARE = 0.8
_SILENCE_CHECK_S = 5.0
MAX_BACK_OFF_S = 30.0
_log = logging.getLogger("isotach.window")


def run_window_job(
    transport: Transport,
    *,
    member: str,
    window_s: float = 60.0,
    lateness_s: float = 30.0,
    idle_s: float = 60.0,
    max_skew_s: float = 60.0,
    max_open_rows: int = 20_000_000,
    clock_ns: Callable[[], int] = time.time_ns,
    stop: threading.Event,
    counters: Counters | None = None,
    group: str = GROUP,
    poll_s: float = 0.5,
    back_off_s: float = 1.0,
) -> None:
    """Run until `stop` is set; then places are committed and the group is left.

    Delivery: windows at least once, with equal content each time (see `Windows`); every refusal is in the dead-letter
    topic before the place that covers it is committed. When the log cannot be used, everything is dropped and begun
    anew from the committed places, after a pause that doubles from `back_off_s` to 30 s. `idle_s` must be longer than
    the time that one telemetry message covers, or the next one of a lone node may find its window closed.
    """
    counters = counters or Counters()
    pause = back_off_s
    while not stop.is_set():
        try:
            with ExitStack() as parts:
                producer = transport.producer(client_id=f"{member}-windows")
                parts.callback(close_quietly, producer)
                source = transport.subscribe([TELEMETRY], group=group, client_id=member)
                parts.callback(close_quietly, source)
                job = _Job(
                    transport,
                    source=source,
                    producer=producer,
                    windows=Windows(
                        window_ns=round(window_s * _SECOND),
                        lateness_ns=round(lateness_s * _SECOND),
                        max_skew_ns=round(max_skew_s * _SECOND),
                    ),
                    idle_ns=round(idle_s * _SECOND),
                    max_open_rows=max_open_rows,
                    clock_ns=clock_ns,
                    counters=counters,
                )
                while not stop.is_set():
                    job.step(poll_s)
                    pause = back_off_s
                job.finish()
        except TransportError as error:
            counters.add("retries", label="window")
            _log.warning("window job %s begins anew in %.1f s: %s", member, pause, error)
            stop.wait(pause)
            pause = min(2 * pause, MAX_BACK_OFF_S)


def close_quietly(part: Source | Producer | TransactionalProducer | Reader) -> None:
    """Let go of it; what the log refuses now was never committed, and will be done again."""
    try:
        part.close()
    except TransportError as error:
        _log.info("while closing: %s", error)


class _Job:
    """One life of the job, from subscribing to the first error."""

    def __init__(
        self,
        transport: Transport,
        *,
        source: Source,
        producer: Producer,
        windows: Windows,
        idle_ns: int,
        max_open_rows: int,
        clock_ns: Callable[[], int],
        counters: Counters,
    ) -> None:
        self._transport = transport
        self._source = source
        self._producer = producer
        self._windows = windows
        self._idle_ns = idle_ns
        self._max_open_rows = max_open_rows
        self._clock_ns = clock_ns
        self._counters = counters
        self._heard: dict[int, int] = {}
        self._told_silence: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._skewed: dict[str, int] = {}
        self._window_ns = windows.window_ns

    def step(self, poll_s: float) -> None:
        """One poll, and all that follows from it: nothing is committed before it is acknowledged."""
        found = self._source.poll(timeout_s=poll_s)
        now = self._clock_ns()
        if isinstance(found, Assigned):
            for tp, committed in found.partitions.items():
                self._windows.assign(tp.partition, committed)
                self._heard[tp.partition] = self._told_silence[tp.partition] = now
        elif isinstance(found, Revoked):
            for tp in found.partitions:
                self._windows.revoke(tp.partition)
                self._heard.pop(tp.partition, None)
                self._paused -= {tp.partition}
        else:
            self._take(found, now)
            self._idle(now)
            self._press()

    def _take(self, batch: Batch, now: int) -> None:
        for messages in slices(batch.messages):
            decoded = decode(messages)
            fresh = [self._windows.is_new(message) for message in messages]
            added = self._windows.add(messages, decoded)
            rejected = [one for one in decoded.rejected if fresh[one.message]] + list(added.rejected)
            for message in messages:
                if message.partition in self._heard:
                    self._heard[message.partition] = self._told_silence[message.partition] = now
            self._publish(messages, rejected, added.closed)
            self._counters.set("open_rows", self._windows.open_rows)  # before it counts as read: what holds of both
            self._count(messages, rejected, decoded.garbage, decoded.unknown_values, added.accepted)
            touched = {one.partition for one in added.closed} | {messages[one.message].partition for one in rejected}
            self._commit(touched)

    def _publish(self, messages: Sequence[Message], rejected: Sequence[Rejected], closed: Sequence[Closed]) -> None:
        """Send everything and wait until it is acknowledged."""
        if not rejected and not closed:
            return
        for one in rejected:
            for letter in dead_letters(messages[one.message], one):
                self._producer.send(letter)
            if one.rule == "future" and one.rows is not None:
                for event in self._skew_events(messages[one.message], one.rows):
                    self._producer.send(event)
        for window in closed:
            for outgoing in _encode(window):
                self._producer.send(outgoing)
        self._producer.flush()
        self._counters.add("windows", sum(not window.progress for window in closed))
        self._counters.add("window_rows", sum(len(window.rows) for window in closed))

    def _skew_events(self, message: Message, rows: pl.DataFrame) -> list[Outgoing]:
        """An event for each node of the rows that was not reported in the last hour."""
        out = []
        for node, part in rows.group_by("node", maintain_order=True):
            name = str(node[0])
            if message.time_ns - self._skewed.get(name, -_SKEW_AGAIN_NS) < _SKEW_AGAIN_NS:
                continue
            if len(self._skewed) >= _MAX_SKEWED:
                self._skewed.pop(next(iter(self._skewed)))
            self._skewed[name] = message.time_ns
            ahead = (int(part["time_ns"].to_numpy().max()) - message.time_ns) / 1e9
            event = Event(
                time_ns=message.time_ns,
                node=name,
                gpu_uuid="",
                kind="clock_skew",
                detail=f"samples stamped up to {ahead:.0f} s after they arrived: set aside; check the node's clock",
            )
            out.append(Outgoing(topic=EVENTS, key=name.encode(), value=to_json(event)))
        return out

    def _commit(self, partitions: set[int]) -> None:
        owned = partitions & set(self._windows.partitions)
        if owned:
            self._source.commit({TopicPartition(TELEMETRY, p): self._windows.place(p) for p in sorted(owned)})

    def _idle(self, now: int) -> None:
        """Move the watermark of silent partitions, once a window at most, and only if the log has nothing for them."""
        step = min(self._window_ns, self._idle_ns)
        silent = [
            p
            for p in self._windows.partitions
            if p not in self._paused and now - self._heard[p] >= self._idle_ns and now - self._told_silence[p] >= step
        ]
        if not silent:
            return
        closed: list[Closed] = []
        for p in self._truly_silent(silent):
            self._told_silence[p] = now
            closed.extend(self._windows.idle(p, silent_ns=now - self._heard[p], now_ns=now))
        self._publish((), (), closed)
        self._commit({one.partition for one in closed})

    def _truly_silent(self, partitions: Sequence[int]) -> list[int]:
        """Those whose log was read to its end: with a broker that is away or slow nothing is silent."""
        wanted = {TopicPartition(TELEMETRY, p): self._windows.position(p) for p in partitions}
        reader = self._transport.read(wanted)
        try:
            deadline = time.monotonic() + _SILENCE_CHECK_S
            while time.monotonic() < deadline:
                heard = {message.partition for message in reader.poll(timeout_s=0.05, max_messages=len(partitions))}
                if heard:
                    return [p for p in partitions if p not in heard] if reader.caught_up() else []
                if reader.caught_up():
                    return list(partitions)
        finally:
            reader.close()
        return []

    def _press(self) -> None:
        """Pause partitions while too many rows are held: all but the fullest one, whose windows close first."""
        held = self._windows.open_rows
        self._counters.set("open_rows", held)
        if held > self._max_open_rows:
            fullest = max(self._windows.partitions, key=self._windows.open_rows_of)
            wanted = frozenset(self._windows.partitions) - {fullest}
        elif held < _RESUME_SHARE * self._max_open_rows:
            wanted = frozenset()
        else:
            return
        if wanted != self._paused:
            self._source.resume(TopicPartition(TELEMETRY, p) for p in self._paused - wanted)
            self._source.pause(TopicPartition(TELEMETRY, p) for p in wanted - self._paused)
            now = self._clock_ns()
            self._heard.update(dict.fromkeys(self._paused - wanted, now))
            self._paused = wanted
            self._counters.set("paused", len(wanted))

    def _count(
        self,
        messages: Sequence[Message],
        rejected: Sequence[Rejected],
        garbage: Mapping[str, int],
        unknown: int,
        accepted: int,
    ) -> None:
        self._counters.add("messages", len(messages), TELEMETRY)
        self._counters.add("rows", accepted)
        self._counters.add("unknown_values", unknown)
        for metric, count in garbage.items():
            self._counters.add("garbage_values", count, metric)
        for one in rejected:
            self._counters.add("rejected", one.count, one.rule)

    def finish(self) -> None:
        """A clean stop: places first, then leave, so that the next member reads no more than it must."""
        self._commit(set(self._windows.partitions))


def _encode(window: Closed) -> list[Outgoing]:
    if window.progress:
        return [
            encode_progress(partition=window.partition, window_ns=window.window_ns, watermark_ns=window.window_end_ns)
        ]
    return list(
        encode_window(
            partition=window.partition,
            window_start_ns=window.window_start_ns,
            window_ns=window.window_ns,
            rows=window.rows,
        )
    )
