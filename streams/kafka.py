"""The transport of a fleet: Kafka, through confluent-kafka, which only the `kafka*` modules of this package import.

To change a client's settings: `kafka_settings.py`; reading: `kafka_source.py`; writing: `kafka_producer.py`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from streams import Committed, TopicPartition, TopicSpec
from streams.kafka_link import LATER, STALE, KafkaLink, client_logger
from streams.kafka_producer import KafkaProducer, KafkaTransactionalProducer
from streams.kafka_settings import MAX_MESSAGE_BYTES, KafkaSettings
from streams.kafka_source import KafkaReader, KafkaSource
from telemetry.errors import TransportError

_NO_LEADER = ck.KafkaError._NOENT  # said of a topic that is not there, too
_AGAIN_S = 0.1  # between two looks for a leader


class KafkaTransport:
    """A Kafka cluster.

    `security` holds librdkafka's security.protocol, sasl.* and ssl.* settings, never shown; `overrides` any other
    setting that no guarantee rests on; `prefix` goes before every topic, group and transactional id. Transient trouble
    (brokers down) makes batches empty and is counted in `troubles`; commit, flush and publish raise TransportError
    once their time is up.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        security: Mapping[str, str] = {},
        overrides: Mapping[str, str] = {},
        session_timeout_s: float = 10.0,
        prefix: str = "",
        replication: int | None = None,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = KafkaSettings(
            bootstrap=bootstrap, security=security, overrides=overrides, session_timeout_s=session_timeout_s
        )
        self._link = KafkaLink(settings, prefix)
        self._replication = replication
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._admin_client: AdminClient | None = None
        self._lookups: dict[str, ck.Consumer] = {}  # one a group, for `committed`
        self._log_id: str | None = None

    def __repr__(self) -> str:
        return f"KafkaTransport({self._link.settings!r}, prefix={self._link.prefix!r})"

    @property
    def troubles(self) -> Mapping[str, int]:
        """Errors of all clients that were waited out, by librdkafka's name."""
        return dict(self._link.troubles)

    @property
    def log_id(self) -> str:
        """The cluster's id, and the prefix if there is one."""
        if self._log_id is None:
            with self._link.explained("Kafka does not answer"):
                cluster_id = self._admin().list_topics(timeout=self._timeout_s).cluster_id
            self._log_id = f"{cluster_id}/{self._link.prefix}" if self._link.prefix else str(cluster_id)
        return self._log_id

    def _admin(self) -> AdminClient:
        with self._lock:
            if self._admin_client is None:
                with self._link.explained("Kafka settings"):
                    self._admin_client = AdminClient(
                        self._link.settings.admin() | {"error_cb": self._link.count}, logger=client_logger
                    )
            return self._admin_client

    def _metadata(self) -> Any:
        return self._asked(self._timeout_s)

    def _asked(self, timeout_s: float) -> Any:
        admin = self._admin()
        try:
            return admin.list_topics(timeout=timeout_s)
        except ck.KafkaException as error:
            admin.poll(0)  # the client tells the cause here, and only here
            raise self._link.unreached(error) from None

    def reach(self, *, timeout_s: float) -> None:
        """Return once a broker has answered; raises TransportRefused, or TransportError if none did in this time."""
        self._asked(timeout_s)

    def examine(self, specs: Sequence[TopicSpec]) -> tuple[list[str], list[str]]:
        """Topics that are missing, and differences of those that are there, each with its remedy. Changes nothing."""
        metadata = self._metadata()
        there = [spec for spec in specs if self._link.prefix + spec.name in metadata.topics]
        missing = [self._link.prefix + spec.name for spec in specs if spec not in there]
        return missing, self._differences(there, metadata) if there else []

    def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing; raises TransportError naming every difference of an existing topic, with a remedy.

        New topics take LogAppendTime, so that the age of a record is the time since the log took it in.
        """
        metadata = self._metadata()
        factor = self._replication or min(3, len(metadata.brokers))
        prefix = self._link.prefix
        missing = [spec for spec in specs if prefix + spec.name not in metadata.topics]
        if missing:
            new = [
                NewTopic(prefix + s.name, s.partitions, factor, config=_creation(s, replicated=factor > 2))
                for s in missing
            ]
            with self._link.explained("topics cannot be created"):
                for future in self._admin().create_topics(new, request_timeout=self._timeout_s).values():
                    try:
                        future.result()
                    except ck.KafkaException as error:
                        if error.args[0].code() != ck.KafkaError.TOPIC_ALREADY_EXISTS:  # another process was faster
                            raise
            metadata = self._wait_for({prefix + spec.name for spec in missing})
        differences = self._differences(specs, metadata)
        if differences:
            raise TransportError("topics differ from what is needed. " + "; ".join(differences))

    def _wait_for(self, names: set[str]) -> Any:
        """Metadata in which every partition of these topics has a leader."""
        deadline = self._clock() + self._timeout_s
        while True:
            metadata = self._metadata()
            topics = [metadata.topics[name] for name in names if name in metadata.topics]
            ready = len(topics) == len(names) and all(p.leader >= 0 for t in topics for p in t.partitions.values())
            if ready:
                return metadata
            if self._clock() >= deadline:
                raise TransportError(f"new topics have no leader after {self._timeout_s:g} s: {', '.join(names)}")
            self._admin().poll(0.05)

    def _differences(self, specs: Sequence[TopicSpec], metadata: Any) -> list[str]:
        prefix = self._link.prefix
        resources = [ConfigResource(ConfigResource.Type.TOPIC, prefix + spec.name) for spec in specs]
        with self._link.explained("topic settings cannot be read"):
            futures = self._admin().describe_configs(resources, request_timeout=self._timeout_s)
            found = {resource.name: future.result() for resource, future in futures.items()}
        differences = []
        for spec in specs:
            name = prefix + spec.name
            count = len(metadata.topics[name].partitions)
            if count != spec.partitions:
                remedy = f"kafka-topics.sh --alter --topic {name} --partitions {spec.partitions}"
                if count > spec.partitions:
                    remedy = f"set the number of partitions to {count}, or delete the topic (Kafka cannot shrink it)"
                differences.append(f"{name} has {count} partitions, not {spec.partitions}: {remedy}")
            for key, wanted in _compared(spec).items():
                value = found[name][key].value
                if value != wanted:
                    remedy = f"kafka-configs.sh --alter --entity-type topics --entity-name {name}"
                    differences.append(f"{name} has {key}={value}, not {wanted}: {remedy} --add-config {key}={wanted}")
        return differences

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has; raises TransportError if it does not exist."""
        found = self._metadata().topics.get(self._link.prefix + topic)
        if found is None:
            raise TransportError(f"there is no topic {self._link.prefix}{topic}: create it with ensure_topics")
        return len(found.partitions)

    def producer(self, *, client_id: str) -> KafkaProducer:
        """An idempotent producer."""
        return KafkaProducer(self._link, client_id, clock=self._clock)

    def transactional_producer(self, *, transactional_id: str) -> KafkaTransactionalProducer:
        """A producer of transactions; fences its predecessors of the same id before it returns."""
        return KafkaTransactionalProducer(self._link, transactional_id, timeout_s=self._timeout_s)

    def subscribe(self, topics: Sequence[str], *, group: str, client_id: str) -> KafkaSource:
        """A member of a consumer group; raises TransportError for a topic that does not exist."""
        for topic in topics:
            self.partitions(topic)
        return KafkaSource(
            self._link, topics, group=group, client_id=client_id, timeout_s=self._timeout_s, clock=self._clock
        )

    def read(self, start: Mapping[TopicPartition, int]) -> KafkaReader:
        """A reader from these offsets."""
        return KafkaReader(self._link, start, self._ends, timeout_s=self._timeout_s)

    def ends(self, topic: str) -> Mapping[TopicPartition, int]:
        """Where each partition of the topic ends now: what is read from there is new."""
        return self._ends([TopicPartition(topic, n) for n in range(self.partitions(topic))], self._timeout_s)

    def _ends(self, partitions: Iterable[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """The last stable offset of each partition: where a reader of committed messages is at the end."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {self._link.wire(tp): latest for tp in partitions}
        deadline = self._clock() + timeout_s
        while True:
            left = max(deadline - self._clock(), 0.1)
            futures = self._admin().list_offsets(
                asked, isolation_level=ck.IsolationLevel.READ_COMMITTED, request_timeout=left
            )
            try:
                return {self._link.ours(tp): future.result().offset for tp, future in futures.items()}
            except ck.KafkaException as error:
                self._link.count(error.args[0])
                code, told = error.args[0].code(), f"offsets cannot be listed: {self._link.text(error)}"
                if code not in STALE | LATER | {_NO_LEADER} or self._clock() >= deadline:
                    raise TransportError(told) from None
            # After a broker's restart the client knows an old leader, or none, until it has asked again.
            topics = self._metadata().topics
            if code == _NO_LEADER and not all(tp.topic in topics for tp in asked):
                raise TransportError(told)
            time.sleep(_AGAIN_S)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, Committed]:
        """The group's committed places; partitions without one are absent."""
        with self._lock, self._link.explained(f"places of group {group} cannot be read"):
            if group not in self._lookups:
                settings = self._link.settings.consumer("isotach-lookup", self._link.prefix + group)
                self._lookups[group] = ck.Consumer(settings | {"error_cb": self._link.count}, logger=client_logger)
            asked = [self._link.wire(tp) for tp in partitions]
            found = self._lookups[group].committed(asked, timeout=self._timeout_s)
        places = {self._link.ours(tp): self._link.place(tp) for tp in found}
        return {tp: place for tp, place in places.items() if place}

    def close(self) -> None:
        """Let go of the transport's own clients; producers, sources and readers are closed by their owners."""
        with self._lock:
            for consumer in self._lookups.values():
                consumer.close()
            self._lookups.clear()
            self._admin_client = None


def _compared(spec: TopicSpec) -> dict[str, str]:
    """The settings of a topic that must be as they are, because the guarantees rest on them."""
    settings = {"cleanup.policy": spec.cleanup, "message.timestamp.type": "LogAppendTime"}
    if spec.retention_ms is not None:
        settings["retention.ms"] = str(spec.retention_ms)
    return settings


def _creation(spec: TopicSpec, *, replicated: bool) -> dict[str, str]:
    """The settings that a topic is created with; those not in `_compared` may be changed by its owner."""
    settings = {"max.message.bytes": str(MAX_MESSAGE_BYTES)} | _compared(spec)
    if spec.cleanup == "compact":  # small segments and early cleaning: a reader from the start finds little to skip
        settings |= {"segment.bytes": str(128 << 20), "segment.ms": "3600000", "min.cleanable.dirty.ratio": "0.1"}
    if replicated:
        settings["min.insync.replicas"] = "2"
    return settings
