"""The materialiser: copies the published topics into a store, each batch in one transaction with the offsets after it.

To store another topic: its checks in `streams/records.py`, one line in `TOPICS`.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import polars as pl

from streams import Message, Producer, Reader, TopicPartition, Transport
from streams.counters import Counters
from streams.deadletter import Rejected, dead_letters
from streams.open_windows import merged
from streams.parts import Part, decode_part
from streams.records import Record, decode_json, frames_of
from streams.topics import EVENTS, INVENTORY, JOBS, MEASUREMENTS, SCORES, TRANSITIONS, WINDOWS
from streams.window import MAX_BACK_OFF_S, close_quietly
from telemetry.errors import BadInput, StoreError, TransportError
from telemetry.tables import TABLES

TOPICS: tuple[str, ...] = (INVENTORY, EVENTS, MEASUREMENTS, JOBS, SCORES, TRANSITIONS, WINDOWS)
"""Topics that go into the store."""

_KEY_TABLE = {SCORES: "scores", INVENTORY: "nodes"}  # whose rows a tombstone deletes
_WINDOW_MESSAGES = 64  # at once: each may be near a megabyte
_log = logging.getLogger("isotach.materialise")


class Sink(Protocol):
    """What the materialiser needs of a store: `analytics.store.Store` is one."""

    def places(self) -> tuple[str | None, dict[tuple[str, int], int]]:
        """The log that was read last, and the next offset of each of its partitions."""
        ...

    def write(
        self,
        rows: Mapping[str, pl.DataFrame],
        *,
        deletes: Mapping[str, Sequence[str]],
        log_id: str,
        offsets: Mapping[tuple[str, int], int],
    ) -> None:
        """Rows by table, deletions by first key column, and places, all or nothing; again changes nothing."""
        ...


class CaughtUp:
    """Whether the store holds what the log held: for /readyz."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        """Set once everything has been stored that was in the log at the start; cleared while the log is away."""


def run_materialiser(
    transport: Transport,
    store: Sink,
    *,
    topics: Sequence[str] = TOPICS,
    member: str = "materialiser",
    stop: threading.Event,
    on_write: Callable[[], None] | None = None,
    caught_up: CaughtUp | None = None,
    counters: Counters | None = None,
    max_messages: int = 5_000,
    poll_s: float = 0.2,
    back_off_s: float = 1.0,
) -> None:
    """Run until `stop` is set.

    Delivery: at least once into a store that takes each row once, so exactly once. What cannot be read goes to the
    dead-letter topic before the place behind it is stored. When log or store cannot be used, it begins anew from the
    store's places, after a pause that doubles from `back_off_s` to 30 s. `on_write` is called after each transaction.
    """
    counters, caught_up = counters or Counters(), caught_up or CaughtUp()
    pause = back_off_s
    while not stop.is_set():
        try:
            with ExitStack() as parts:
                copier = _Copier(transport, store, parts, topics=topics, member=member, counters=counters)
                while not stop.is_set():
                    wrote = copier.step(poll_s, max_messages)
                    pause = back_off_s
                    if wrote and on_write is not None:
                        on_write()
                    if not caught_up.ready.is_set() and copier.caught_up():
                        caught_up.ready.set()
        except (TransportError, StoreError) as error:
            caught_up.ready.clear()
            counters.add("retries", label="materialise")
            _log.warning("materialiser %s begins anew in %.1f s: %s", member, pause, error)
            stop.wait(pause)
            pause = min(2 * pause, MAX_BACK_OFF_S)


class _Copier:
    """One life of the materialiser, from the store's places on."""

    def __init__(
        self,
        transport: Transport,
        store: Sink,
        parts: ExitStack,
        *,
        topics: Sequence[str],
        member: str,
        counters: Counters,
    ) -> None:
        self._store = store
        self._counters = counters
        self._log_id = transport.log_id
        stored_log, stored = store.places()
        if stored_log != self._log_id:
            stored = {}  # offsets of another log mean nothing in this one
        self._producer: Producer = transport.producer(client_id=f"{member}-deadletter")
        parts.callback(close_quietly, self._producer)
        small = [topic for topic in topics if topic != WINDOWS]
        self._readers: list[tuple[Reader, int | None]] = []
        for group, limit in ((small, None), ([WINDOWS] if WINDOWS in topics else [], _WINDOW_MESSAGES)):
            start = {
                TopicPartition(topic, partition): stored.get((topic, partition), 0)
                for topic in group
                for partition in range(transport.partitions(topic))
            }
            if start:
                reader = transport.read(start)
                parts.callback(close_quietly, reader)
                self._readers.append((reader, limit))

    def step(self, poll_s: float, max_messages: int) -> bool:
        """Store what each reader has now; whether there was anything."""
        wrote = False
        for reader, limit in self._readers:
            messages = reader.poll(timeout_s=poll_s / len(self._readers), max_messages=limit or max_messages)
            if messages:
                self._store_batch(messages, reader.positions())
                wrote = True
        return wrote

    def caught_up(self) -> bool:
        """True once everything has been stored that was in the log."""
        caught_up = [reader.caught_up() for reader, _ in self._readers]  # every one is asked: asking has a memory
        return all(caught_up)

    def _store_batch(self, messages: Sequence[Message], positions: Mapping[TopicPartition, int]) -> None:
        rows, deletes, rejected = tables_of(messages)
        if rejected:
            for one in rejected:
                for letter in dead_letters(messages[one.message], one):
                    self._producer.send(letter)
                self._counters.add("rejected", one.count, one.rule)
            self._producer.flush()
        offsets = {(tp.topic, tp.partition): offset for tp, offset in positions.items()}
        self._store.write(rows, deletes=deletes, log_id=self._log_id, offsets=offsets)
        for message in messages:
            self._counters.add("messages", 1, message.topic)
        for table, frame in rows.items():
            self._counters.add("stored_rows", len(frame), table)


def tables_of(
    messages: Sequence[Message],
) -> tuple[dict[str, pl.DataFrame], dict[str, list[str]], list[Rejected]]:
    """Rows by table with one row a key, keys to delete, and what could not be read.

    The last word of the batch on a key counts, whether row or deletion. Two partitions' parts of one GPU's window
    become one; of one partition's the newest stays.
    """
    windows = [i for i, message in enumerate(messages) if message.topic == WINDOWS]
    others = [i for i, message in enumerate(messages) if message.topic != WINDOWS]
    parts: dict[tuple[int, int, int], Part] = {}
    rejected: list[Rejected] = []
    for i in windows:
        try:
            part = decode_part(messages[i])
        except BadInput as error:
            rejected.append(Rejected(message=i, rule=error.rule, detail=error.detail))
            continue
        parts[part.partition, part.window_start_ns, part.part] = part
    records, refused = decode_json([messages[i] for i in others])
    rejected += [Rejected(message=others[one.message], rule=one.rule, detail=one.detail) for one in refused]
    topics = [messages[i].topic for i in others]
    kept, deletes = _last_words(records, topics)
    rows = frames_of(kept)
    rows = {
        table: found.unique(subset=list(TABLES[table].key), keep="last", maintain_order=True)
        for table, found in rows.items()
    }
    stored = merged(parts.values())
    if len(stored):
        rows["windows"] = stored
    return rows, deletes, rejected


def _last_words(records: Sequence[Record], topics: Sequence[str]) -> tuple[list[Record], dict[str, list[str]]]:
    """Records that no later tombstone deletes, and the keys that a tombstone names, by table.

    A key may be in both: a store deletes first, so that a row after a tombstone starts anew.
    """
    deleted_at = {(topics[r.message], r.deleted): i for i, r in enumerate(records) if r.deleted is not None}
    kept = []
    for i, record in enumerate(records):
        topic = topics[record.message]
        if record.deleted is not None:
            continue
        if topic in _KEY_TABLE:
            table = TABLES[_KEY_TABLE[topic]]
            key = str(record.rows[table.name][0][table.key[0]])
            if i < deleted_at.get((topic, key), -1):
                continue
        kept.append(record)
    deletes: dict[str, list[str]] = {}
    for topic, key in deleted_at:
        deletes.setdefault(_KEY_TABLE[topic], []).append(key)
    return kept, deletes
