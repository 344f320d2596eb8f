"""What all Kafka clients of one transport share: settings, names on the wire, and what to do about an error.

To treat an error differently: `REFUSED`, `PUT_OUT`, `LATER`.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka as ck

from streams import Committed, Message, TopicPartition
from streams.kafka_settings import KafkaSettings
from telemetry.errors import TransportError, TransportRefused

logger = logging.getLogger("isotach.kafka")
_LOG_EVERY_S = 60.0
_E = ck.KafkaError
REFUSED = frozenset(
    {
        _E._AUTHENTICATION,
        _E.SASL_AUTHENTICATION_FAILED,
        _E.TOPIC_AUTHORIZATION_FAILED,
        _E.GROUP_AUTHORIZATION_FAILED,
        _E.CLUSTER_AUTHORIZATION_FAILED,
        _E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        _E.UNSUPPORTED_SASL_MECHANISM,
    }
)
"""What no patience cures: raised, everything else is counted and waited out."""
TELLING = frozenset({_E._SSL, _E._RESOLVE, _E._TRANSPORT})
"""Why no broker is reached; a later kind of trouble takes the place of an earlier one."""
PUT_OUT = frozenset(
    {_E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID, _E.FENCED_INSTANCE_ID, _E.STALE_MEMBER_EPOCH, _E._ASSIGNMENT_LOST}
)
LATER = frozenset(
    {
        _E.REBALANCE_IN_PROGRESS,
        _E.COORDINATOR_LOAD_IN_PROGRESS,
        _E.COORDINATOR_NOT_AVAILABLE,
        _E.NOT_COORDINATOR,
        _E.REQUEST_TIMED_OUT,
        _E.NETWORK_EXCEPTION,
        _E.UNSTABLE_OFFSET_COMMIT,
        _E._WAIT_COORD,
        _E._TRANSPORT,
        _E._TIMED_OUT,
        _E._ALL_BROKERS_DOWN,
        _E._RETRY,
    }
)
STALE = frozenset(
    {
        _E.FENCED_LEADER_EPOCH,
        _E.UNKNOWN_LEADER_EPOCH,
        _E.NOT_LEADER_FOR_PARTITION,
        _E.LEADER_NOT_AVAILABLE,
        _E.OFFSET_NOT_AVAILABLE,
    }
)


class _Sparing(logging.Filter):
    """Lets one line of a kind through a minute: a client tells of an absent broker ten times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = " ".join(record.getMessage().split(" ", 2)[:2])  # facility and client
        if record.levelno >= logging.CRITICAL or record.created - self._told.get(kind, 0.0) >= _LOG_EVERY_S:
            self._told[kind] = record.created
            return True
        return False


client_logger = logging.getLogger("isotach.kafka.client")  #: for librdkafka's own lines
client_logger.addFilter(_Sparing())


class KafkaLink:
    """Settings, prefix, and the count of troubles."""

    def __init__(self, settings: KafkaSettings, prefix: str) -> None:
        self.settings = settings
        self.prefix = prefix
        self.troubles: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._refused: str | None = None
        self._trouble: ck.KafkaError | None = None

    def wire(self, tp: TopicPartition, place: Committed | None = None) -> ck.TopicPartition:
        """The partition as the client library names it."""
        if place is None:
            return ck.TopicPartition(self.prefix + tp.topic, tp.partition)
        return ck.TopicPartition(self.prefix + tp.topic, tp.partition, place.offset, place.metadata)

    def ours(self, tp: ck.TopicPartition) -> TopicPartition:
        """The partition as Isotach names it."""
        return TopicPartition(tp.topic.removeprefix(self.prefix), tp.partition)

    def place(self, tp: ck.TopicPartition) -> Committed | None:
        """The committed place in a partition, None if it has none."""
        return Committed(tp.offset, tp.metadata or "") if tp.offset >= 0 else None

    def message(self, raw: ck.Message) -> Message:
        """A message as read."""
        return Message(
            topic=(raw.topic() or "").removeprefix(self.prefix),
            partition=raw.partition() or 0,
            offset=raw.offset() or 0,
            time_ns=raw.timestamp()[1] * 1_000_000,
            key=raw.key(),
            headers={name: value or b"" for name, value in raw.headers() or ()},  # type: ignore[misc, str-unpack]
            value=raw.value(),
        )

    def count(self, error: ck.KafkaError) -> None:
        """Count a trouble, and keep it for `check` if no patience will cure it."""
        with self._lock:
            self.troubles[error.name()] += 1
            if error.code() in REFUSED:
                self._refused = self.text(error)
            if error.code() in TELLING:
                self._trouble = error

    def check(self) -> None:
        """Raises TransportRefused, once, if Kafka has refused one of the clients."""
        with self._lock:
            refused, self._refused = self._refused, None
        if refused:
            raise TransportRefused(f"Kafka refuses us: {refused}. Check the security settings and the cluster's ACLs")

    def unreached(self, error: object) -> TransportError:
        """Why no broker has answered: refused, TLS, no such name, or away; raises TransportRefused itself."""
        self.check()
        with self._lock:
            trouble, self._trouble = self._trouble, None
        where = f"Kafka at {self.settings.bootstrap}"
        if trouble is None:
            return TransportError(f"{where} does not answer: {self.text(error)}")
        if trouble.code() == _E._SSL:
            return TransportRefused(f"{where}: TLS fails: {self.text(trouble)}")
        return TransportError(f"{where} does not answer: {self.text(trouble)}")

    def text(self, error: object) -> str:
        """What an error says, without secrets."""
        if isinstance(error, ck.KafkaException):
            error = error.args[0]
        return self.settings.redact(error.str() if isinstance(error, ck.KafkaError) else error)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Raises TransportError in place of the library's exceptions."""
        try:
            yield
        except (ck.KafkaException, ValueError, TypeError, RuntimeError) as error:
            raise TransportError(f"{what}: {self.text(error)}") from None
