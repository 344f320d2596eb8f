"""The contract of every transport, and the list of them: `kafka` for fleets, `memory` for one process.

To add a transport: one file, one line in `TRANSPORTS`; the contract tests run over it at once. Light: no polars here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Committed(NamedTuple):
    """A group's place in a partition: the next offset to read, and whatever the job wants to find there again."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as read. `time_ns` is when the log took it in, not what its producer says."""

    topic: str
    partition: int
    offset: int
    time_ns: int
    key: bytes | None
    headers: Mapping[str, bytes]
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to write. Without `partition` the key decides it (murmur2, as Java clients do); None deletes a key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """Partitions this reader now owns, each with the group's committed place, None if it has none yet."""

    partitions: Mapping[TopicPartition, Committed | None]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Partitions this reader no longer owns: forget them, and commit nothing more for them."""

    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages, each partition's in offset order; empty when nothing came within the timeout."""

    messages: Sequence[Message]


class Source(Protocol):
    """One member of a consumer group. Reads committed messages only. Not for use by several threads."""

    def poll(self, *, timeout_s: float, max_messages: int = 1_250) -> Assigned | Revoked | Batch:
        """What happened next. Keeps membership alive: call it at least every few seconds, also while paused."""
        ...

    def commit(self, places: Mapping[TopicPartition, Committed]) -> None:
        """Store the group's places, waiting for the log's answer; places in partitions no longer owned are dropped."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Read nothing more from these until `resume`."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on where `pause` stopped."""
        ...

    def close(self) -> None:
        """Leave the group at once, so that others take over without waiting for a timeout."""
        ...


class Reader(Protocol):
    """A reader outside any group, from places of its own choice. Reads committed messages only."""

    def poll(self, *, timeout_s: float, max_messages: int = 1_250) -> Sequence[Message]:
        """The next messages, maybe none; each partition's in offset order."""
        ...

    def caught_up(self) -> bool:
        """True once everything has been read that was in the log when this was last False."""
        ...

    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to read, for each partition."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Producer(Protocol):
    """Writes messages, in order for each partition. Idempotent where the log can be."""

    def send(self, message: Outgoing) -> None:
        """Queue a message; waits while the queue is full; raises TransportError when the log refuses."""
        ...

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """Return once all that was sent is acknowledged; raises TransportError naming what was not."""
        ...

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Flush for so long at most, then let go; raises TransportError for what is lost with it."""
        ...


class TransactionalProducer(Protocol):
    """Writes messages and a group's places as one: all or nothing. A newer one of the same id fences this one."""

    def publish(
        self, messages: Iterable[Outgoing], *, group: str, places: Mapping[TopicPartition, Committed], source: Source
    ) -> None:
        """One transaction; raises Fenced if a newer producer has taken over, TransportError if it was undone."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as it must be; see `streams/topics.py` for all of them."""

    name: str
    partitions: int
    cleanup: str  #: "delete" or "compact"
    retention_ms: int | None
    key: str
    help: str


class Transport(Protocol):
    """A log with topics, groups and transactions."""

    @property
    def log_id(self) -> str:
        """Names this very log: offsets mean nothing in another one."""
        ...

    def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing; raises TransportError naming every existing topic with other settings."""
        ...

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        ...

    def producer(self, *, client_id: str) -> Producer:
        """A producer."""
        ...

    def transactional_producer(self, *, transactional_id: str) -> TransactionalProducer:
        """A producer of transactions; fences its predecessors of the same id before it returns."""
        ...

    def subscribe(self, topics: Sequence[str], *, group: str, client_id: str) -> Source:
        """A member of a consumer group; begins where the group is, else at the earliest message."""
        ...

    def read(self, start: Mapping[TopicPartition, int]) -> Reader:
        """A reader from these offsets; an offset below the earliest one kept starts there."""
        ...

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        """The group's committed places; partitions without one are absent."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


TRANSPORTS: Mapping[str, str] = MappingProxyType(
    {
        "kafka": "streams.kafka:KafkaTransport",
        "memory": "streams.memory:MemoryTransport",
    }
)
"""Every transport: where its class is, resolved with `pkgutil.resolve_name` so that nothing heavy loads unasked."""
