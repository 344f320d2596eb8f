"""What the contract tests need of any transport: a place to open it, and loops that wait for what must come.

To add a transport: one line in `_open_*`; the tests run over `streams.TRANSPORTS`.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from streams import Assigned, Batch, Message, Outgoing, Reader, Revoked, Source, TopicPartition, TopicSpec, Transport

PATIENCE_S = 40.0


def spec(name: str, *, partitions: int = 1, cleanup: str = "delete") -> TopicSpec:
    """A topic of a test."""
    retention = 86_400_000 if cleanup == "delete" else None
    return TopicSpec(name=name, partitions=partitions, cleanup=cleanup, retention_ms=retention, key="", help="")


def out(topic: str, key: str | None, value: str | None, *, partition: int | None = None, **headers: bytes) -> Outgoing:
    """A message to write, in text."""
    return Outgoing(
        topic=topic,
        key=None if key is None else key.encode(),
        value=None if value is None else value.encode(),
        headers=headers,
        partition=partition,
    )


def values(messages: Sequence[Message]) -> list[str | None]:
    """The values in order, as text."""
    return [None if message.value is None else message.value.decode() for message in messages]


@dataclass(kw_only=True)
class Site:
    """A log that a test has for itself; `impatient` opens it so that silent members are soon put out."""

    transport: Transport
    impatient: Callable[[], Transport]
    silence_s: float
    names: list[str] = field(default_factory=list)

    def topic(self, *, partitions: int = 1, cleanup: str = "delete") -> str:
        """A new topic."""
        name = f"t{uuid.uuid4().hex[:8]}"
        self.transport.ensure_topics([spec(name, partitions=partitions, cleanup=cleanup)])
        return name

    def write(self, *messages: Outgoing) -> None:
        """Write and wait until it is acknowledged."""
        producer = self.transport.producer(client_id="writer")
        for message in messages:
            producer.send(message)
        producer.close()


class Job:
    """A member of a group with what it has been told, in order; checks ownership at every message."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.events: list[Assigned | Revoked] = []
        self.messages: list[Message] = []
        self.owned: set[TopicPartition] = set()

    def step(self, timeout_s: float = 0.05) -> None:
        """One poll."""
        event = self.source.poll(timeout_s=timeout_s)
        if isinstance(event, Batch):
            for message in event.messages:
                assert TopicPartition(message.topic, message.partition) in self.owned
            self.messages += event.messages
            return
        self.events.append(event)
        if isinstance(event, Assigned):
            assert not self.owned & set(event.partitions)
            self.owned |= set(event.partitions)
        else:
            assert self.owned >= set(event.partitions)
            self.owned -= set(event.partitions)

    def places(self) -> Mapping[TopicPartition, object]:
        """The committed places that came with the partitions."""
        return {tp: place for e in self.events if isinstance(e, Assigned) for tp, place in e.partitions.items()}


def until(done: Callable[[], object], *jobs: Job, patience_s: float = PATIENCE_S) -> None:
    """Let the jobs poll in turn until it is so."""
    deadline = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        for job in jobs:
            job.step()


def read_all(reader: Reader, count: int | None = None) -> list[Message]:
    """Everything up to the end of the log, or so many messages."""
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count if count is not None else not reader.caught_up():
        assert time.monotonic() < deadline, f"{len(found)} messages came, not {count}"
        found += reader.poll(timeout_s=0.2)
    return found
