"""The transport of one process: the same log as Kafka's, in memory, durable with a journal.

To change how members share partitions: `groups.py`; what is kept: `memory_log.py`; the file: `journal.py`.
"""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from streams import (
    Assigned,
    Batch,
    Committed,
    Message,
    Outgoing,
    Revoked,
    Source,
    TopicPartition,
    TopicSpec,
)
from streams.journal import Journal
from streams.memory_log import Limits, MemoryLog
from telemetry.errors import Fenced, TransportError

_logger = logging.getLogger("isotach.memory")


class MemoryTransport:
    """A log in memory, for many threads of one process.

    Guarantees: order in each partition; places and messages of a transaction appear together; with a journal, a
    message is seen and `flush` returns once it is on disk. A message of a delete topic leaves when every group that
    ever subscribed and every reader has passed it, or when it is older than the topic's retention; `keep` messages a
    partition stay while nobody has subscribed. `send` waits while `max_messages` of a topic are unread, and raises
    TransportError after `full_timeout_s`. A member that does not poll for `session_timeout_s` is put out. Nothing
    younger than `settle_s` leaves a topic that is not full, and nothing at all for `settle_s` after the start or after
    a reader left: readers may still come, or come again. `prefix` is part of
    `log_id` only, since nobody shares a log in memory.
    """

    def __init__(
        self,
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        journal: Journal | None = None,
        prefix: str = "",
        max_messages: int = 50_000,
        keep: int = 10_000,
        session_timeout_s: float = 60.0,
        settle_s: float = 60.0,
        full_timeout_s: float = 60.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = Limits(max_messages=max_messages, keep=keep, settle_s=settle_s, full_timeout_s=full_timeout_s)
        self._log = MemoryLog(clock_ns=clock_ns, monotonic=monotonic, journal=journal, limits=limits)
        self._prefix = prefix
        self._session_timeout_s = session_timeout_s
        self._numbers = itertools.count(1)

    @property
    def log_id(self) -> str:
        """Names this log; with a journal the same after a restart."""
        return f"{self._log.log_id}/{self._prefix}" if self._prefix else self._log.log_id

    def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing; raises TransportError naming every existing topic with other settings."""
        with self._log.condition:
            self._log.create(specs)

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has; raises TransportError if there is no such topic."""
        with self._log.condition:
            return len(self._log.topic(topic).logs)

    def producer(self, *, client_id: str) -> "MemoryProducer":
        """A producer."""
        return MemoryProducer(self._log)

    def transactional_producer(self, *, transactional_id: str) -> "MemoryTransactionalProducer":
        """A producer of transactions; its predecessors of the same id are fenced from now on."""
        return MemoryTransactionalProducer(self._log, transactional_id)

    def subscribe(self, topics: Sequence[str], *, group: str, client_id: str) -> "MemorySource":
        """A member of a consumer group; raises TransportError for a topic that does not exist."""
        return MemorySource(
            self._log,
            topics,
            group=group,
            member=f"{client_id}-{next(self._numbers)}",
            session_timeout_s=self._session_timeout_s,
        )

    def read(self, start: Mapping[TopicPartition, int]) -> "MemoryReader":
        """A reader from these offsets; raises TransportError for a partition that does not exist."""
        return MemoryReader(self._log, next(self._numbers), start)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        """The group's committed places; partitions without one are absent."""
        with self._log.condition:
            self._log.check_open()
            places = self._log.group(group).places if group in self._log.groups else {}
            return {tp: places[tp] for tp in partitions if tp in places}

    def ends(self, topic: str) -> Mapping[TopicPartition, int]:
        """The next offset to be written, for each partition of the topic."""
        partitions = [TopicPartition(topic, number) for number in range(self.partitions(topic))]
        with self._log.condition:
            self._log.flush()
            return {tp: self._log.end(tp) for tp in partitions}

    def held(self) -> Mapping[str, int]:
        """Messages in memory now, by topic."""
        with self._log.condition:
            return self._log.held()

    def dropped(self) -> Mapping[str, int]:
        """Messages that left unread since nobody had subscribed to their topic, by topic."""
        with self._log.condition:
            return self._log.dropped()

    def close(self) -> None:
        """Write what is queued and wake everybody: each waiting and later call raises TransportError."""
        with self._log.condition:
            self._log.close()


class MemoryProducer:
    """Appends to the log. Without a journal a message can be read at once; with one, after `flush` or with the next
    poll of anybody."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def send(self, message: Outgoing) -> None:
        """Queue a message; waits while its topic is full; raises TransportError if it is refused."""
        with self._log.condition:
            self._log.send(message)

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """Return once everything sent is in the log, and on disk if there is a journal.

        Raises TransportError if the disk refuses: what was sent stays queued, and the next flush tries again.
        """
        with self._log.condition:
            self._log.flush()

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Flush; the log itself stays open."""
        with self._log.condition:
            self._log.flush()


class MemoryTransactionalProducer:
    """Writes messages and a group's places in one step that readers see whole or not at all."""

    def __init__(self, log: MemoryLog, transactional_id: str) -> None:
        self._log = log
        self._id = transactional_id
        with log.condition:
            log.check_open()
            self._epoch = log.epochs[transactional_id] = log.epochs.get(transactional_id, 0) + 1

    def publish(
        self, messages: Iterable[Outgoing], *, group: str, places: Mapping[TopicPartition, Committed], source: Source
    ) -> None:
        """One transaction; raises Fenced if a newer producer has this id, TransportError if nothing was written."""
        if not isinstance(source, MemorySource) or source.group != group:
            raise ValueError(f"places of group {group} need a source of that group and transport")
        outgoing = list(messages)
        with self._log.condition:
            for message in outgoing:
                self._log.check(message)
            for topic in {message.topic for message in outgoing}:
                self._log.wait_for_room(topic)
            if self._log.epochs[self._id] != self._epoch:
                raise Fenced(f"a newer producer has taken over {self._id}")
            if places and not source.holds(places):
                raise TransportError(f"transaction undone: this member of group {group} owns its partitions no longer")
            self._log.write(outgoing, {group: places})

    def close(self) -> None:
        """Nothing to let go of."""


class MemorySource:
    """A member of a group. Closing it commits nothing: what it did not commit, the next member reads again."""

    def __init__(
        self, log: MemoryLog, topics: Sequence[str], *, group: str, member: str, session_timeout_s: float
    ) -> None:
        self.group = group
        self._log = log
        self._topics = tuple(topics)
        self._member = member
        self._session_timeout_s = session_timeout_s
        self._positions: dict[TopicPartition, int] = {}  # of the partitions owned
        self._paused: set[TopicPartition] = set()
        self._turn = 0
        with log.condition:
            for topic in topics:
                log.topic(topic)
            self._join()

    def _join(self) -> None:
        group = self._log.group(self.group)
        group.join(self._member, self._topics, self._log.counts)
        group.touch(self._member, self._log.monotonic() + self._session_timeout_s)
        self._log.condition.notify_all()

    def holds(self, places: Iterable[TopicPartition]) -> bool:
        """Whether it is still a member, and owns those of its topics; for the producer, which holds the lock."""
        group = self._log.group(self.group)
        owned = group.owned(self._member)
        return group.alive(self._member) and all(tp in owned for tp in places if tp.topic in self._topics)

    def poll(self, *, timeout_s: float, max_messages: int = 1_250) -> Assigned | Revoked | Batch:
        """What happened next: first what was taken away, then what was given, then messages."""
        with self._log.condition:
            self._log.flush()
            deadline = self._log.monotonic() + timeout_s
            group = self._log.group(self.group)
            group.touch(self._member, None)
            try:
                while True:
                    self._log.check_open()
                    now = self._log.monotonic()
                    found = self._rebalanced(now) or self._collect(max_messages)
                    if found or now >= deadline:
                        return found or Batch(())
                    until = min(deadline, group.next_deadline() or deadline)
                    self._log.condition.wait(max(until - now, 0.0))
            finally:
                group.touch(self._member, self._log.monotonic() + self._session_timeout_s)

    def _rebalanced(self, now: float) -> Assigned | Revoked | None:
        group = self._log.group(self.group)
        group.expire(now, self._log.counts)
        if not group.alive(self._member):
            self._join()
            group.touch(self._member, None)
            lost = sorted(self._positions)
        else:
            lost = group.release(self._member)
        if lost:
            for tp in lost:
                self._positions.pop(tp, None)
                self._paused.discard(tp)
            self._log.condition.notify_all()
            return Revoked(lost)
        gained = {tp: group.places.get(tp) for tp in group.claim(self._member)}
        self._positions.update({tp: place.offset if place else 0 for tp, place in gained.items()})
        return Assigned(gained) if gained else None

    def _collect(self, limit: int) -> Batch | None:
        """Messages of the partitions not paused, beginning with another one each time so that none starves."""
        partitions = [tp for tp in self._positions if tp not in self._paused]
        self._turn += 1
        found: list[Message] = []
        for i in range(len(partitions)):
            tp = partitions[(i + self._turn) % len(partitions)]
            messages = self._log.log(tp).read(self._positions[tp], limit - len(found))
            if messages:
                self._positions[tp] = messages[-1].offset + 1
                found += messages
        return Batch(found) if found else None

    def commit(self, places: Mapping[TopicPartition, Committed]) -> None:
        """Store the group's places; those in partitions no longer owned are dropped, with a word in the log."""
        with self._log.condition:
            self._log.check_open()
            group = self._log.group(self.group)
            group.expire(self._log.monotonic(), self._log.counts)
            owned = group.owned(self._member)
            kept = {tp: place for tp, place in places.items() if tp in owned}
            if len(kept) < len(places):
                _logger.warning("group %s: %d late places dropped", self.group, len(places) - len(kept))
            if kept:
                self._log.write((), {self.group: kept})

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Read nothing more from these until `resume`; partitions not owned are ignored."""
        self._paused.update(tp for tp in partitions if tp in self._positions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on where `pause` stopped."""
        self._paused.difference_update(partitions)

    def close(self) -> None:
        """Leave the group at once."""
        with self._log.condition:
            self._log.group(self.group).leave(self._member, self._log.counts)
            self._positions.clear()
            self._log.condition.notify_all()


class MemoryReader:
    """A reader outside any group."""

    def __init__(self, log: MemoryLog, number: int, start: Mapping[TopicPartition, int]) -> None:
        self._log = log
        self._number = number
        self._target: dict[TopicPartition, int] | None = None
        with log.condition:
            self._positions = {tp: self._begin(tp, offset) for tp, offset in start.items()}
            log.hold(number, self._positions)

    def _begin(self, tp: TopicPartition, offset: int) -> int:
        """Where to start: at the earliest message if the offset lies outside the log."""
        log = self._log.log(tp)
        first = log.first()
        earliest = first.offset if first else log.next_offset
        return offset if earliest <= offset <= log.next_offset else earliest

    def poll(self, *, timeout_s: float, max_messages: int = 1_250) -> Sequence[Message]:
        """The next messages, maybe none; each partition's in offset order. Asking again says that the last are done."""
        with self._log.condition:
            self._log.flush()
            self._log.hold(self._number, self._positions)
            self._log.condition.notify_all()
            deadline = self._log.monotonic() + timeout_s
            while True:
                self._log.check_open()
                found: list[Message] = []
                for tp, position in self._positions.items():
                    messages = self._log.log(tp).read(position, max_messages - len(found))
                    if messages:
                        self._positions[tp] = messages[-1].offset + 1
                        found += messages
                left = deadline - self._log.monotonic()
                if found or left <= 0:
                    return found
                self._log.condition.wait(left)

    def caught_up(self) -> bool:
        """True once everything has been read that was in the log when this was last False."""
        with self._log.condition:
            self._log.flush()
            if self._target is None:
                self._target = {tp: self._log.end(tp) for tp in self._positions}
            for tp, end in self._target.items():
                unread = self._log.log(tp).first(self._positions[tp])
                if unread is not None and unread.offset < end:
                    return False
            self._target = None
            return True

    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to read, for each partition."""
        return dict(self._positions)

    def close(self) -> None:
        """Let go; its place is still kept for a while."""
        with self._log.condition:
            self._log.let_go(self._number)
