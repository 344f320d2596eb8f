"""Messages of 6 KB a second, written and read: in memory, with the journal on disk, through Kafka.

To time another transport: one entry in `_transports`.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import Figure, NotHere
from benchmarks.broker import broker
from streams import Batch, Outgoing, Transport
from streams.journal import Journal
from streams.kafka import KafkaTransport
from streams.memory import MemoryTransport
from streams.topics import TELEMETRY, specs

SIZE = 6_000
_FLUSH_EVERY = 1_000
_KAFKA = (12_500.0, 98_000.0)
_KAFKA_OF = "producer, broker and consumer on two cores"


def figures(*, quick: bool) -> Iterator[Figure]:
    """Each transport empty at the start of each repeat; a flush every 1,000 messages, one reader."""
    all_messages = _messages(2_000 if quick else 40_000)
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        for name, make in _transports(folder, parts):
            kafka = name == "Kafka"  # whose clients take a while to get going
            messages = all_messages if kafka else all_messages[:10_000]
            runs = [_once(make(), messages, parts) for _ in range(3 if quick or kafka else 5)]
            known = _KAFKA if kafka else (None, None)
            for what, seconds, reference in zip(("produced", "consumed"), zip(*runs, strict=True), known, strict=True):
                yield Figure(
                    name=f"messages of 6 KB {what}, {name}",
                    unit="messages/s",
                    values=[len(messages) / one for one in seconds],
                    reference=reference,
                    reference_of=_KAFKA_OF if reference else "",
                )


def _transports(folder: Path, parts: ExitStack) -> Iterator[tuple[str, Callable[[], Transport]]]:
    numbers = iter(range(1_000_000))

    def memory(journal: Journal | None = None) -> Transport:
        return MemoryTransport(journal=journal, max_messages=1_000_000, keep=1_000_000)

    def journalled() -> Transport:
        journal = Journal(folder / f"{next(numbers)}.journal")
        parts.callback(journal.close)
        return memory(journal)

    yield "memory", memory
    yield "journal on disk", journalled
    try:
        bootstrap = parts.enter_context(broker())
    except NotHere:
        return
    yield "Kafka", lambda: KafkaTransport(bootstrap=bootstrap, prefix=f"t{next(numbers)}-")


def _messages(count: int) -> Sequence[Outgoing]:
    """Values that nothing can compress, as those of telemetry are."""
    headers = {"content-type": b"application/octet-stream", "node": b"n00001"}
    return [
        Outgoing(topic=TELEMETRY, key=b"n%05d" % (i % 5_000), value=os.urandom(SIZE), headers=headers)
        for i in range(count)
    ]


def _once(transport: Transport, messages: Sequence[Outgoing], parts: ExitStack) -> tuple[float, float]:
    """Seconds to write all of them until they are acknowledged, and to read all of them."""
    parts.callback(transport.close)
    transport.ensure_topics(specs())
    producer = transport.producer(client_id="bench")
    producer.flush()
    start = time.perf_counter()
    for i, message in enumerate(messages, start=1):
        producer.send(message)
        if i % _FLUSH_EVERY == 0:
            producer.flush()
    producer.flush()
    written = time.perf_counter() - start
    producer.close()
    source = transport.subscribe([TELEMETRY], group="bench", client_id="bench")
    try:
        while not source.poll(timeout_s=1.0, max_messages=1):  # joining the group is not reading
            pass
        start, count = time.perf_counter(), 0
        while count < len(messages):
            found = source.poll(timeout_s=1.0)
            count += len(found.messages) if isinstance(found, Batch) else 0
        return written, time.perf_counter() - start
    finally:
        source.close()
