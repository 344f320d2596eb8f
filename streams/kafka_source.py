"""Reading from Kafka: a member of a consumer group, and a reader outside any group.

To change how partitions are shared or how long silence is borne: `kafka_settings.py`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka as ck

from streams import Assigned, Batch, Committed, Message, Revoked, TopicPartition
from streams.kafka_link import LATER, PUT_OUT, KafkaLink, client_logger, logger
from telemetry.errors import TransportError

_RETRY_S = 0.1


class KafkaSource:
    """A member of a consumer group; cooperative: only partitions that move are taken away.

    Partitions given during a call stay paused until their Assigned has been handed out, and messages of partitions
    taken away during a call are dropped (they are not committed, so the next owner reads them): a job never sees a
    message of a partition that it does not own.
    """

    def __init__(
        self,
        link: KafkaLink,
        topics: Sequence[str],
        *,
        group: str,
        client_id: str,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.group = group
        self._link = link
        self._topics = frozenset(topics)
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._owned: set[TopicPartition] = set()  # handed out and not taken away
        self._given: set[TopicPartition] = set()  # to be handed out
        self._taken: list[TopicPartition] = []  # to be told
        with link.explained("Kafka settings"):
            settings = link.settings.consumer(client_id, link.prefix + group) | {"error_cb": link.count}
            self._client = ck.Consumer(settings, logger=client_logger)
            self._client.subscribe(
                [link.prefix + topic for topic in topics],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )

    def _on_assign(self, client: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        client.incremental_assign(partitions)
        if partitions:
            client.pause(partitions)
        self._given.update(self._link.ours(tp) for tp in partitions)

    def _on_revoke(self, client: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        gone = {self._link.ours(tp) for tp in partitions}
        self._taken += sorted(gone & self._owned)
        self._owned -= gone
        self._given -= gone
        client.incremental_unassign(partitions)

    def _on_lost(self, client: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        logger.warning("group %s: this member was put out, its partitions go to others", self.group)
        self._on_revoke(client, partitions)

    def poll(self, *, timeout_s: float, max_messages: int = 1_250) -> Assigned | Revoked | Batch:
        """What happened next. Brokers that are away make empty batches; raises TransportError when Kafka refuses us."""
        self._link.check()
        deadline = self._clock() + timeout_s
        while True:
            if event := self._event():
                return event
            raws = _receive(self._link, self._client, deadline - self._clock(), max_messages)
            messages = [self._link.message(raw) for raw in raws if raw.error() is None]
            messages = [m for m in messages if TopicPartition(m.topic, m.partition) in self._owned]
            if messages:
                return Batch(messages)
            if self._clock() >= deadline:
                return self._event() or Batch(())

    def _event(self) -> Assigned | Revoked | None:
        if self._taken:
            taken, self._taken = self._taken, []
            return Revoked(taken)
        if not self._given:
            return None
        wired = [self._link.wire(tp) for tp in sorted(self._given)]
        try:
            found = self._client.committed(wired, timeout=5.0)
            places = {self._link.ours(tp): self._link.place(tp) for tp in found}
            self._client.resume(wired)
        except ck.KafkaException as error:
            self._link.count(error.args[0])  # asked again with the next poll; until then the partitions stay paused
            return None
        self._owned.update(places)
        self._given.clear()
        return Assigned(places)

    def commit(self, places: Mapping[TopicPartition, Committed]) -> None:
        """Store the group's places and wait; late ones of lost partitions are dropped, with a word in the log.

        Raises TransportError if Kafka has not answered within the transport's timeout: then they may be stored or not.
        """
        deadline = self._clock() + self._timeout_s
        while kept := [self._link.wire(tp, place) for tp, place in places.items() if tp in self._owned]:
            error = self._committed(kept)
            if error is None:
                break
            self._link.count(error)
            if error.code() in PUT_OUT:
                logger.warning("group %s: late places dropped: %s", self.group, self._link.text(error))
                return
            if error.code() not in LATER or self._clock() >= deadline:
                raise TransportError(f"places of group {self.group} are not stored: {self._link.text(error)}")
            self._sleep(_RETRY_S)
        if len(kept) < len(places):
            logger.warning("group %s: %d late places dropped", self.group, len(places) - len(kept))

    def _committed(self, places: list[ck.TopicPartition]) -> ck.KafkaError | None:
        try:
            answers = self._client.commit(offsets=places, asynchronous=False)
        except ck.KafkaException as error:
            return _error(error)
        return next((answer.error for answer in answers if answer.error), None)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Read nothing more from these until `resume`; partitions not owned are ignored."""
        self._client.pause([self._link.wire(tp) for tp in partitions if tp in self._owned])

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Go on where `pause` stopped."""
        self._client.resume([self._link.wire(tp) for tp in partitions if tp in self._owned])

    def group_metadata(self, places: Iterable[TopicPartition]) -> Any:
        """What a transaction needs to prove that this member is still one.

        Raises TransportError for one that was put out: without a member id the broker would check nothing.
        """
        lost = [tp for tp in places if tp.topic in self._topics and tp not in self._owned]
        if not self._client.memberid():
            raise TransportError(f"this member of group {self.group} was put out")
        if lost:
            raise TransportError(f"this member of group {self.group} no longer owns {lost}")
        return self._client.consumer_group_metadata()

    def close(self) -> None:
        """Leave the group at once."""
        with self._link.explained(f"leaving group {self.group}"):
            self._client.close()


class KafkaReader:
    """A reader outside any group. `positions` counts the control records of transactions as read."""

    def __init__(
        self,
        link: KafkaLink,
        start: Mapping[TopicPartition, int],
        ends: Callable[[Iterable[TopicPartition], float], Mapping[TopicPartition, int]],
        *,
        timeout_s: float,
    ) -> None:
        self._link = link
        self._ends = ends
        self._target: Mapping[TopicPartition, int] | None = None
        limits = ends(start, timeout_s) if start else {}
        self._positions = {tp: offset if offset <= limits[tp] else 0 for tp, offset in start.items()}
        for tp, offset in start.items():
            if offset > limits[tp]:
                logger.warning("%s/%d ends at %d, before the place %d: read anew", *tp, limits[tp], offset)
        with link.explained("Kafka settings"):
            settings = link.settings.consumer("isotach-reader", link.prefix + "isotach-reader")
            self._client = ck.Consumer(
                settings | {"enable.partition.eof": True, "fetch.wait.max.ms": 100, "error_cb": link.count},
                logger=client_logger,
            )
            self._client.assign([link.wire(tp, Committed(offset)) for tp, offset in self._positions.items()])

    def poll(self, *, timeout_s: float, max_messages: int = 1_250) -> Sequence[Message]:
        """The next messages, maybe none; brokers that are away make it empty."""
        self._link.check()
        messages = []
        for raw in _receive(self._link, self._client, timeout_s, max_messages):
            error = raw.error()
            if error is None:
                message = self._link.message(raw)
                messages.append(message)
                self._positions[TopicPartition(message.topic, message.partition)] = message.offset + 1
            elif error.code() == ck.KafkaError._PARTITION_EOF:
                tp = TopicPartition((raw.topic() or "").removeprefix(self._link.prefix), raw.partition() or 0)
                self._positions[tp] = max(self._positions[tp], raw.offset() or 0)
        return messages

    def caught_up(self) -> bool:
        """True once everything has been read that was in the log when this was last False; False while Kafka is away.

        The end is the last stable offset: what an open transaction hides is not waited for.
        """
        if self._target is None:
            try:
                self._target = self._ends(self._positions, 2.0) if self._positions else {}
            except TransportError:
                return False
        if any(self._positions[tp] < end for tp, end in self._target.items()):
            return False
        self._target = None
        return True

    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offset to read, for each partition."""
        return dict(self._positions)

    def close(self) -> None:
        """Let go."""
        self._client.close()


def _receive(link: KafkaLink, client: ck.Consumer, timeout_s: float, limit: int) -> list[ck.Message]:
    """What has arrived, at once with the first; end-of-partition marks included, other errors counted."""
    with link.explained("Kafka"):
        first = client.poll(max(timeout_s, 0.0))
        if first is None:
            return []
        raws = [first, *(client.consume(limit - 1, 0) if limit > 1 else ())]
    for raw in raws:
        error = raw.error()
        if error is not None and error.code() != ck.KafkaError._PARTITION_EOF:
            link.count(error)
    return raws


def _error(error: ck.KafkaException) -> ck.KafkaError:
    found = error.args[0]
    assert isinstance(found, ck.KafkaError)  # noqa: S101 - the library's promise, for the type checker
    return found
