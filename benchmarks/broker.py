"""A real Kafka for benchmarks: the one that the tests use, and what only a benchmark does with it.

To use your own: ISOTACH_TEST_KAFKA=host:port.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from benchmarks import NotHere
from streams import Outgoing

_TESTS = str(Path(__file__).resolve().parents[1] / "tests")
PATIENCE_S = 60.0


@contextmanager
def broker() -> Iterator[str]:
    """Bootstrap servers of a broker that lives as long as the block; raises NotHere."""
    if _TESTS not in sys.path:
        sys.path.append(_TESTS)
    from support.kafka import _new_broker

    try:
        found, _ = _new_broker()
    except pytest.skip.Exception as reason:
        raise NotHere(str(reason)) from None
    try:
        yield found.bootstrap
    finally:
        found.remove()


@contextmanager
def appearing_at_once(bootstrap: str, messages: Sequence[Outgoing], *, prefix: str) -> Iterator[None]:
    """Messages written by one transaction, whose commit is the end of the block: readers see all or nothing."""
    producer = ck.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{prefix}bench",
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for message in messages:
        producer.produce(
            prefix + message.topic,
            key=message.key,
            value=message.value,
            headers=list(message.headers.items()),
            partition=-1 if message.partition is None else message.partition,
        )
        producer.poll(0)
    producer.flush(PATIENCE_S)
    yield
    producer.commit_transaction(PATIENCE_S)


def raw_consumer(bootstrap: str, topic: str, count: int) -> float:
    """Seconds to read so many messages of a topic with the client library alone, from the first one on."""
    consumer = ck.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"raw-{time.time_ns()}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        read = len(consumer.consume(1, PATIENCE_S))
        start, deadline = time.perf_counter(), time.monotonic() + PATIENCE_S
        while read < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{read} of {count} messages of {topic}")
            read += sum(message.error() is None for message in consumer.consume(1_250, 0.2))
        return time.perf_counter() - start
    finally:
        consumer.close()


def wait_for_members(bootstrap: str, group: str, *, members: int, partitions: int) -> None:
    """Return once so many members share so many partitions; raises TimeoutError."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        future = admin.describe_consumer_groups([group], request_timeout=10)[group]
        try:
            shares = [len(member.assignment.topic_partitions) for member in future.result().members]
        except ck.KafkaException:  # the group is not there yet
            shares = []
        if len(shares) == members and min(shares) > 0 and sum(shares) == partitions:
            return
        time.sleep(0.1)
    raise TimeoutError(f"group {group} has no {members} members with {partitions} partitions")
