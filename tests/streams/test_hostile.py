"""Ten thousand hostile messages among good ones, through the window job: all good counted, all bad set aside.

To add a trick: one entry in `support.hostile.TRICKS`.
"""

import gc
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest
from support.fleet import SECOND, START, batch, message, outgoing
from support.hostile import TRICKS, stream
from support.jobs import Clock, Tail, eventually, running, window_rows

from streams import Message, Outgoing, Transport
from streams.decode import decode
from streams.kafka import KafkaTransport
from streams.memory import MemoryTransport
from streams.topics import DEADLETTER, TELEMETRY, specs
from streams.window import run_window_job
from streams.windows import Windows

HOSTILE = 10_000
NODES = ("n1", "n2", "n3")
MINUTES = 5
NOT_EXACT = frozenset({"one bit flipped", "gpu index outside"})
"""One may be refused by several rules, the other has good rows as well; both are in test_decode.py."""


def mixed(start_ns: int, *, without: frozenset[str], future_ns: int) -> Iterator[tuple[str, Outgoing]]:
    """Good messages of three nodes for five minutes with hostile ones between them, as (rule or nothing, message)."""
    steps = range(0, 60 * MINUTES + 60, 10)
    bad = stream(HOSTILE, without=without | NOT_EXACT)
    share = HOSTILE // len(steps) + 1
    for first in steps:
        for node in NODES:
            good = outgoing(batch(node, first_s=first, start_ns=start_ns))
            yield "", good
            if first % 60 == 30:
                yield "", good  # a duplicate, in time
        if first >= 60:
            yield "late", outgoing(batch("n1", first_s=0, seconds=1, gpus=1, start_ns=start_ns - 600 * SECOND))
            yield "future", outgoing(batch("n4", seconds=1, gpus=1, start_ns=future_ns))
        for _ in range(share):
            one = next(bad, None)
            if one is not None:
                yield one


def check(transport: Transport, start_ns: int, *, without: frozenset[str], future_ns: int, clock: Clock | None) -> None:
    """Send, run the job, compare what came out with what was sent."""
    transport.ensure_topics(specs(telemetry_partitions=1))
    sent: Counter[str] = Counter()
    producer = transport.producer(client_id="test")
    tail = Tail(transport, DEADLETTER)
    with running(run_window_job, transport, member="w", clock_ns=clock or time.time_ns, poll_s=0.05):
        for rule, one in mixed(start_ns, without=without, future_ns=future_ns):
            producer.send(one)
            sent[rule] += 1
        producer.flush()
        del sent[""]
        eventually(lambda: len(tail.messages()) >= sent.total(), "all dead letters", patience_s=90)
    found = Counter(m.headers["rule"].decode() for m in tail.messages())
    assert found == sent
    assert {m.headers["topic"] for m in tail.messages()} == {TELEMETRY.encode()}
    rows = window_rows(transport)
    wanted = [start_ns + 60 * SECOND * minute for minute in range(MINUTES)]
    for node in NODES:
        mine = rows.filter(node=node)
        assert sorted(mine["window_start_ns"].to_list()) == sorted(wanted * 2)
        assert set(mine["samples"]) == {60}
    producer.close()
    tail.close()


def test_ten_thousand_hostile_messages_in_memory() -> None:
    """Every good sample is counted once, every bad message is in the dead-letter topic under its rule."""
    clock = Clock(START + 400 * SECOND)
    transport = MemoryTransport(clock_ns=clock, keep=50_000)
    try:
        check(
            transport,
            START,
            without=frozenset({"huge value", "long ago"}),
            future_ns=START + 86_400 * SECOND,
            clock=clock,
        )
    finally:
        transport.close()


@pytest.mark.kafka
def test_ten_thousand_hostile_messages_through_kafka(kafka_bootstrap: str) -> None:
    """The same through a real broker, which stamps messages itself."""
    now = time.time_ns()
    start = now - now % (60 * SECOND) - 420 * SECOND
    without = frozenset({"huge value", "from the future", "long ago"})  # the broker takes no huge value
    transport = KafkaTransport(bootstrap=kafka_bootstrap, prefix=f"h{uuid.uuid4().hex[:8]}.")
    try:
        check(transport, start, without=without, future_ns=now + 86_400 * SECOND, clock=None)
    finally:
        transport.close()


def test_hostile_messages_leave_no_memory_behind() -> None:
    """Pass after pass of hostile messages, memory stays where it was: no cache grows with what strangers send."""
    windows = Windows(window_ns=60 * SECOND, lateness_ns=30 * SECOND, max_skew_ns=60 * SECOND)
    windows.assign(0, None)
    process = psutil.Process()
    offset = 0

    def one_pass(seed: int) -> None:
        nonlocal offset
        messages: list[Message] = []
        for _, one in stream(12 * len(TRICKS), seed=seed, without=frozenset({"huge value"})):
            place = {"topic": TELEMETRY, "partition": 0, "offset": offset, "time_ns": START}
            messages.append(Message(**place, key=one.key, headers=one.headers, value=one.value))  # type: ignore[arg-type]
            offset += 1
        messages.append(message(batch("n1", first_s=seed * 60), offset=offset, time_ns=START + seed * 60 * SECOND))
        offset += 1
        decoded = decode(messages)
        windows.add(messages, decoded)
        windows.place(0)

    for seed in range(2):
        one_pass(seed)
    gc.collect()
    before = process.memory_info().rss
    for seed in range(2, 5):
        one_pass(seed)
    gc.collect()
    assert process.memory_info().rss - before < 40 << 20
    tracemalloc.start()
    try:
        one_pass(5)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        one_pass(6)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - held < 2 << 20
    finally:
        tracemalloc.stop()
