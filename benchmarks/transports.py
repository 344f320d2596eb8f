"""Messages of 6 KB a second, written and read: in memory, with the journal on disk, through Kafka.

To time another transport: a function like `_journalled`, and its line in `figures`.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import Figure, NotHere
from benchmarks.broker import broker, raw_consumer
from streams import Batch, Outgoing, Transport
from streams.journal import Journal
from streams.kafka import KafkaTransport
from streams.memory import MemoryTransport
from streams.topics import TELEMETRY, specs

SIZE = 6_000
_FLUSH_EVERY = 1_000
_MANY = 1_000_000  # messages a log in memory holds at most
_OF = "client library alone, two cores for all"


def figures(*, quick: bool) -> Iterator[Figure]:
    """Each transport empty at the start of each repeat; a flush every 1,000 messages, one reader."""
    times = 3 if quick else 5
    messages = _messages(2_000 if quick else 40_000)  # Kafka's clients take a while to get going
    fewer = messages[:10_000]
    yield from _both("memory", [_in_memory(fewer, None) for _ in range(times)], len(fewer))
    with tempfile.TemporaryDirectory() as folder:
        found = [_journalled(fewer, Path(folder) / f"{i}.journal") for i in range(times)]
    yield from _both("journal on disk", found, len(fewer))
    try:
        with broker() as bootstrap:
            yield from _kafka(bootstrap, messages)
    except NotHere:
        return


def _both(name: str, found: Sequence[tuple[float, float]], count: int) -> Iterator[Figure]:
    for what, seconds in zip(("written", "read"), zip(*found, strict=True), strict=True):
        yield Figure(
            name=f"messages of 6 KB {what}, {name}", unit="messages/s", values=[count / one for one in seconds]
        )


def _kafka(bootstrap: str, messages: Sequence[Outgoing]) -> Iterator[Figure]:
    found, raw = [], []
    for i in range(3):
        found.append(_once(KafkaTransport(bootstrap=bootstrap, prefix=f"t{i}-"), messages))
        raw.append(raw_consumer(bootstrap, f"t{i}-{TELEMETRY}", len(messages)))
    written, read = ([len(messages) / one for one in seconds] for seconds in zip(*found, strict=True))
    yield Figure(
        name="messages of 6 KB written, Kafka",
        unit="messages/s",
        values=written,
        reference=12_500.0,
        reference_of=_OF,
    )
    yield Figure(
        name="messages of 6 KB read, Kafka",
        unit="messages/s",
        values=read,
        alternative="confluent-kafka alone",
        alternative_values=[len(messages) / one for one in raw],
        reference=98_000.0,
        reference_of=_OF,
    )


def _in_memory(messages: Sequence[Outgoing], journal: Journal | None) -> tuple[float, float]:
    return _once(MemoryTransport(journal=journal, max_messages=_MANY, keep=_MANY), messages)


def _journalled(messages: Sequence[Outgoing], path: Path) -> tuple[float, float]:
    journal = Journal(path)
    try:
        return _in_memory(messages, journal)
    finally:
        journal.close()


def _messages(count: int) -> Sequence[Outgoing]:
    """Values that nothing can compress, as those of telemetry are."""
    headers = {"content-type": b"application/octet-stream", "node": b"n00001"}
    return [
        Outgoing(topic=TELEMETRY, key=b"n%05d" % (i % 5_000), value=os.urandom(SIZE), headers=headers)
        for i in range(count)
    ]


def _once(transport: Transport, messages: Sequence[Outgoing]) -> tuple[float, float]:
    """Seconds to write all of them until they are acknowledged, and to read all of them."""
    with ExitStack() as parts:
        parts.callback(transport.close)
        transport.ensure_topics(specs())
        producer = transport.producer(client_id="bench")
        parts.callback(producer.close)
        producer.flush()
        start = time.perf_counter()
        for i, message in enumerate(messages, start=1):
            producer.send(message)
            if i % _FLUSH_EVERY == 0:
                producer.flush()
        producer.flush()
        written = time.perf_counter() - start
        source = transport.subscribe([TELEMETRY], group="bench", client_id="bench")
        parts.callback(source.close)
        count = 0
        while not count:  # joining the group is not reading
            count = _read(lambda: source.poll(timeout_s=1.0, max_messages=1))
        start = time.perf_counter()
        while count < len(messages):
            count += _read(lambda: source.poll(timeout_s=1.0))
        return written, time.perf_counter() - start


def _read(poll: Callable[[], object]) -> int:
    found = poll()
    return len(found.messages) if isinstance(found, Batch) else 0
