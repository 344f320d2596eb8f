"""Writing to Kafka: an idempotent producer, and one of transactions.

To change batching or time limits: `kafka_settings.py`.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import confluent_kafka as ck

from streams import Committed, Outgoing, Source, TopicPartition
from streams.kafka_link import KafkaLink, client_logger, logger
from streams.kafka_source import KafkaSource
from telemetry.errors import Fenced, TransportError

_FENCED = frozenset({ck.KafkaError._FENCED, ck.KafkaError.PRODUCER_FENCED, ck.KafkaError.INVALID_PRODUCER_EPOCH})
_RENUMBERED = frozenset({ck.KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, ck.KafkaError.UNKNOWN_PRODUCER_ID})
_NAMED = 3  # lost messages named one by one; the rest is counted


class KafkaProducer:
    """An idempotent producer, acks=all: order is kept and nothing is written twice, through broker restarts too.

    While brokers are away messages wait in the queue; when it is full, `send` waits for `full_timeout_s`, then raises.
    A message that Kafka refuses for good is told in the log, and by the next `flush`. Safe for several threads.
    """

    def __init__(
        self,
        link: KafkaLink,
        client_id: str,
        *,
        full_timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._full_timeout_s = full_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()  # messages not yet acknowledged, by topic
        self._lost: list[str] = []
        self._closing = False
        with link.explained("Kafka settings"):
            settings = link.settings.producer(client_id) | {"error_cb": link.count}
            self._client = ck.Producer(settings, logger=client_logger)

    def send(self, message: Outgoing) -> None:
        """Queue a message; waits while the queue is full; raises TransportError if it is refused at once."""
        self._link.check()
        with self._lock:
            self._waiting[message.topic] += 1
        try:
            _produce(self._link, self._client, message, self._delivered, self._full_timeout_s, self._clock)
        except TransportError:
            with self._lock:
                self._waiting[message.topic] -= 1
            raise
        self._client.poll(0)

    def _delivered(self, error: ck.KafkaError | None, raw: ck.Message) -> None:
        topic = (raw.topic() or "").removeprefix(self._link.prefix)
        with self._lock:
            self._waiting[topic] -= 1
            if error is not None and not self._closing:
                self._lost.append(_named(self._link, error, raw))
                self._link.troubles["LOST"] += 1
                logger.error("message lost: %s", self._lost[-1])

    def flush(self, *, timeout_s: float = 60.0) -> None:
        """Return once all is acknowledged.

        Raises TransportError naming messages that are lost for good, and how many are still under way after the
        timeout: these stay queued and are sent when Kafka is back, so they need not be sent again.
        """
        with self._link.explained("Kafka"):
            self._client.flush(timeout_s)
        with self._lock:
            lost, self._lost = self._lost, []
            waiting = {topic: count for topic, count in self._waiting.items() if count}
        self._link.check()
        parts = []
        if lost:
            more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
            parts.append(f"{len(lost)} messages are lost: {'; '.join(lost[:_NAMED])}{more}")
        if waiting:
            parts.append(f"not acknowledged after {timeout_s:g} s, still queued: {waiting}")
        if parts:
            raise TransportError(". ".join(parts))

    def close(self, *, timeout_s: float = 60.0) -> None:
        """Flush, then let go; raises TransportError if something could not be delivered, which is lost then."""
        try:
            self.flush(timeout_s=timeout_s)
        finally:
            self._closing = True
            self._client.purge()
            self._client.flush(1.0)


class KafkaTransactionalProducer:
    """Writes messages and a group's places in one Kafka transaction.

    After a TransportError that says so the outcome is open: let this producer go and make a new one of the same id,
    which ends the old transaction either way, then read the places again.
    """

    def __init__(
        self,
        link: KafkaLink,
        transactional_id: str,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._id = link.prefix + transactional_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._end: TransportError | None = None  # why this producer can do no more
        self._failed: list[str] = []  # messages of the present transaction that were refused
        with link.explained(f"no transactions as {self._id}"):
            settings = link.settings.producer(self._id) | {
                "transactional.id": self._id,
                "transaction.timeout.ms": 60_000,
                "delivery.timeout.ms": 60_000,
                "error_cb": link.count,
            }
            self._client = ck.Producer(settings, logger=client_logger)
            self._client.init_transactions(timeout_s)

    def publish(
        self, messages: Iterable[Outgoing], *, group: str, places: Mapping[TopicPartition, Committed], source: Source
    ) -> None:
        """One transaction; raises Fenced if a newer producer has taken over, TransportError if it was undone."""
        if not isinstance(source, KafkaSource) or source.group != group:
            raise ValueError(f"places of group {group} need a source of that group and transport")
        outgoing = list(messages)
        if self._end:
            raise self._end
        if not outgoing and not places:
            return
        for last in (False, True):
            self._failed.clear()
            try:
                self._attempt(outgoing, places, source)
            except (ck.KafkaException, TransportError) as error:
                cause = error.args[0]
            else:
                return
            text = "; ".join(self._failed[:_NAMED]) or self._link.text(cause)
            self._undo(cause, text)
            # A message refused by the broker leaves a hole in the numbering that only the next transaction meets; its
            # abort cures it (librdkafka takes a new epoch), so that this one is worth a second try.
            if last or not isinstance(cause, ck.KafkaError) or cause.code() not in _RENUMBERED:
                raise TransportError(f"transaction undone: {text}") from None

    def _attempt(
        self, outgoing: Sequence[Outgoing], places: Mapping[TopicPartition, Committed], source: KafkaSource
    ) -> None:
        self._retried(self._client.begin_transaction)
        for message in outgoing:
            _produce(self._link, self._client, message, self._delivered, self._timeout_s, self._clock)
        if places:
            wired = [self._link.wire(tp, place) for tp, place in places.items()]
            metadata = source.group_metadata(places)
            self._retried(lambda: self._client.send_offsets_to_transaction(wired, metadata, self._timeout_s))
        self._retried(lambda: self._client.commit_transaction(self._timeout_s))

    def _delivered(self, error: ck.KafkaError | None, raw: ck.Message) -> None:
        if error is not None and error.code() not in (ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT):
            self._failed.append(_named(self._link, error, raw))

    def _retried(self, step: Callable[[], None]) -> None:
        deadline = self._clock() + self._timeout_s
        while True:
            try:
                step()
            except ck.KafkaException as error:
                if not error.args[0].retriable() or self._clock() >= deadline:
                    raise
                self._link.count(error.args[0])
                self._client.poll(0.1)
            else:
                return

    def _undo(self, cause: object, text: str) -> None:
        """Abort the transaction; raises Fenced, or TransportError where its outcome stays open."""
        try:
            if isinstance(cause, ck.KafkaError):
                self._check_fenced(cause)
                if not cause.txn_requires_abort():
                    self._end = TransportError(f"transaction of {self._id}: {text}; outcome open, make a new producer")
                    raise self._end
            self._retried(lambda: self._client.abort_transaction(self._timeout_s))
        except ck.KafkaException as second:
            self._check_fenced(second.args[0])
            self._end = TransportError(f"transaction of {self._id}: {text}, and no abort; make a new producer")
            raise self._end from None

    def _check_fenced(self, error: ck.KafkaError) -> None:
        if error.code() in _FENCED:
            self._end = Fenced(f"a newer producer has taken over {self._id}")
            raise self._end from None

    def close(self) -> None:
        """Let go; an open transaction does not exist between two calls."""
        self._end = self._end or TransportError(f"producer {self._id} is closed")
        self._client.purge()
        self._client.flush(1.0)


def _produce(
    link: KafkaLink,
    client: ck.Producer,
    message: Outgoing,
    delivered: Callable[[ck.KafkaError | None, ck.Message], None],
    full_timeout_s: float,
    clock: Callable[[], float],
) -> None:
    """Queue a message; while the client's queue is full wait, then raise TransportError."""
    deadline: float | None = None
    while True:
        try:
            with link.explained(f"{message.topic} refuses a message of {len(message.value or b'')} bytes"):
                client.produce(
                    link.prefix + message.topic,
                    message.value,
                    message.key,
                    partition=-1 if message.partition is None else message.partition,
                    headers=dict(message.headers),
                    on_delivery=delivered,
                )
        except BufferError:
            deadline = deadline or clock() + full_timeout_s
            if clock() >= deadline:
                raise TransportError(f"Kafka takes no messages: {len(client)} wait, the queue is full") from None
            client.poll(0.1)
            link.check()
        else:
            return


def _named(link: KafkaLink, error: ck.KafkaError, raw: ck.Message) -> str:
    topic = (raw.topic() or "").removeprefix(link.prefix)
    return f"{topic} key {raw.key()!r}: {link.text(error)}"
