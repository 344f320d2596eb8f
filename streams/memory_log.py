"""The in-memory log itself: topics, groups, who still needs what, and the journal behind it. `memory.py` speaks to it.

To change what leaves memory: `trim`. Everything here is called with `condition` held, except `condition` itself.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from streams import Committed, Message, Outgoing, TopicPartition, TopicSpec
from streams.groups import Group
from streams.journal import Journal
from streams.partition_log import PartitionLog, partition_of
from telemetry.errors import StoreError, TransportError

_logger = logging.getLogger("isotach.memory")
TOMBSTONE_KEEP_NS = 86_400 * 10**9  #: a deletion is told for a day, as in Kafka (delete.retention.ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much the log holds, and for whom; see MemoryTransport."""

    max_messages: int
    keep: int
    settle_s: float
    full_timeout_s: float


@dataclass(slots=True, kw_only=True)
class _Topic:
    spec: TopicSpec
    logs: list[PartitionLog]
    turn: int = 0  # where the next message without a key goes
    dropped: int = 0  # messages that left before anybody had subscribed

    def alive(self) -> int:
        return sum(log.alive for log in self.logs)


@dataclass(slots=True)
class _Hold:
    """Where a reader was when it last asked for more: it is done with what came before. One that has left is waited
    for until `until`."""

    positions: dict[TopicPartition, int] = field(default_factory=dict)
    until: float | None = None


class MemoryLog:
    """Topics and groups in memory; with a journal, a message is seen once it is on disk."""

    def __init__(
        self,
        *,
        clock_ns: Callable[[], int],
        monotonic: Callable[[], float],
        journal: Journal | None,
        limits: Limits,
    ) -> None:
        self.condition = threading.Condition(threading.Lock())
        self.monotonic = monotonic
        self.groups: dict[str, Group] = {}
        self.epochs: dict[str, int] = {}  #: transactional id -> its newest producer
        self.log_id = journal.log_id if journal else f"memory-{uuid4()}"
        self.counts: dict[str, int] = {}  #: topic -> partitions
        self._clock_ns = clock_ns
        self._journal = journal
        self._limits = limits
        self._topics: dict[str, _Topic] = {}
        self._holds: dict[int, _Hold] = {}
        self._started = monotonic()
        self._queued: deque[Outgoing] = deque()  # sent, not yet on disk; only with a journal
        self._gone: list[tuple[TopicPartition, int]] = []  # superseded since the journal's last write
        self._trimmed: dict[TopicPartition, int] = {}
        self._closed = False
        if journal:
            try:
                self._load(journal)
            except (TransportError, ValueError, TypeError, AttributeError) as error:
                raise journal.damaged(error) from None

    def _load(self, journal: Journal) -> None:
        for stored in journal.topics():
            self._add(TopicSpec(**stored._asdict(), key="", help=""))
        for message in journal.messages():
            self._append(message)
        for tp, end in journal.ends().items():
            self.log(tp).next_offset = max(self.log(tp).next_offset, end)
        for name, places in journal.places().items():
            self.group(name).place(places.items())

    def check_open(self) -> None:
        """Raises TransportError once the log is closed."""
        if self._closed:
            raise TransportError("the in-memory log is closed")

    def topic(self, name: str) -> _Topic:
        """The topic; raises TransportError if there is none."""
        self.check_open()
        if name not in self._topics:
            raise TransportError(f"there is no topic {name}: create it with ensure_topics")
        return self._topics[name]

    def log(self, tp: TopicPartition) -> PartitionLog:
        """One partition; raises TransportError if there is none."""
        logs = self.topic(tp.topic).logs
        if not 0 <= tp.partition < len(logs):
            raise TransportError(f"{tp.topic} has {len(logs)} partitions, there is no partition {tp.partition}")
        return logs[tp.partition]

    def group(self, name: str) -> Group:
        """The group, new if nobody has spoken of it."""
        return self.groups.setdefault(name, Group(name))

    def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing; raises TransportError naming every topic that is there with other settings."""
        self.check_open()
        differences: list[str] = []
        for spec in specs:
            if spec.name in self._topics:
                there = self._topics[spec.name].spec
                differences += [
                    f"{spec.name}: {name} is {getattr(there, name)}, should be {getattr(spec, name)}"
                    for name in ("partitions", "cleanup", "retention_ms")
                    if getattr(there, name) != getattr(spec, name)
                ]
        if differences:
            raise TransportError(f"{'; '.join(differences)}. Set them back, or start with a new log (move the journal)")
        new = [spec for spec in specs if spec.name not in self._topics]
        if self._journal and new:
            self._journal.create(new)
        for spec in new:
            self._add(spec)

    def _add(self, spec: TopicSpec) -> None:
        logs = [PartitionLog(compact=spec.cleanup == "compact") for _ in range(spec.partitions)]
        self._topics[spec.name] = _Topic(spec=spec, logs=logs)
        self.counts[spec.name] = spec.partitions

    def check(self, message: Outgoing) -> None:
        """Raises TransportError for a message that the log would refuse."""
        topic = self.topic(message.topic)
        if message.partition is not None:
            self.log(TopicPartition(message.topic, message.partition))
        if topic.spec.cleanup == "compact" and message.key is None:
            raise TransportError(f"{message.topic} is compacted: a message needs a key")

    def send(self, message: Outgoing) -> None:
        """Take one message in, waiting while its topic is full."""
        self.check(message)
        self.wait_for_room(message.topic)
        if not self._journal:
            self.write([message])
            return
        self._queued.append(message)
        if len(self._queued) >= 500:
            self.flush()

    def flush(self) -> None:
        """Write what was sent to the journal, in one go for all producers; then it can be read."""
        self.check_open()
        if self._queued:
            self.write(())

    def write(
        self, messages: Iterable[Outgoing], places: Mapping[str, Mapping[TopicPartition, Committed]] | None = None
    ) -> None:
        """Messages (queued ones first) and places, all or nothing: durable, then visible."""
        ends: dict[TopicPartition, int] = {}
        stamped = [self._stamp(message, ends) for message in (*self._queued, *messages)]
        if self._journal:
            try:
                self._journal.append(stamped, places=places or {}, gone=self._gone, trimmed=self._trimmed)
            except StoreError as error:
                raise TransportError(str(error)) from error
            self._queued.clear()
            self._gone.clear()
            self._trimmed.clear()
        for message in stamped:
            self._append(message)
            self._age(message)
        for name, kept in (places or {}).items():
            self.group(name).place(kept.items())
            self.trim(kept)
        self.condition.notify_all()

    def _stamp(self, message: Outgoing, ends: dict[TopicPartition, int]) -> Message:
        topic = self._topics[message.topic]
        partition = message.partition
        if partition is None and message.key is None:
            partition = topic.turn = (topic.turn + 1) % len(topic.logs)
        elif partition is None:
            partition = partition_of(message.key or b"", len(topic.logs))
        tp = TopicPartition(message.topic, partition)
        offset = ends.get(tp, topic.logs[partition].next_offset)
        ends[tp] = offset + 1
        return Message(
            topic=message.topic,
            partition=partition,
            offset=offset,
            time_ns=self._clock_ns(),
            key=message.key,
            headers=dict(message.headers),
            value=message.value,
        )

    def _append(self, message: Message) -> None:
        tp = TopicPartition(message.topic, message.partition)
        superseded = self.log(tp).append(message)
        if superseded is not None and self._journal:
            self._gone.append((tp, superseded))

    def _age(self, newest: Message) -> None:
        """Forget what is too old, what nobody has ever asked for, and deletions that everybody has seen."""
        tp = TopicPartition(newest.topic, newest.partition)
        topic = self._topics[tp.topic]
        log = topic.logs[tp.partition]
        if log.compact:
            while log.tombstones:
                offset, time_ns = next(iter(log.tombstones.items()))
                needed = min(self._needed(tp).values(), default=log.next_offset)
                if time_ns > newest.time_ns - TOMBSTONE_KEEP_NS or needed <= offset:
                    return
                log.drop(offset)
                self._gone += [(tp, offset)] if self._journal else []
            return
        if topic.spec.retention_ms is not None:
            oldest_ns = newest.time_ns - topic.spec.retention_ms * 1_000_000
            while (first := log.first()) is not None and first.time_ns < oldest_ns:
                self._trim_to(tp, first.offset + 1)
        if log.alive > self._limits.keep and not self._needed(tp):
            topic.dropped += self._trim_to(tp, log.newest(self._limits.keep))

    def _needed(self, tp: TopicPartition) -> dict[str, int]:
        """From which offset on each group and reader still needs the partition; empty if nobody ever asked."""
        needed = {
            f"group {name}": group.places.get(tp, Committed(0)).offset
            for name, group in self.groups.items()
            if tp.topic in group.topics or tp in group.places
        }
        now = self.monotonic()
        for number, hold in list(self._holds.items()):
            if hold.until is not None and hold.until <= now:
                del self._holds[number]
            elif tp in hold.positions:
                needed[f"reader {number}"] = hold.positions[tp]
        return needed

    def trim(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget messages of delete topics that every group and reader has passed.

        Only those older than `settle_s`, and none in the first `settle_s` after the start, since a reader may still
        come or die with what it has read; unless the topic is full.
        """
        settling = self.monotonic() - self._started < self._limits.settle_s
        settled_ns = self._clock_ns() - int(self._limits.settle_s * 1e9)
        for tp in partitions:
            topic = self._topics[tp.topic]
            full = topic.alive() >= self._limits.max_messages
            if topic.spec.cleanup == "compact" or (settling and not full):
                continue
            log = topic.logs[tp.partition]
            passed = min(self._needed(tp).values(), default=0)
            while (first := log.first()) and first.offset < passed and (full or first.time_ns <= settled_ns):
                self._trim_to(tp, passed if full else first.offset + 1)

    def _trim_to(self, tp: TopicPartition, before: int) -> int:
        gone = self.log(tp).trim(before)
        if gone and self._journal:
            self._trimmed[tp] = before
        return gone

    def wait_for_room(self, name: str) -> None:
        """Wait while the topic holds too many messages that somebody still has to read; then TransportError."""
        deadline = self.monotonic() + self._limits.full_timeout_s
        while True:
            topic = self.topic(name)
            if topic.spec.cleanup == "compact" or topic.alive() < self._limits.max_messages:
                return
            partitions = [TopicPartition(name, p) for p in range(len(topic.logs))]
            self.trim(partitions)
            waiting = topic.alive()
            left = deadline - self.monotonic()
            slowest = {who for tp in partitions for who, offset in self._needed(tp).items() if offset < self.end(tp)}
            if waiting < self._limits.max_messages or not slowest:
                return
            if left <= 0:
                raise TransportError(f"{name} is full: {waiting} messages wait for {', '.join(sorted(slowest))}")
            self.condition.wait(left)

    def end(self, tp: TopicPartition) -> int:
        """The offset that the partition's next message will get."""
        return self.log(tp).next_offset

    def hold(self, number: int, positions: Mapping[TopicPartition, int]) -> None:
        """A reader is there, and done with everything before these positions."""
        self._holds[number] = _Hold(dict(positions))
        self.trim(positions)

    def let_go(self, number: int) -> None:
        """A reader has left; its place is kept for `settle_s`, so that the next one finds what it needs."""
        if number in self._holds:
            self._holds[number].until = self.monotonic() + self._limits.settle_s
            self.trim(self._holds[number].positions)

    def dropped(self) -> dict[str, int]:
        """Messages that left before anybody had subscribed, by topic."""
        return {name: topic.dropped for name, topic in self._topics.items() if topic.dropped}

    def held(self) -> dict[str, int]:
        """Messages in memory, by topic."""
        return {name: topic.alive() for name, topic in self._topics.items()}

    def close(self) -> None:
        """Write what is queued, let go of the journal, wake everybody; raises TransportError if the write failed."""
        if self._closed:
            return
        try:
            if self._journal and (self._queued or self._gone or self._trimmed):
                self.write(())
        finally:
            self._closed = True
            self.condition.notify_all()
            if self._journal:
                self._journal.close()
        for name, count in self.dropped().items():
            _logger.info("%s: %d messages left the log unread, nobody had subscribed", name, count)
