"""What only the in-memory log can show: bounds, what leaves it, and what its members see of each other."""

import threading
import time
from collections.abc import Callable

import confluent_kafka
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.transports import Job, out, read_all, spec, until, values

from streams import Assigned, Batch, Committed, Message, TopicPartition
from streams.groups import Group
from streams.memory import MemoryTransport
from streams.partition_log import PartitionLog, murmur2, partition_of
from telemetry.errors import TransportError

T0 = TopicPartition("t", 0)


def _transport(*, partitions: int = 1, cleanup: str = "delete", **settings: object) -> MemoryTransport:
    transport = MemoryTransport(**settings)  # type: ignore[arg-type]
    transport.ensure_topics([spec("t", partitions=partitions, cleanup=cleanup)])
    return transport


def _write(transport: MemoryTransport, *texts: str | None, key: str = "k") -> None:
    producer = transport.producer(client_id="p")
    for text in texts:
        producer.send(out("t", key, text))
    producer.flush()


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(key: bytes, hashed: int) -> None:
    """Values of Apache Kafka's own UtilsTest.testMurmur2 (signed there)."""
    assert murmur2(key) == hashed & 0xFFFF_FFFF


@settings(max_examples=200, deadline=None)
@given(key=st.binary(max_size=64), partitions=st.integers(1, 64))
def test_a_key_goes_where_librdkafka_puts_it(key: bytes, partitions: int) -> None:
    """The same key has the same partition on both transports."""
    assert partition_of(key, partitions) == confluent_kafka.murmur2(key, partitions)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.sampled_from("abc"), st.booleans()),
            st.tuples(st.just("drop"), st.integers(0, 40)),
            st.tuples(st.just("trim"), st.integers(0, 40)),
        ),
        max_size=60,
    ),
    compact=st.booleans(),
)
def test_a_partition_is_a_sorted_map(steps: list[tuple[object, ...]], compact: bool) -> None:
    """Whatever is appended, dropped and trimmed: it reads as a plain dictionary of offsets would."""
    log, model = PartitionLog(compact=compact), dict[int, Message]()
    for step in steps:
        match step:
            case ("append", str() as key, bool() as deletes):
                message = Message(
                    topic="t",
                    partition=0,
                    offset=log.next_offset,
                    time_ns=0,
                    key=key.encode(),
                    headers={},
                    value=None if deletes else b"v",
                )
                if compact:
                    model = {o: m for o, m in model.items() if m.key != message.key}
                model[message.offset] = message
                log.append(message)
            case ("drop", int() as offset):
                model.pop(offset, None)
                log.drop(offset)
            case ("trim", int() as before):
                gone = [o for o in model if o < before]
                assert log.trim(before) == len(gone)
                model = {o: m for o, m in model.items() if o >= before}
        assert log.read(0, 1_000) == list(model.values())
        assert log.read(7, 3) == [m for o, m in model.items() if o >= 7][:3]
        assert log.alive == len(model)
        assert set(log.tombstones) == ({o for o, m in model.items() if m.value is None} if compact else set())


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["join", "leave", "poll"]), st.sampled_from("abcd")), max_size=40),
    count=st.integers(1, 7),
)
def test_no_partition_has_two_owners_and_none_is_forgotten(steps: list[tuple[str, str]], count: int) -> None:
    """Members come, go and poll in any order: once all have polled, each partition has one owner, shared evenly."""
    group, counts, members = Group("g"), {"t": count}, set[str]()

    def poll(member: str) -> None:
        group.release(member)
        group.claim(member)
        owned = [tp for m in members for tp in group.owned(m)]
        assert len(owned) == len(set(owned))

    for step, member in steps:
        if step == "join" and member not in members:
            members.add(member)
            group.join(member, ["t"], counts)
        elif step == "leave" and member in members:
            members.remove(member)
            group.leave(member, counts)
        elif step == "poll" and member in members:
            poll(member)
    for member in (*sorted(members), *sorted(members)):
        poll(member)
    shares = [len(group.owned(member)) for member in members]
    assert sum(shares) == (count if members else 0)
    assert not shares or max(shares) - min(shares) <= 1


def test_memory_stays_flat_once_everybody_has_read() -> None:
    """What a group has committed and a reader has passed leaves; what one of them still needs stays."""
    transport = _transport(settle_s=0)
    job = Job(transport.subscribe(["t"], group="g", client_id="a"))
    reader = transport.read({T0: 0})
    _write(transport, *map(str, range(100)))
    until(lambda: len(job.messages) == 100, job)
    job.source.commit({T0: Committed(90)})
    assert transport.held() == {"t": 100}
    assert len(reader.poll(timeout_s=0, max_messages=60)) == 60
    assert transport.held() == {"t": 100}
    reader.poll(timeout_s=0)
    assert transport.held() == {"t": 40}
    reader.poll(timeout_s=0)
    assert transport.held() == {"t": 10}
    transport.close()


def test_a_restarted_reader_finds_what_the_dead_one_had_not_stored() -> None:
    """A reader dies with a batch in its hands: the batch stays for a while, though the groups have passed it."""
    now = [0.0]
    transport = _transport(
        monotonic=lambda: now[0], settle_s=60.0, clock_ns=lambda: int(now[0] * 1e9), session_timeout_s=1e9
    )
    job = Job(transport.subscribe(["t"], group="g", client_id="a"))
    _write(transport, "1", "2")
    now[0] = 100.0
    dying = transport.read({T0: 0})
    assert values(dying.poll(timeout_s=0)) == ["1", "2"]
    dying.close()
    until(lambda: job.messages, job)
    job.source.commit({T0: Committed(2)})
    now[0] = 159.0
    again = transport.read({T0: 0})
    assert values(again.poll(timeout_s=0)) == ["1", "2"]
    again.poll(timeout_s=0)
    again.close()
    now[0] = 300.0
    job.source.commit({T0: Committed(2)})
    assert transport.held() == {"t": 0}
    transport.close()


def test_a_topic_that_nobody_reads_keeps_its_newest() -> None:
    """Without a subscriber nothing blocks and memory is bounded: the oldest go, counted."""
    transport = _transport(keep=10, max_messages=20)
    _write(transport, *map(str, range(100)))
    assert transport.held() == {"t": 10}
    assert transport.dropped() == {"t": 90}
    reader = transport.read({T0: 0})
    assert values(read_all(reader)) == [str(i) for i in range(90, 100)]
    transport.close()


def test_a_full_topic_holds_its_producer_until_it_is_read() -> None:
    """A producer waits while 20 messages are unread, and goes on as soon as they are committed."""
    transport = _transport(max_messages=20)
    job = Job(transport.subscribe(["t"], group="g", client_id="a"))
    writer = threading.Thread(target=_write, args=(transport, *map(str, range(50))))
    writer.start()
    until(lambda: len(job.messages) == 20, job)
    writer.join(0.1)
    assert writer.is_alive()
    assert transport.held() == {"t": 20}

    def read_on() -> bool:
        job.source.commit({T0: Committed(len(job.messages))})
        return len(job.messages) == 50

    until(read_on, job)
    writer.join(5)
    assert values(job.messages) == [str(i) for i in range(50)]
    transport.close()


def test_a_topic_that_stays_full_says_who_does_not_read() -> None:
    """After its patience the producer gets an error that names the group."""
    transport = _transport(max_messages=5, full_timeout_s=0.05)
    transport.subscribe(["t"], group="slow", client_id="a")
    with pytest.raises(TransportError, match="t is full: 5 messages wait for group slow"):
        _write(transport, *"123456")
    transport.close()


def test_messages_past_their_retention_go_read_or_not() -> None:
    """As in Kafka, a group that never comes back does not fill the memory for ever."""
    now_ns = [0]
    transport = _transport(clock_ns=lambda: now_ns[0])
    transport.subscribe(["t"], group="gone", client_id="a").close()
    _write(transport, "old")
    now_ns[0] = 86_400_001 * 1_000_000
    _write(transport, "new")
    assert transport.held() == {"t": 1}
    transport.close()


def test_a_deletion_is_told_for_a_day() -> None:
    """A tombstone stays while somebody may not have seen it, then it goes too."""
    now_ns = [0]
    transport = _transport(cleanup="compact", clock_ns=lambda: now_ns[0])
    _write(transport, "1", None)
    assert transport.held() == {"t": 1}
    now_ns[0] = 90_000 * 10**9
    _write(transport, "2", key="other")
    assert transport.held() == {"t": 1}
    transport.close()


def test_close_wakes_everybody() -> None:
    """Threads that wait for messages or for room end at once, with an error that says why."""
    transport = _transport(max_messages=1)
    source = transport.subscribe(["t"], group="g", client_id="a")
    assert isinstance(source.poll(timeout_s=0), Assigned)
    _write(transport, "1")
    assert isinstance(source.poll(timeout_s=0), Batch)
    reader = transport.read({T0: 1})
    told: list[str] = []

    def waiting(call: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except TransportError as error:
                told.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [
        waiting(lambda: source.poll(timeout_s=60)),
        waiting(lambda: reader.poll(timeout_s=60)),
        waiting(lambda: _write(transport, "2")),
    ]
    time.sleep(0.05)
    transport.close()
    for thread in threads:
        thread.join(5)
    assert told == ["the in-memory log is closed"] * 3


def test_many_threads_lose_and_repeat_nothing() -> None:
    """Four producers and three members that come and go: each message arrives, in order for each key."""
    transport = _transport(partitions=6)
    total, seen, lock = 4 * 500, list[Message](), threading.Lock()
    done = threading.Event()

    def produce(number: int) -> None:
        _write(transport, *map(str, range(500)), key=f"node{number}")

    def consume(number: int) -> None:
        source = transport.subscribe(["t"], group="g", client_id=f"m{number}")
        while not done.is_set():
            event = source.poll(timeout_s=0.02, max_messages=50)
            if isinstance(event, Batch) and event.messages:
                with lock:
                    seen.extend(event.messages)
                ends = {TopicPartition("t", m.partition): Committed(m.offset + 1) for m in event.messages}
                source.commit(ends)
                done.wait(0) if len(seen) < total else done.set()
        source.close()

    threads = [threading.Thread(target=produce, args=(i,)) for i in range(4)]
    threads += [threading.Thread(target=consume, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({(m.partition, m.offset) for m in seen}) == len(seen) == total
    transport.close()


def test_a_place_must_belong_to_the_sources_group() -> None:
    """Places published for another group than the source's are a mistake of the caller."""
    transport = _transport()
    source = transport.subscribe(["t"], group="g", client_id="a")
    producer = transport.transactional_producer(transactional_id="s")
    with pytest.raises(ValueError, match="group other"):
        producer.publish([], group="other", places={T0: Committed(1)}, source=source)
    transport.close()
